"""The alarm: an earlier due time re-arms it, a later one does not, and idle costs nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.eventloop.alarm import Alarm, due_in_ms, now_ms
from pulsar_encore.testing import run


class Clockwork:
    """Due times, and the time when each was served."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.waiting: list[int] = []
        self.served: list[tuple[int, int]] = []
        self.rings = 0
        self.alarm = Alarm(self.loop)
        self.alarm.start(self.fire)

    def add(self, due_ms: int) -> None:
        self.waiting.append(due_ms)
        self.alarm.at(due_ms)

    def fire(self, now: int) -> int | None:
        self.rings += 1
        actual = now_ms(self.loop)
        self.served += [(due, actual) for due in self.waiting if due <= now]
        self.waiting = [due for due in self.waiting if due > now]
        return min(self.waiting, default=None)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 900)), min_size=1, max_size=30))
def test_everything_is_served_at_its_time(steps: list[tuple[int, int]]) -> None:
    async def main() -> Clockwork:
        clockwork = Clockwork()
        for pause_ms, delay_ms in steps:
            await asyncio.sleep(pause_ms / 1000)
            clockwork.add(now_ms(clockwork.loop) + delay_ms)
        await asyncio.sleep(2)
        return clockwork

    clockwork = run(main())
    assert clockwork.waiting == []
    assert len(clockwork.served) == len(steps)
    for due, actual in clockwork.served:
        assert due <= actual <= due + 2
    assert clockwork.rings <= len(steps)


@given(st.integers(0, 3_000_000), st.integers(0, 5_000))
def test_a_due_time_is_not_reached_before_its_delay_is_over(start_us: int, delay_ms: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(start_us / 1_000_000)
        began = loop.time()
        due = due_in_ms(loop, delay_ms)
        assert due / 1000 >= began + delay_ms / 1000 - 1e-9
        assert due / 1000 < began + delay_ms / 1000 + 0.001 + 1e-9

    run(main())


async def test_a_later_due_time_never_postpones_an_earlier_one() -> None:
    clockwork = Clockwork()
    base = now_ms(clockwork.loop)
    clockwork.add(base + 30)
    clockwork.add(base + 5_000)
    clockwork.alarm.at(None)
    await asyncio.sleep(0.045)
    assert [due for due, _ in clockwork.served] == [base + 30]
    clockwork.alarm.close()


def test_a_closed_alarm_never_rings_again() -> None:
    async def main() -> None:
        clockwork = Clockwork()
        clockwork.add(100)
        clockwork.alarm.close()
        clockwork.alarm.close()
        await asyncio.sleep(1)
        clockwork.add(1_500)
        await asyncio.sleep(1)
        assert clockwork.rings == 0

    run(main())


def test_an_alarm_that_is_closed_while_it_rings_does_not_ring_again() -> None:
    async def main() -> None:
        alarm = Alarm(asyncio.get_running_loop())
        rings: list[int] = []

        def fire(now: int) -> int | None:
            rings.append(now)
            alarm.close()
            return now + 10

        alarm.start(fire)
        alarm.at(100)
        await asyncio.sleep(1)
        assert len(rings) == 1

    run(main())


def test_nothing_runs_while_nothing_is_due() -> None:
    async def main() -> None:
        clockwork = Clockwork()
        loop: Any = clockwork.loop
        for each in range(1_000):
            clockwork.add(50_000 - each)
        await asyncio.sleep(48)
        assert clockwork.rings == 0
        armed = [handle for handle in loop._scheduled if not handle.cancelled()]
        assert len(armed) == 1
        await asyncio.sleep(10)
        assert not clockwork.waiting
        assert [handle for handle in loop._scheduled if not handle.cancelled()] == []

    run(main())


def test_a_past_due_time_is_served_in_the_next_pass_of_the_loop() -> None:
    async def main() -> None:
        await asyncio.sleep(5)
        clockwork = Clockwork()
        clockwork.add(1_000)
        assert clockwork.rings == 0
        await asyncio.sleep(0.002)
        ((due, served),) = clockwork.served
        assert due == 1_000
        assert 5_000 <= served <= 5_001

    run(main())
