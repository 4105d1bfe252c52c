"""Addresses of service URLs, and which one to try next.

The addresses of a service URL are tried in turn, from a random one on. One that failed is skipped
for a while that doubles, unless all of them failed, as in Java's client
(`docs/notes/wire-protocol.md#addresses-and-proxies`).
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from ....errors import InvalidUrl
from ....errors import LookupError as TopicLookupError

_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 80, "https": 443}
_BROKER_SCHEMES: Final = ("pulsar", "pulsar+ssl")
_TLS_ADVICE: Final = (
    "Configure the brokers to advertise a pulsar+ssl:// address (brokerServiceUrlTls in their "
    "answers; brokerServicePortTls and advertisedListeners in broker.conf), or connect through a "
    "Pulsar proxy, whose answers set proxy_through_service_url"
)
# In an answer; a host name has at most 253 characters.
_MAX_ADDRESS_CHARS: Final = 1_000
_QUARANTINE_MS: Final = 60_000
_MAX_QUARANTINE_MS: Final = 24 * 3600 * 1000


class Address(NamedTuple):
    """The address of a broker or proxy. `host` is a name or IP address, without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def tls(self) -> bool:
        return self.scheme in ("pulsar+ssl", "https")

    @property
    def host_port(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host_port}"


def parse(url: str) -> list[Address]:
    """Return the addresses of a service URL such as ``pulsar://h1:6650,h2:6650``; may raise
    `InvalidUrl`."""
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


def broker_address(
    url: str, plain: str = "", *, asked: object, secure: bool, purpose: str, proxied: bool = False
) -> Address:
    """Return the broker's address in an answer, or refuse an address that weakens the client.

    Args:
        url: The address for TLS if `secure`, else the plain one; "" if the answer has none.
        secure: True if the client's service URL has TLS.
        proxied: True if the client reaches the broker through `asked`. Then `url` may be plain,
            because a Pulsar proxy gives the same address as brokerServiceUrl and as
            brokerServiceUrlTls.

    Raises:
        LookupError: if the address is missing, malformed, or without TLS although `secure`.
    """
    malformed = f"{purpose}: the address of its broker is malformed: "
    if len(url) > _MAX_ADDRESS_CHARS:
        raise TopicLookupError(f"{malformed}{len(url)} characters, beginning with {url[:100]!r}")
    if not url and secure:
        plain_part = f", and brokerServiceUrl is {plain[:_MAX_ADDRESS_CHARS]!r}" if plain else ""
        raise TopicLookupError(
            f"{purpose}: {asked} names no TLS address of the broker (brokerServiceUrlTls is "
            f"empty{plain_part}). The client's service_url has TLS, so it does not connect without "
            f"it. If TLS ends at a load balancer, brokers do not know its address. {_TLS_ADVICE}",
            retryable=False,
        )
    if not url:
        raise TopicLookupError(
            f"{purpose}: its broker has no plain address: connect by pulsar+ssl://, or configure "
            "the broker to advertise one"
        )
    try:
        address = parse(url)[0]
    except InvalidUrl as error:
        raise TopicLookupError(f"{malformed}{error}") from error
    if secure and not (address.tls or proxied):
        raise weaker_address_error(asked, address, purpose)
    if address.scheme not in _BROKER_SCHEMES:
        raise TopicLookupError(f"{malformed}{address} is not one of pulsar:// or pulsar+ssl://")
    return address


def redirect_target(url: str, *, asked: str, purpose: str) -> str:
    """Return the target of an HTTP redirect, which gets the client's credentials, or refuse it.

    Raises:
        LookupError: if the target is not an http or https URL, names a user, or has no TLS although
            `asked` has. Not retryable.
    """
    try:
        at, to = urlsplit(asked), urlsplit(url)
        host, named = to.hostname, to.username is not None
        shown = f"{to.scheme}://{to.netloc.rpartition('@')[2]}"[:_MAX_ADDRESS_CHARS]
    except ValueError as error:
        raise TopicLookupError(
            f"{purpose}: a redirect of {asked} to no web address: {error}", retryable=False
        ) from error
    if to.scheme not in ("http", "https") or not host or named:
        raise TopicLookupError(
            f"{purpose}: {at.scheme}://{at.netloc} answered with a redirect to {shown}, which is "
            "no http:// or https:// address of a host without a user name",
            retryable=False,
        )
    if at.scheme == "https" and to.scheme == "http":
        raise TopicLookupError(
            f"{purpose}: {at.scheme}://{at.netloc} answered with a redirect from TLS to none, "
            f"{shown}. The client does not send its credentials there. Configure the brokers' web "
            "service with TLS (webServicePortTls), so that they redirect to https://",
            retryable=False,
        )
    return url


def weaker_address_error(asked: object, given: Address, purpose: str) -> TopicLookupError:
    return TopicLookupError(
        f"{purpose}: {asked} names {given}, which has no TLS. The client's service_url has TLS, so "
        f"it does not connect there and sends no credentials. {_TLS_ADVICE}",
        retryable=False,
    )


class Addresses:
    def __init__(self, addresses: list[Address], rng: Random) -> None:
        self._addresses = addresses
        self._at = rng.randrange(len(addresses))
        # End and length of the quarantine, in ms.
        self._quarantined: dict[Address, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def next(self, now_ms: int) -> Address:
        for _ in self._addresses:
            address = self._advance()
            if self._quarantined.get(address, (0, 0))[0] <= now_ms:
                return address
        return self._advance()

    def _advance(self) -> Address:
        address = self._addresses[self._at]
        self._at = (self._at + 1) % len(self._addresses)
        return address

    def quarantine(self, address: Address, now_ms: int) -> None:
        last = self._quarantined.get(address, (0, 0))[1]
        wait = min(_MAX_QUARANTINE_MS, 2 * last or _QUARANTINE_MS)
        self._quarantined[address] = (now_ms + wait, wait)

    def end_quarantine(self, address: Address) -> None:
        self._quarantined.pop(address, None)
