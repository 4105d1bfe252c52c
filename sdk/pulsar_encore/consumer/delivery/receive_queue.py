"""Messages that have arrived and are not delivered yet, and the callers that wait for them.

A waiting caller is only woken. It takes a message itself, in one step without an await, so a
cancelled or timed-out receive cannot lose a message. Callers are served by ticket: a new caller
does not overtake a woken one, and a caller that found nothing keeps its place. Every call is linear
in the messages that it moves.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count, islice
from operator import attrgetter
from typing import Any, Final

from ...core.attempts import Attempts
from ...core.entry import Entry
from ...core.message_states import HELD, QUEUED
from ...errors import ReceiveTimeout
from ...eventloop.fair_yield import FairYield
from ...message import Message, RawMessage, size_of, unopened
from .paused_topics import PausedTopics, Unpaused
from .queued_deliveries import SINGLE_INDEX, Queued, QueuedDelivery, QueuedReturns, QueuedRun
from .topic_index import TopicIndex

# Limit of queued messages while a pop waits for one topic and all topics share the permits. It
# bounds the queue where the broker's unacked limit is off.
_MAX_PASSED: Final = 20_000
# A queued delivery has at most this many messages. Its permits are returned when it is used up. If
# a caller waits, the permits of the messages already taken are returned at once.
_GROUP: Final = 100
_NOTHING: Final[Iterator[Message]] = iter(())
_TICKET: Final = attrgetter("ticket")


@dataclass(eq=False, slots=True)
class _Waiter:
    """A caller that waits for messages.

    Attributes:
        takes: True if the caller is sure to take a message when it is woken. A caller that waits
            for certain topics (`only`) may find none.
    """

    ticket: int
    future: asyncio.Future[bool]
    takes: bool
    only: Container[int] | None
    topic_number: int | None = None
    woken: bool = False


class ReceiveQueue:
    """The arrived messages of a consumer in order, and the callers that wait for them.

    Attributes:
        taken: Number of messages in deliveries that were used up, since the start. `drop` does not
            count.

    Args:
        consumed: Called with (topic number, messages) to return that many permits.
        on_end: Called with the error when no message can arrive any more.
        on_delivery: Called with (entry, indexes) at each delivery to the application.
        one_write: Context in which deliveries reach the disk in one write.
        wanted: Called with the number of waiting callers, if messages arrive only on request.
        dispose: Called with (container of deliveries, most messages in one delivery) to free it in
            steps.
    """

    def __init__(
        self,
        schema: Any,
        consumed: Callable[[int, int], None],
        fair_yield: FairYield,
        on_end: Callable[[Exception], None],
        on_delivery: Callable[[Entry, Sequence[int]], None] | None = None,
        wanted: Callable[[int], None] | None = None,
        one_write: Callable[[], AbstractContextManager[object]] = nullcontext,
        dispose: Callable[..., None] | None = None,
    ) -> None:
        self._dispose = dispose
        self._schema = schema
        self._consumed = consumed
        self._on_delivery = on_delivery
        self._one_write = one_write
        self._wanted = wanted
        self._fair_yield = fair_yield
        self._on_end = on_end
        self._deliveries: deque[QueuedDelivery] = deque()
        # The deliveries of messages with failed attempts, and of letters.
        self._retried_deliveries: deque[QueuedDelivery] = deque()
        # Iterates over the first delivery. No other delivery is partly taken.
        self._head: Iterator[Message] = _NOTHING
        self._topics: TopicIndex | None = None  # made when a caller names topics
        self.taken: int = 0
        # Messages in `taken` and before the position in the first delivery that were not delivered,
        # less those that were delivered and are in neither: see `received`.
        self._not_received = 0
        self._received_in_order = 0  # with `dequeue` and `deliver`
        self._count = 0  # messages of all deliveries, taken ones of the first included
        self._bytes: int | None = None  # the bytes of these messages, once needed
        self._collecting = 0
        #: True if each topic has its own permits (see `Capabilities`).
        self.queue_per_topic: bool = True
        self._topic_waiters = 0  # callers that wait for certain topics while topics share permits
        self._waiters: list[_Waiter] = []
        self._tickets = count()
        #: Called at each `drop`, for messages that were dequeued and not delivered.
        self.dropped: Callable[[Collection[object] | None], None] = _ignore_drop
        self._error: Exception | None = None
        self._paused: PausedTopics | None = None  # while a topic is paused
        # The deliveries of paused topics, in order. They are part of no count here.
        self._shelf: deque[QueuedDelivery] = deque()
        self._shelf_count = 0

    def __len__(self) -> int:
        """Return the number of messages in the queued deliveries.

        Includes settled messages and messages that were taken out of order.
        """
        return self._count - self._deliveries[0].at if self._deliveries else 0

    @property
    def received(self) -> int:
        """Return the number of deliveries to the application, since the start.

        It is derived, because an addition for each message would cost a hundredth of everything.
        """
        if self._received_in_order:
            return self._received_in_order
        head = self._deliveries[0].at if self._deliveries else 0
        return self.taken + head - self._not_received

    def push(
        self,
        entry: Entry,
        indexes: Sequence[int],
        messages: Sequence[RawMessage],
        *,
        permits: bool = True,
    ) -> None:
        """Queue messages of an entry.

        Args:
            permits: False if the permits of these messages were returned before.
        """
        total = len(messages)
        if total > _GROUP:
            for start in range(0, total, _GROUP):
                part = slice(start, start + _GROUP)
                self.push(entry, indexes[part], messages[part], permits=permits)
            return
        delivery = QueuedDelivery(entry, indexes, messages, total if permits else 0)
        if self._paused is not None and self._put_on_shelf(delivery):
            return
        if entry.redelivered or entry.failed is not None or entry.topic_state.letters:
            self._retried_deliveries.append(delivery)
        self._append(delivery)

    def push_run(self, entries: Sequence[Entry], messages: Sequence[RawMessage]) -> None:
        for start in range(0, len(entries), _GROUP):
            part = slice(start, start + _GROUP)
            run = entries[part]
            delivery = QueuedRun(run, messages[part], len(run))
            if self._paused is None or not self._put_on_shelf(delivery):
                self._append(delivery)

    def _append(self, delivery: QueuedDelivery) -> None:
        self._deliveries.append(delivery)
        if self._topics is not None:
            self._topics.add(delivery)
        self._count += delivery.end
        if self._bytes is not None:
            self._bytes += delivery.weigh()
        if self._collecting or (self._topic_waiters and self._count < _MAX_PASSED):
            self._return_permits(delivery, 0)

    def put_back(self, entry: Entry, index: int, message: RawMessage) -> None:
        """Queue a message again that the application gave back, before all others of its topic."""
        if self._paused is not None and entry.topic_state.number in self._paused:
            self._put_back_on_shelf(entry, index, message)
            return
        self._count += 1
        if self._bytes is not None:
            self._bytes += message.length()
        first = self._deliveries[0] if self._deliveries else None
        if type(first) is QueuedReturns and first.at * 2 > first.end:
            # It would grow as long as an application gives back what it takes.
            self._head = _NOTHING
            self._trim_first(first)
        for delivery in self._deliveries:
            if type(delivery) is not QueuedReturns:
                break
            if delivery.entry.topic_state is entry.topic_state:
                delivery.insert(entry, index, message)
                return
        if self._deliveries and self._deliveries[0].at:
            self._trim_first(self._deliveries[0])
        self._head = _NOTHING
        returns = QueuedReturns(entry, index, message)
        if self._bytes is not None:
            returns.weigh()
        self._deliveries.appendleft(returns)
        self._topics = None

    def returned(self, states: Sequence[object]) -> list[Queued]:
        """Return the messages of these `TopicState`s that were put back and are still queued."""
        found: list[Queued] = []
        for deliveries in (self._deliveries, self._shelf):
            for delivery in deliveries:
                if type(delivery) is not QueuedReturns:
                    break
                if delivery.entry.topic_state in states:
                    found += delivery.left()
        return found

    # Paused topics

    def pause(self, paused: PausedTopics) -> None:
        """Deliver no message of these topics from now on. Call it again after a change of them.

        Messages of paused topics keep their permits, so the broker stops to send them once the
        queue of their topic is full. If all topics share the permits, up to `_MAX_PASSED` of these
        messages give them back, or a paused topic would stop the others.
        """
        if self._deliveries:
            self._head = _NOTHING
            if self._deliveries[0].at:
                self._trim_first(self._deliveries[0])
        queued = [*self._shelf, *self._deliveries]
        # Messages that were given back precede all others, as in the whole queue.
        queued.sort(key=_is_no_return)
        before = self._shelf_count
        self._deliveries.clear()
        self._retried_deliveries.clear()
        self._shelf.clear()
        self._topics = None
        self._paused = paused if paused else None
        self._count = self._shelf_count = 0
        self._bytes = None
        for delivery in queued:
            if self._paused is None or not self._put_on_shelf(delivery):
                if _was_tried(delivery):
                    self._retried_deliveries.append(delivery)
                self._append(delivery)
        if self._shelf_count < before or not paused:
            self._wake_all()

    def unpaused(self, only: Container[int] | None) -> Container[int] | None:
        """Return these topics (None for all) without paused topics."""
        return only if self._paused is None else Unpaused(self._paused, only)

    def _put_on_shelf(self, delivery: QueuedDelivery) -> bool:
        """Keep a delivery if its topic is paused."""
        assert self._paused is not None
        if delivery.entry.topic_state.number not in self._paused:
            return False
        self._shelf.append(delivery)
        self._shelf_count += delivery.end
        if not (self.queue_per_topic or self._paused.is_everything):
            if self._shelf_count < _MAX_PASSED:
                self._return_permits(delivery, 0)
        return True

    def _put_back_on_shelf(self, entry: Entry, index: int, message: RawMessage) -> None:
        self._shelf_count += 1
        for delivery in self._shelf:
            if type(delivery) is not QueuedReturns:
                break
            if delivery.entry.topic_state is entry.topic_state:
                delivery.insert(entry, index, message)
                return
        self._shelf.appendleft(QueuedReturns(entry, index, message))

    def _wake_all(self) -> None:
        """Wake every caller: messages may be in the queues of keys, which this queue cannot see."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.future.done():
                waiter.woken = True
                waiter.future.set_result(True)
                self._fair_yield.hold()

    def first_messages(self) -> Iterator[tuple[Any, RawMessage]]:
        """Yield (`TopicState`, message) of the first queued message of each topic."""
        seen: set[int] = set()
        for delivery in (*self._deliveries, *self._shelf):
            number = delivery.entry.topic_state.number
            if number in seen:
                continue
            for at in range(delivery.at, delivery.end):
                entry, index = delivery.entry_at(at)
                if entry.live and entry.state[index] == QUEUED:
                    seen.add(number)
                    yield entry.topic_state, delivery.messages[at]
                    break

    def _trim_first(self, first: QueuedDelivery) -> None:
        """Forget the taken messages of the first delivery, because it will not be the first."""
        if first.at == first.end:
            self._finish_first(first)
            return
        weight = first.weights[first.at - 1] if first.weights else 0
        if self._bytes is not None:
            self._bytes -= weight
        trimmed = first.trim()
        self._count -= trimmed
        self.taken += trimmed

    def take_retried(self, most: int) -> list[Message]:
        """Take messages with failed attempts, and letters, from the whole queue."""
        taken: list[Message] = []
        with self._one_write():
            while self._retried_deliveries and len(taken) < most:
                delivery = self._retried_deliveries[0]
                taken += islice(self._walk_retried(delivery), most - len(taken))
                if len(taken) < most:  # else the delivery may have more messages
                    self._retried_deliveries.popleft()
                    self._return_permits(delivery, 0)
        return taken

    def _walk_retried(self, delivery: QueuedDelivery) -> Iterator[Message]:
        """Take the messages of a delivery that stays queued."""
        entry = delivery.entry
        for index, raw in zip(delivery.indexes, delivery.messages, strict=True):
            if entry.deliver(index):
                self._not_received -= 1
                yield self._delivered(entry, index, raw)

    def take(self) -> Message | None:
        """Take the next message, which becomes HELD, or None."""
        for message in self._head:
            return message
        while self._deliveries:
            self._begin(self._deliveries[0])
            for message in self._head:
                return message
        return None

    def _begin(self, head: QueuedDelivery) -> None:
        # Nearly always true after a cumulative ack of 45,000 queued messages.
        if head.is_over:
            self._skip_settled()
        elif type(head) is QueuedReturns:
            self._head = self._walk_returns(head)
        else:
            self._head = self._walk_run(head) if type(head) is QueuedRun else self._walk(head)

    def _skip_settled(self) -> None:
        self._head = _NOTHING
        over: deque[QueuedDelivery] = deque()
        while self._deliveries and (head := self._deliveries[0]).is_over:
            self._not_received += head.end - head.at
            over.append(head)
            self._finish_first(head)
        if self._dispose is not None:
            self._dispose(over, _GROUP)

    def _walk(self, delivery: QueuedDelivery) -> Iterator[Message]:
        """A generator, because its local variables make taking a message cheap."""
        entry, schema, on_delivery = delivery.entry, self._schema, self._on_delivery
        attempts: Attempts = entry.topic_state.attempts
        failures = attempts.failures
        sources, places = unopened(delivery.messages)
        for index, source, at in zip(delivery.indexes, sources, places, strict=False):
            delivery.at += 1
            if entry.state[index] == QUEUED and entry.live:
                entry.state[index] = HELD  # `Entry.deliver` inlined, to save a call per message
                if on_delivery is not None:
                    on_delivery(entry, (index,))
                # The first branch is taken nearly always.
                if entry.failed is None and entry.delivery_numbers is None and not failures:
                    yield Message(source, schema, entry, index, entry.redelivered, 0, at)
                else:
                    failed_attempts = attempts.count(entry, index)
                    number = entry.delivery_number(index)
                    yield Message(source, schema, entry, index, failed_attempts, number, at)
            else:
                self._not_received += 1
        self._finish_first(delivery)

    def _walk_run(self, delivery: QueuedRun) -> Iterator[Message]:
        schema, on_delivery = self._schema, self._on_delivery
        attempts: Attempts = delivery.entry.topic_state.attempts
        failures = attempts.failures
        sources, places = unopened(delivery.messages)
        for entry, source, at in zip(delivery.entries, sources, places, strict=False):
            delivery.at += 1
            state = entry.state
            if state[0] == QUEUED and entry.live:
                state[0] = HELD
                if on_delivery is not None:
                    on_delivery(entry, SINGLE_INDEX)
                if entry.failed is None and entry.delivery_numbers is None and not failures:
                    yield Message(source, schema, entry, 0, entry.redelivered, 0, at)
                else:
                    failed_attempts, number = attempts.count(entry, 0), entry.delivery_number(0)
                    yield Message(source, schema, entry, 0, failed_attempts, number, at)
            else:
                self._not_received += 1
        self._finish_first(delivery)

    def _walk_returns(self, delivery: QueuedReturns) -> Iterator[Message]:
        """Take messages of a delivery that `put_back` may change meanwhile."""
        while (at := delivery.at) < delivery.end:
            delivery.at = at + 1
            entry, index = delivery.entry_at(at)
            if entry.deliver(index):
                yield self._delivered(entry, index, delivery.messages[at])
            else:
                self._not_received += 1
        self._finish_first(delivery)

    def dequeue(self) -> Queued | None:
        """Remove the next message, which stays QUEUED.

        Do not mix with `take`, `take_many` or `get`, which iterate over the first delivery.
        """
        while self._deliveries:
            first = self._deliveries[0]
            queued = first.dequeue()
            if first.at == first.end:
                self._finish_first(first)
            if queued is not None:
                return queued
        return None

    def deliver(self, dequeued: Sequence[Queued]) -> list[Message]:
        messages = []
        with self._one_write():
            for entry, index, raw in dequeued:
                entry.deliver(index)
                messages.append(self._delivered(entry, index, raw))
        self._received_in_order += len(messages)
        return messages

    def _delivered(self, entry: Entry, index: int, raw: RawMessage) -> Message:
        """Report the delivery of a message, and make its object."""
        if self._on_delivery is not None:
            self._on_delivery(entry, (index,))
        failed_attempts = entry.topic_state.attempts.count(entry, index)
        number = entry.delivery_number(index)
        return Message(raw, self._schema, entry, index, failed_attempts, number)

    # Messages of certain topics

    def has_of(self, only: Container[int]) -> bool:
        """Return True if messages of these topics are queued, settled ones included."""
        return self._by_topic().has(only)

    def take_of(
        self, only: Container[int], most: int, *, retried_first: bool = False
    ) -> list[Message]:
        taken: list[Message] = []
        done: list[QueuedDelivery] = []
        with self._one_write():
            if retried_first:
                for delivery in list(self._retried_deliveries):
                    if delivery.entry.topic_state.number in only:
                        self._take_from(delivery, taken, most)
            for deliveries in self._by_topic().in_turn(only):
                while deliveries and len(taken) < most:
                    if self._take_from(deliveries[0], taken, most):
                        done.append(deliveries.popleft())
                if len(taken) >= most:
                    break
        self._remove(done)
        return taken

    def take_highest(self, rank: Callable[[str], int]) -> Message | None:
        """Take the next message of the topics with the highest rank, or None."""
        highest = self._by_topic().highest(rank)
        taken = self.take_of(highest, 1) if highest else []
        return taken[0] if taken else self.take()

    def take_of_batches(self, is_wanted: Callable[[Entry], bool]) -> list[Message]:
        """Take the messages of some batches, in order."""
        taken: list[Message] = []
        done: list[QueuedDelivery] = []
        with self._one_write():
            for delivery in self._deliveries:
                is_batch = type(delivery) is QueuedDelivery and delivery.entry.size > 1
                if is_batch and is_wanted(delivery.entry):
                    self._take_from(delivery, taken, len(taken) + delivery.end)
                    done.append(delivery)
        self._topics = None
        self._remove(done)
        return taken

    def _take_from(self, delivery: QueuedDelivery, taken: list[Message], most: int) -> bool:
        """Take messages of a delivery that stays queued; return True if none are left."""
        before = len(taken)
        left = False
        for at in range(delivery.at, delivery.end):
            entry, index = delivery.entry_at(at)
            if len(taken) >= most:
                left = True
                break
            if entry.deliver(index):
                self._not_received -= 1
                taken.append(self._delivered(entry, index, delivery.messages[at]))
        remaining = delivery.permits - (len(taken) - before) if left else 0
        self._return_permits(delivery, max(remaining, 0))
        return not left

    def dequeue_of(self, only: Container[int]) -> Queued | None:
        """Remove the next message of these topics, like `dequeue`."""
        queued: Queued | None = None
        done: list[QueuedDelivery] = []
        for deliveries in self._by_topic().in_turn(only):
            while deliveries and queued is None:
                first = deliveries[0]
                queued = first.dequeue()
                if first.at == first.end:
                    self._return_permits(first, 0)
                    done.append(deliveries.popleft())
            if queued is not None:
                break
        self._remove(done)
        return queued

    def _by_topic(self) -> TopicIndex:
        if self._topics is None:
            self._topics = TopicIndex(self._deliveries)
        return self._topics

    def _remove(self, done: Sequence[QueuedDelivery]) -> None:
        if not done:
            return
        removed = set(map(id, done))
        if id(self._deliveries[0]) in removed:
            self._head = _NOTHING
        self._deliveries = deque(each for each in self._deliveries if id(each) not in removed)
        if self._retried_deliveries:
            self._retried_deliveries = deque(
                each for each in self._retried_deliveries if id(each) not in removed
            )
        for delivery in done:
            self._count -= delivery.end
            self.taken += delivery.end
            self._not_received += delivery.end - delivery.at
            if self._bytes is not None:
                self._bytes -= delivery.weigh()

    def _finish_first(self, delivery: QueuedDelivery) -> None:
        self._remove_first(delivery)
        if delivery.permits:
            self._consumed(delivery.entry.topic_state.number, delivery.permits)

    def _remove_first(self, delivery: QueuedDelivery) -> None:
        self._deliveries.popleft()
        if self._retried_deliveries and self._retried_deliveries[0] is delivery:
            self._retried_deliveries.popleft()
        if self._topics is not None:
            self._topics.remove_if_first(delivery)
        self._count -= delivery.end
        self.taken += delivery.end
        if self._bytes is not None:
            self._bytes -= delivery.weigh()

    def _return_permits(self, delivery: QueuedDelivery, remaining: int) -> None:
        messages = delivery.permits - remaining
        if messages > 0:
            delivery.permits = remaining
            self._consumed(delivery.entry.topic_state.number, messages)

    def has(self, messages: int, size: int) -> bool:
        """Return True if so many messages, or bytes if `size` is above 0, are queued."""
        if len(self) >= messages:
            return True
        return size > 0 and self._queued_bytes() >= size

    def _queued_bytes(self) -> int:
        if self._bytes is None:
            self._bytes = sum(delivery.weigh() for delivery in self._deliveries)
        if not self._deliveries:
            return 0
        head = self._deliveries[0]
        return self._bytes - (head.weights[head.at - 1] if head.weights and head.at else 0)

    def prepare(self, most: int, most_bytes: int) -> Iterator[None]:
        """Make message objects for `take_many` in steps of up to 100, without taking any.

        An object costs 0.5 us, so 45,000 of them take several iterations of the loop. The queue may
        change between the steps: `take_many` checks each message again.
        """
        for delivery in list(self._deliveries):
            if most <= 0:
                return
            most -= delivery.end - delivery.at
            if most_bytes > 0:
                most_bytes -= delivery.weigh()
                if most_bytes <= 0:
                    return
            if not delivery.at and delivery.made is None:
                delivery.make(self._schema)
            yield

    def take_many(self, most: int, most_bytes: int) -> list[Message]:
        """Take at least one message, up to `most` and, if above 0, `most_bytes` bytes."""
        with self._one_write():
            if most_bytes > 0 and self._queued_bytes() > most_bytes:
                return self._take_weighed(most, most_bytes)
            return self._take_counted(most)

    def _take_counted(self, most: int) -> list[Message]:
        taken = list(islice(self._head, most))
        while self._deliveries and len(taken) < most:
            self._take_deliveries(taken, most)
            if self._deliveries and len(taken) < most:
                self._begin(self._deliveries[0])
                taken += islice(self._head, most - len(taken))
        return taken

    def _take_deliveries(
        self, taken: list[Message], most: int, most_bytes: float = math.inf
    ) -> float:
        """Take whole deliveries from the front while they fit; return the rest of `most_bytes`.

        Their permits are returned together, because a call for each would double the cost.
        """
        deliveries, by_bytes = self._deliveries, most_bytes < math.inf
        permits: dict[int, int] = {}
        over: deque[QueuedDelivery] = deque()
        while deliveries:
            delivery = deliveries[0]
            if delivery.at or len(taken) + delivery.end > most:
                break
            if by_bytes and delivery.weigh() > most_bytes:
                break
            delivered = self._deliver_whole(delivery)
            if delivered is None:
                break
            taken += delivered
            if by_bytes:
                is_all = len(delivered) == delivery.end
                most_bytes -= delivery.weigh() if is_all else sum(map(size_of, delivered))
            self._remove_first(delivery)
            over.append(delivery)
            if delivery.permits:
                topic_number = delivery.entry.topic_state.number
                permits[topic_number] = permits.get(topic_number, 0) + delivery.permits
        for topic_number, messages in permits.items():
            self._consumed(topic_number, messages)
        if self._dispose is not None and len(over) > 1:
            self._dispose(over, over[0].end)
        return most_bytes

    def _deliver_whole(self, delivery: QueuedDelivery) -> list[Message] | None:
        """Take an untouched delivery at once, or return None if each message needs a check."""
        made = delivery.made
        if type(delivery) is QueuedRun:
            return None if made is None else self._deliver_run(delivery, made)
        if type(delivery) is QueuedReturns:
            return None
        if not self._deliver_all(delivery):
            return None
        if made is not None and delivery.made_for == delivery.entry.redelivered:
            return made
        return Message.of_entry(delivery.entry, self._schema, delivery.indexes, delivery.messages)

    def _deliver_run(self, run: QueuedRun, made: list[Message]) -> list[Message] | None:
        attempts: Attempts = run.entry.topic_state.attempts
        if attempts.failures:
            return None
        on_delivery, live = self._on_delivery, run.entry.topic_state.table.live_records
        for at, entry in enumerate(run.entries):
            state = entry.state
            if (
                state[0] != QUEUED
                or entry.live is not live
                or entry.delivery_numbers is not None
                or entry.redelivered
            ):
                rest = self._deliver_rest(run, at)
                self._not_received += run.end - at - len(rest)
                return made[:at] + rest
            state[0] = HELD
            if on_delivery is not None:
                on_delivery(entry, SINGLE_INDEX)
        return made

    def _deliver_rest(self, run: QueuedRun, at: int) -> list[Message]:
        """Take the messages from a position on: some may have been settled or redelivered."""
        return [
            self._delivered(entry, 0, raw)
            for entry, raw in zip(run.entries[at:], run.messages[at:], strict=True)
            if entry.deliver(0)
        ]

    def _deliver_all(self, delivery: QueuedDelivery) -> bool:
        entry, indexes = delivery.entry, delivery.indexes
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
        if self._on_delivery is not None:
            self._on_delivery(entry, indexes)
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
        for delivery in self._deliveries:
            for at in range(delivery.at, delivery.end):
                entry, index = delivery.entry_at(at)
                if entry.state[index] == QUEUED and entry.live:
                    return delivery.messages[at].length()
        return 0

    def collect(self) -> None:
        """Let queued messages occupy no permits until `collected`.

        Otherwise a caller could never collect more messages than the transport has permits.
        """
        self._collecting += 1
        if self._collecting == 1:
            for delivery in self._deliveries:
                self._return_permits(delivery, 0)

    def collected(self) -> None:
        self._collecting -= 1

    # Waiting

    async def get(self, timeout_s: float | None) -> Message:
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
            takes: True if the caller will take a message when woken. A caller that may go on
                waiting (for a full batch) is woken in addition to one that takes, so that no
                message stays queued.
        """
        if self._error is not None:
            await asyncio.sleep(0)
            raise self._error.with_traceback(None)  # the traceback would grow at each raise
        if only is None and self._deliveries:
            head = self._deliveries[0]
            self._return_permits(head, head.end - head.at)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(ticket, loop.create_future(), takes and only is None, only)
        insort(self._waiters, waiter, key=_TICKET)
        if self._wanted is not None:
            self.want()
        timer = None if deadline is None else loop.call_at(deadline, expire, waiter.future)
        is_topic_waiter = only is not None and not self.queue_per_topic
        self._topic_waiters += is_topic_waiter
        try:
            if is_topic_waiter:
                self._return_queued_permits()
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.woken:
                self.wake(1, waiter.topic_number)  # the next caller instead
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
        """Return the permits of the first `_MAX_PASSED` messages, for a pop that names its topic.

        On the stock transport all topics share the permits. Without free permits, the broker could
        not send the messages of that topic past the queued ones.
        """
        passed = 0
        for delivery in self._deliveries:
            passed += delivery.end
            if passed > _MAX_PASSED:
                return
            self._return_permits(delivery, 0)

    def want(self) -> None:
        if self._wanted is None or not self._waiters:
            return
        # Callers would otherwise request one message of a paused topic after another.
        if self._paused is None or not (self._paused.is_everything or self._shelf):
            self._wanted(len(self._waiters))

    def _leave(self, waiter: _Waiter) -> None:
        at = bisect_left(self._waiters, waiter.ticket, key=_TICKET)
        if at < len(self._waiters) and self._waiters[at] is waiter:
            del self._waiters[at]

    def wake(self, messages: int, topic_number: int | None = None) -> None:
        """Wake callers for `messages` new messages.

        Wakes that many callers that surely take one, and every caller in line before them that may
        not.

        Args:
            topic_number: Topic of a message in a key queue, which this queue does not see.
        """
        left: list[_Waiter] = []
        checked = 0
        for waiter in self._waiters:
            if messages <= 0:
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
                messages -= waiter.takes
        self._waiters[:checked] = left

    def drop(self, states: Collection[object] | None = None) -> None:
        """Remove the queued messages of these `TopicState`s, or all, without settling them."""
        only = None if states is None else set(states)
        kept: deque[QueuedDelivery] = deque()
        permits: dict[int, int] = {}
        for delivery in self._deliveries:
            if only is not None and delivery.entry.topic_state not in only:
                kept.append(delivery)
                continue
            self._count -= delivery.end
            if self._bytes is not None:
                self._bytes -= delivery.weigh()
            if delivery.permits:
                topic_number = delivery.entry.topic_state.number
                permits[topic_number] = permits.get(topic_number, 0) + delivery.permits
        if self._deliveries and not (kept and kept[0] is self._deliveries[0]):
            self._head = _NOTHING
            self._not_received -= self._deliveries[0].at
        shelf: deque[QueuedDelivery] = deque()
        for delivery in self._shelf:
            if only is not None and delivery.entry.topic_state not in only:
                shelf.append(delivery)
                continue
            self._shelf_count -= delivery.end
            if delivery.permits:
                topic_number = delivery.entry.topic_state.number
                permits[topic_number] = permits.get(topic_number, 0) + delivery.permits
        self._shelf = shelf
        if self._dispose is not None:
            each = max((delivery.end for delivery in islice(self._deliveries, _GROUP)), default=1)
            self._dispose(self._deliveries, each)
        self._deliveries = kept
        self._topics = None
        if self._retried_deliveries:
            remaining = {id(delivery) for delivery in kept}
            self._retried_deliveries = deque(
                delivery for delivery in self._retried_deliveries if id(delivery) in remaining
            )
        for topic_number, messages in permits.items():
            self._consumed(topic_number, messages)
        self.dropped(states)

    def dispose(self, container: deque[Any] | dict[Any, Any] | list[Any]) -> None:
        if self._dispose is not None:
            self._dispose(container)

    def fail(self, error: Exception) -> None:
        """Raise `error` in all present callers, and in later ones once the queue is empty."""
        self._error = error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self._on_end(error)


def _is_no_return(delivery: QueuedDelivery) -> bool:
    return type(delivery) is not QueuedReturns


def _was_tried(delivery: QueuedDelivery) -> bool:
    """Return True if `take_retried` may take the delivery."""
    entry = delivery.entry
    return type(delivery) is QueuedDelivery and bool(
        entry.redelivered or entry.failed is not None or entry.topic_state.letters
    )


def _ignore_drop(states: Collection[object] | None) -> None:
    """Default of `dropped`."""


def expire(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
