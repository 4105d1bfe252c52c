"""TCP and TLS connections by sockets.

All addresses of a host name are tried: the next one starts when the previous one fails or has not
answered in a quarter of a second (RFC 8305).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from aiohappyeyeballs import start_connection

from ....errors import ConnectError, TransportTimeout
from ...error_advice import REACHABLE
from . import tls_context as tls
from .addresses import Address
from .session import ByteTransport, Session
from .tls_context import TlsContext

_HIGH_WATER: Final = 4_000_000  # bytes unsent before producers pause
_ATTEMPT_DELAY_S: Final = 0.25


class SocketProtocol(asyncio.Protocol):
    session: Session

    def __init__(self, make: Callable[[ByteTransport], Session]) -> None:
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=_HIGH_WATER)
        self.session = self._make(stream)

    def connection_lost(self, exc: Exception | None) -> None:
        self.session.lost(tls.client_certificate_error(self.session.peer, exc) or exc)

    def data_received(self, data: bytes) -> None:
        self.session.receive(data)

    def pause_writing(self) -> None:
        self.session.pause_writing()

    def resume_writing(self) -> None:
        self.session.resume_writing()


class Sockets:
    def __init__(self, secured: TlsContext) -> None:
        self._tls = secured

    async def dial(
        self, address: Address, make: Callable[[ByteTransport], Session], timeout_s: float
    ) -> Session:
        """Connect within `timeout_s`, including TLS.

        Raises:
            AuthenticationError: if the broker does not accept the client's certificate.
            ConnectError: for all other failures but a timeout (`TransportTimeout`).
        """
        loop = asyncio.get_running_loop()
        context = self._tls.context() if address.tls else None
        try:
            async with asyncio.timeout(timeout_s):
                stream = await _connect(loop, address)
                try:
                    _, protocol = await loop.create_connection(
                        lambda: SocketProtocol(make),
                        sock=stream,
                        ssl=context,
                        server_hostname=address.host if context else None,
                    )
                except OSError as error:  # `create_connection` closes the socket
                    if context is not None:
                        raise tls.handshake_error(str(address), address.host, error) from error
                    raise
        except TimeoutError as error:
            text = f"no connection to {address} within {timeout_s:g} s"
            raise TransportTimeout(text) from error
        except OSError as error:
            raise ConnectError(f"no connection to {address}: {error}; {REACHABLE}") from error
        # The socket itself, because asyncio's transport can close nothing once its loop is closed,
        # and its file descriptor may be in use again.
        protocol.session.drop = partial(_drop, stream)
        return protocol.session


def _drop(stream: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        stream.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        stream.close()


async def _resolved(loop: asyncio.AbstractEventLoop, address: Address) -> list[Any]:
    """Return the result of `getaddrinfo`. Only names need a thread."""
    where, kind = (address.host, address.port), socket.SOCK_STREAM
    try:
        return socket.getaddrinfo(*where, type=kind, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    try:
        return await loop.getaddrinfo(*where, type=kind)
    except RuntimeError:  # at the end of the interpreter no thread can start
        return socket.getaddrinfo(*where, type=kind)


async def _connect(loop: asyncio.AbstractEventLoop, address: Address) -> socket.socket:
    """Open a TCP connection to one of the addresses of a host, or raise an error with all
    reasons."""
    found = await _resolved(loop, address)
    # Not `create_connection(happy_eyeballs_delay=...)`: uvloop does not accept the argument.
    # The operating system has sorted the addresses (RFC 6724); `interleave=0` keeps its order.
    return await start_connection(
        found, happy_eyeballs_delay=_ATTEMPT_DELAY_S, interleave=0, loop=loop
    )
