"""Connect asyncio's sockets to sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from .broker_service import BrokerService
from .session import Session

WRITE_HIGH_WATER = 4_000_000


class Connection(asyncio.Protocol):
    """One connection from a client.

    Args:
        sockets: Connections with an open socket. Each connection adds and removes itself.
    """

    session: Session

    def __init__(self, service: BrokerService, sockets: set[Connection]) -> None:
        self._service = service
        self._sockets = sockets

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        host, port = stream.get_extra_info("sockname")[:2]
        secure = stream.get_extra_info("ssl_object")
        self.session = Session(
            self._service,
            stream,
            url=url_of("pulsar" if secure is None else "pulsar+ssl", host, port),
            address="/{}:{}".format(*stream.get_extra_info("peername")[:2]),
            certificate=None if secure is None else _common_name(secure.getpeercert()),
        )
        self._sockets.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sockets.discard(self)
        self.session.lost()

    def data_received(self, data: bytes) -> None:
        self.session.receive(data)

    def pause_writing(self) -> None:
        self.session.pause_writing()

    def resume_writing(self) -> None:
        self.session.resume_writing()


def url_of(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _common_name(certificate: Mapping[str, Any] | None) -> str | None:
    parts = (part for names in (certificate or {}).get("subject", ()) for part in names)
    return next((value for name, value in parts if name == "commonName"), None)
