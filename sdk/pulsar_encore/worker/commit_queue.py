"""Which results of handlers share the next transaction. Pure: times are arguments.

A group of messages is committed as a whole. If it failed before its acks left, its halves are
tried, down to the message that fails, which waits alone. With an order, one group is committed at a
time, and the results of a key wait behind its failed message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

from ..errors import ConfigurationError
from ..options.checks import integer, seconds
from .scheduler import Job

# Groups at a time without an order: while one waits for the broker, the others are filled.
_MOST_GROUPS: Final = 4
_PAUSE_MS: Final = 100  # after a transaction could not begin, doubled each time
_MAX_PAUSE_MS: Final = 5_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Transactional:
    """How a transactional worker groups messages (PIP-31).

    A group is committed when it has `max_messages`, or results of `max_bytes`, or when its first
    handler returned `max_delay` ago.

    Args:
        max_messages: Most messages in one transaction.
        max_bytes: Size of the results in bytes that ends a group.
        max_delay: Longest wait of a result for the others of its group, in seconds.
        timeout: The cluster aborts a transaction after this time, in seconds. No handler runs in
            it, so it can be short: after a crash, all readers of the results wait for so long.

    Raises:
        ConfigurationError: if a value is out of range.
    """

    max_messages: int = 1_000
    max_bytes: int = 4 * 1024 * 1024
    max_delay: float = 0.05
    timeout: float = 10.0

    def __post_init__(self) -> None:
        integer(self.max_messages, "max_messages", low=1, high=100_000)
        integer(self.max_bytes, "max_bytes", low=1)
        seconds(self.max_delay, "max_delay", low=0.0)
        if seconds(self.timeout, "timeout") < 1:
            raise ConfigurationError(f"timeout must be at least 1 s, got {self.timeout:g}")


# Not frozen: there is one for each message.
@dataclass(eq=False, slots=True)
class Handled:
    """A message after the return of its handler.

    Attributes:
        job: None if the handler has settled the message itself: only the results are left.
        results: What the handler published. The queue does not look at it.
        size: Size of the results in bytes.
        group: Key or partition that keeps its order, or None.
        since_ms: When the handler returned.
        tries: How often its results could not be stored alone.
    """

    job: Job | None
    results: Sequence[Any]
    size: int
    group: Hashable | None
    since_ms: int
    tries: int = 0


class CommitQueue:
    """The messages of one worker that wait for their transaction.

    Args:
        is_ordered: One group at a time, and the order of each key is kept.

    Attributes:
        bytes: Size of all results that have not ended, also of the groups that are being committed.
    """

    def __init__(self, options: Transactional, *, is_ordered: bool) -> None:
        self.bytes: int = 0
        self._is_ordered = is_ordered
        self._most_groups = 1 if is_ordered else _MOST_GROUPS
        self._max_messages = options.max_messages
        self._max_bytes = options.max_bytes
        self._max_delay_ms = int(options.max_delay * 1000)
        self._new: deque[Handled] = deque()
        self._new_bytes = 0
        self._again: deque[list[Handled]] = deque()  # before `_new`
        # Messages that failed alone, until the time of their next try.
        self._failed: list[tuple[int, int, Handled]] = []
        self._numbers = count()
        # Keys with a failed message, and the results that wait behind it.
        self._behind: dict[Hashable, list[Handled]] = {}
        self._groups = 0  # being committed
        self._pause_ms = 0
        self._not_before_ms = 0

    def __len__(self) -> int:
        """Return the number of messages that wait and are not being committed."""
        return (
            len(self._new)
            + sum(map(len, self._again))
            + len(self._failed)
            + sum(map(len, self._behind.values()))
        )

    @property
    def is_idle(self) -> bool:
        return not self._groups and not len(self)

    def add(self, handled: Handled) -> None:
        self._new.append(handled)
        self._new_bytes += handled.size
        self.bytes += handled.size

    def take(
        self, now_ms: int, is_live: Callable[[Handled], bool], *, flush: bool = False
    ) -> list[Handled] | None:
        """Return the next group, which is being committed from now on; None if none is due.

        Args:
            is_live: False for a message that the worker does not hold any more: it is forgotten.
            flush: Results do not wait for others.
        """
        if now_ms < self._not_before_ms:
            return None
        while self._groups < self._most_groups:
            found = self._next(now_ms, flush=flush)
            if found is None:
                return None
            group: list[Handled] = []
            dead: list[Handled] = []
            for each in found:
                (group if is_live(each) else dead).append(each)
            self._forget(dead)
            if group:
                self._groups += 1
                return group
        return None

    def _next(self, now_ms: int, *, flush: bool) -> list[Handled] | None:
        if self._failed and self._failed[0][0] <= now_ms:
            return [heappop(self._failed)[2]]
        while self._again:
            group = self._unblocked(self._again.popleft())
            if group:
                return group
        while self._new and (flush or self._is_due(now_ms)):
            group = []
            size = 0
            while self._new and len(group) < self._max_messages and size < self._max_bytes:
                handled = self._new.popleft()
                self._new_bytes -= handled.size
                size += handled.size
                group.append(handled)
            group = self._unblocked(group)
            if group:
                return group
        return None

    def _is_due(self, now_ms: int) -> bool:
        return (
            len(self._new) >= self._max_messages
            or self._new_bytes >= self._max_bytes
            or now_ms >= self._new[0].since_ms + self._max_delay_ms
        )

    def _unblocked(self, group: list[Handled]) -> list[Handled]:
        """Return the messages that no failed message of their key holds back."""
        if not self._behind:
            return group
        free = []
        for each in group:
            behind = self._behind.get(each.group)
            if behind is None:
                free.append(each)
            else:
                behind.append(each)
        return free

    def next_due_ms(self, now_ms: int, *, flush: bool = False) -> int | None:
        """Return when `take` may return a group by time alone; None if it cannot."""
        if self._groups >= self._most_groups:
            return None
        times = []
        if self._failed:
            times.append(self._failed[0][0])
        if self._again:
            times.append(now_ms)
        if self._new:
            is_due = flush or self._is_due(now_ms)
            times.append(now_ms if is_due else self._new[0].since_ms + self._max_delay_ms)
        return max(min(times), self._not_before_ms) if times else None

    # The end of a group

    def ended(self, group: Sequence[Handled]) -> None:
        """A group was committed."""
        self._groups -= 1
        self._pause_ms = 0
        self._forget(group)

    def aborted(self, group: Sequence[Handled], now_ms: int) -> None:
        """A group was aborted after its acks had left, or perhaps: its messages come again.

        The next group waits for a pause, or handlers would run again and again at full speed.
        """
        self._groups -= 1
        self._pause(now_ms)
        self._forget(group)

    def _pause(self, now_ms: int) -> None:
        self._pause_ms = min(_MAX_PAUSE_MS, 2 * self._pause_ms or _PAUSE_MS)
        self._not_before_ms = now_ms + self._pause_ms

    def not_begun(self, group: list[Handled], now_ms: int) -> None:
        """There was no transaction for a group: it is tried again after a pause."""
        self._groups -= 1
        self._pause(now_ms)
        if group[0].group in self._behind:  # it failed alone before, and holds others back
            self.wait(group[0], now_ms)
        else:
            self._again.appendleft(group)

    def not_committed(self, group: list[Handled]) -> Handled | None:
        """A group failed before its acks left: its halves are tried.

        Returns:
            The message of a group of one. Call `wait` or `done` for it.
        """
        self._groups -= 1
        self._pause_ms = 0
        if len(group) == 1:
            handled = group[0]
            handled.tries += 1
            if handled.group is not None and self._is_ordered:
                self._behind.setdefault(handled.group, [])
            return handled
        half = len(group) // 2
        self._again.appendleft(group[half:])
        self._again.appendleft(group[:half])
        return None

    def wait(self, handled: Handled, due_ms: int) -> None:
        """Try a message that failed alone again at `due_ms`."""
        heappush(self._failed, (due_ms, next(self._numbers), handled))

    def done(self, handled: Handled) -> None:
        """A message that failed alone is settled: those behind it go on."""
        self._forget((handled,))

    def _forget(self, group: Sequence[Handled]) -> None:
        for each in group:
            self.bytes -= each.size
            behind = self._behind.pop(each.group, None) if self._behind else None
            if behind:
                self._again.extendleft(reversed(self._cut(behind)))

    def _cut(self, messages: list[Handled]) -> list[list[Handled]]:
        """Cut messages into groups within the limits."""
        groups: list[list[Handled]] = []
        size = self._max_bytes
        for each in messages:
            if size >= self._max_bytes or len(groups[-1]) >= self._max_messages:
                groups.append([])
                size = 0
            groups[-1].append(each)
            size += each.size
        return groups
