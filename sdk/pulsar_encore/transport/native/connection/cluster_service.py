"""One cluster as a client sees it: where it is, who the client is there, how it gets there. Values.

Owns `ClusterService` and the contracts of its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .addresses import Address, parse
from .session import ByteTransport, Session
from .tls_context import TlsContext


class Dialer(Protocol):
    """How to get to an address; a socket, or a broker in memory."""

    async def dial(
        self, address: Address, make: Callable[[ByteTransport], Session], timeout_s: float
    ) -> Session:
        """Connect within `timeout_s`; raises `ConnectError` or `TransportTimeout`."""


class ConnectionCredentials(Protocol):
    """Who the client is (`authentication`)."""

    @property
    def method_name(self) -> str:
        """Such as "token"; "none" without authentication."""

    async def data(self) -> bytes:
        """What to prove it by, asked for at each connection and each challenge."""


class Anonymous:
    """No authentication."""

    method_name = "none"

    async def data(self) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class ClusterService:
    """A cluster.

    Attributes:
        addresses: Of the service URL; at least one, all of one scheme.
        dialer: How to get to an address.
        credentials: Who the client is.
        tls: How connections by TLS are made.
    """

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
        """The one at a service URL such as ``pulsar://host:6650``.

        Raises:
            InvalidUrl: It is none.
        """
        return cls(tuple(parse(url)), dialer, credentials or Anonymous(), tls or TlsContext())

    @property
    def secure(self) -> bool:
        """Whether it is reached by TLS."""
        return self.addresses[0].tls

    @property
    def web(self) -> bool:
        """Whether lookups go by HTTP."""
        return self.addresses[0].scheme in ("http", "https")

    def __str__(self) -> str:
        hosts = ",".join(each.host_port for each in self.addresses)
        return f"{self.addresses[0].scheme}://{hosts}"
