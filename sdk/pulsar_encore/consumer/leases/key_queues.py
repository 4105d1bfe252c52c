"""Ordered leases: the messages of each key in order, leased to one pop at a time.

Arrived messages move from the receive queue to the queue of their key, where they stay QUEUED. The
first message of a key queue is leased or, if it has used up its attempts, forwarded. It stays the
first until it is settled. A pop that wants more also gets the messages that follow it. When one of
these fails, the later ones are QUEUED again and their leases are lost. A failed message is QUEUED
here and not at the broker, so that later messages wait behind it. Other calls may settle a message
at any time, so each decision reads the state of the entry.

Invariant: a key queue that is not empty has messages out, is in `_ready`, or is in `_delayed`, and
never in two of these.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from ...core.entry import Entry
from ...core.message_states import AWAY, FORWARDING, HELD, QUEUED
from ...core.topic_state import TopicState
from ...errors import UnreadableError
from ...eventloop.alarm import Alarm, now_ms
from ...message import Message, RawMessage
from ..delivery.queued_deliveries import Queued
from ..delivery.receive_queue import ReceiveQueue
from .lease_record import LeaseRecord

_FILE_LIMIT: Final = 500  # messages moved to key queues in one iteration of the loop: about 1 ms
# How often a held-back first message is checked, because another call may settle it.
_CHECK_INTERVAL_MS: Final = 1_000
_CHECK_LIMIT: Final = 500  # key queues checked in one iteration of the loop
# Messages of one key that are out at once, and may have to be requeued in one step.
_MAX_OUT: Final = 1_000
# Limit of the bytes that are not out. The memory limit of the transport does not cover them.
_MAX_BYTES: Final = 64 * 1024 * 1024

_Key = tuple[int, str | None]


@dataclass(eq=False, slots=True)
class KeyQueue:
    """The messages of one key of one topic.

    Attributes:
        key: Topic number and key; None for a message without a key, which has its own queue.
        out: How many of the first messages are leased, or 1 if the first is being forwarded.
        check_number: Number of the scheduled check, or 0.
    """

    key: _Key | None
    items: deque[Queued] = field(default_factory=deque)
    out: int = 0
    records: dict[tuple[Entry, int], LeaseRecord] = field(default_factory=dict)
    check_number: int = 0


class KeyQueues:
    """The key queues of one consumer.

    Args:
        most: Limit of messages in key queues, also the messages that are out.
        dead_letter_if_spent: Dead-letters a message if it has used up its attempts. Called when the
            message is the next of its key, because later messages wait until the letter is stored.
        spent: Returns True if a message has used up its attempts: it is never leased after others.
    """

    def __init__(
        self,
        queue: ReceiveQueue,
        loop: asyncio.AbstractEventLoop,
        most: int,
        dead_letter_if_spent: Callable[[Entry, int, RawMessage], bool] | None = None,
        spent: Callable[[Entry, int], bool] | None = None,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._queue = queue
        self._loop = loop
        self._most = most
        self._most_bytes = _MAX_BYTES
        self._dead_letter_if_spent = dead_letter_if_spent
        self._spent = spent
        self._key_queues: dict[_Key, KeyQueue] = {}
        self._keyless: set[KeyQueue] = set()  # queues of messages without a key
        self._ready: deque[KeyQueue] = deque()
        # A heap of (check time, number of the check, key queue).
        self._delayed: list[tuple[int, int, KeyQueue]] = []
        self._checks = 0
        # Key queues by the first message, while it is being forwarded.
        self._forwarding: dict[tuple[Entry, int], KeyQueue] = {}
        self._count = 0
        self._bytes = 0  # of messages that are not out
        self._warned = False
        self._alarm = Alarm(loop)
        self._alarm.start(self._ring)
        queue.dropped = self._dropped

    def __len__(self) -> int:
        return self._count

    def has_more(self, only: Container[int] | None = None) -> bool:
        """Return True if another `take` may find messages."""
        if only is None:
            return bool(self._ready) or (len(self._queue) > 0 and not self._is_full)
        if any(key_queue.items and _number(key_queue) in only for key_queue in self._ready):
            return True
        return self._queue.has_of(only) and not self._is_full

    @property
    def _is_full(self) -> bool:
        return self._count >= self._most or self._bytes >= self._most_bytes

    def take(
        self, most: int, only: Container[int] | None = None, per_key: int | None = None
    ) -> list[tuple[KeyQueue, Message]]:
        """Deliver up to `most` messages: the first of each key, then the messages that follow.

        The longest-waiting keys come first. The work of a call is limited: if it returns none,
        `has_more` tells whether to call again. Messages of one key are side by side, in order.
        """
        self._file(min(_FILE_LIMIT, self._most - self._count), only)
        key_queues: list[KeyQueue] = []
        passed: list[KeyQueue] = []  # of other topics; they keep their place
        now = now_ms(self._loop)
        looks = max(most, _CHECK_LIMIT)
        for _ in range(len(self._ready)):
            if len(key_queues) >= most or looks <= 0:
                break
            key_queue = self._ready.popleft()
            if only is not None and key_queue.items and _number(key_queue) not in only:
                passed.append(key_queue)
                continue
            looks -= 1
            if self._advance_to_leasable(key_queue, now):
                key_queues.append(key_queue)
        self._ready.extendleft(reversed(passed))
        if not key_queues:
            self._warn_if_full()
            return []
        for key_queue in key_queues:
            entry, index, _ = key_queue.items[0]
            state: TopicState = entry.topic_state
            state.end_hold_back(entry, index)
            self._mark_out(key_queue)
        if per_key != 1:
            self._fill(key_queues, most - len(key_queues), min(per_key or most, _MAX_OUT), now)
        taken = [
            (key_queue, item)
            for key_queue in key_queues
            for item in islice(key_queue.items, key_queue.out)
        ]
        messages = self._queue.deliver([item for _, item in taken])
        return [
            (key_queue, message) for (key_queue, _), message in zip(taken, messages, strict=True)
        ]

    def _fill(self, key_queues: list[KeyQueue], free: int, per_key: int, now: int) -> None:
        """Mark further messages as out, one of each key queue in turn."""
        while free > 0 and key_queues:
            growing = []
            for key_queue in key_queues:
                if free > 0 and key_queue.out < per_key and self._may_follow(key_queue, now):
                    entry, index, _ = key_queue.items[key_queue.out]
                    state: TopicState = entry.topic_state
                    state.end_hold_back(entry, index)
                    self._mark_out(key_queue)
                    free -= 1
                    growing.append(key_queue)
            key_queues = growing

    def _may_follow(self, key_queue: KeyQueue, now: int) -> bool:
        """Return True if the next message may be leased after the messages that are out."""
        items = key_queue.items
        while key_queue.out < len(items):
            item = items[key_queue.out]
            entry, index, _ = item
            what = entry.state[index] if entry.live else None
            if what == QUEUED:
                state: TopicState = entry.topic_state
                if state.ordered.not_before(entry, index) > now:
                    return False
                return self._spent is None or not self._spent(entry, index)
            if what == FORWARDING:
                return False
            del items[key_queue.out]
            self._count -= 1
            self._bytes -= _size(item)
        return False

    def lease_ended(self, key_queue: KeyQueue, entry: Entry, index: int) -> list[tuple[Entry, int]]:
        """End the lease on a message. If it failed, requeue later messages of its key that are out.

        The caller ends the leases of the returned messages.
        """
        at = _position(key_queue, entry, index)
        if at is None:
            return []
        what = entry.state[index] if entry.live else None
        is_kept = what in (QUEUED, FORWARDING)
        returned: list[tuple[Entry, int]] = []
        if is_kept or what == AWAY:
            for each in islice(key_queue.items, at + 1, key_queue.out):
                self._bytes += _size(each)
                other, position, _ = each
                state: TopicState = other.topic_state
                if state.requeue_unfailed(other, position):
                    returned.append((other, position))
            key_queue.out = at + 1
        if is_kept:
            self._bytes += _size(key_queue.items[at])
        else:
            del key_queue.items[at]
            self._count -= 1
        key_queue.out -= 1
        if not key_queue.out:
            self._schedule(key_queue, now_ms(self._loop))
        return returned

    def requeue_early(self, key_queue: KeyQueue, entry: Entry, index: int) -> bool:
        """Requeue a message with an expired lease, if an earlier message of its key is held.

        Messages of a key are processed in order, so work on this one cannot have begun, and its
        attempt has not failed.
        """
        at = _position(key_queue, entry, index)
        if at is None:
            return False
        before = islice(key_queue.items, at)
        if not any(each.live and each.state[position] == HELD for each, position, _ in before):
            return False
        state: TopicState = entry.topic_state
        return state.requeue_unfailed(entry, index)

    def forwarding_ended(self, entry: Entry, index: int) -> None:
        """Continue with the key of a forwarded message."""
        key_queue = self._forwarding.pop((entry, index), None)
        if key_queue is not None:
            self._mark_returned(key_queue)
            # `_ring` checks it, because many may end at once.
            self._check_later(key_queue, now_ms(self._loop))

    def check_all(self) -> None:
        now = now_ms(self._loop)
        self._delayed = [
            (now, look, key_queue)
            for _, look, key_queue in self._delayed
            if key_queue.check_number == look
        ]
        heapify(self._delayed)
        if self._delayed:
            self._alarm.at(now)

    def _mark_out(self, key_queue: KeyQueue) -> None:
        self._bytes -= _size(key_queue.items[key_queue.out])
        key_queue.out += 1

    def _mark_returned(self, key_queue: KeyQueue) -> None:
        key_queue.out = 0
        self._bytes += _size(key_queue.items[0])

    # Moving messages to key queues

    def _file(self, most: int, only: Container[int] | None) -> None:
        for _ in range(most):
            if self._is_full:
                return
            item = self._queue.dequeue() if only is None else self._queue.dequeue_of(only)
            if item is None:
                return
            self._count += 1
            self._bytes += _size(item)
            key = _key_of(item)
            key_queue = None if key is None else self._key_queues.get(key)
            if key_queue is None:
                key_queue = KeyQueue(key)
                if key is None:
                    self._keyless.add(key_queue)
                else:
                    self._key_queues[key] = key_queue
                self._ready.append(key_queue)
            items = key_queue.items
            if len(items) > key_queue.out and _message_key(item) < _message_key(items[-1]):
                # A message of another consumer arrives after newer ones.
                at = bisect_right(items, _message_key(item), lo=key_queue.out, key=_message_key)
                items.insert(at, item)
                if at == 0 and key_queue.check_number:
                    key_queue.check_number = 0
                    self._ready.append(key_queue)
            else:
                items.append(item)

    # Scheduling of key queues

    def _schedule(self, key_queue: KeyQueue, now: int) -> None:
        if self._advance_to_leasable(key_queue, now):
            self._ready.append(key_queue)
            self._queue.wake(1, _number(key_queue))
        elif len(self._queue) and not self._is_full:
            self._queue.wake(1)  # a pop may have found the key queues full

    def _advance_to_leasable(self, key_queue: KeyQueue, now: int) -> bool:
        """Drop settled messages from the front; return True if the first message can be leased.

        Otherwise it is forwarded, or checked later, or the queue is empty and removed.
        """
        items = key_queue.items
        while items:
            entry, index, raw = items[0]
            what = entry.state[index] if entry.live else None
            if what == QUEUED:
                state: TopicState = entry.topic_state
                due_ms = state.ordered.not_before(entry, index)
                if due_ms > now:
                    self._check_later(key_queue, min(due_ms, now + _CHECK_INTERVAL_MS))
                    return False
                if self._dead_letter_if_spent is None or not self._dead_letter_if_spent(
                    entry, index, raw
                ):
                    return True
                # If the letter failed at once, the message is held back.
            elif what == FORWARDING:
                self._mark_out(key_queue)
                self._forwarding[entry, index] = key_queue
                return False
            else:
                self._bytes -= _size(items.popleft())
                self._count -= 1
        self._forget(key_queue)
        return False

    def _forget(self, key_queue: KeyQueue) -> None:
        if key_queue.key is None:
            self._keyless.discard(key_queue)
        elif self._key_queues.get(key_queue.key) is key_queue:
            del self._key_queues[key_queue.key]

    def _check_later(self, key_queue: KeyQueue, when_ms: int) -> None:
        self._checks += 1
        key_queue.check_number = self._checks
        heappush(self._delayed, (when_ms, key_queue.check_number, key_queue))
        self._alarm.at(when_ms)

    def _ring(self, now: int) -> int | None:
        for _ in range(_CHECK_LIMIT):
            if not (self._delayed and self._delayed[0][0] <= now):
                break
            _, number, key_queue = heappop(self._delayed)
            if key_queue.check_number == number:
                key_queue.check_number = 0
                self._schedule(key_queue, now)
        return self._delayed[0][0] if self._delayed else None

    # Messages returned to the broker

    def _dropped(self, states: Collection[object] | None) -> None:
        """Remove the messages of these topics, which the broker redelivers, or all."""
        if states is None:
            self._alarm.close()
            self._delayed.clear()
            self._ready.clear()
            self._forwarding.clear()
            for key_queue in self._key_queues.values():
                self._queue.dispose(key_queue.items)
            self._queue.dispose(self._key_queues)
            self._queue.dispose(list(self._keyless))
            self._key_queues = {}
            self._keyless = set()
            self._count = self._bytes = 0
            return
        for key_queue in [*self._key_queues.values(), *self._keyless]:
            first = key_queue.items[0]
            entry, index, _ = first
            if entry.topic_state not in states:
                continue
            if not entry.live and self._forwarding.pop((entry, index), None) is not None:
                self._mark_returned(key_queue)  # sought over: its letter no longer matters here
            rest = list(islice(key_queue.items, key_queue.out, None))
            # The broker does not redeliver a message that is being forwarded.
            forwarding = [
                each for each in rest if each[0].live and each[0].state[each[1]] == FORWARDING
            ]
            self._count -= len(rest) - len(forwarding)
            self._bytes -= sum(map(_size, rest)) - sum(map(_size, forwarding))
            key_queue.items = deque([*islice(key_queue.items, key_queue.out), *forwarding])
            if not key_queue.items:
                # The broker may redeliver a held-back message to another consumer: its key must not
                # wait for it.
                key_queue.check_number = 0
                self._forget(key_queue)

    def _warn_if_full(self) -> None:
        if not self._is_full:
            many = self._count > self._most // 2 or self._bytes > self._most_bytes // 2
            self._warned = self._warned and many
        elif not self._warned:
            self._warned = True
            self._logger.warning(
                "pops get nothing: %d messages are held back (%d bytes) behind %d keys whose first "
                "message is out or failed; the bounds are %d messages (max_leases) and %d bytes",
                self._count,
                self._bytes,
                len(self._key_queues),
                self._most,
                self._most_bytes,
            )


def _position(key_queue: KeyQueue, entry: Entry, index: int) -> int | None:
    for at, (each, position, _) in enumerate(islice(key_queue.items, key_queue.out)):
        if each is entry and position == index:
            return at
    return None


def _number(key_queue: KeyQueue) -> int:
    entry: Entry = key_queue.items[0][0]
    number: int = entry.topic_state.number
    return number


def _size(item: Queued) -> int:
    return item[2].length()


def _message_key(item: Queued) -> tuple[tuple[int, int], int]:
    return item[0].key, item[1]


def _key_of(item: Queued) -> _Key | None:
    """Return the ordering key or else the partition key, as the broker does (PIP-34)."""
    entry, _, raw = item
    try:
        key = raw.ordering_key() or raw.partition_key()
    except UnreadableError:  # messages of such a topic cannot be told apart by key
        return entry.topic_state.number, None
    return (entry.topic_state.number, key) if key else None
