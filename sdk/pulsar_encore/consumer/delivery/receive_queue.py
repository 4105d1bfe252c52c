"""Messages that have arrived and are not delivered yet, and the callers that wait for them.

A waiting caller is only woken, never given a message. It takes one itself, in one step without an
await, so a cancelled or timed-out receive cannot lose a message. Callers are served by ticket: a
new caller does not overtake a woken one, and a caller that found nothing keeps its place. Every
call is linear in the messages that it moves.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, count, islice
from operator import attrgetter
from typing import Any, Final, TypeAlias

from ...core.attempts import Attempts
from ...core.entry import Entry
from ...core.message_states import HELD, QUEUED
from ...errors import ReceiveTimeout
from ...eventloop.fair_yield import FairYield
from ...message import Message, RawMessage, size_of

# Limit of queued messages while a pop waits for one topic and all topics share the permits. It
# exceeds the permits that any other topic has, and bounds the queue where the broker's unacked
# limit is off.
_MAX_PASSED: Final = 20_000
# Permits are returned in groups of this many messages of a delivery, and for all messages taken
# when a caller waits.
_GROUP: Final = 100
_SINGLE_INDEX: Final = (0,)  # the batch index of a message that is its own entry
_NOTHING: Final[Iterator[Message]] = iter(())
_TICKET: Final = attrgetter("ticket")


Queued: TypeAlias = tuple[Entry, int, RawMessage]
"""A queued message: its entry, its batch index and its content."""


class _Cursor:
    """The messages of one delivery, the next position, and the permits that they occupy.

    Attributes:
        weights: Cumulative bytes up to each message; None until needed.
        made: `Message` objects that `make` has made in advance, or None.
        made_for: `Entry.redelivered` at that time.
    """

    __slots__ = (
        "at",
        "end",
        "entry",
        "indexes",
        "made",
        "made_for",
        "messages",
        "permits",
        "weights",
    )

    def __init__(
        self, entry: Entry, indexes: Sequence[int], messages: Sequence[RawMessage], permits: int
    ) -> None:
        self.entry = entry
        self.indexes = indexes
        self.messages = messages
        self.at = 0
        self.end = len(messages)
        self.permits = permits
        self.weights: list[int] | None = None
        self.made: list[Message] | None = None
        self.made_for = 0

    def entry_at(self, at: int) -> tuple[Entry, int]:
        return self.entry, self.indexes[at]

    @property
    def is_over(self) -> bool:
        """True if the entry record of all messages is out of use."""
        return not self.entry.live

    def weigh(self) -> int:
        if self.weights is None:
            self.weights = list(accumulate(message.length() for message in self.messages))
        return self.weights[-1]

    def make(self, schema: Any) -> None:
        self.made_for = self.entry.redelivered
        self.made = Message.of_entry(self.entry, schema, self.indexes, self.messages)


class _Run(_Cursor):
    """Consecutive messages of one topic that are entries of their own."""

    __slots__ = ("entries",)

    def __init__(
        self, entries: Sequence[Entry], messages: Sequence[RawMessage], permits: int
    ) -> None:
        super().__init__(entries[0], _SINGLE_INDEX, messages, permits)
        self.entries = entries

    def entry_at(self, at: int) -> tuple[Entry, int]:
        return self.entries[at], 0

    @property
    def is_over(self) -> bool:
        """True if all records are out of use because the topic's records were ended together.

        The first and the last entry then share `EntryTable.live_alone`, and so do those between.
        """
        live = self.entries[0].live
        return live is not False and not live and self.entries[-1].live is live

    def make(self, schema: Any) -> None:
        self.made = [
            Message(raw, schema, entry, 0, entry.redelivered)
            for entry, raw in zip(self.entries, self.messages, strict=True)
        ]


class _Waiter:
    """A caller that waits for messages.

    Attributes:
        takes: True if the caller takes a message as soon as it is woken. A caller that waits for
            certain topics (`only`) may find none, so it does not count as woken.
    """

    __slots__ = ("future", "only", "takes", "ticket", "topic_number", "woken")

    def __init__(
        self,
        ticket: int,
        future: asyncio.Future[bool],
        takes: bool,
        only: Container[int] | None,
    ) -> None:
        self.ticket = ticket
        self.future = future
        self.takes = takes and only is None
        self.only = only
        self.topic_number: int | None = None
        self.woken = False


class ReceiveQueue:
    """The arrived messages of a consumer in order, and the callers that wait for them.

    Attributes:
        taken: Messages of the deliveries that were removed.

    Args:
        consumed: Called with (topic number, messages) to return that many permits.
        failed: Called with the error when no message can arrive any more.
        handed_over: Called with (entry, indexes) at each delivery to the application.
        one_write: Context in which deliveries reach the disk in one write.
        wanted: Called with the number of waiting callers, if messages arrive only on request.
        dispose: Called with an unused container of cursors and the largest number of messages in
            one, to free them gradually.
    """

    def __init__(
        self,
        schema: Any,
        consumed: Callable[[int, int], None],
        fair_yield: FairYield,
        failed: Callable[[Exception], None],
        handed_over: Callable[[Entry, Sequence[int]], None] | None = None,
        wanted: Callable[[int], None] | None = None,
        one_write: Callable[[], AbstractContextManager[object]] = nullcontext,
        dispose: Callable[..., None] | None = None,
    ) -> None:
        self._dispose = dispose
        self._schema = schema
        self._consumed = consumed
        self._handed_over = handed_over
        self._one_write = one_write
        self._wanted = wanted
        self._fair_yield = fair_yield
        self._failed = failed
        self._cursors: deque[_Cursor] = deque()
        self._failed_cursors: deque[_Cursor] = deque()  # the cursors of messages that failed before
        # Iterates over the first cursor, the only one that is partly taken.
        self._head: Iterator[Message] = _NOTHING
        # The cursors by topic number, once a caller has waited for certain topics.
        self._by_source: dict[int, deque[_Cursor]] | None = None
        self.taken: int = 0
        self._count = 0  # messages of all cursors, including the taken ones of the first
        self._bytes: int | None = None  # the bytes of these messages, once needed
        self._collecting = 0
        #: True if each topic has its own permits (see `Capabilities`).
        self.queue_per_topic: bool = True
        self._topic_waiters = 0  # callers that wait for certain topics while topics share permits
        self._waiters: list[_Waiter] = []
        self._tickets = count()
        #: Called at each `drop`, for an owner of messages that were dequeued and not delivered.
        self.dropped: Callable[[Collection[object] | None], None] = _ignore_drop
        self._error: Exception | None = None

    def __len__(self) -> int:
        """Return the number of queued messages, including those settled while queued."""
        return self._count - self._cursors[0].at if self._cursors else 0

    def push(
        self,
        entry: Entry,
        indexes: Sequence[int],
        messages: Sequence[RawMessage],
        *,
        permits: bool = True,
    ) -> None:
        """Queue messages of an entry. Without `permits`, theirs were returned before."""
        total = len(messages)
        if total > _GROUP:
            for start in range(0, total, _GROUP):
                part = slice(start, start + _GROUP)
                self.push(entry, indexes[part], messages[part], permits=permits)
            return
        cursor = _Cursor(entry, indexes, messages, total if permits else 0)
        if entry.redelivered or entry.failed is not None or entry.topic_state.letters:
            self._failed_cursors.append(cursor)
        self._append(cursor)

    def push_run(self, entries: Sequence[Entry], messages: Sequence[RawMessage]) -> None:
        for start in range(0, len(entries), _GROUP):
            part = slice(start, start + _GROUP)
            run = entries[part]
            self._append(_Run(run, messages[part], len(run)))

    def _append(self, cursor: _Cursor) -> None:
        self._cursors.append(cursor)
        if self._by_source is not None:
            self._by_source.setdefault(cursor.entry.topic_state.number, deque()).append(cursor)
        self._count += cursor.end
        if self._bytes is not None:
            self._bytes += cursor.weigh()
        if self._collecting or (self._topic_waiters and self._count < _MAX_PASSED):
            self._return_permits(cursor, 0)

    def take_failed(self, most: int) -> list[Message]:
        """Take up to `most` messages that failed before or are letters, from the whole queue."""
        taken: list[Message] = []
        with self._one_write():
            while self._failed_cursors and len(taken) < most:
                cursor = self._failed_cursors[0]
                taken += islice(self._walk_failed(cursor), most - len(taken))
                if len(taken) < most:  # else the cursor may have more messages
                    self._failed_cursors.popleft()
                    self._return_permits(cursor, 0)
        return taken

    def _walk_failed(self, cursor: _Cursor) -> Iterator[Message]:
        """Deliver the messages of a cursor that stays in the queue; a later walk skips them."""
        entry = cursor.entry
        for index, raw in zip(cursor.indexes, cursor.messages, strict=True):
            if entry.deliver(index):
                if self._handed_over is not None:
                    self._handed_over(entry, (index,))
                failed = entry.topic_state.attempts.count(entry, index)
                number = entry.delivery_number(index)
                yield Message(raw, self._schema, entry, index, failed, number)

    def take(self) -> Message | None:
        """Take the next message, which becomes HELD; return None if the queue is empty."""
        for message in self._head:
            return message
        while self._cursors:
            self._begin(self._cursors[0])
            for message in self._head:
                return message
        return None

    def _begin(self, head: _Cursor) -> None:
        # Nearly always true after a cumulative ack of 45,000 queued messages.
        if head.is_over:
            self._skip_settled()
        else:
            self._head = self._walk_run(head) if type(head) is _Run else self._walk(head)

    def _skip_settled(self) -> None:
        self._head = _NOTHING
        over: deque[_Cursor] = deque()
        while self._cursors and (head := self._cursors[0]).is_over:
            over.append(head)
            self._finish_first(head)
        if self._dispose is not None:
            self._dispose(over, _GROUP)

    def _walk(self, cursor: _Cursor) -> Iterator[Message]:
        """Deliver the messages of one cursor, one at each step.

        A generator, because its local variables make taking a message cheap.
        """
        entry, schema, handed_over = cursor.entry, self._schema, self._handed_over
        attempts: Attempts = entry.topic_state.attempts
        failures = attempts.failures
        for index, raw in zip(cursor.indexes, cursor.messages, strict=True):
            cursor.at += 1
            if entry.state[index] == QUEUED and entry.live:
                entry.state[index] = HELD  # `Entry.deliver` inlined, to save a call per message
                if handed_over is not None:
                    handed_over(entry, (index,))
                # The first branch is taken nearly always.
                if entry.failed is None and entry.delivery_numbers is None and not failures:
                    yield Message(raw, schema, entry, index, entry.redelivered)
                else:
                    failed, number = attempts.count(entry, index), entry.delivery_number(index)
                    yield Message(raw, schema, entry, index, failed, number)
        self._finish_first(cursor)

    def _walk_run(self, cursor: _Run) -> Iterator[Message]:
        schema, handed_over = self._schema, self._handed_over
        attempts: Attempts = cursor.entry.topic_state.attempts
        failures = attempts.failures
        for entry, raw in zip(cursor.entries, cursor.messages, strict=True):
            cursor.at += 1
            state = entry.state
            if state[0] == QUEUED and entry.live:
                state[0] = HELD
                if handed_over is not None:
                    handed_over(entry, _SINGLE_INDEX)
                if entry.failed is None and entry.delivery_numbers is None and not failures:
                    yield Message(raw, schema, entry, 0, entry.redelivered)
                else:
                    failed, number = attempts.count(entry, 0), entry.delivery_number(0)
                    yield Message(raw, schema, entry, 0, failed, number)
        self._finish_first(cursor)

    def dequeue(self, most: int) -> list[Queued]:
        """Remove up to `most` messages from the queue and leave them QUEUED.

        The caller keeps them in another order and delivers them with `deliver`. Do not combine it
        with `take` and similar methods.
        """
        dequeued: list[Queued] = []
        while self._cursors and len(dequeued) < most:
            cursor = self._cursors[0]
            while cursor.at < cursor.end and len(dequeued) < most:
                entry, index = cursor.entry_at(cursor.at)
                if entry.live and entry.state[index] == QUEUED:
                    dequeued.append((entry, index, cursor.messages[cursor.at]))
                cursor.at += 1
            if cursor.at == cursor.end:
                self._finish_first(cursor)
        return dequeued

    def deliver(self, dequeued: Sequence[Queued]) -> list[Message]:
        """Deliver messages that were dequeued and are still QUEUED."""
        handed = []
        with self._one_write():
            for entry, index, raw in dequeued:
                entry.deliver(index)
                if self._handed_over is not None:
                    self._handed_over(entry, (index,))
                failed = entry.topic_state.attempts.count(entry, index)
                number = entry.delivery_number(index)
                handed.append(Message(raw, self._schema, entry, index, failed, number))
        return handed

    # Messages of certain topics

    def has_of(self, only: Container[int]) -> bool:
        """Return True if messages of these topics are queued, though they may be settled."""
        return any(cursors and number in only for number, cursors in self._indexed().items())

    def take_of(
        self, only: Container[int], most: int, *, failed_first: bool = False
    ) -> list[Message]:
        taken: list[Message] = []
        done: list[_Cursor] = []
        with self._one_write():
            if failed_first:
                for cursor in list(self._failed_cursors):
                    if cursor.entry.topic_state.number in only:
                        self._take_from(cursor, taken, most)
            for cursors in self._in_turn(only):
                while cursors and len(taken) < most:
                    if self._take_from(cursors[0], taken, most):
                        done.append(cursors.popleft())
                if len(taken) >= most:
                    break
        self._remove(done)
        return taken

    def _take_from(self, cursor: _Cursor, taken: list[Message], most: int) -> bool:
        """Deliver messages of a cursor, which stays in the queue; return True if none are left."""
        before = len(taken)
        left = False
        for at in range(cursor.at, cursor.end):
            entry, index = cursor.entry_at(at)
            if len(taken) >= most:
                left = True
                break
            if entry.deliver(index):
                if self._handed_over is not None:
                    self._handed_over(entry, (index,))
                failed = entry.topic_state.attempts.count(entry, index)
                number = entry.delivery_number(index)
                taken.append(
                    Message(cursor.messages[at], self._schema, entry, index, failed, number)
                )
        remaining = cursor.permits - (len(taken) - before) if left else 0
        self._return_permits(cursor, max(remaining, 0))
        return not left

    def dequeue_of(self, only: Container[int], most: int) -> list[Queued]:
        dequeued: list[Queued] = []
        done: list[_Cursor] = []
        for cursors in self._in_turn(only):
            while cursors and len(dequeued) < most:
                cursor = cursors[0]
                while cursor.at < cursor.end and len(dequeued) < most:
                    entry, index = cursor.entry_at(cursor.at)
                    if entry.live and entry.state[index] == QUEUED:
                        dequeued.append((entry, index, cursor.messages[cursor.at]))
                    cursor.at += 1
                if cursor.at == cursor.end:
                    self._return_permits(cursor, 0)
                    done.append(cursors.popleft())
            if len(dequeued) >= most:
                break
        self._remove(done)
        return dequeued

    def _indexed(self) -> dict[int, deque[_Cursor]]:
        if self._by_source is None:
            self._by_source = {}
            for cursor in self._cursors:
                self._by_source.setdefault(cursor.entry.topic_state.number, deque()).append(cursor)
        return self._by_source

    def _in_turn(self, only: Container[int]) -> Iterator[deque[_Cursor]]:
        """Yield the cursors of each matching topic. A topic that is used goes to the end."""
        indexed = self._indexed()
        for number in [number for number, cursors in indexed.items() if cursors and number in only]:
            cursors = indexed[number] = indexed.pop(number)
            yield cursors

    def _remove(self, done: Sequence[_Cursor]) -> None:
        if not done:
            return
        removed = set(map(id, done))
        if id(self._cursors[0]) in removed:
            self._head = _NOTHING
        self._cursors = deque(each for each in self._cursors if id(each) not in removed)
        if self._failed_cursors:
            self._failed_cursors = deque(
                each for each in self._failed_cursors if id(each) not in removed
            )
        for cursor in done:
            self._count -= cursor.end
            self.taken += cursor.end
            if self._bytes is not None:
                self._bytes -= cursor.weigh()

    def _finish_first(self, cursor: _Cursor) -> None:
        """Remove the first cursor after its last message, and return its permits."""
        self._remove_first(cursor)
        if cursor.permits:
            self._consumed(cursor.entry.topic_state.number, cursor.permits)

    def _remove_first(self, cursor: _Cursor) -> None:
        self._cursors.popleft()
        if self._failed_cursors and self._failed_cursors[0] is cursor:
            self._failed_cursors.popleft()
        if self._by_source is not None:
            of_source = self._by_source[cursor.entry.topic_state.number]
            if of_source and of_source[0] is cursor:
                of_source.popleft()
        self._count -= cursor.end
        self.taken += cursor.end
        if self._bytes is not None:
            self._bytes -= cursor.weigh()

    def _return_permits(self, cursor: _Cursor, remaining: int) -> None:
        messages = cursor.permits - remaining
        if messages > 0:
            cursor.permits = remaining
            self._consumed(cursor.entry.topic_state.number, messages)

    def has(self, messages: int, size: int) -> bool:
        """Return True if this many messages, or bytes if `size` is above 0, are queued."""
        if len(self) >= messages:
            return True
        return size > 0 and self._queued_bytes() >= size

    def _queued_bytes(self) -> int:
        if self._bytes is None:
            self._bytes = sum(cursor.weigh() for cursor in self._cursors)
        if not self._cursors:
            return 0
        head = self._cursors[0]
        return self._bytes - (head.weights[head.at - 1] if head.weights and head.at else 0)

    def prepare(self, most: int, most_bytes: int) -> Iterator[None]:
        """Make message objects for `take_many` in steps, without taking any.

        A message object costs 0.5 us, so 45,000 of them take several iterations of the loop. The
        queue may change between the steps: `take_many` checks each message that was made before.

        Yields:
            None, after each step of up to 100 messages.
        """
        for cursor in list(self._cursors):
            if most <= 0:
                return
            most -= cursor.end - cursor.at
            if most_bytes > 0:
                most_bytes -= cursor.weigh()
                if most_bytes <= 0:
                    return
            if not cursor.at and cursor.made is None:
                cursor.make(self._schema)
            yield

    def take_many(self, most: int, most_bytes: int) -> list[Message]:
        """Take up to `most` messages and `most_bytes` bytes (0 or less for no limit).

        The first message is taken whatever its size.
        """
        if most_bytes > 0 and self._queued_bytes() > most_bytes:
            with self._one_write():
                return self._take_weighed(most, most_bytes)
        with self._one_write():
            return self._take_counted(most)

    def _take_counted(self, most: int) -> list[Message]:
        taken = list(islice(self._head, most))
        while self._cursors and len(taken) < most:
            self._take_deliveries(taken, most)
            if self._cursors and len(taken) < most:
                self._begin(self._cursors[0])
                taken += islice(self._head, most - len(taken))
        return taken

    def _take_deliveries(
        self, taken: list[Message], most: int, most_bytes: float = math.inf
    ) -> float:
        """Deliver whole cursors from the front while they fit.

        Their permits are returned together, because a call for each cursor costs as much as the
        delivery.

        Returns:
            The rest of `most_bytes`.
        """
        cursors, by_bytes = self._cursors, most_bytes < math.inf
        permits: dict[int, int] = {}
        over: deque[_Cursor] = deque()
        while cursors:
            cursor = cursors[0]
            if cursor.at or len(taken) + cursor.end > most:
                break
            if by_bytes and cursor.weigh() > most_bytes:
                break
            delivery = self._take_delivery(cursor)
            if delivery is None:
                break
            taken += delivery
            if by_bytes:
                is_all = len(delivery) == cursor.end
                most_bytes -= cursor.weigh() if is_all else sum(map(size_of, delivery))
            self._remove_first(cursor)
            over.append(cursor)
            if cursor.permits:
                topic_number = cursor.entry.topic_state.number
                permits[topic_number] = permits.get(topic_number, 0) + cursor.permits
        for topic_number, messages in permits.items():
            self._consumed(topic_number, messages)
        if self._dispose is not None and len(over) > 1:
            self._dispose(over, over[0].end)
        return most_bytes

    def _take_delivery(self, cursor: _Cursor) -> list[Message] | None:
        """Deliver the QUEUED messages of an untouched cursor at once.

        Return None, without any change, if each message needs its own check.
        """
        made = cursor.made
        if type(cursor) is _Run:
            return None if made is None else self._hand_over_run(cursor, made)
        if not self._hand_over_all(cursor):
            return None
        if made is not None and cursor.made_for == cursor.entry.redelivered:
            return made
        return Message.of_entry(cursor.entry, self._schema, cursor.indexes, cursor.messages)

    def _hand_over_run(self, run: _Run, made: list[Message]) -> list[Message] | None:
        attempts: Attempts = run.entry.topic_state.attempts
        if attempts.failures:
            return None
        handed_over, live = self._handed_over, run.entry.topic_state.table.live_alone
        for at, entry in enumerate(run.entries):
            state = entry.state
            if (
                state[0] != QUEUED
                or entry.live is not live
                or entry.delivery_numbers is not None
                or entry.redelivered
            ):
                return made[:at] + self._hand_over_rest(run, at)
            state[0] = HELD
            if handed_over is not None:
                handed_over(entry, _SINGLE_INDEX)
        return made

    def _hand_over_rest(self, run: _Run, at: int) -> list[Message]:
        """Deliver the messages from a position on, with a check of each.

        A message may have been settled, or released and redelivered, since its object was made.
        """
        return [
            Message(
                raw,
                self._schema,
                entry,
                0,
                entry.topic_state.attempts.count(entry, 0),
                entry.delivery_number(0),
            )
            for entry, raw in zip(run.entries[at:], run.messages[at:], strict=True)
            if self._hand_over_single(entry)
        ]

    def _hand_over_single(self, entry: Entry) -> bool:
        if not entry.deliver(0):
            return False
        if self._handed_over is not None:
            self._handed_over(entry, _SINGLE_INDEX)
        return True

    def _hand_over_all(self, cursor: _Cursor) -> bool:
        """Deliver all messages of a cursor at once; return False if each needs its own check."""
        entry, indexes = cursor.entry, cursor.indexes
        if not (
            entry.failed is None
            and entry.delivery_numbers is None
            and not entry.topic_state.attempts.failures
            and (
                entry.deliver_all(indexes)
                if type(indexes) is range
                else len(indexes) == 1 and entry.deliver(indexes[0])
            )
        ):
            return False
        if self._handed_over is not None:
            self._handed_over(entry, indexes)
        return True

    def _take_weighed(self, most: int, most_bytes: int) -> list[Message]:
        taken: list[Message] = []
        left: float = most_bytes
        while len(taken) < most:
            left = self._take_deliveries(taken, most, left)
            if len(taken) >= most:
                break
            left -= self._next_size()
            if taken and left < 0:
                break
            message = self.take()
            if message is None:
                break
            taken.append(message)
        return taken

    def _next_size(self) -> int:
        for cursor in self._cursors:
            for at in range(cursor.at, cursor.end):
                entry, index = cursor.entry_at(at)
                if entry.state[index] == QUEUED and entry.live:
                    return cursor.messages[at].length()
        return 0

    def collect(self) -> None:
        """Let queued messages occupy no permits until `collected` is called.

        Otherwise a caller could never wait for more messages than the transport has permits.
        """
        self._collecting += 1
        if self._collecting == 1:
            for cursor in self._cursors:
                self._return_permits(cursor, 0)

    def collected(self) -> None:
        self._collecting -= 1

    # Waiting

    async def get(self, timeout_s: float | None) -> Message:
        """Wait for the next message and return it.

        Raises:
            ReceiveTimeout: if no message arrived in time.
        """
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        fair_yield = self._fair_yield
        if fair_yield.clock() >= fair_yield.ends:
            await fair_yield.end()
        ticket = self.ticket()
        while True:
            message = self.take()
            if message is not None:
                return message
            if not await self.wait(deadline, ticket):
                raise ReceiveTimeout(f"no message within {timeout_s} s")

    def ticket(self) -> int:
        return next(self._tickets)

    async def wait(
        self,
        deadline: float | None,
        ticket: int,
        *,
        takes: bool = True,
        only: Container[int] | None = None,
    ) -> bool:
        """Suspend until a message arrives (True) or the loop's clock reaches `deadline` (False).

        Suspends even if `deadline` is past, because a caller that polls in a loop would otherwise
        never let a message arrive.

        Args:
            deadline: On the loop's clock, or None.
            takes: True if the caller takes a message when it is woken. A caller that may leave it
                and wait for more is woken in addition to those that take, so that no message stays
                in the queue while they sleep.
        """
        if self._error is not None:
            await asyncio.sleep(0)
            # Without this, the traceback would grow at each raise.
            raise self._error.with_traceback(None)
        if only is None and self._cursors:
            head = self._cursors[0]
            self._return_permits(head, head.end - head.at)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(ticket, loop.create_future(), takes, only)
        insort(self._waiters, waiter, key=_TICKET)
        if self._wanted is not None:
            self._wanted(len(self._waiters))
        timer = None if deadline is None else loop.call_at(deadline, _expire, waiter.future)
        is_topic_waiter = only is not None and not self.queue_per_topic
        self._topic_waiters += is_topic_waiter
        try:
            if is_topic_waiter:
                self._return_queued_permits()
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.woken:
                # Woken and cancelled at once: wake the next caller instead.
                self.wake(1, waiter.topic_number)
            raise
        finally:
            self._topic_waiters -= is_topic_waiter
            if timer is not None:
                timer.cancel()
            if waiter.woken:
                self._fair_yield.release()
            else:
                self._leave(waiter)

    def _return_queued_permits(self) -> None:
        """Return the permits of queued messages, for a pop that waits for one topic.

        On the stock transport all topics share one queue. Without permits, the broker could not
        send the messages of that topic past the queued ones. The permits of messages after the
        first `_MAX_PASSED` are kept.
        """
        passed = 0
        for cursor in self._cursors:
            passed += cursor.end
            if passed > _MAX_PASSED:
                return
            self._return_permits(cursor, 0)

    def want(self) -> None:
        """Request messages for waiting callers, if messages arrive only on request."""
        if self._wanted is not None and self._waiters:
            self._wanted(len(self._waiters))

    def _leave(self, waiter: _Waiter) -> None:
        at = bisect_left(self._waiters, waiter.ticket, key=_TICKET)
        if at < len(self._waiters) and self._waiters[at] is waiter:
            del self._waiters[at]

    def wake(self, waiters: int, topic_number: int | None = None) -> None:
        """Wake up to `waiters` callers that take a message, and the other callers before them.

        A caller that waits for certain topics is skipped if none of their messages are queued.

        Args:
            source: Number of a topic with a message that can be taken and is not in this queue.
        """
        left: list[_Waiter] = []
        checked = 0
        for waiter in self._waiters:
            if waiters <= 0:
                break
            checked += 1
            only = waiter.only
            named = only is None or (topic_number is not None and topic_number in only)
            if only is not None and not (named or self.has_of(only)):
                left.append(waiter)
            elif not waiter.future.done():
                waiter.woken = True
                waiter.topic_number = topic_number
                waiter.future.set_result(True)
                self._fair_yield.hold()
                waiters -= waiter.takes
        self._waiters[:checked] = left

    def drop(self, states: Collection[object] | None = None) -> None:
        """Remove the queued messages of some topics, or of all. The caller handles their state.

        Args:
            states: The `TopicState`s; None for all.
        """
        only = None if states is None else set(states)
        kept: deque[_Cursor] = deque()
        permits: dict[int, int] = {}
        for cursor in self._cursors:
            if only is not None and cursor.entry.topic_state not in only:
                kept.append(cursor)
                continue
            self._count -= cursor.end
            if self._bytes is not None:
                self._bytes -= cursor.weigh()
            if cursor.permits:
                topic_number = cursor.entry.topic_state.number
                permits[topic_number] = permits.get(topic_number, 0) + cursor.permits
        if self._cursors and not (kept and kept[0] is self._cursors[0]):
            self._head = _NOTHING
        if self._dispose is not None:
            each = max((cursor.end for cursor in islice(self._cursors, _GROUP)), default=1)
            self._dispose(self._cursors, each)
        self._cursors = kept
        self._by_source = None
        if self._failed_cursors:
            remaining = {id(cursor) for cursor in kept}
            self._failed_cursors = deque(
                cursor for cursor in self._failed_cursors if id(cursor) in remaining
            )
        for topic_number, messages in permits.items():
            self._consumed(topic_number, messages)
        self.dropped(states)

    def dispose(self, container: deque[Any] | dict[Any, Any] | list[Any]) -> None:
        if self._dispose is not None:
            self._dispose(container)

    def fail(self, error: Exception) -> None:
        """Raise `error` in all present callers, and in future ones once the queue is empty."""
        self._error = error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self._failed(error)


def _ignore_drop(states: Collection[object] | None) -> None:
    """Default of `dropped`: no other part holds dequeued messages."""


def _expire(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
