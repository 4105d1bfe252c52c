"""Decide when a list of messages starts, and which messages are in it. Pure: times are arguments.

A list is the head of a group and messages behind it. With an order, a group is a partition. Without
an order, the messages of one priority that wait for a list are a group, and so are the messages of
each part of a list that failed. A group without an order ends when its list starts, so that the
next list can start beside it.

The head of a list that is neither full nor due is *gathering*: it is ready, and not in the queues
of `Scheduler`. Otherwise the rules of `Scheduler` choose among the heads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from .scheduler import BLOCKED, READY, RUNNING, DueJobs, Group, Job, Scheduler

__all__ = ["ListJob", "ListScheduler", "MessageList"]


@dataclass(eq=False)
class ListJob(Job):
    """One received message in a worker that passes lists to its handler.

    Attributes:
        since_ms: Since when it waits for the other messages of a list.
        is_alone: True if it is always in a list of its own, because it failed in such a list.
        part: The part of a failed list that it belongs to. Its next list has no other messages.
        running_in: The list whose handler runs.
        is_behind_failed: True if it is blocked in a running list whose head has failed before.
    """

    since_ms: int = field(default=0, init=False, repr=False)
    is_alone: bool = field(default=False, init=False, repr=False)
    part: object = field(default=None, init=False, repr=False)
    running_in: MessageList | None = field(default=None, init=False, repr=False)
    is_behind_failed: bool = field(default=False, init=False, repr=False)


@dataclass(slots=True, eq=False)
class MessageList:
    """The messages of one handler call, in order.

    Attributes:
        jobs: All its messages.
        passed: The messages that the handler got; the others could not be decoded.
        errors: The errors of single messages.
        rejected: With an order, the messages that the handler has rejected by `Message.reject`.
    """

    jobs: list[ListJob]
    passed: list[ListJob] = field(default_factory=list)
    errors: dict[ListJob, BaseException] = field(default_factory=dict)
    rejected: dict[ListJob, BaseException] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Priority:
    """The name of the group of messages without order that wait for a list."""

    value: int


class ListScheduler(Scheduler):
    """The jobs of a `BatchCore` that have not started.

    Args:
        has_order: True if a group is a partition. Otherwise jobs have no group when they are added.
        max_messages: Size of a full list.
        max_wait_ms: A list starts when its oldest message has waited so long.
        clock: Returns the present time in ms.
    """

    def __init__(
        self, has_order: bool, max_messages: int, max_wait_ms: int, clock: Callable[[], int]
    ) -> None:
        super().__init__()
        self.gathering: DueJobs = DueJobs()
        self._has_order = has_order
        self._max_messages = max_messages
        self._max_wait_ms = max_wait_ms
        self._clock = clock

    # Counts

    @property
    def ready(self) -> int:
        return self.startable + len(self.gathering)

    @property
    def startable(self) -> int:
        """Number of lists that may start now."""
        return super().ready

    @property
    def has_ready(self) -> bool:
        return bool(self.gathering) or super().has_ready

    # Gathering

    def add(self, job: Job) -> bool:
        is_ready = super().add(job)
        if not is_ready:
            self._start_if_full(self._groups[job.group])
        return is_ready and job.state == READY

    def release_due(self, now_ms: int) -> None:
        super().release_due(now_ms)
        if self.trials:
            self.start_gathered()  # a trial is a single message
        self.release_gathered(now_ms)

    def start_gathered(self) -> None:
        """Let all lists start that are neither full nor due."""
        while (due_ms := self.gathering.next_due()) is not None:
            self.release_gathered(due_ms)

    def release_gathered(self, now_ms: int) -> None:
        """Let all lists start that are due."""
        while (head := self.gathering.pop(now_ms)) is not None:
            self._end_gathering(head)

    def _enqueue(self, job: Job) -> None:
        assert isinstance(job, ListJob)
        if job.group is None and not self._has_order and not job.is_alone:
            job.since_ms = self._clock()
            job.part = None
            name = job.group = _Priority(job.priority)
            group = self._groups.get(name)
            if group is not None:
                _append(group, job)
                self._count_blocked(group, 1)
                self._start_if_full(group)
                return
            self._groups[name] = Group(job)
        due_ms = job.since_ms + self._max_wait_ms
        is_known = job.is_alone or job.part is not None  # its list gets no further messages
        if is_known or due_ms <= self._clock() or self._is_full(self._groups[job.group]):
            super()._enqueue(job)
            return
        job.state = READY
        if job.priority not in self._ready:
            self._new_priority(job.priority)
        if not job.called:
            self.unstarted += 1
        self.gathering.add(job, due_ms)

    def _dequeue(self, job: Job) -> None:
        if not job.due_number:
            super()._dequeue(job)
            return
        self.gathering.discard(job)
        if not job.called:
            self.unstarted -= 1

    def _is_full(self, group: Group) -> bool:
        return len(group.blocked or ()) + 1 >= self._max_messages

    def _start_if_full(self, group: Group) -> None:
        head = group.head
        if head.state == READY and head.due_number and self._is_full(group):
            self.gathering.discard(head)
            self._end_gathering(head)

    def _end_gathering(self, head: Job) -> None:
        if not head.called:
            self.unstarted: int = self.unstarted - 1  # `_enqueue` counts it again
        super()._enqueue(head)

    # Lists

    def take(self, job: Job) -> None:
        if job.state == READY and job.due_number:
            job.state = RUNNING
            self._dequeue(job)
        else:
            super().take(job)

    def is_held_back(self, head: ListJob) -> bool:
        """Return True if a head of a group has failed."""
        return self._groups[head.group].is_held_back

    def behind(self, head: ListJob) -> Iterator[ListJob]:
        """Yield the messages that may follow a head in its list, in order.

        The caller may remove each one by `take_behind` before it asks for the next.
        """
        if head.is_alone:
            return
        blocked = self._groups[head.group].blocked
        if blocked is None:
            return
        for job in list(islice(blocked, self._max_messages - 1)):
            assert isinstance(job, ListJob)
            if job.is_alone or job.part is not head.part:
                return
            yield job

    def take_behind(self, head: ListJob, job: ListJob) -> None:
        """Remove a message behind a head from its group, because it starts with the head."""
        group = self._groups[head.group]
        assert group.blocked is not None
        del group.blocked[job]
        self._count_blocked(group, -1)
        job.state = RUNNING
        job.group = None

    def leave_group(self, head: ListJob) -> None:
        """Let the next message of a group be its head."""
        self._advance(self._groups[head.group])
        head.group = None

    def take_head(self, head: ListJob) -> None:
        """Remove a ready head that was in a list behind another head, which has left."""
        head.state = RUNNING
        self._dequeue(head)

    def wait_as_list(self, jobs: list[ListJob], due_ms: int) -> None:
        """Let running messages without a group wait together. Their next list has no others."""
        group = Group(jobs[0])
        name = object()
        for job in jobs:
            job.group = job.part = name
            job.is_retry = True
        for job in jobs[1:]:
            job.state = BLOCKED
            _append(group, job)
        self._groups[name] = group
        self._count_blocked(group, len(jobs) - 1)
        self.wait(jobs[0], due_ms)


def _append(group: Group, job: Job) -> None:
    if group.blocked is None:
        group.blocked = OrderedDict()
    group.blocked[job] = None
    job.state = BLOCKED
