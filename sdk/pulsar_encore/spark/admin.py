"""The ledgers and consumers of topics, from the web service (admin API) of the brokers.

`Admin` remembers the size of closed ledgers: after a ledger is deleted, its size tells whether it
was read to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ..admin import ConsumerStats, WebService
from ..deadletters.printable_text import printable
from ..errors import ConfigurationError
from ..options import ClientOptions
from ..options.admin_url import check_admin_url
from .batch_plan import LedgerSize
from .connection_options import ConnectionOptions, in_options
from .offsets import Position

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
        url = check_admin_url(connection.admin_url or "", "admin.url")
        keywords = connection.keywords()
        keywords.pop("transport", None)
        try:
            options = ClientOptions(service_url=url, **keywords)
            self._web = WebService(options, url, option="admin.url")
        except ConfigurationError as error:
            raise in_options(error, "admin.url") from error
        self._closed: dict[int, int] = {}  # entries of closed ledgers, by ledger id

    async def ledgers(self, topic: str) -> TopicLedgers:
        found = await self._web.internal_stats(topic)
        for each in found.ledgers:
            if each.closed and len(self._closed) < _MAX_LEDGERS:
                self._closed[each.id] = each.entries
        return TopicLedgers(
            tuple(
                LedgerSize(each.id, each.entries, each.size, each.closed) for each in found.ledgers
            ),
            Position(*found.last),
            {
                name: None if each.acked_through is None else Position(*each.acked_through)
                for name, each in found.cursors.items()
            },
        )

    async def holders(self, topic: str, subscription: str) -> list[str]:
        """Describe the consumers of a subscription: name, address and time of the connection."""
        found = (await self._web.stats(topic, precise=False)).subscriptions.get(subscription)
        return [] if found is None else [_holder(each) for each in found.consumers]

    def close(self) -> None:
        self._web.close()

    def entries_of(self, ledger: int) -> int | None:
        """Return the entries of a closed ledger, even if it was deleted; None if unknown."""
        return self._closed.get(ledger)


def _holder(consumer: ConsumerStats) -> str:
    name = printable(consumer.name, _MAX_NAME)
    address = printable(consumer.address, _MAX_NAME)
    since = printable(consumer.connected_since, _MAX_NAME)
    text = f"the consumer {name!r}"
    return text + (f" at {address}" if address else "") + (f" since {since}" if since else "")
