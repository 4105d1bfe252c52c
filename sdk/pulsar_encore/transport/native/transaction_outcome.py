"""Finds out whether an ended transaction was committed, by reading at one of its messages (PIP-31).

Committed messages are visible at once. Messages of aborted transactions are never delivered, so the
first message from that position on is another one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Final

from ...options import ConsumerCryptoFailureAction, Subscription
from ...values.message_id import MessageId
from ..interface import (
    Deliveries,
    Delivery,
    RetryNotice,
    SkippedEntry,
    TransportConsumer,
    each_delivery,
)

# An aborted message at the end of its topic has nothing behind it.
_WAIT_S: Final = 5.0


async def is_visible(
    subscribe: Callable[[Subscription], Awaitable[TransportConsumer]], place: MessageId
) -> bool | None:
    """Return True if the stored message `place` is visible, False if it never will be.

    None if that cannot be said: nothing follows it, or its ledger was deleted.
    """
    try:
        async with asyncio.timeout(_WAIT_S):
            consumer = await subscribe(_subscription(place))
            try:
                first = _FirstEntry()
                consumer.start(first)
                ledger, entry = await first.found
            finally:
                await consumer.close()
    except TimeoutError:
        return None
    if ledger != place.ledger_id():
        return None
    return entry == place.entry_id()


def _subscription(place: MessageId) -> Subscription:
    entry = MessageId(place.partition(), place.ledger_id(), place.entry_id())
    return Subscription(
        topics=(place.topic,),
        subscription_name=f"transaction-outcome-{uuid.uuid4().hex[:10]}",
        receiver_queue_size=1,
        durable=False,
        start_message_id=entry,
        start_message_id_inclusive=True,
        crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
        force_topic_creation=False,
    )


class _FirstEntry:
    """A `DeliveryListener` that wants the position of the first entry only."""

    def __init__(self) -> None:
        self.found: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    def on_deliveries(self, deliveries: Deliveries) -> None:
        for each in each_delivery(deliveries):
            self._find(each.ledger, each.entry)
            return

    def on_skipped(self, topic_number: int, entries: Sequence[SkippedEntry]) -> None:
        for each in entries:
            self._find(each.ledger, each.entry)
            return

    def _find(self, ledger: int, entry: int) -> None:
        if not self.found.done():
            self.found.set_result((ledger, entry))

    def on_failed(self, error: Exception, topic_number: int | None = None) -> None:
        if not self.found.done():
            self.found.set_exception(error)

    def on_connected(self, topics: Container[int] | None = None) -> None: ...
    def on_disconnected(self, topics: Container[int] | None = None) -> None: ...
    def on_uncertain(self, topics: Container[int] | None = None) -> None: ...
    def on_all_requested(
        self, unseen: Sequence[Delivery], topics: Container[int] | None = None
    ) -> None: ...
    def on_seek(self, topics: Container[int] | None = None) -> None: ...
    def on_end_of_topic(self, topic_number: int) -> None: ...
    def on_active_changed(self, topic_number: int, active: bool) -> None: ...
    def on_new_topic(self, topic_number: int) -> None: ...
    def on_removed(self, topic_number: int) -> None: ...
    def on_retrying(self, topic_number: int | None, notice: RetryNotice) -> None: ...
