"""One cluster: its addresses, the client's credentials, and the dialer that connects to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .addresses import Address, parse
from .session import ByteTransport, Session
from .tls_context import TlsContext


class Dialer(Protocol):
    """Opens connections: sockets, or a broker in memory."""

    async def dial(
        self, address: Address, make: Callable[[ByteTransport], Session], timeout_s: float
    ) -> Session:
        """Connect within `timeout_s`, or raise `ConnectError` or `TransportTimeout`."""


class ConnectionCredentials(Protocol):
    """The client's identity (`authentication`)."""

    @property
    def method_name(self) -> str:
        """Such as "token"; "none" without authentication."""

    async def data(self) -> bytes:
        """Return the authentication data. Called for each connection and each challenge."""


class Anonymous:
    method_name = "none"

    async def data(self) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class ClusterService:
    """A cluster. Its addresses, at least one, have the same scheme."""

    addresses: tuple[Address, ...]
    dialer: Dialer
    credentials: ConnectionCredentials
    tls: TlsContext

    @classmethod
    def at(
        cls,
        url: str,
        dialer: Dialer,
        credentials: ConnectionCredentials | None = None,
        tls: TlsContext | None = None,
    ) -> ClusterService:
        return cls(tuple(parse(url)), dialer, credentials or Anonymous(), tls or TlsContext())

    @property
    def secure(self) -> bool:
        return self.addresses[0].tls

    @property
    def web(self) -> bool:
        return self.addresses[0].scheme in ("http", "https")

    def __str__(self) -> str:
        hosts = ",".join(each.host_port for each in self.addresses)
        return f"{self.addresses[0].scheme}://{hosts}"
