"""The ledgers and consumers of topics, from the web service (admin API) of the brokers.

`Admin` remembers the size of closed ledgers: after a ledger is deleted, its size tells whether it
was read to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final, NamedTuple

from ..deadletters.printable_text import printable
from ..errors import ConfigurationError, TransportError
from ..options import ClientOptions
from ..transport.native.connection.pool import ConnectionPool
from ..transport.native.lookup.http_lookup import HttpLookup, path_of
from ..transport.native.service_options import of_options
from .batch_plan import LedgerSize
from .connection_options import ConnectionOptions, in_options
from .offsets import Position
from .option_parsers import web_address

_MAX_LEDGERS: Final = 1_000_000
_MAX_NAME: Final = 100


class TopicLedgers(NamedTuple):
    """The stored ledgers of a topic in order, its last entry, and its durable subscriptions.

    `subscriptions` has the acked position by name; None if the web service does not tell it.
    """

    ledgers: tuple[LedgerSize, ...]
    last: Position
    subscriptions: Mapping[str, Position | None]


class Admin:
    """The web service of one cluster. Belongs to the event loop that creates it."""

    def __init__(self, connection: ConnectionOptions) -> None:
        url = web_address(connection.admin_url or "", "admin.url")
        keywords = connection.keywords()
        keywords.pop("transport", None)
        try:
            clusters, settings = of_options(ClientOptions(service_url=url.rstrip("/"), **keywords))
        except ConfigurationError as error:
            raise in_options(error, "admin.url") from error
        self._pool = ConnectionPool(clusters.initial_service(), settings, Random())
        self._web = HttpLookup(self._pool)
        self._closed: dict[int, int] = {}  # entries of closed ledgers, by ledger id

    async def ledgers(self, topic: str) -> TopicLedgers:
        answer = await self._web.get(
            f"/admin/v2/{path_of(topic)}/internalStats", {}, f"admin.url: ledgers of {topic}"
        )
        try:
            found = _parse(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TransportError(
                f"ledgers of {topic}: the answer of the web service cannot be parsed"
            ) from error
        for each in found.ledgers:
            if each.closed and len(self._closed) < _MAX_LEDGERS:
                self._closed[each.id] = each.entries
        return found

    async def holders(self, topic: str, subscription: str) -> list[str]:
        """Describe the consumers of a subscription: name, address and time of the connection."""
        answer = await self._web.get(
            f"/admin/v2/{path_of(topic)}/stats", {}, f"admin.url: consumers of {topic}"
        )
        found = answer.get("subscriptions") if isinstance(answer, Mapping) else None
        subscription_stats = found.get(subscription) if isinstance(found, Mapping) else None
        consumers = (
            subscription_stats.get("consumers") if isinstance(subscription_stats, Mapping) else None
        )
        return [
            _holder(each)
            for each in (consumers if isinstance(consumers, list) else ())
            if isinstance(each, Mapping)
        ]

    def close(self) -> None:
        self._pool.shutdown()

    def entries_of(self, ledger: int) -> int | None:
        """Return the entries of a closed ledger, even if it was deleted; None if unknown."""
        return self._closed.get(ledger)


def _holder(consumer: Mapping[str, Any]) -> str:
    name = printable(str(consumer.get("consumerName", "")), _MAX_NAME)
    address = printable(str(consumer.get("address", "")).lstrip("/"), _MAX_NAME)
    since = printable(str(consumer.get("connectedSince", "")), _MAX_NAME)
    text = f"the consumer {name!r}"
    return text + (f" at {address}" if address else "") + (f" since {since}" if since else "")


def _parse(answer: Mapping[str, Any]) -> TopicLedgers:
    listed = [
        (int(each["ledgerId"]), int(each.get("entries", 0)), int(each.get("size", 0)))
        for each in answer["ledgers"]
    ]
    ledgers = []
    for at, (number, entries, size) in enumerate(sorted(listed)):
        closed = at < len(listed) - 1
        if not closed:  # the list has 0 for the open ledger
            entries = max(entries, int(answer.get("currentLedgerEntries", 0)))
            size = max(size, int(answer.get("currentLedgerSize", 0)))
        ledgers.append(LedgerSize(number, entries, size, closed))
    ledger, _, entry = str(answer["lastConfirmedEntry"]).partition(":")
    last = Position(int(ledger), int(entry))
    subscriptions = {name: _acked(each) for name, each in answer.get("cursors", {}).items()}
    return TopicLedgers(tuple(ledgers), last, subscriptions)


def _acked(cursor: Any) -> Position | None:
    try:
        ledger, entry = map(int, cursor["markDeletePosition"].split(":"))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return Position(ledger, entry)
