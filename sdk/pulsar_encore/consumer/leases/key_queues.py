"""Messages by key, each key in order: one pop at a time gets messages of a key.

Owns `KeyQueues`. What arrived is taken off the queue and filed by its key, still QUEUED; the first
of a lane goes out, to a lease or, where it had its attempts, as a dead letter, and stays the first
until it is settled. A pop that has room left also gets messages that follow it. When one of these
fails, those behind it are given back: they are QUEUED in the lane again, and their leases are lost.
What failed is QUEUED again, here and not at the broker, so that what follows it waits behind it.
Others may settle a message at any time: what became of the first of a lane is asked of its entry,
whenever its turn comes.

Invariant: a lane that is not empty is out, ready, or among those that are looked at later; never in
two of these.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Container
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from ...core.entry import AWAY, HELD, LEAVING, QUEUED, Entry
from ...core.topic_state import TopicState
from ...errors import UnreadableError
from ...eventloop.alarm import Alarm, now_ms
from ...message import Message, RawMessage
from ..delivery.receive_queue import Queued, ReceiveQueue
from .lease_record import LeaseRecord

logger: logging.Logger = logging.getLogger(__name__)

_SIFT: Final = 500  # messages filed in one turn of the loop: 1 ms or so
# How often a lane is looked at whose first waits: it may be settled meanwhile.
_WAITING_MS: Final = 1_000
_STEP: Final = 500  # lanes looked at in one turn of the loop
# Messages of a lane that are out at once: if the first fails, the others come back in one step.
_MOST_OUT: Final = 1_000
# No message is filed while messages of so many bytes are in lanes and not out. The transport does
# not count messages that were filed, so its own bound of memory does not cover them.
_MOST_BYTES: Final = 64 * 1024 * 1024

_Key = tuple[int, str | None]


class KeyQueue:
    """The messages of one key of one topic.

    Attributes:
        key: Source, and the text of the key; None where each message is its own.
        items: In order; the first ones may be out.
        out: How many of them are: leased, or a copy of the first is being sent.
        grants: Leases on messages that are out, by entry and index.
        looked: Number of the look at it that is to come, 0 where none is.
    """

    __slots__ = ("grants", "items", "key", "looked", "out")

    def __init__(self, key: _Key | None) -> None:
        self.key: _Key | None = key
        self.items: deque[Queued] = deque()
        self.out: int = 0
        self.grants: dict[tuple[Entry, int], LeaseRecord] = {}
        self.looked: int = 0


class KeyQueues:
    """The lanes of one consumer.

    Args:
        queue: Where messages come from, and pops wait.
        loop: The consumer's event loop.
        most: Messages that may be in lanes at once, those that are out included.
        bury: Called with a message whose turn it is: whether it had its attempts, and a dead letter
            is written of it. Only then, because what follows it waits until the letter is stored.
        spent: Called with the entry and index of a message: whether it had its attempts. It then
            goes out first or not at all.
    """

    def __init__(
        self,
        queue: ReceiveQueue,
        loop: asyncio.AbstractEventLoop,
        most: int,
        bury: Callable[[Entry, int, RawMessage], bool] | None = None,
        spent: Callable[[Entry, int], bool] | None = None,
    ) -> None:
        self._queue = queue
        self._loop = loop
        self._most = most
        self._most_bytes = _MOST_BYTES
        self._bury = bury
        self._spent = spent
        self._key_queues: dict[_Key, KeyQueue] = {}
        self._alone: set[KeyQueue] = set()  # of messages without a key
        self._ready: deque[KeyQueue] = deque()
        self._later: list[tuple[int, int, KeyQueue]] = []  # when, number of the look, lane: a heap
        self._looks = 0
        self._leaving: dict[tuple[Entry, int], KeyQueue] = {}  # by the first: a copy is being sent
        self._count = 0
        self._bytes = 0  # of messages that are not out
        self._told = False
        self._alarm = Alarm(loop)
        self._alarm.start(self._ring)
        queue.dropped = self._dropped

    def __len__(self) -> int:
        """Messages in lanes."""
        return self._count

    def unseen(self, only: Container[int] | None = None) -> bool:
        """There are lanes, or is room for what is queued, that `take` has not come to.

        Args:
            only: Numbers of the sources that count; None for all.
        """
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
        """Hand over up to so many messages: the first of each lane, then those that follow it.

        Lanes that have waited longest go first. Messages that follow the first of their key only
        get what room the firsts of other keys leave. Files some of what is queued before, and looks
        at some lanes; with nothing to hand over among these, `unseen` says whether there are more.

        Args:
            most: Messages at most.
            only: Numbers of the sources to take from; None for all.
            per_key: Messages of one lane at most; None for as many as there is room for.

        Returns:
            The messages with their lanes. Messages of a lane are in order, side by side.
        """
        self._file(min(_SIFT, self._most - self._count), only)
        key_queues: list[KeyQueue] = []
        passed: list[KeyQueue] = []  # of other sources; they keep their place
        now = now_ms(self._loop)
        looks = max(most, _STEP)
        for _ in range(len(self._ready)):
            if len(key_queues) >= most or looks <= 0:
                break
            key_queue = self._ready.popleft()
            if only is not None and key_queue.items and _number(key_queue) not in only:
                passed.append(key_queue)
                continue
            looks -= 1
            if self._judge(key_queue, now):
                key_queues.append(key_queue)
        self._ready.extendleft(reversed(passed))
        if not key_queues:
            self._complain()
            return []
        for key_queue in key_queues:
            entry, index, _ = key_queue.items[0]
            state: TopicState = entry.source
            state.comes_due(entry, index)
            self._go_out(key_queue)
        if per_key != 1:
            self._fill(key_queues, most - len(key_queues), min(per_key or most, _MOST_OUT), now)
        taken = [
            (key_queue, item)
            for key_queue in key_queues
            for item in islice(key_queue.items, key_queue.out)
        ]
        messages = self._queue.hand_over([item for _, item in taken])
        return [
            (key_queue, message) for (key_queue, _), message in zip(taken, messages, strict=True)
        ]

    def _fill(self, key_queues: list[KeyQueue], room: int, per_key: int, now: int) -> None:
        """More messages of lanes whose first goes out, one of each lane in turn."""
        while room > 0 and key_queues:
            growing = []
            for key_queue in key_queues:
                if room > 0 and key_queue.out < per_key and self._may_follow(key_queue, now):
                    entry, index, _ = key_queue.items[key_queue.out]
                    state: TopicState = entry.source
                    state.comes_due(entry, index)
                    self._go_out(key_queue)
                    room -= 1
                    growing.append(key_queue)
            key_queues = growing

    def _may_follow(self, key_queue: KeyQueue, now: int) -> bool:
        """Whether the first message of a lane that is not out may go out behind the others."""
        items = key_queue.items
        while key_queue.out < len(items):
            item = items[key_queue.out]
            entry, index, _ = item
            what = entry.state[index] if entry.live else None
            if what == QUEUED:
                state: TopicState = entry.source
                if state.not_before(entry, index) > now:
                    return False
                return self._spent is None or not self._spent(entry, index)
            if what == LEAVING:
                return False
            del items[key_queue.out]
            self._count -= 1
            self._bytes -= _size(item)
        return False

    def back(self, key_queue: KeyQueue, entry: Entry, index: int) -> list[tuple[Entry, int]]:
        """The lease on a message of a lane is over.

        If the message failed, the messages behind it that are out are given back: they did not
        fail, and go out again after it.

        Returns:
            Those messages, as entry and index. Their leases are to be ended.
        """
        at = _position(key_queue, entry, index)
        if at is None:
            return []
        what = entry.state[index] if entry.live else None
        kept = what in (QUEUED, LEAVING)
        given: list[tuple[Entry, int]] = []
        if kept or what == AWAY:
            for each in islice(key_queue.items, at + 1, key_queue.out):
                self._bytes += _size(each)
                other, place, _ = each
                state: TopicState = other.source
                if state.returns(other, place):
                    given.append((other, place))
            key_queue.out = at + 1
        if kept:
            self._bytes += _size(key_queue.items[at])
        else:
            del key_queue.items[at]
            self._count -= 1
        key_queue.out -= 1
        if not key_queue.out:
            self._offer(key_queue, now_ms(self._loop))
        return given

    def give_back_early(self, key_queue: KeyQueue, entry: Entry, index: int) -> bool:
        """Give a message back whose lease ended while one before it in its lane is still out.

        Work on it cannot have begun, because messages of a key are worked on in order. So the lease
        that ended is no failed attempt.

        Returns:
            False, and nothing was done, if none is out before it.
        """
        at = _position(key_queue, entry, index)
        if at is None:
            return False
        before = islice(key_queue.items, at)
        if not any(each.live and each.state[place] == HELD for each, place, _ in before):
            return False
        state: TopicState = entry.source
        return state.returns(entry, index)

    def decided(self, entry: Entry, index: int) -> None:
        """The copy of a message was stored, or failed and the message is queued again."""
        key_queue = self._leaving.pop((entry, index), None)
        if key_queue is not None:
            self._come_back(key_queue)
            self._look_later(key_queue, now_ms(self._loop))  # by `_ring`: many may come at once

    def hurry(self) -> None:
        """What waits need wait no longer: all lanes are looked at."""
        now = now_ms(self._loop)
        self._later = [
            (now, look, key_queue) for _, look, key_queue in self._later if key_queue.looked == look
        ]
        heapify(self._later)
        if self._later:
            self._alarm.at(now)

    def _go_out(self, key_queue: KeyQueue) -> None:
        self._bytes -= _size(key_queue.items[key_queue.out])
        key_queue.out += 1

    def _come_back(self, key_queue: KeyQueue) -> None:
        """The copy of the first message is stored or has failed."""
        key_queue.out = 0
        self._bytes += _size(key_queue.items[0])

    # In

    def _file(self, most: int, only: Container[int] | None) -> None:
        for _ in range(most):
            if self._is_full:
                return
            sifted = self._queue.sift(1) if only is None else self._queue.sift_of(only, 1)
            if not sifted:
                return
            (item,) = sifted
            self._count += 1
            self._bytes += _size(item)
            key = _key_of(item)
            key_queue = None if key is None else self._key_queues.get(key)
            if key_queue is None:
                key_queue = KeyQueue(key)
                if key is None:
                    self._alone.add(key_queue)
                else:
                    self._key_queues[key] = key_queue
                self._ready.append(key_queue)
            items = key_queue.items
            if len(items) > key_queue.out and _place(item) < _place(items[-1]):
                # What another consumer had came behind newer ones. The first ones may be out.
                at = bisect_right(items, _place(item), lo=key_queue.out, key=_place)
                items.insert(at, item)
                if at == 0 and key_queue.looked:  # what waits is not the first any more
                    key_queue.looked = 0
                    self._ready.append(key_queue)
            else:
                items.append(item)

    # Whose turn it is

    def _offer(self, key_queue: KeyQueue, now: int) -> None:
        """A lane that is nowhere is ready, out, or looked at later, or forgotten."""
        if self._judge(key_queue, now):
            self._ready.append(key_queue)
            self._queue.wake(1, _number(key_queue))
        elif len(self._queue) and not self._is_full:
            self._queue.wake(1)  # a pop may have found the lanes full

    def _judge(self, key_queue: KeyQueue, now: int) -> bool:
        """Whether the first of a lane may go out to a lease.

        If not, it leaves as a letter, or is looked at later, or the lane is forgotten.
        """
        items = key_queue.items
        while items:
            entry, index, raw = items[0]
            what = entry.state[index] if entry.live else None
            if what == QUEUED:
                state: TopicState = entry.source
                due_ms = state.not_before(entry, index)
                if due_ms > now:
                    self._look_later(key_queue, min(due_ms, now + _WAITING_MS))
                    return False
                if self._bury is None or not self._bury(entry, index, raw):
                    return True
                # A letter that failed at once has its message wait again.
            elif what == LEAVING:
                self._go_out(key_queue)
                self._leaving[entry, index] = key_queue
                return False
            else:
                self._bytes -= _size(items.popleft())
                self._count -= 1
        self._forget(key_queue)
        return False

    def _forget(self, key_queue: KeyQueue) -> None:
        if key_queue.key is None:
            self._alone.discard(key_queue)
        elif self._key_queues.get(key_queue.key) is key_queue:
            del self._key_queues[key_queue.key]

    def _look_later(self, key_queue: KeyQueue, when_ms: int) -> None:
        self._looks += 1
        key_queue.looked = self._looks
        heappush(self._later, (when_ms, key_queue.looked, key_queue))
        self._alarm.at(when_ms)

    def _ring(self, now: int) -> int | None:
        for _ in range(_STEP):
            if not (self._later and self._later[0][0] <= now):
                break
            _, number, key_queue = heappop(self._later)
            if key_queue.looked == number:
                key_queue.looked = 0
                self._offer(key_queue, now)
        return self._later[0][0] if self._later else None

    # Given back

    def _dropped(self, states: Collection[object] | None) -> None:
        """What was queued of some sources is the broker's again: it comes again, in order. Of all
        of them with None, which is the end."""
        if states is None:
            self._alarm.close()
            self._later.clear()
            self._ready.clear()
            self._leaving.clear()
            for key_queue in self._key_queues.values():
                self._queue.dispose(key_queue.items)
            self._queue.dispose(self._key_queues)
            self._queue.dispose(list(self._alone))
            self._key_queues = {}
            self._alone = set()
            self._count = self._bytes = 0
            return
        for key_queue in [*self._key_queues.values(), *self._alone]:
            first = key_queue.items[0]
            entry, index, _ = first
            if entry.source not in states:
                continue
            if not entry.live and self._leaving.pop((entry, index), None) is not None:
                self._come_back(key_queue)  # sought over: its letter concerns nobody any more
            rest = list(islice(key_queue.items, key_queue.out, None))
            # A message that is being copied is not at the broker.
            leaving = [each for each in rest if each[0].live and each[0].state[each[1]] == LEAVING]
            self._count -= len(rest) - len(leaving)
            self._bytes -= sum(map(_size, rest)) - sum(map(_size, leaving))
            key_queue.items = deque([*islice(key_queue.items, key_queue.out), *leaving])
            if not key_queue.items:
                # What waited need not come again here: then its key is not to wait for it.
                key_queue.looked = 0
                self._forget(key_queue)

    def _complain(self) -> None:
        if not self._is_full:
            many = self._count > self._most // 2 or self._bytes > self._most_bytes // 2
            self._told = self._told and many
        elif not self._told:
            self._told = True
            logger.warning(
                "pops get nothing: %d messages are held back (%d bytes) behind %d keys whose first "
                "message is out or failed; the bounds are %d messages (max_leases) and %d bytes",
                self._count,
                self._bytes,
                len(self._key_queues),
                self._most,
                self._most_bytes,
            )


def _position(key_queue: KeyQueue, entry: Entry, index: int) -> int | None:
    """Where a message is among those of a lane that are out."""
    for at, (each, place, _) in enumerate(islice(key_queue.items, key_queue.out)):
        if each is entry and place == index:
            return at
    return None


def _number(key_queue: KeyQueue) -> int:
    """The source of a lane that is not empty."""
    entry: Entry = key_queue.items[0][0]
    number: int = entry.source.number
    return number


def _size(item: Queued) -> int:
    return item[2].length()


def _place(item: Queued) -> tuple[tuple[int, int], int]:
    return item[0].key, item[1]


def _key_of(item: Queued) -> _Key | None:
    """What the broker keeps in order, which is the ordering key where there is one (PIP-34)."""
    entry, _, raw = item
    try:
        key = raw.ordering_key() or raw.partition_key()
    except UnreadableError:  # none of those in this topic can be told from the others
        return entry.source.number, None
    return (entry.source.number, key) if key else None
