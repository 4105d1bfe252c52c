"""Acks, and what becomes of a message whose copy is sent: one step each.

Owns `Settlement`. The state changes in one synchronous step, so a cancelled call has either not
begun or is done; an ack is never widened to siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ...core.entry import Entry, EntryKey
from ...core.topic_state import TopicState
from ...errors import MessageNotHeldError
from ...message import Held, Message, of_one_entry
from ...message import held as held_of
from ...transport.interface import TransportConsumer
from ...values.message_id import MessageId
from .ack_sender import AckSender
from .ownership import Ownership, Settleable, check_index, chunks_unknown
from .redelivery import Redelivery

#: Messages of a list that are acked in one step: a tenth of a ms.
ROW: Final = 100


class Settlement:
    """Settles the messages of one consumer.

    Attributes:
        decided: Called with (entry, index) when what became of a copy is known, and acted on.

    Args:
        ownership: Finds whose a message is.
        link: The subscription.
        acks: Sends acks.
        redelivery: Brings back what could not be copied.
    """

    def __init__(
        self, ownership: Ownership, link: TransportConsumer, acks: AckSender, redelivery: Redelivery
    ) -> None:
        self._ownership = ownership
        self._link = link
        self._acks = acks
        self._redelivery = redelivery
        self.decided: Callable[[Entry, int], None] = _nobody

    # Acks

    def ack(self, item: Settleable) -> TopicState:
        """One message is done.

        Returns:
            The source it is of.

        Raises:
            MessageNotHeldError: It is not this consumer's, or cannot be acked alone.
        """
        if type(item) is Message:
            entry, index, *_ = self._ownership.held(item)
            state: TopicState = entry.source
            if entry.live:
                self._acks.added(state, state.ack(entry, index))
            else:
                self._ack_late(state, entry, index)
            return state
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
        """Of a list, from `start` on: messages of one source, up to `ROW`, are done; else one item.

        Returns:
            The source, and where the rest of the list begins.

        Raises:
            MessageNotHeldError: As `ack` does; nothing is acked then.
        """
        first = items[start]
        if type(first) is not Message:
            return self.ack(first), start + 1
        begun_with = self._ownership.held(first).entry
        if not begun_with.live:
            return self.ack(first), start + 1
        source: TopicState = begun_with.source
        at, end, added = start, min(start + ROW, len(items)), 0
        while at < end:
            entry, indexes = of_one_entry(items, at, end)
            if entry is None or entry.source is not source or not entry.live:
                break
            if len(indexes) == 1:
                added += source.ack(entry, indexes[0])
            else:
                added += source.ack_each(entry, indexes)
            at += len(indexes)
        self._acks.added(source, added)
        return source, at

    def _ack_late(self, state: TopicState, entry: Entry, index: int) -> None:
        """Ack a message without a live record.

        It was acked before, waits for its nack, is on its way back here, or is from before a seek.
        """
        current = state.find(entry.key)
        if current is not None and current.size == entry.size:
            self._acks.added(state, state.ack(current, index))
        elif entry.first_chunk is not None and entry.era != state.era:
            if entry.unacked:
                raise chunks_unknown(f"entry {entry.key}", "ack")
        elif entry.size == 1:
            self._acks.added(state, state.ack_entry(entry.key))
        elif entry.unacked and entry.era == state.era:
            state.adopt(entry)  # it comes again: known to be acked, and the broker is told then
            self._acks.added(state, state.ack(entry, index))

    def _ack_chunked(self, state: TopicState, key: EntryKey, message_id: MessageId) -> None:
        """A chunked message without a record: nacked, acked a moment ago, or not here.

        An ack of its last chunk, all that its id tells, would leave the others with nobody.
        """
        if (*key, -1) in state.nacks:
            self._acks.added(state, state.ack_entry(key))
        elif not state.acks.covers(key):
            raise chunks_unknown(repr(message_id), "ack")

    def _ack_part(self, state: TopicState, entry: Entry, index: int) -> None:
        """One index of a batch that no record is kept of."""
        if not self._link.capabilities.ack_unseen_index:
            raise MessageNotHeldError(
                f"entry {entry.key} is a batch that this consumer does not hold (settled, sought "
                f"over, or received elsewhere), and the {self._link.capabilities.name} transport "
                "can only ack parts of batches it holds; ack it when it comes again"
            )
        if not 0 <= index < entry.size:
            raise MessageNotHeldError(
                f"batch index {index} needs the batch's size: use an id from a received message"
            )
        state.adopt(entry)
        self._acks.added(state, state.ack(entry, index))

    def ack_cumulative(self, item: Settleable) -> TopicState:
        """A message and all before it, of its topic or partition, are done.

        Returns:
            The source they are of.

        Raises:
            ConfigurationError: Its topic is subscribed Shared.
            MessageNotHeldError: It is not this consumer's.
        """
        if type(item) is Message:
            entry, index, *_ = self._ownership.cumulative(item)
            state: TopicState = entry.source
            key, size = entry.key, entry.size
        else:
            state, key, entry_here, message_id = self._ownership.named(item)
            index, size = message_id.batch_index(), message_id.batch_size
            if entry_here is not None and index >= 0:
                index, size = check_index(entry_here, message_id), entry_here.size
            if index >= size:  # -1, the whole entry, needs none
                raise MessageNotHeldError(
                    f"batch index {index} needs the batch's size: use an id from a received message"
                )
        settled = state.ack_cumulative(key, index, size)
        if len(state.acks):  # also where nothing of it is here any more
            self._acks.added(state, max(settled, 1))
        return state

    # Copies

    def leave(self, message: Message, *, cumulative: bool) -> None:
        """A copy of a held message is about to be sent: nobody else settles it meanwhile.

        Raises:
            MessageNotHeldError: It is settled, waiting, or came back since this hand-over.
            ConfigurationError: `cumulative`, and its topic is subscribed Shared.
        """
        own = self._ownership
        entry, index, _, hand_over = own.cumulative(message) if cumulative else own.held(message)
        state: TopicState = entry.source
        if not (state.holds(entry, index, hand_over) and state.leave(entry, index)):
            raise MessageNotHeldError(
                f"{message.message_id()!r} was settled, is being forwarded, or came back since; "
                "only a message that is held can be sent on"
            )

    def not_forwarded(self, message: Message, delay_ms: int, wall_now: int | None) -> None:
        """The copy failed: the message comes again, after `delay_ms`.

        Args:
            wall_now: When this attempt ended; None where it was counted before.
        """
        held: Held = self._ownership.held(message)
        entry, index = held.entry, held.batch_index
        if entry.stay(index):
            if wall_now is not None:  # not every broker counts it
                entry.source.attempts.remember(entry.due_key(index), wall_now, None)
            self._redelivery.wait(entry, index, delay_ms)
        self.decided(entry, index)

    def forwarded(self, message: Message, *, cumulative: bool) -> None:
        """The copy is persisted: the original is acked."""
        try:
            if cumulative:
                self.ack_cumulative(message)
            else:
                self.ack(message)
        finally:
            held = held_of(message)
            if held is not None:
                self.decided(held.entry, held.batch_index)


def _nobody(entry: Entry, index: int) -> None:
    """Nobody waits for what becomes of a copy."""
