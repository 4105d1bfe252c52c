"""Moves entries from subscriptions to connections, once per loop turn.

Whatever may make something deliverable calls `wake`; the pump then asks each such subscription
once, so that answers and messages of one turn leave in one write. Bounded: a pass takes about 2
MB of one subscription and comes back for the rest, and consumers of a connection that does not
drain are skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .catalogue import TopicState
    from .consumers import Delivery
    from .subscriptions import Subscription

PASS_ENTRIES = 1000
PASS_BYTES = 2_000_000


def wall_ms() -> int:
    """The broker's wall clock."""
    return time.time_ns() // 1_000_000


class Pump:
    """Calls `dispatch` when it may give something, and `deliver` with what it gave."""

    def __init__(self, deliver: Callable[[Delivery], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._awake: dict[Subscription, TopicState] = {}
        self._scheduled = False
        self._timers: dict[Subscription, tuple[int, asyncio.TimerHandle]] = {}
        self._closed = False

    def wake(self, state: TopicState, subscription: Subscription) -> None:
        """Something may be deliverable."""
        self._awake[subscription] = state
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def wake_all(self, state: TopicState) -> None:
        """Something was published."""
        for subscription in state.subscriptions.values():
            self.wake(state, subscription)

    def _run(self) -> None:
        self._scheduled = False
        awake, self._awake = self._awake, {}
        now_ms = wall_ms()
        for subscription, state in awake.items():
            log = state.log
            average = state.body_bytes // max(log.end, 1) + 1
            limit = max(1, min(PASS_ENTRIES, PASS_BYTES // average))
            deliveries = subscription.dispatch(now_ms, limit)
            for delivery in deliveries:
                self._deliver(delivery)
            if len(deliveries) >= limit:
                self.wake(state, subscription)
            else:
                self._arm(state, subscription, now_ms)

    def _arm(self, state: TopicState, subscription: Subscription, now_ms: int) -> None:
        """Come back when time makes something deliverable."""
        wake_ms = subscription.wake_ms(now_ms)
        armed = self._timers.get(subscription)
        if armed is not None:
            if armed[0] == wake_ms:
                return
            armed[1].cancel()
            del self._timers[subscription]
        if wake_ms is not None:
            # At least a ms ahead: a timer that fires a rounding error early must not spin.
            delay = max(wake_ms - now_ms, 1) / 1000
            handle = self._loop.call_later(delay, self._due, state, subscription)
            self._timers[subscription] = (wake_ms, handle)

    def _due(self, state: TopicState, subscription: Subscription) -> None:
        self._timers.pop(subscription, None)
        self.wake(state, subscription)

    def close(self) -> None:
        """Stop; nothing is delivered any more."""
        self._closed = True
        self._awake.clear()
        for _, handle in self._timers.values():
            handle.cancel()
        self._timers.clear()
