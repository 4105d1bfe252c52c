"""Service URLs: which addresses there are, and which to try next. Pure: time is an argument.

Owns `Addresses`. They are tried in turn from a random one on; one that failed is left alone for a
while that doubles, unless all of them failed (as Java's; wire-protocol notes 3.5).
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from ....exceptions import InvalidUrl

_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 80, "https": 443}
_QUARANTINE_MS: Final = 60_000
_LONGEST_QUARANTINE_MS: Final = 24 * 3600 * 1000


class Address(NamedTuple):
    """Where a broker or proxy listens.

    Attributes:
        scheme: "pulsar", "pulsar+ssl", "http" or "https".
        host: Name or IP address, without brackets.
        port: TCP port.
    """

    scheme: str
    host: str
    port: int

    @property
    def tls(self) -> bool:
        return self.scheme in ("pulsar+ssl", "https")

    @property
    def host_port(self) -> str:
        """``host:port``, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_port}"


def parse(url: str) -> list[Address]:
    """The addresses of a service URL such as ``pulsar://h1:6650,h2:6650``.

    Raises:
        InvalidUrl: It is none; the text says why.
    """
    scheme, found, rest = url.partition("://")
    if not found or scheme not in _PORTS:
        schemes = ", ".join(f"{each}://" for each in _PORTS)
        raise InvalidUrl(f"service_url {url!r} must begin with one of {schemes}")
    addresses = []
    for part in rest.split("/", 1)[0].split(","):
        try:
            split = urlsplit(f"//{part}")
            host, port = split.hostname, split.port
        except ValueError as error:
            raise InvalidUrl(f"service_url {url!r}: {error}") from error
        if not host or split.username is not None:
            raise InvalidUrl(f"service_url {url!r} must name host:port, got {part!r}")
        addresses.append(Address(scheme, host, port or _PORTS[scheme]))
    return addresses


class Addresses:
    """Several addresses of one service.

    Args:
        addresses: At least one.
        rng: Chooses the first, so that many clients do not all begin with the same.
    """

    def __init__(self, addresses: list[Address], rng: Random) -> None:
        self._addresses = addresses
        self._at = rng.randrange(len(addresses))
        self._failed: dict[Address, tuple[int, int]] = {}  # until when, and for how long

    def __len__(self) -> int:
        return len(self._addresses)

    def next(self, now_ms: int) -> Address:
        """The address to try now."""
        for _ in self._addresses:
            address = self._step()
            if self._failed.get(address, (0, 0))[0] <= now_ms:
                return address
        return self._step()

    def _step(self) -> Address:
        address = self._addresses[self._at]
        self._at = (self._at + 1) % len(self._addresses)
        return address

    def failed(self, address: Address, now_ms: int) -> None:
        """It did not answer."""
        last = self._failed.get(address, (0, 0))[1]
        wait = min(_LONGEST_QUARANTINE_MS, 2 * last or _QUARANTINE_MS)
        self._failed[address] = (now_ms + wait, wait)

    def worked(self, address: Address) -> None:
        """It answered."""
        self._failed.pop(address, None)
