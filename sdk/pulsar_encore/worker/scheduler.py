"""Decide which message of a worker starts next. Pure: times are arguments.

- Messages of one group start one at a time and in order. The first message of a group that has not
  left is its *head*; the others are blocked. A failed head waits for its due time as the head.
- Startable messages of one priority start in the order in which they became startable. A group
  joins the end of that order whenever it gets a new head, so groups take turns.
- First deliveries and retries alternate if there are both.
- A higher priority starts first. Every tenth start goes to the topic that waited longest.
- Trials: while a breaker is open, each message is tried once. A tried message that is due again is
  set aside until the trials end.

Each step takes O(log n) time. Only the end of trials walks over messages: those set aside.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import Any, ClassVar, Final

#: Every tenth start ignores the priorities.
FAIR_START: Final = 10
_FEW_STALE: Final = 64  # entries of a heap that are not worth a cleanup


class Order(StrEnum):
    """The order in which a worker calls its handler.

    Attributes:
        NONE: No order. The subscription is Shared.
        KEY: Messages of one key start one after the other. The subscription is Key_Shared.
        PARTITION: Messages of one partition start one after the other. The subscription is
            Failover.
    """

    NONE = "none"
    KEY = "key"
    PARTITION = "partition"


# The states of a job. Plain integers, because access to a member of an enum is slow.
NEW: Final = 0
BLOCKED: Final = 1  # an earlier message of its group is here
READY: Final = 2
RUNNING: Final = 3
WAITING: Final = 4  # until its due time
SET_ASIDE: Final = 5  # due, and tried in the present trials
SETTLING: Final = 6  # the shell performs its action
UNSETTLED: Final = 7  # its action failed and is due later
LOST: Final = 8  # removed while its handler runs
GONE: Final = 9
COMMITTING: Final = 10  # its handler returned, and its transaction is not committed
STATE_NAMES: Final = (
    "new",
    "blocked",
    "ready",
    "running",
    "waiting",
    "set aside",
    "settling",
    "unsettled",
    "lost",
    "gone",
    "committing",
)


# Without slots: most fields keep the defaults of the class, and setting each would take half of the
# time to make a job.
@dataclass(eq=False)
class Job:
    """One received message in a worker.

    Attributes:
        message: The message. The core does not look at it.
        topic: Full name of its topic or partition.
        group: Messages of one group start one after the other; None for a message without order.
        size: Size of the payload in bytes.
        attempt: Number of the next handler call, from 1.
        published_ms: When it was published, in ms since the epoch.
        priority: Messages with a higher number start first.
        is_attempt_exact: True if `attempt` counts handler calls only, as with durable state. A
            message without attempts left is then dead-lettered on arrival: it may have killed its
            process. Other counts also include deliveries that were never handled, so such a
            message gets one more call.
        waits_here: True if a failed message waits in this worker also with order "none".
        state: Where it is. The fields from here on belong to the core.
    """

    message: Any
    topic: str
    group: Hashable | None
    size: int
    attempt: int
    published_ms: int
    priority: int = 0
    is_attempt_exact: bool = False
    waits_here: bool = False
    state: int = field(default=NEW, init=False)
    called: bool = field(default=False, init=False, repr=False)  # its handler, in this worker
    is_retry: bool = field(default=False, init=False, repr=False)
    uncounted: int = field(default=0, init=False, repr=False)  # failures that are no attempts
    started_at: int = field(default=0, init=False, repr=False)  # number of the core's event
    outage_at: int = field(default=0, init=False, repr=False)  # event of its failure; 0 for never
    has_proof: bool = field(default=False, init=False, repr=False)  # a failure now counts
    tried_in: int = field(default=0, init=False, repr=False)  # number of the trials, 0 for none
    due_ms: int = field(default=0, init=False, repr=False)
    due_number: int = field(default=0, init=False, repr=False)  # its entry in a `DueJobs`
    action: Any = field(default=None, init=False, repr=False)
    has_left_group: bool = field(default=False, init=False, repr=False)  # the next one may start


class DueJobs:
    """Jobs by due time. A job is in one `DueJobs` at most."""

    __slots__ = ("_heap", "_live")

    # One sequence for all objects, so that a job in another object does not match a stale entry.
    _numbers: ClassVar[Iterator[int]] = count(1)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Job]] = []
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def add(self, job: Job, due_ms: int) -> None:
        self._live += 1
        number = next(self._numbers)
        job.due_ms, job.due_number = due_ms, number
        heappush(self._heap, (due_ms, number, job))

    def discard(self, job: Job) -> None:
        """Remove a job that is in here."""
        job.due_number = 0
        self._live -= 1
        # Entries of discarded jobs stay in the heap until they are due. A topic that is rewound
        # again and again would fill it, so it is cleaned when half of it is stale.
        if len(self._heap) > 2 * self._live + _FEW_STALE:
            self._heap = [each for each in self._heap if each[1] == each[2].due_number]
            heapify(self._heap)

    def pop(self, now_ms: int) -> Job | None:
        """Remove and return the next due job, None before the next due time."""
        if not self._heap:
            return None
        due_ms = self.next_due()
        if due_ms is None or due_ms > now_ms:
            return None
        job = heappop(self._heap)[2]
        job.due_number = 0
        self._live -= 1
        return job

    def next_due(self) -> int | None:
        heap = self._heap
        while heap:
            due_ms, number, job = heap[0]
            if number == job.due_number:
                return due_ms
            heappop(heap)
        return None


class ReadyQueue:
    """Startable jobs in order. First deliveries and retries alternate if there are both."""

    __slots__ = ("_firsts", "_is_retry_next", "_retries")

    def __init__(self) -> None:
        # Not dicts: finding the first key of a dict walks over all keys deleted before it.
        self._firsts: OrderedDict[Job, None] = OrderedDict()
        self._retries: OrderedDict[Job, None] = OrderedDict()
        self._is_retry_next = False

    def __len__(self) -> int:
        return len(self._firsts) + len(self._retries)

    def __bool__(self) -> bool:
        return bool(self._firsts or self._retries)

    def __iter__(self) -> Iterator[Job]:
        yield from self._firsts
        yield from self._retries

    def add(self, job: Job) -> None:
        (self._retries if job.is_retry else self._firsts)[job] = None

    def discard(self, job: Job) -> None:
        del (self._retries if job.is_retry else self._firsts)[job]

    def take(self, job: Job) -> None:
        """Remove a job, because it starts."""
        if job.is_retry:
            del self._retries[job]
            self._is_retry_next = False
        else:
            del self._firsts[job]
            self._is_retry_next = True

    def next(self) -> Job | None:
        """Return the job that starts next, and leave it in the queue."""
        firsts, retries = self._firsts, self._retries
        if retries and (self._is_retry_next or not firsts):
            return next(iter(retries))
        return next(iter(firsts)) if firsts else None


class Group:
    """The jobs of one group.

    Attributes:
        head: The job that may start, or has started.
        is_held_back: True if the head has failed.
        blocked: The jobs behind the head, in order; None if there never were any.
    """

    __slots__ = ("blocked", "head", "is_held_back")

    def __init__(self, head: Job) -> None:
        self.head: Job = head
        self.is_held_back: bool = False
        self.blocked: OrderedDict[Job, None] | None = None


class Scheduler:
    """The jobs of a worker that have not started, and the heads of all groups.

    Attributes:
        unstarted: Number of ready jobs without a handler call in this worker.
        waiting: Failed jobs until their due times.
        behind_healthy: Number of blocked jobs behind a head that has not failed.
        behind_failed: Number of blocked jobs behind a head that has failed.
        trials: Number of the present trials, 0 outside of trials.
    """

    def __init__(self) -> None:
        self.unstarted: int = 0
        self.waiting: DueJobs = DueJobs()
        self.behind_healthy: int = 0
        self.behind_failed: int = 0
        self.trials: int = 0
        self._last_trials = 0
        self._ready: dict[int, ReadyQueue] = {}
        self._only: ReadyQueue | None = None  # the value of `_ready`, if there is one
        self._priorities: list[int] = []  # negated, in ascending order
        # By topic, the topic that waited longest first; None while there is one priority.
        self._topics: OrderedDict[str, ReadyQueue] | None = None
        self._starts = 0  # since the last fair start
        self._groups: dict[Hashable, Group] = {}
        self._held_back: OrderedDict[Hashable, Group] = OrderedDict()
        self._set_aside: OrderedDict[Job, None] = OrderedDict()

    # Counts

    @property
    def ready(self) -> int:
        return sum(len(each) for each in self._ready.values())

    @property
    def has_ready(self) -> bool:
        return bool(self._only) if self._only is not None else any(self._ready.values())

    @property
    def set_aside(self) -> int:
        return len(self._set_aside)

    @property
    def blocked(self) -> int:
        return self.behind_healthy + self.behind_failed

    @property
    def held_back(self) -> int:
        """Number of groups with a failed head."""
        return len(self._held_back)

    def held_back_groups(self, most: int) -> list[Hashable]:
        """Return the groups with a failed head, the longest held back first, at most `most`."""
        return list(islice(self._held_back, most))

    # Jobs

    def add(self, job: Job) -> bool:
        """Add a new job; return True if it is ready, False if its group blocks it."""
        job.is_retry = job.attempt > 1
        if job.group is not None:
            group = self._groups.get(job.group)
            if group is not None:
                if group.blocked is None:
                    group.blocked = OrderedDict()
                group.blocked[job] = None
                job.state = BLOCKED
                self._count_blocked(group, 1)
                return False
            self._groups[job.group] = Group(job)
        self._enqueue(job)
        return True

    def next_job(self) -> Job | None:
        """Return the ready job that starts next, and leave it ready."""
        if self._only is not None:
            return self._only.next()
        queue, is_choice = self._best()
        if is_choice and self._starts == FAIR_START - 1 and self._topics:
            queue = next(iter(self._topics.values()))
        return None if queue is None else queue.next()

    def next_set_aside(self) -> Job | None:
        return next(iter(self._set_aside), None)

    def take(self, job: Job) -> None:
        """Remove a ready job, or a job that was set aside, because it starts."""
        state, job.state = job.state, RUNNING
        if state == SET_ASIDE:
            del self._set_aside[job]
            return
        topics = self._topics
        if topics is not None:
            # Only starts with a choice between priorities count, so that a topic of low priority
            # never sees more than nine starts of others.
            if self._best()[1]:
                self._starts = (self._starts + 1) % FAIR_START
            topics[job.topic].take(job)
            if topics[job.topic]:
                topics.move_to_end(job.topic)
            else:
                del topics[job.topic]
        self._ready[job.priority].take(job)
        if not job.called:
            self.unstarted -= 1

    def wait(self, job: Job, due_ms: int) -> None:
        """Let a job that failed wait for its due time, as the head of its group."""
        job.is_retry = True
        job.state = WAITING
        self.waiting.add(job, due_ms)
        self.hold_back(job)

    def hold_back(self, job: Job) -> None:
        """Note that a head has failed."""
        if job.group is not None:
            group = self._groups[job.group]
            if not group.is_held_back:
                count = len(group.blocked or ())
                self._count_blocked(group, -count)
                group.is_held_back = True
                self._count_blocked(group, count)
                self._held_back[job.group] = group

    def release_due(self, now_ms: int) -> None:
        """Make waiting jobs ready that are due. Tried jobs are set aside."""
        while (job := self.waiting.pop(now_ms)) is not None:
            if self.trials and job.tried_in == self.trials:
                job.state = SET_ASIDE
                self._set_aside[job] = None
            else:
                self._enqueue(job)

    def leave(self, job: Job) -> None:
        """Remove a job for good. If it was the head of its group, the next job is ready."""
        state, job.state = job.state, GONE
        if state == BLOCKED:
            group = self._groups[job.group]
            assert group.blocked is not None
            del group.blocked[job]
            self._count_blocked(group, -1)
            return
        if state == READY:
            self._dequeue(job)
        elif state == SET_ASIDE:
            del self._set_aside[job]
        elif state == WAITING:
            self.waiting.discard(job)
        if job.group is not None:
            self._advance(self._groups[job.group])

    # Trials

    def begin_trials(self) -> None:
        self._last_trials += 1
        self.trials = self._last_trials

    def end_trials(self) -> None:
        """Make all jobs ready that were set aside."""
        self.trials = 0
        set_aside, self._set_aside = self._set_aside, OrderedDict()
        for job in set_aside:
            self._enqueue(job)

    # Parts

    def _best(self) -> tuple[ReadyQueue | None, bool]:
        """Return the queue of the highest priority, and True if there is a lower one, too."""
        best = None
        for negated in self._priorities:
            queue = self._ready[-negated]
            if queue:
                if best is not None:
                    return best, True
                best = queue
        return best, False

    def _enqueue(self, job: Job) -> None:
        job.state = READY
        queue = self._ready.get(job.priority)
        if queue is None:
            queue = self._new_priority(job.priority)
        queue.add(job)
        if self._topics is not None:
            self._enqueue_by_topic(job)
        if not job.called:
            self.unstarted += 1

    def _dequeue(self, job: Job) -> None:
        self._ready[job.priority].discard(job)
        if self._topics is not None:
            queue = self._topics[job.topic]
            queue.discard(job)
            if not queue:
                del self._topics[job.topic]
        if not job.called:
            self.unstarted -= 1

    def _new_priority(self, priority: int) -> ReadyQueue:
        if self._priorities and self._topics is None:
            self._topics = OrderedDict()
            for queue in self._ready.values():
                for job in queue:
                    self._enqueue_by_topic(job)
        insort(self._priorities, -priority)
        self._ready[priority] = queue = ReadyQueue()
        self._only = queue if len(self._ready) == 1 else None
        return queue

    def _enqueue_by_topic(self, job: Job) -> None:
        assert self._topics is not None
        queue = self._topics.get(job.topic)
        if queue is None:
            queue = self._topics[job.topic] = ReadyQueue()
        queue.add(job)

    def _advance(self, group: Group) -> None:
        """The head has left: the next job of the group becomes its head."""
        name = group.head.group
        if group.is_held_back:
            del self._held_back[name]
        if not group.blocked:
            del self._groups[name]
            return
        count = len(group.blocked)
        self._count_blocked(group, -count)
        group.is_held_back = False
        self._count_blocked(group, count - 1)
        group.head = group.blocked.popitem(last=False)[0]
        self._enqueue(group.head)

    def _count_blocked(self, group: Group, change: int) -> None:
        if group.is_held_back:
            self.behind_failed += change
        else:
            self.behind_healthy += change
