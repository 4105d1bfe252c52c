"""Letters and the acks of their originals, together in transactions.

Letters that arrive while a transaction is open share the next one. So a single letter waits for
nothing, and many letters share the cost of a transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from ...core.message_states import ACKED, FORWARDING
from ...core.topic_state import TopicState
from ...errors import ClosedError, EncoreError, MessageNotHeldError, UnknownError
from ...eventloop.alarm import wall_now_ms
from ...eventloop.shielded_work import seen
from ...message import Held
from ...transaction_group import GroupEnd, GroupResult, commit_group
from ...transport.interface import TransportTransaction
from ...values.outgoing_message import OutgoingMessage
from ..settlement.transaction_acks import TransactionAcks
from .letter_producer import SEND_LIMIT, LetterProducer

#: A transaction that is still open after this time is aborted by the cluster, in s.
TIMEOUT_S: Final = 10.0
_MOST_LETTERS: Final = 1_000
_MOST_BYTES: Final = 4 * 2**20

OnGroupEnd: TypeAlias = Callable[[GroupEnd, Exception | None], None]


@dataclass(eq=False, slots=True)
class GroupedLetter:
    """A letter of a message in state FORWARDING.

    Attributes:
        held: The original.
        on_end: Called once with the end of the letter. After `STILL_HELD` the original is still
            being forwarded, or the error is a `MessageNotHeldError`.
        counts: True if an attempt at the original has failed that is not counted yet.
        error: The error of its send in the last transaction.
    """

    letter: OutgoingMessage
    producer: LetterProducer
    held: Held
    on_end: OnGroupEnd
    counts: bool = True
    error: Exception | None = None

    @property
    def topic_state(self) -> TopicState:
        state: TopicState = self.held.entry.topic_state
        return state

    @property
    def needs_ack(self) -> bool:
        """True if the original is still being forwarded."""
        entry = self.held.entry
        return bool(entry.live) and entry.state[self.held.batch_index] == FORWARDING

    @property
    def is_current(self) -> bool:
        """False if the forwarding has ended and the original may be delivered again: by a seek.

        The application may have acked the original meanwhile, which can end its record alone. Its
        letter is stored all the same.
        """
        entry = self.held.entry
        what = entry.state[self.held.batch_index]
        return entry.era == self.topic_state.era and what in (FORWARDING, ACKED)


_Group: TypeAlias = list[GroupedLetter]


class LetterGroups:
    """The transactions of one consumer's letters, one at a time.

    Args:
        begin: Begins a transaction.
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[TransportTransaction]],
        acks: TransactionAcks,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._begin = begin
        self._acks = acks
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[GroupedLetter] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._closed = False
        #: Transactions that failed since the last commit.
        self.failures: int = 0

    def add(self, letter: GroupedLetter) -> None:
        """Write a letter in one of the next transactions.

        It joins a group when its producer is ready, so a topic that does not answer delays no other
        letters.
        """
        letter.producer.when_ready(partial(self._on_ready, letter))

    def _on_ready(self, letter: GroupedLetter, error: Exception | None) -> None:
        if error is None and self._closed:
            error = ClosedError("the consumer was closed before the letter was sent")
        if error is not None:
            letter.on_end(GroupEnd.STILL_HELD, error)
            return
        self._waiting.append(letter)
        if self._writing is None:
            self._writing = seen(self._loop.create_task(self._write_all()))

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._write(self._next_group())
        finally:
            self._writing = None

    def _next_group(self) -> _Group:
        group: _Group = []
        size = 0
        while self._waiting and len(group) < _MOST_LETTERS:
            size += _size(self._waiting[0].letter)
            if group and size > _MOST_BYTES:
                break
            group.append(self._waiting.popleft())
        return group

    async def _write(self, group: _Group) -> None:
        """Write a group, and after a failure the rest of it again, until each letter has its end.

        Each further transaction has fewer letters than the one before.
        """
        while group:
            for each in group:
                if each.is_current:
                    each.error = None
                else:
                    self._end(each, GroupEnd.STILL_HELD, _not_held(each))
            group = [each for each in group if each.is_current]
            if group:
                group = self._finish(group, await self._commit(group))

    async def _commit(self, group: _Group) -> GroupResult:
        try:
            return await commit_group(self._begin, partial(_send, group), partial(self._ack, group))
        except Exception as error:  # a mistake here must leave no message behind
            self._logger.exception("letters could not be written in a transaction")
            for each in group:
                each.error = UnknownError(f"the letter could not be written: {error!r}")
            return GroupResult(GroupEnd.STILL_HELD, group[0].error)

    def _finish(self, group: _Group, result: GroupResult) -> _Group:
        """End the letters of a transaction; return those to write in another transaction."""
        self.failures = 0 if result.end is GroupEnd.COMMITTED else self.failures + 1
        again: _Group = []
        if result.end is GroupEnd.STILL_HELD:
            has_culprits = any(each.error is not None or not each.is_current for each in group)
            if has_culprits:  # the others can succeed without them
                again = [each for each in group if each.error is None]
        for each in group:
            if not again or each.error is not None:
                self._end(each, result.end, each.error or result.error)
        return again

    def _ack(self, group: _Group, txn: TransportTransaction) -> None:
        lost = next((each for each in group if not each.is_current), None)
        if lost is not None:
            raise _not_held(lost)
        acked = [each for each in group if each.needs_ack]
        by_topic: dict[TopicState, _Group] = {}
        for each in acked:
            by_topic.setdefault(each.topic_state, []).append(each)
        for state, letters in by_topic.items():
            try:
                self._acks.check_topic(state, txn)
            except EncoreError as error:
                for each in letters:
                    each.error = error
                raise
        self._acks.ack_forwarded([each.held for each in acked], txn)
        # If the transaction is aborted, the redelivered messages have had this attempt.
        wall_now = wall_now_ms(self._loop)
        for each in acked:
            if each.counts:
                key = each.held.entry.due_key(each.held.batch_index)
                each.topic_state.attempts.remember(key, wall_now, None)

    def _end(self, letter: GroupedLetter, end: GroupEnd, error: Exception | None) -> None:
        try:
            letter.on_end(end, error)
        except Exception:  # the filter of a logger failed; the other letters have to know too
            self._logger.exception("the outcome of a letter was not handled")

    def close(self) -> None:
        """Give up all letters, which get no end. A commit that has begun goes on."""
        self._closed = True
        self._waiting.clear()
        if self._writing is not None:
            self._writing.cancel()


async def _send(group: _Group, txn: TransportTransaction) -> None:
    """Send the letters of a transaction, and wait until each has its receipt or its error."""
    loop = asyncio.get_running_loop()
    all_sent: asyncio.Future[None] = loop.create_future()
    unsent = len(group)

    def on_sent(letter: GroupedLetter, error: Exception | None) -> None:
        nonlocal unsent
        letter.error = error
        unsent -= 1
        if not unsent and not all_sent.done():
            all_sent.set_result(None)

    for number, each in enumerate(group, 1):
        each.producer.post(replace(each.letter, txn=txn), partial(on_sent, each))
        if not number % SEND_LIMIT:
            await asyncio.sleep(0)
    await all_sent
    for each in group:
        if each.error is not None:
            raise each.error


def _size(letter: OutgoingMessage) -> int:
    properties = letter.properties or {}
    return len(letter.payload or b"") + sum(map(len, properties.values()))


def _not_held(letter: GroupedLetter) -> MessageNotHeldError:
    return MessageNotHeldError(
        f"the message {letter.held.entry.key} of {letter.topic_state.topic} was sought over before "
        "its letter was stored, so the letter was not written"
    )
