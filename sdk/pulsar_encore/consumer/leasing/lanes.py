"""Messages by key, each key in order: one of a key is out at a time.

Owns `Lanes`. What arrived is taken off the queue and filed by its key, still QUEUED; the first of a
lane goes out, to a lease or, where it had its attempts, as a dead letter, and stays the first until
it is settled. What failed is QUEUED again, here and not at the broker, so that what follows it
waits behind it. Others may settle a message at any time: what became of the first of a lane is
asked of its entry, whenever its turn comes.

Invariant: a lane that is not empty is out, ready, or among those that are looked at later; never in
two of these.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from ...core.entry import LEAVING, QUEUED, Entry
from ...core.source_state import SourceState
from ...errors import UnreadableError
from ...message import Message, RawMessage
from ...timer import Alarm, now_ms
from ..receiving.queue import Queued, ReceiveQueue

logger: logging.Logger = logging.getLogger(__name__)

_SIFT: Final = 500  # messages filed in one turn of the loop: 1 ms or so
# How often a lane is looked at whose first waits: it may be settled meanwhile.
_WAITING_MS: Final = 1_000
_STEP: Final = 500  # lanes looked at in one turn of the loop
# No message is filed while messages of so many bytes are in lanes and not out. The transport does
# not count messages that were filed, so its own bound of memory does not cover them.
_MOST_BYTES: Final = 64 * 1024 * 1024

_Key = tuple[int, str | None]


class Lane:
    """The messages of one key of one topic.

    Attributes:
        key: Source, and the text of the key; None where each message is its own.
        items: In order; the first may be out.
        out: It is: leased, or a copy of it is being sent.
        looked: Number of the look at it that is to come, 0 where none is.
    """

    __slots__ = ("items", "key", "looked", "out")

    def __init__(self, key: _Key | None) -> None:
        self.key: _Key | None = key
        self.items: deque[Queued] = deque()
        self.out: bool = False
        self.looked: int = 0


class Lanes:
    """The lanes of one consumer.

    Args:
        queue: Where messages come from, and pops wait.
        loop: The consumer's event loop.
        most: Messages that may be in lanes at once, those that are out included.
        bury: Called with a message whose turn it is: whether it had its attempts, and a dead letter
            is written of it. Only then, because what follows it waits until the letter is stored.
    """

    def __init__(
        self,
        queue: ReceiveQueue,
        loop: asyncio.AbstractEventLoop,
        most: int,
        bury: Callable[[Entry, int, RawMessage], bool] | None = None,
    ) -> None:
        self._queue = queue
        self._loop = loop
        self._most = most
        self._most_bytes = _MOST_BYTES
        self._bury = bury
        self._lanes: dict[_Key, Lane] = {}
        self._alone: set[Lane] = set()  # of messages without a key
        self._ready: deque[Lane] = deque()
        self._later: list[tuple[int, int, Lane]] = []  # when, number of the look, lane: a heap
        self._looks = 0
        self._leaving: dict[tuple[Entry, int], Lane] = {}  # by the first: a copy is being sent
        self._count = 0
        self._bytes = 0  # of messages that are not out
        self._told = False
        self._alarm = Alarm(loop)
        self._alarm.start(self._ring)
        queue.dropped = self._dropped

    def __len__(self) -> int:
        """Messages in lanes."""
        return self._count

    @property
    def unseen(self) -> bool:
        """There are lanes, or is room for what is queued, that `take` has not come to."""
        return bool(self._ready) or (len(self._queue) > 0 and not self._is_full)

    @property
    def _is_full(self) -> bool:
        return self._count >= self._most or self._bytes >= self._most_bytes

    def take(self, most: int) -> list[tuple[Lane, Message]]:
        """Hand over the first of up to so many lanes, those first that have waited longest.

        Files some of what is queued before, and looks at some lanes; with nothing to hand over
        among these, `unseen` says whether there are more.
        """
        self._file(min(_SIFT, self._most - self._count))
        lanes: list[Lane] = []
        now = now_ms(self._loop)
        for _ in range(min(len(self._ready), max(most, _STEP))):
            if len(lanes) >= most:
                break
            lane = self._ready.popleft()
            if self._judge(lane, now):
                lanes.append(lane)
        if not lanes:
            self._complain()
            return []
        for lane in lanes:
            entry, index, _ = lane.items[0]
            state: SourceState = entry.source
            state.comes_due(entry, index)
            self._go_out(lane)
        messages = self._queue.hand_over([lane.items[0] for lane in lanes])
        return list(zip(lanes, messages, strict=True))

    def back(self, lane: Lane) -> None:
        """The lease on the first of a lane is over."""
        self._come_back(lane)
        self._offer(lane, now_ms(self._loop))

    def decided(self, entry: Entry, index: int) -> None:
        """The copy of a message was stored, or failed and the message is queued again."""
        lane = self._leaving.pop((entry, index), None)
        if lane is not None:
            self._come_back(lane)
            self._look_later(lane, now_ms(self._loop))  # by `_ring`: many may come at once

    def hurry(self) -> None:
        """What waits need wait no longer: all lanes are looked at."""
        now = now_ms(self._loop)
        self._later = [(now, look, lane) for _, look, lane in self._later if lane.looked == look]
        heapify(self._later)
        if self._later:
            self._alarm.at(now)

    def _go_out(self, lane: Lane) -> None:
        lane.out = True
        self._bytes -= _size(lane.items[0])

    def _come_back(self, lane: Lane) -> None:
        lane.out = False
        self._bytes += _size(lane.items[0])

    # In

    def _file(self, most: int) -> None:
        for _ in range(most):
            if self._is_full:
                return
            sifted = self._queue.sift(1)
            if not sifted:
                return
            (item,) = sifted
            self._count += 1
            self._bytes += _size(item)
            key = _key_of(item)
            lane = None if key is None else self._lanes.get(key)
            if lane is None:
                lane = Lane(key)
                if key is None:
                    self._alone.add(lane)
                else:
                    self._lanes[key] = lane
                self._ready.append(lane)
            items = lane.items
            if len(items) > lane.out and _place(item) < _place(items[-1]):
                # What another consumer had came behind newer ones. The first may be out.
                at = bisect_right(items, _place(item), lo=int(lane.out), key=_place)
                items.insert(at, item)
                if at == 0 and lane.looked:  # what waits is not the first any more
                    lane.looked = 0
                    self._ready.append(lane)
            else:
                items.append(item)

    # Whose turn it is

    def _offer(self, lane: Lane, now: int) -> None:
        """A lane that is nowhere is ready, out, or looked at later, or forgotten."""
        if self._judge(lane, now):
            self._ready.append(lane)
            self._queue.wake(1)
        elif len(self._queue) and not self._is_full:
            self._queue.wake(1)  # a pop may have found the lanes full

    def _judge(self, lane: Lane, now: int) -> bool:
        """Whether the first of a lane may go out to a lease.

        If not, it leaves as a letter, or is looked at later, or the lane is forgotten.
        """
        items = lane.items
        while items:
            entry, index, raw = items[0]
            what = entry.state[index] if entry.live else None
            if what == QUEUED:
                state: SourceState = entry.source
                due_ms = state.not_before(entry, index)
                if due_ms > now:
                    self._look_later(lane, min(due_ms, now + _WAITING_MS))
                    return False
                if self._bury is None or not self._bury(entry, index, raw):
                    return True
                # A letter that failed at once has its message wait again.
            elif what == LEAVING:
                self._go_out(lane)
                self._leaving[entry, index] = lane
                return False
            else:
                self._bytes -= _size(items.popleft())
                self._count -= 1
        self._forget(lane)
        return False

    def _forget(self, lane: Lane) -> None:
        if lane.key is None:
            self._alone.discard(lane)
        elif self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    def _look_later(self, lane: Lane, when_ms: int) -> None:
        self._looks += 1
        lane.looked = self._looks
        heappush(self._later, (when_ms, lane.looked, lane))
        self._alarm.at(when_ms)

    def _ring(self, now: int) -> int | None:
        for _ in range(_STEP):
            if not (self._later and self._later[0][0] <= now):
                break
            _, number, lane = heappop(self._later)
            if lane.looked == number:
                lane.looked = 0
                self._offer(lane, now)
        return self._later[0][0] if self._later else None

    # Given back

    def _dropped(self, states: Collection[object] | None) -> None:
        """What was queued of some sources is the broker's again: it comes again, in order. Of all
        of them with None, which is the end."""
        if states is None:
            self._alarm.cancel()
            self._later.clear()
            self._ready.clear()
            self._leaving.clear()
            for lane in self._lanes.values():
                self._queue.dispose(lane.items)
            self._queue.dispose(self._lanes)
            self._queue.dispose(list(self._alone))
            self._lanes = {}
            self._alone = set()
            self._count = self._bytes = 0
            return
        for lane in [*self._lanes.values(), *self._alone]:
            first = lane.items[0]
            entry, index, _ = first
            if entry.source not in states:
                continue
            if not entry.live and self._leaving.pop((entry, index), None) is not None:
                self._come_back(lane)  # sought over: its letter concerns nobody any more
            self._count -= len(lane.items) - lane.out
            self._bytes -= sum(_size(item) for item in islice(lane.items, lane.out, None))
            if lane.out:
                lane.items = deque((first,))
            else:
                # What waited need not come again here: then its key is not to wait for it.
                lane.items = deque()
                lane.looked = 0
                self._forget(lane)

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
                len(self._lanes),
                self._most,
                self._most_bytes,
            )


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
