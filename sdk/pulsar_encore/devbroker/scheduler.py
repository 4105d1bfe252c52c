"""Schedule deliveries: ask each woken subscription once per pass of the clock.

Answers and messages of one pass leave in one write. A pass takes about 2 MB from a subscription.
"""

from __future__ import annotations

from collections.abc import Callable

from .clock import Clock, Timer
from .rules.attached_consumers import Delivery
from .rules.catalogue import BrokerTopic
from .rules.subscriptions import Subscription

PASS_ENTRIES = 1000
PASS_BYTES = 2_000_000


class DispatchScheduler:
    def __init__(self, clock: Clock, deliver: Callable[[Delivery], None]) -> None:
        self._clock = clock
        self._deliver = deliver
        self._awake: dict[Subscription, BrokerTopic] = {}
        self._scheduled = False
        self._timers: dict[Subscription, tuple[int, Timer]] = {}
        self._closed = False

    def wake(self, state: BrokerTopic, subscription: Subscription) -> None:
        """Schedule a subscription that may have something to deliver."""
        self._awake[subscription] = state
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._clock.call_soon(self._run)

    def wake_all(self, state: BrokerTopic) -> None:
        for subscription in state.subscriptions.values():
            self.wake(state, subscription)

    def _run(self) -> None:
        self._scheduled = False
        awake, self._awake = self._awake, {}
        now_ms = self._clock.wall_ms()
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

    def _arm(self, state: BrokerTopic, subscription: Subscription, now_ms: int) -> None:
        """Wake the subscription when a delayed delivery is due."""
        wake_ms = subscription.wake_ms(now_ms)
        armed = self._timers.get(subscription)
        if armed is not None:
            if armed[0] == wake_ms:
                return
            armed[1].cancel()
            del self._timers[subscription]
        if wake_ms is not None:
            # At least 1 ms: a timer that fires early by a rounding error must not spin.
            delay_s = max(wake_ms - now_ms, 1) / 1000
            timer = self._clock.call_later(delay_s, lambda: self._due(state, subscription))
            self._timers[subscription] = (wake_ms, timer)

    def _due(self, state: BrokerTopic, subscription: Subscription) -> None:
        self._timers.pop(subscription, None)
        self.wake(state, subscription)

    def close(self) -> None:
        self._closed = True
        self._awake.clear()
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
