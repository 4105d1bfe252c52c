"""Acks in transactions: they take effect when the transaction is committed.

Each call decides about all its messages before it changes one. The state changes in one synchronous
step, so a cancelled call has either not begun or is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ...core.entry import Entry, EntryKey
from ...core.message_key import set_bits
from ...core.message_states import ACK_PENDING, HELD, QUEUED
from ...core.pending_acks import CumulativeMark, TransactionMarks
from ...core.topic_state import TopicState
from ...errors import (
    ConfigurationError,
    MessageNotHeldError,
    TransactionConflict,
    TransportError,
)
from ...message import Held, Message
from ...transport.interface import AckPlan, TransportConsumer, TransportTransaction
from .ack_sender import AckSender
from .ownership import Ownership, Settleable, check_index
from .rewinds import Rewinds
from .settlement import Settlement

_ACTION: Final = "ack in it"

_Found = dict[TopicState, dict[Entry, int]]
# Messages of a committed transaction that are acked in one step of the event loop.
_STEP: Final = 1_000


class TransactionAcks:
    """The acks of one consumer in transactions.

    Args:
        ordered_leases: The consumer has ordered leases, which exclude transactions.
        letters_in_transactions: The originals of its letters are acked in transactions.
    """

    def __init__(
        self,
        ownership: Ownership,
        transport_consumer: TransportConsumer,
        acks: AckSender,
        rewinds: Rewinds,
        settlement: Settlement,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
        *,
        ordered_leases: bool = False,
        letters_in_transactions: bool = False,
    ) -> None:
        self._logger = logger_of(__name__)
        self._ownership = ownership
        self._transport_consumer = transport_consumer
        self._acks = acks
        self._rewinds = rewinds
        self._settlement = settlement
        self._ordered_leases = ordered_leases
        self._letters_in_transactions = letters_in_transactions
        self._has_warned = False
        #: Called when an abort has rewound a topic, so that its other messages are not held.
        self.on_rewound: Callable[[], None] = _ignore
        self._is_closed = False
        # The topics of open transactions, each with the last acks that were sent.
        self._watched: dict[TransportTransaction, dict[TopicState, asyncio.Future[None]]] = {}

    # Calls

    def ack(
        self, items: Sequence[Settleable], txn: TransportTransaction
    ) -> list[asyncio.Future[None]]:
        """Ack messages in an open transaction.

        Returns:
            A future for each topic, done when the broker has stored the acks.

        Raises:
            MessageNotHeldError: if one of the messages is not held here.
            TransactionConflict: if one of them is acked in another open transaction.
        """
        self._check(txn)
        found: _Found = {}
        for item in items:
            self._find(item, txn, found)
        for state in found:
            self.check_topic(state, txn)
        return [
            self._begin(state, entries, txn) if entries else self._watched[txn][state]
            for state, entries in found.items()
        ]

    def ack_with_letters(
        self, messages: Sequence[Message], txn: TransportTransaction, *, cumulative: bool = False
    ) -> list[asyncio.Future[None]]:
        """Ack the originals of letters as `ack` does, or one as `ack_cumulative`.

        The caller sends the letters in the same step.

        Raises:
            MessageNotHeldError: also if a message is given twice, or the transaction has acked it.
        """
        self.check_held(messages)
        letters = [self._ownership.held(each) for each in messages]
        if cumulative:
            sent = self.ack_cumulative(messages[0], txn)
        else:
            sent = self.ack(messages, txn)
        for entry, index, *_ in letters:
            state: TopicState = entry.topic_state
            state.pending_acks.note_letters(txn, {entry: 1 << index})
        return sent

    def check_held(self, messages: Sequence[Message]) -> None:
        """Raise if one of the messages is not held here, or is given twice."""
        found = set()
        for each in messages:
            entry, index, _, number = self._ownership.held(each)
            state: TopicState = entry.topic_state
            if (entry, index) in found or not state.holds(entry, index, number):
                raise _not_held(each.message_id())
            found.add((entry, index))

    def ack_forwarded(self, messages: Sequence[Held], txn: TransportTransaction) -> None:
        """Ack messages that are being forwarded. Their letters are in the transaction.

        `check_topic` was called for their topics. The caller does not wait for the answers, because
        the commit does.
        """
        self._check(txn)
        found: _Found = {}
        for entry, index, *_ in messages:
            entries = found.setdefault(entry.topic_state, {})
            entries[entry] = entries.get(entry, 0) | 1 << index
        for state, entries in found.items():
            self._begin(state, entries, txn)
            state.pending_acks.note_letters(txn, entries)

    def ack_cumulative(
        self, item: Settleable, txn: TransportTransaction
    ) -> list[asyncio.Future[None]]:
        """Ack a message, and all before it in its topic, in an open transaction."""
        self._check(txn)
        if self._letters_in_transactions:
            raise ConfigurationError(
                "a DeadLetterPolicy with transactional=True acks messages one by one in "
                "transactions of its own, and cumulative acks in other transactions would conflict "
                "with these: acknowledge the messages one by one, or leave txn out"
            )
        state, key, index, size = self._position(item)
        self.check_topic(state, txn, cumulative=True)
        if not 0 <= index < size - 1:
            index = -1  # the whole entry
        mask = -1 if index < 0 else ((1 << size) - 1) >> (index + 1) << (index + 1)
        if state.acks.cumulative.includes(key, mask):
            raise _not_held(item)
        last = state.pending_acks.cumulative_of(txn)
        if last is not None and _covers(last, key, index):
            return [self._watched[txn][state]]
        self._check_in_order(item, state, key)
        plan = AckPlan(state.number, (*key, size, mask), [], [])
        sent = self._transport_consumer.ack_in_transaction(plan, txn)
        state.ack_pending_through(txn, key, index, size)
        self._watch(state, txn, sent)
        return [sent]

    # Decisions

    def _check(self, txn: TransportTransaction) -> None:
        txn.check_open(_ACTION)
        if self._ordered_leases:
            raise ConfigurationError(
                "ordered leases hold the next message of a key back until this one is settled, and "
                "an ack in a transaction is settled by its commit: subscribe without "
                "ordered_leases, or leave txn out"
            )

    def check_topic(
        self, state: TopicState, txn: TransportTransaction, *, cumulative: bool = False
    ) -> None:
        """Raise if messages of a topic cannot be acked in a transaction now."""
        if state.volatile:
            raise ConfigurationError(
                f"{state.topic} is not persistent, so its messages cannot be acked in a "
                "transaction: leave txn out"
            )
        if state.pending_acks.conflicts_with(txn, cumulative=cumulative):
            raise TransactionConflict(
                f"{state.topic}: the broker loses acks if cumulative acks and other acks of open "
                "transactions meet: end the other transaction first, or ack all messages of the "
                "topic in one way"
            )

    def _check_in_order(self, item: Settleable, state: TopicState, key: EntryKey) -> None:
        """Raise if a message has to come again before a cumulative ack may cover it.

        After an abort the topic is rewound. An ack of a message that was received before would also
        cover the aborted ones, which have not come again.
        """
        if type(item) is Message:
            entry, index, _, number = self._ownership.held(item)
            is_current = state.holds(entry, index, number)
        else:  # an id does not tell which delivery it is of
            is_current = state.rewind is None or not state.rewind.owes_through(key)
        if not is_current:
            raise _not_held(item.message_id() if type(item) is Message else item)

    def _find(self, item: Settleable, txn: TransportTransaction, found: _Found) -> None:
        """Add the messages of an item to `found`, unless the transaction has acked them already."""
        if type(item) is Message:
            entry, index, _, number = self._ownership.held(item)
            state: TopicState = entry.topic_state
            if not state.is_latest_delivery(entry, index, number):
                raise _not_held(item.message_id())
            indexes: Sequence[int] = (index,)
        else:
            state, _, entry_here, message_id = self._ownership.named(item)
            if entry_here is None:
                raise _not_held(message_id)
            entry = entry_here
            is_whole = message_id.batch_index() < 0 or not entry.batched
            indexes = range(entry.size) if is_whole else (check_index(entry, message_id),)
        entries = found.setdefault(state, {})
        mask = entries.get(entry, 0)
        acked = state.pending_acks.mask_of(txn, entry)
        for index in indexes:
            bit = 1 << index
            if (mask | acked) & bit:
                continue
            if entry.state[index] == ACK_PENDING:
                raise TransactionConflict(
                    f"{item!r} is acked in another open transaction: end that one first"
                )
            if entry.state[index] not in (QUEUED, HELD):
                raise _not_held(item.message_id() if type(item) is Message else item)
            mask |= bit
        if mask:
            entries[entry] = mask

    def _position(self, item: Settleable) -> tuple[TopicState, EntryKey, int, int]:
        if type(item) is Message:
            held = self._ownership.cumulative(item)
            entry = held.entry
            return entry.topic_state, entry.key, held.batch_index, entry.size
        state, key, entry_here, message_id = self._ownership.named(item)
        index, size = message_id.batch_index(), message_id.batch_size
        if entry_here is not None and index >= 0:
            index, size = check_index(entry_here, message_id), entry_here.size
        if index >= size:
            raise MessageNotHeldError(
                f"batch index {index} needs the batch's size: use an id from a received message"
            )
        return state, key, index, size

    # Steps

    def _begin(
        self, state: TopicState, entries: dict[Entry, int], txn: TransportTransaction
    ) -> asyncio.Future[None]:
        whole: list[EntryKey] = []
        parts: list[tuple[int, int, int, int]] = []
        for entry, mask in entries.items():
            if entry.size == 1:
                whole.append(entry.key)
            else:
                parts.append((*entry.key, entry.size, ((1 << entry.size) - 1) ^ mask))
            if entry.batched and state.shared and not self._has_warned:
                self._warn(state)
        plan = AckPlan(state.number, None, whole, parts)
        sent = self._transport_consumer.ack_in_transaction(plan, txn)
        for entry, mask in entries.items():
            state.ack_pending(txn, entry, set_bits(mask))
        if state.shared:
            sent.add_done_callback(partial(_note_failure, state, entries))
        self._watch(state, txn, sent)
        return sent

    def _warn(self, state: TopicState) -> None:
        self._has_warned = True
        self._logger.warning(
            "%s: messages of batches are acked in transactions on a shared subscription: the "
            "broker may let two consumers ack one of them, and commit both. For exactly once, "
            "publish to this topic without batches, or use one consumer",
            state.topic,
        )

    # The end

    def _watch(
        self, state: TopicState, txn: TransportTransaction, sent: asyncio.Future[None]
    ) -> None:
        states = self._watched.get(txn)
        if states is None:
            states = self._watched[txn] = {}
            txn.when_ended(partial(self._ended, txn))
        states[state] = sent

    def _ended(self, txn: TransportTransaction, committed: bool) -> None:
        for state in self._watched.pop(txn, ()):
            if self._is_closed:  # the broker has everything that it needs
                return
            marks = state.pending_acks.take(txn)
            try:
                if marks is None:
                    self._end_after_seek(state, committed)
                elif committed:
                    self._commit(state, marks, state.era)
                else:
                    self._give_up(state, marks)
            except Exception:  # the other topics have to know too
                self._logger.exception("%s: the end of %s failed", state.topic, txn)

    def close(self) -> None:
        """Leave the ends of transactions to the broker."""
        self._is_closed = True
        self._watched.clear()

    def _end_after_seek(self, state: TopicState, committed: bool) -> None:
        """End a transaction that has acked before a seek.

        The broker redelivers the messages of an abort, behind later ones. So an ordered topic is
        rewound, as after each abort.
        """
        if not (committed or state.shared):
            self._rewinds.begin(state)
            self.on_rewound()

    def _commit(self, state: TopicState, marks: TransactionMarks, era: int) -> None:
        if self._is_closed or state.era != era:  # a seek asked for these messages again
            return
        self._acks.added(state, state.commit_pending(marks, _STEP))
        if marks.masks:
            asyncio.get_running_loop().call_soon(self._commit, state, marks, era)
        elif marks.cumulative is not None:
            self._settlement.ack_up_to(state, *marks.cumulative)

    def _give_up(self, state: TopicState, marks: TransactionMarks) -> None:
        groups = state.give_up_pending(marks)
        if not state.shared:
            self._rewinds.begin(state)
            self.on_rewound()
        elif groups:
            try:
                self._transport_consumer.redeliver(state.number, groups)
            except TransportError as error:  # everything unacked is redelivered after a reconnect
                self._logger.debug("%s: not redelivered now: %s", state.topic, error)


def _ignore() -> None:
    """Default of `on_rewound`."""


def _note_failure(state: TopicState, entries: dict[Entry, int], sent: asyncio.Future[None]) -> None:
    if sent.cancelled() or sent.exception() is not None:
        for entry, mask in entries.items():
            if entry.pending(mask):
                state.pending_acks.note_failure(entry, mask)


def _covers(last: CumulativeMark, key: EntryKey, index: int) -> bool:
    if last[0] == key:
        return last[1] < 0 or 0 <= index <= last[1]
    return last[0] > key


def _not_held(item: object) -> MessageNotHeldError:
    return MessageNotHeldError(
        f"{item!r} was settled, is acked in another transaction, waits for its redelivery, or is "
        "not held by this consumer: in a transaction, ack a message that this consumer has "
        "received and not settled"
    )
