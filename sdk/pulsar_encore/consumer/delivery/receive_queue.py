"""What has arrived and was not yet handed over, and who waits for it.

Owns `ReceiveQueue`. A waiter is only woken, never given a message: it takes one itself, in one step
without an await, so a cancelled or timed-out receive cannot swallow anything. Those who wait are
served in line: who comes later does not overtake a waiter that was woken, and one that found
nothing keeps its place. Every call is linear in what it moves.
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
from ...core.entry import HELD, QUEUED, Entry
from ...errors import ReceiveTimeout
from ...eventloop.fair_yield import FairYield
from ...message import Message, RawMessage, size_of

# Messages that may be queued while somebody waits for one source, where all sources share the room:
# more than any other source has room for, and a bound where the broker's unacked limit is off.
_MAX_PASSED: Final = 20_000
# Room goes back by so many messages of a delivery, and by all that were taken when someone waits.
_GROUP: Final = 100
_SINGLE_INDEX: Final = (0,)  # the index of a message that is its entry
_NOTHING: Final[Iterator[Message]] = iter(())
_TICKET: Final = attrgetter("ticket")


Queued: TypeAlias = tuple[Entry, int, RawMessage]
"""A message that is queued: its entry, its index in there, and what it says."""


class _Cursor:
    """Messages of one delivery, how far they were taken, and what room they still occupy.

    Attributes:
        weights: The bytes up to each message; None until somebody asks for bytes.
        made: The messages as an application gets them, made in advance by `make`; else None.
        made_for: `Entry.redelivered` when they were made.
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
        """The entry of a message, and its index in there."""
        return self.entry, self.indexes[at]

    @property
    def is_over(self) -> bool:
        """Whether the record of all of it is out of use."""
        return not self.entry.live

    def weigh(self) -> int:
        """Return the bytes of all messages."""
        if self.weights is None:
            self.weights = list(accumulate(message.length() for message in self.messages))
        return self.weights[-1]

    def make(self, schema: Any) -> None:
        """Make the messages as an application gets them. They are not handed over yet."""
        self.made_for = self.entry.redelivered
        self.made = Message.of_entry(self.entry, schema, self.indexes, self.messages)


class _Run(_Cursor):
    """Messages of one source that are entries of their own, one after the other."""

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
        """Whether all records are out of use because all of the source's were ended together: the
        first and the last share `TopicState.live_alone`, and so do those between."""
        live = self.entries[0].live
        return live is not False and not live and self.entries[-1].live is live

    def make(self, schema: Any) -> None:
        self.made = [
            Message(raw, schema, entry, 0, entry.redelivered)
            for entry, raw in zip(self.entries, self.messages, strict=True)
        ]


class _Waiter:
    """A caller that waits for messages. Callers are served in the order of their tickets.

    Attributes:
        takes: True if the caller takes a message as soon as it is woken. A caller that names
            sources (`only`) may find none, so it does not count among those that were woken.
    """

    __slots__ = ("future", "only", "source", "takes", "ticket", "woken")

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
        self.source: int | None = None  # of what it was woken for, if that is known
        self.woken = False


