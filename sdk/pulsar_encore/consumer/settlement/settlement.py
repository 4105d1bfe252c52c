"""Acks, and the settlement of messages that are being forwarded.

The state changes in one synchronous step, so a cancelled call has either not begun or is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ...core.entry import Entry, EntryKey
from ...core.topic_state import TopicState
from ...errors import MessageNotHeldError
from ...message import Held, Message, of_one_entry
from ...transport.interface import TransportConsumer
from ...values.message_id import MessageId
from .ack_sender import AckSender
from .ownership import Ownership, Settleable, check_index, chunks_unknown
from .redelivery import Redelivery

#: Messages of a list that are acked in one step: 0.1 ms.
ROW: Final = 100


class Settlement:
    """Settles the messages of one consumer.

    Attributes:
        forwarding_ended: Called with (entry, index) when a forwarding has succeeded or failed.
    """

    def __init__(
        self,
        ownership: Ownership,
        transport_consumer: TransportConsumer,
        acks: AckSender,
        redelivery: Redelivery,
    ) -> None:
        self._ownership = ownership
        self._transport_consumer = transport_consumer
        self._acks = acks
        self._redelivery = redelivery
        self.forwarding_ended: Callable[[Entry, int], None] = _nobody

    # Acks

    def ack(self, item: Settleable) -> TopicState:
        """Ack one message; return the state of its topic."""
        if type(item) is Message:
            return self._ack_held(self._ownership.held(item))
        state, key, entry_here, message_id = self._ownership.named(item)
        index = message_id.batch_index()
        if entry_here is not None and entry_here.batched and index >= 0:
            index = check_index(entry_here, message_id)
            self._acks.added(state, state.ack(entry_here, index))
        elif entry_here is None and message_id.first_chunk is not None:
            self._ack_chunked(state, key, message_id)
        elif index < 0 or message_id.batch_size == 1 or entry_here is not None:
            self._acks.added(state, state.ack_entry(key))
        elif not state.acks.covers(key):
            self._ack_part(state, Entry(state, key, message_id.batch_size, True), index)
        return state

    def ack_row(self, items: Sequence[Settleable], start: int) -> tuple[TopicState, int]:
        """Ack up to `ROW` messages of one topic, or one id, from `start` on.

        Returns:
            The topic state, and the position of the rest of the list.
        """
        first = items[start]
        if type(first) is not Message:
            return self.ack(first), start + 1
        first_entry = self._ownership.held(first).entry
        if not first_entry.live:
            return self.ack(first), start + 1
        topic_state: TopicState = first_entry.topic_state
        at, end, added = start, min(start + ROW, len(items)), 0
        while at < end:
            entry, indexes = of_one_entry(items, at, end)
            if entry is None or entry.topic_state is not topic_state or not entry.live:
                break
            if len(indexes) == 1:
                added += topic_state.ack(entry, indexes[0])
            else:
                added += topic_state.ack_each(entry, indexes)
            at += len(indexes)
        self._acks.added(topic_state, added)
        return topic_state, at

    def _ack_held(self, held: Held) -> TopicState:
        entry, index, *_ = held
        state: TopicState = entry.topic_state
        if entry.live:
            self._acks.added(state, state.ack(entry, index))
        else:
            self._ack_late(state, entry, index)
        return state

    def _ack_late(self, state: TopicState, entry: Entry, index: int) -> None:
        """Ack a message without a live record: settled, in redelivery, or from before a seek."""
        current = state.find(entry.key)
        if current is not None and current.size == entry.size:
            self._acks.added(state, state.ack(current, index))
        elif entry.first_chunk is not None and entry.era != state.era:
            if entry.unacked:
                raise chunks_unknown(f"entry {entry.key}", "ack")
        elif entry.size == 1:
            self._acks.added(state, state.ack_entry(entry.key))
        elif entry.unacked and entry.era == state.era:
            # The broker redelivers the message: it is then known as acked, and acked again.
            state.adopt(entry)
            self._acks.added(state, state.ack(entry, index))

    def _ack_chunked(self, state: TopicState, key: EntryKey, message_id: MessageId) -> None:
        """Ack a chunked message without a record: nacked, just acked, or not held.

        Its id names the last chunk only. If only that chunk were acked, the others would stay
        unacked, and no consumer would know them.
        """
        if (*key, -1) in state.nacks:
            self._acks.added(state, state.ack_entry(key))
        elif not state.acks.covers(key):
            raise chunks_unknown(repr(message_id), "ack")

    def _ack_part(self, state: TopicState, entry: Entry, index: int) -> None:
        capabilities = self._transport_consumer.capabilities
        if not capabilities.ack_unseen_index:
            raise MessageNotHeldError(
                f"entry {entry.key} is a batch that this consumer does not hold (settled, sought "
                f"over, or received elsewhere), and the {capabilities.name} transport "
                "can only ack parts of batches it holds; ack it when it is redelivered"
            )
        if not 0 <= index < entry.size:
            raise MessageNotHeldError(
                f"batch index {index} needs the batch's size: use an id from a received message"
            )
        state.adopt(entry)
        self._acks.added(state, state.ack(entry, index))

    def ack_cumulative(self, item: Settleable) -> TopicState:
        """Ack a message and all before it in its topic; return the topic's state."""
        if type(item) is Message:
            return self._ack_cumulative_held(self._ownership.cumulative(item))
        state, key, entry_here, message_id = self._ownership.named(item)
        index, size = message_id.batch_index(), message_id.batch_size
        if entry_here is not None and index >= 0:
            index, size = check_index(entry_here, message_id), entry_here.size
        if index >= size:  # an index of -1 stands for the whole entry and needs no size
            raise MessageNotHeldError(
                f"batch index {index} needs the batch's size: use an id from a received message"
            )
        return self.ack_up_to(state, key, index, size)

    def _ack_cumulative_held(self, held: Held) -> TopicState:
        entry = held.entry
        return self.ack_up_to(entry.topic_state, entry.key, held.batch_index, entry.size)

    def ack_up_to(self, state: TopicState, key: EntryKey, index: int, size: int) -> TopicState:
        """Ack everything up to a position; an index of -1 stands for the entry."""
        settled = state.ack_cumulative(key, index, size)
        if len(state.acks):  # also if none of the messages are held
            self._acks.added(state, max(settled, 1))
        return state

    # Forwarding

    def begin_forwarding(self, message: Message, *, cumulative: bool) -> Held:
        """Mark a held message as being forwarded, so that no other call settles it.

        The result names the message in the calls that end the forwarding.
        """
        own = self._ownership
        held = own.cumulative(message) if cumulative else own.held(message)
        entry, index, _, number = held
        state: TopicState = entry.topic_state
        if not (
            state.is_latest_delivery(entry, index, number) and state.begin_forwarding(entry, index)
        ):
            raise MessageNotHeldError(
                f"{message.message_id()!r} was settled, is being forwarded, or was redelivered "
                "since; only a held message can be forwarded"
            )
        return held

    def not_forwarded(self, held: Held, delay_ms: int, wall_now: int | None) -> None:
        """Redeliver a message after its forwarding failed.

        Args:
            wall_now: End of this attempt; None if the attempt was counted before.
        """
        entry, index = held.entry, held.batch_index
        if entry.forward_failed(index):
            if wall_now is not None:  # not every broker counts the attempt
                entry.topic_state.attempts.remember(entry.due_key(index), wall_now, None)
            self._redelivery.schedule(entry, index, delay_ms)
        self.forwarding_ended(entry, index)

    def keep_held(self, held: Held) -> None:
        """Leave a message to the application after its forwarding failed."""
        held.entry.forward_failed(held.batch_index)
        self.forwarding_ended(held.entry, held.batch_index)

    def forwarded(self, held: Held, *, cumulative: bool) -> None:
        """Ack a message after its letter was stored."""
        try:
            if cumulative:
                self._ack_cumulative_held(held)
            else:
                self._ack_held(held)
        finally:
            self.forwarding_ended(held.entry, held.batch_index)


def _nobody(entry: Entry, index: int) -> None:
    """Default of `forwarding_ended`."""