class ReceiveQueue:
    """Arrived messages in order, and the futures of those who wait.

    Attributes:
        taken: Messages of the deliveries that are done with.

    Args:
        schema: Decodes `Message.value`.
        consumed: Called with (source, messages) when there is room for that many more.
        fair_yield: When a receive that need not wait lets the loop run.
        failed: Called with the error when nothing will ever arrive any more.
        handed_over: Called with (entry, indexes) at each hand-over.
        one_write: What is handed over inside is written at once, where it is written.
        wanted: Called with the number of those who wait, where nothing comes unasked.
        dispose: Called with a container of cursors that is out of use, and how many messages each
            holds at most, to free them little by little.
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
        self._failed_cursors: deque[_Cursor] = (
            deque()
        )  # of them, those of messages that failed before
        self._head: Iterator[Message] = _NOTHING  # walks the first cursor; only that is in part
        # The same cursors by the number of their source, once somebody asked for some sources only.
        self._by_source: dict[int, deque[_Cursor]] | None = None
        self.taken: int = 0
        self._count = 0  # messages of all cursors, those taken of the first included
        self._bytes: int | None = None  # the same in bytes, once somebody asked
        self._collecting = 0
        #: Each source has room of its own (see `Capabilities`).
        self.room_by_source: bool = True
        self._topic_waiters = 0  # those who wait for some sources, where they share the room
        self._waiters: list[_Waiter] = []  # by ticket
        self._tickets = count()
        #: Told of each `drop`: who took messages off without handing them over.
        self.dropped: Callable[[Collection[object] | None], None] = _ignore_drop
        self._error: Exception | None = None

    def __len__(self) -> int:
        """Messages queued, those settled while queued included."""
        return self._count - self._cursors[0].at if self._cursors else 0

    def push(
        self,
        entry: Entry,
        indexes: Sequence[int],
        messages: Sequence[RawMessage],
        *,
        permits: bool = True,
    ) -> None:
        """Queue messages; `room` False when their room was given back before."""
        total = len(messages)
        if total > _GROUP:
            for start in range(0, total, _GROUP):
                part = slice(start, start + _GROUP)
                self.push(entry, indexes[part], messages[part], permits=permits)
            return
        cursor = _Cursor(entry, indexes, messages, total if permits else 0)
        if entry.redelivered or entry.failed is not None or entry.source.letters:
            self._failed_cursors.append(cursor)
        self._append(cursor)

    def push_run(self, entries: Sequence[Entry], messages: Sequence[RawMessage]) -> None:
        """Queue messages of one source that are entries of their own; as `push` for each."""
        for start in range(0, len(entries), _GROUP):
            part = slice(start, start + _GROUP)
            run = entries[part]
            self._append(_Run(run, messages[part], len(run)))

    def _append(self, cursor: _Cursor) -> None:
        self._cursors.append(cursor)
        if self._by_source is not None:
            self._by_source.setdefault(cursor.entry.source.number, deque()).append(cursor)
        self._count += cursor.end
        if self._bytes is not None:
            self._bytes += cursor.weigh()
        if self._collecting or (self._topic_waiters and self._count < _MAX_PASSED):
            self._return_permits(cursor, 0)

    def take_failed(self, most: int) -> list[Message]:
        """Up to so many of those that failed before, or are letters, wherever they are queued."""
        taken: list[Message] = []
        with self._one_write():
            while self._failed_cursors and len(taken) < most:
                cursor = self._failed_cursors[0]
                taken += islice(self._walk_failed(cursor), most - len(taken))
                if len(taken) < most:  # else there may be more of it
                    self._failed_cursors.popleft()
                    self._return_permits(cursor, 0)
        return taken

    def _walk_failed(self, cursor: _Cursor) -> Iterator[Message]:
        """The messages of a cursor that keeps its place: who walks it later finds them taken."""
        entry = cursor.entry
        for index, raw in zip(cursor.indexes, cursor.messages, strict=True):
            if entry.hand_over(index):
                if self._handed_over is not None:
                    self._handed_over(entry, (index,))
                failed = entry.source.attempts.count(entry, index)
                number = entry.hand_over_number(index)
                yield Message(raw, self._schema, entry, index, failed, number)

    def take(self) -> Message | None:
        """The next message, QUEUED -> HELD, or None when nothing is here."""
        for message in self._head:
            return message
        while self._cursors:
            self._begin(self._cursors[0])
            for message in self._head:
                return message
        return None

    def _begin(self, head: _Cursor) -> None:
        if head.is_over:  # after a cumulative ack of 45,000 that are queued, nearly all of them
            self._skip_settled()
        else:
            self._head = self._walk_run(head) if type(head) is _Run else self._walk(head)

    def _skip_settled(self) -> None:
        """Skip leading cursors whose records are all out of use."""
        self._head = _NOTHING
        over: deque[_Cursor] = deque()
        while self._cursors and (head := self._cursors[0]).is_over:
            over.append(head)
            self._finish_first(head)
        if self._dispose is not None:
            self._dispose(over, _GROUP)

    def _walk(self, cursor: _Cursor) -> Iterator[Message]:
        """The messages of one cursor, each handed over as it is asked for.

        A generator, because its locals are what makes taking a message cheap.
        """
        entry, schema, handed_over = cursor.entry, self._schema, self._handed_over
        attempts: Attempts = entry.source.attempts
        failures = attempts.failures
        for index, raw in zip(cursor.indexes, cursor.messages, strict=True):
            cursor.at += 1
            if entry.state[index] == QUEUED and entry.live:
                entry.state[index] = HELD  # the step `hand_over`, without a call for each message
                if handed_over is not None:
                    handed_over(entry, (index,))
                # Nearly always the first branch.
                if entry.failed is None and entry.hand_overs is None and not failures:
                    yield Message(raw, schema, entry, index, entry.redelivered)
                else:
                    failed, number = attempts.count(entry, index), entry.hand_over_number(index)
                    yield Message(raw, schema, entry, index, failed, number)
        self._finish_first(cursor)

    def _walk_run(self, cursor: _Run) -> Iterator[Message]:
        """The same of messages that are entries of their own."""
        schema, handed_over = self._schema, self._handed_over
        attempts: Attempts = cursor.entry.source.attempts
        failures = attempts.failures
        for entry, raw in zip(cursor.entries, cursor.messages, strict=True):
            cursor.at += 1
            state = entry.state
            if state[0] == QUEUED and entry.live:
                state[0] = HELD
                if handed_over is not None:
                    handed_over(entry, _SINGLE_INDEX)
                if entry.failed is None and entry.hand_overs is None and not failures:
                    yield Message(raw, schema, entry, 0, entry.redelivered)
                else:
                    failed, number = attempts.count(entry, 0), entry.hand_over_number(0)
                    yield Message(raw, schema, entry, 0, failed, number)
        self._finish_first(cursor)

    def dequeue(self, most: int) -> list[Queued]:
        """Take up to so many off that are QUEUED, and leave them so: for who keeps them in another
        order, and hands them over. Not beside `take` and its like."""
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

    def hand_over(self, dequeued: Sequence[Queued]) -> list[Message]:
        """Hand over what was taken off and is QUEUED still, all of it."""
        handed = []
        with self._one_write():
            for entry, index, raw in dequeued:
                entry.hand_over(index)
                if self._handed_over is not None:
                    self._handed_over(entry, (index,))
                failed = entry.source.attempts.count(entry, index)
                number = entry.hand_over_number(index)
                handed.append(Message(raw, self._schema, entry, index, failed, number))
        return handed

    # Of some sources

    def has_of(self, only: Container[int]) -> bool:
        """Whether something is queued of some sources, though it may be settled."""
        return any(cursors and number in only for number, cursors in self._indexed().items())

    def take_of(
        self, only: Container[int], most: int, *, failed_first: bool = False
    ) -> list[Message]:
        """Up to so many messages of some sources, wherever they are queued.

        Args:
            only: Numbers of the sources.
            most: Messages at most.
            failed_first: Take those that failed before first.
        """
        taken: list[Message] = []
        done: list[_Cursor] = []
        with self._one_write():
            if failed_first:
                for cursor in list(self._failed_cursors):
                    if cursor.entry.source.number in only:
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
            if entry.hand_over(index):
                if self._handed_over is not None:
                    self._handed_over(entry, (index,))
                failed = entry.source.attempts.count(entry, index)
                number = entry.hand_over_number(index)
                taken.append(
                    Message(cursor.messages[at], self._schema, entry, index, failed, number)
                )
        remaining = cursor.permits - (len(taken) - before) if left else 0
        self._return_permits(cursor, max(remaining, 0))
        return not left

    def dequeue_of(self, only: Container[int], most: int) -> list[Queued]:
        """`sift`, of some sources."""
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
                self._by_source.setdefault(cursor.entry.source.number, deque()).append(cursor)
        return self._by_source

    def _in_turn(self, only: Container[int]) -> Iterator[deque[_Cursor]]:
        """The cursors of each source that has some. A source that is used goes to the end."""
        indexed = self._indexed()
        for number in [number for number, cursors in indexed.items() if cursors and number in only]:
            cursors = indexed[number] = indexed.pop(number)
            yield cursors

    def _remove(self, done: Sequence[_Cursor]) -> None:
        """Remove cursors of which nothing is left, wherever they are."""
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
        """All of the first cursor was handed over: its room goes back."""
        self._remove_first(cursor)
        if cursor.permits:
            self._consumed(cursor.entry.source.number, cursor.permits)

    def _remove_first(self, cursor: _Cursor) -> None:
        """Remove the first cursor, of which nothing is left."""
        self._cursors.popleft()
        if self._failed_cursors and self._failed_cursors[0] is cursor:
            self._failed_cursors.popleft()
        if self._by_source is not None:
            of_source = self._by_source[cursor.entry.source.number]
            if of_source and of_source[0] is cursor:
                of_source.popleft()
        self._count -= cursor.end
        self.taken += cursor.end
        if self._bytes is not None:
            self._bytes -= cursor.weigh()

    def _return_permits(self, cursor: _Cursor, remaining: int) -> None:
        """The room of a cursor's messages but for the last `still`."""
        messages = cursor.permits - remaining
        if messages > 0:
            cursor.permits = remaining
            self._consumed(cursor.entry.source.number, messages)

    # Several at once

    def has(self, messages: int, size: int) -> bool:
        """Whether that many messages are queued, or that many bytes (0 or less: never mind)."""
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
        """Do most of the work of `take_many` in steps, and take nothing.

        A message object costs 0.5 us, so 45,000 of them are made in several turns of the loop. What
        happens to the queue between the steps is of no matter: `take_many` goes by what is queued
        then, and checks each message that was made before.

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
        """Up to so many messages and bytes (0 or less: any), but one however large it is."""
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
        """Hand over deliveries from the front, each in one go, while they fit.

        Their room goes back for all of them together, because a call for each delivery costs as
        much as the delivery.

        Args:
            taken: Gets the messages.
            most: Its size at most.
            most_bytes: Bytes of the messages at most.

        Returns:
            What is left of `most_bytes`.
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
                source = cursor.entry.source.number
                permits[source] = permits.get(source, 0) + cursor.permits
        for source, messages in permits.items():
            self._consumed(source, messages)
        if self._dispose is not None and len(over) > 1:
            self._dispose(over, over[0].end)
        return most_bytes

    def _take_delivery(self, cursor: _Cursor) -> list[Message] | None:
        """Hand over what is QUEUED of a delivery of which nothing was taken, in one go; None, and
        nothing done, where each message needs a look."""
        made = cursor.made
        if type(cursor) is _Run:
            return None if made is None else self._hand_over_run(cursor, made)
        if not self._hand_over_all(cursor):
            return None
        if made is not None and cursor.made_for == cursor.entry.redelivered:
            return made
        return Message.of_entry(cursor.entry, self._schema, cursor.indexes, cursor.messages)

    def _hand_over_run(self, run: _Run, made: list[Message]) -> list[Message] | None:
        """QUEUED -> HELD of messages that are entries of their own and were made in advance."""
        attempts: Attempts = run.entry.source.attempts
        if attempts.failures:
            return None
        handed_over, live = self._handed_over, run.entry.source.live_alone
        for at, entry in enumerate(run.entries):
            state = entry.state
            if (
                state[0] != QUEUED
                or entry.live is not live
                or entry.hand_overs is not None
                or entry.redelivered
            ):
                return made[:at] + self._hand_over_rest(run, at)
            state[0] = HELD
            if handed_over is not None:
                handed_over(entry, _SINGLE_INDEX)
        return made

    def _hand_over_rest(self, run: _Run, at: int) -> list[Message]:
        """The same of those from a place on, each with a look: one was settled while it was queued,
        or was released and came again since its object was made."""
        return [
            Message(
                raw,
                self._schema,
                entry,
                0,
                entry.source.attempts.count(entry, 0),
                entry.hand_over_number(0),
            )
            for entry, raw in zip(run.entries[at:], run.messages[at:], strict=True)
            if self._hand_over_single(entry)
        ]

    def _hand_over_single(self, entry: Entry) -> bool:
        if not entry.hand_over(0):
            return False
        if self._handed_over is not None:
            self._handed_over(entry, _SINGLE_INDEX)
        return True

    def _hand_over_all(self, cursor: _Cursor) -> bool:
        """QUEUED -> HELD of all messages of a delivery, where nothing is to be done for each."""
        entry, indexes = cursor.entry, cursor.indexes
        if not (
            entry.failed is None
            and entry.hand_overs is None
            and not entry.source.attempts.failures
            and (
                entry.hand_over_all(indexes)
                if type(indexes) is range
                else len(indexes) == 1 and entry.hand_over(indexes[0])
            )
        ):
            return False
        if self._handed_over is not None:
            self._handed_over(entry, indexes)
        return True

    def _take_weighed(self, most: int, most_bytes: int) -> list[Message]:
        """The same where the bytes may be what limits it."""
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
        """Bytes of the message that `take` would return."""
        for cursor in self._cursors:
            for at in range(cursor.at, cursor.end):
                entry, index = cursor.entry_at(at)
                if entry.state[index] == QUEUED and entry.live:
                    return cursor.messages[at].length()
        return 0

    def collect(self) -> None:
        """Somebody waits for many: until `collected`, what is queued occupies no room.

        Or more than the link's room could never be waited for.
        """
        self._collecting += 1
        if self._collecting == 1:
            for cursor in self._cursors:
                self._return_permits(cursor, 0)

    def collected(self) -> None:
        self._collecting -= 1

    # Waiting

    async def get(self, timeout_s: float | None) -> Message:
        """The next message, waiting for it.

        Raises:
            ReceiveTimeout: Nothing came in time.
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
        """A place in line, behind all that were given before."""
        return next(self._tickets)

    async def wait(
        self,
        deadline: float | None,
        ticket: int,
        *,
        takes: bool = True,
        only: Container[int] | None = None,
    ) -> bool:
        """Suspend until something arrives (True) or the loop's clock reaches `deadline` (False).

        Suspends even when that is past: who asks again and again would never let anything arrive.

        Args:
            deadline: On the loop's clock, or None.
            ticket: The place in line.
            takes: A message is taken at once when woken. Who may leave it and wait for more is
                woken beside those who take, or a message would lie there while they sleep.
            only: Numbers of the sources whose messages are waited for; None for all.
        """
        if self._error is not None:
            await asyncio.sleep(0)
            raise self._error.with_traceback(None)  # or it would grow with each time
        if only is None and self._cursors:
            head = self._cursors[0]
            self._return_permits(head, head.end - head.at)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(ticket, loop.create_future(), takes, only)
        insort(self._waiters, waiter, key=_TICKET)
        if self._wanted is not None:
            self._wanted(len(self._waiters))
        timer = None if deadline is None else loop.call_at(deadline, _expire, waiter.future)
        is_topic_waiter = only is not None and not self.room_by_source
        self._topic_waiters += is_topic_waiter
        try:
            if is_topic_waiter:
                self._return_queued_permits()
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.woken:
                # Woken and cancelled at once: the next in line takes the turn.
                self.wake(1, waiter.source)
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
        """Give back the permits of queued messages, for a pop that waits for one topic.

        On the stock transport all topics share one queue. Without permits, the broker could not
        send the messages of that topic past those that are queued. The permits of messages after
        the first `_MOST_PASSED` are kept.
        """
        passed = 0
        for cursor in self._cursors:
            passed += cursor.end
            if passed > _MAX_PASSED:
                return
            self._return_permits(cursor, 0)

    def want(self) -> None:
        """What came was for nobody: where nothing comes unasked, ask for those who wait."""
        if self._wanted is not None and self._waiters:
            self._wanted(len(self._waiters))

    def _leave(self, waiter: _Waiter) -> None:
        at = bisect_left(self._waiters, waiter.ticket, key=_TICKET)
        if at < len(self._waiters) and self._waiters[at] is waiter:
            del self._waiters[at]

    def wake(self, waiters: int, source: int | None = None) -> None:
        """Let up to `waiters` of those who take try again, and those in line before them.

        Who waits for some sources only is left out if nothing is queued of these.

        Args:
            waiters: How many.
            source: Number of a source of which a message can be taken that is not queued here.
        """
        left: list[_Waiter] = []
        checked = 0
        for waiter in self._waiters:
            if waiters <= 0:
                break
            checked += 1
            only = waiter.only
            named = only is None or (source is not None and source in only)
            if only is not None and not (named or self.has_of(only)):
                left.append(waiter)
            elif not waiter.future.done():
                waiter.woken = True
                waiter.source = source
                waiter.future.set_result(True)
                self._fair_yield.hold()
                waiters -= waiter.takes
        self._waiters[:checked] = left

    # Endings

    def drop(self, states: Collection[object] | None = None) -> None:
        """Forget what is queued, of some sources or of all; what becomes of it is the caller's.

        Args:
            states: The `TopicState`s concerned.
        """
        only = None if states is None else set(states)
        kept: deque[_Cursor] = deque()
        permits: dict[int, int] = {}
        for cursor in self._cursors:
            if only is not None and cursor.entry.source not in only:
                kept.append(cursor)
                continue
            self._count -= cursor.end
            if self._bytes is not None:
                self._bytes -= cursor.weigh()
            if cursor.permits:
                source = cursor.entry.source.number
                permits[source] = permits.get(source, 0) + cursor.permits
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
        for source, messages in permits.items():
            self._consumed(source, messages)
        self.dropped(states)

    def dispose(self, container: deque[Any] | dict[Any, Any] | list[Any]) -> None:
        """Free a container that nobody uses any more, little by little."""
        if self._dispose is not None:
            self._dispose(container)

    def fail(self, error: Exception) -> None:
        """Waiters, present and future, get `error` once nothing is queued."""
        self._error = error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self._failed(error)


def _ignore_drop(states: Collection[object] | None) -> None:
    """Nobody took anything off."""


def _expire(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
