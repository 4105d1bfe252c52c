"""Compressed time, and the rows of an hour of mixed traffic."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

import pytest

from integration.benchmarks.fast_clock import FastLoop
from integration.benchmarks.hour import Hour, rows, thirds
from integration.benchmarks.hour_traffic import Left, Sample


def test_timers_and_both_clocks_run_at_the_speed_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine_s = 100.0
    waits: list[float | None] = []

    def select(_: selectors.DefaultSelector, timeout: float | None = None) -> list[Any]:
        nonlocal machine_s
        waits.append(timeout)
        machine_s += timeout or 0.0
        return []

    monkeypatch.setattr(selectors.DefaultSelector, "select", select)
    loop = FastLoop(20.0, since_s=99.0, now=lambda: machine_s)

    async def main() -> tuple[float, float]:
        loop_s, wall_s = loop.time(), loop.wall_time()
        await asyncio.sleep(10.0)
        return loop.time() - loop_s, loop.wall_time() - wall_s

    try:
        assert loop.time() == 20.0
        elapsed = loop.run_until_complete(main())
    finally:
        loop.close()
    assert elapsed == pytest.approx((10.0, 10.0))
    assert max(wait or 0.0 for wait in waits) == pytest.approx(0.5)


def test_the_last_third_is_compared_with_the_first_after_the_warm_up() -> None:
    pairs = thirds([9.0, 9.0, 1.0, 2.0, 5.0, 5.0, 5.0, 3.0, 4.0], 2)
    assert pairs == ((3.0, 4.0), (1.0, 2.0))
    with pytest.raises(ValueError, match="no thirds"):
        thirds([1.0, 2.0, 3.0], 1)


@pytest.mark.parametrize(("growth_mb", "met"), [(0.0, True), (0.05, True), (0.2, False)])
def test_a_leak_misses_the_bar_of_the_memory(growth_mb: float, met: bool) -> None:
    memory, objects, cpu, *left = rows(_hour(growth_mb, files=1))
    assert memory.met is met
    assert memory.series[:2] == ((1.0, 50.0), (2.0, 50.0 + growth_mb))
    assert objects.ratio is not None and objects.ratio.median == 1.0
    assert cpu.figure.median == pytest.approx(2000.0)
    assert [each.met for each in left] == [True, True, False]


def _hour(growth_mb: float, files: int) -> Hour:
    samples = [
        Sample(
            minute=float(minute),
            mb=50.0 + growth_mb * (minute - 1),
            objects=1000,
            tasks=9,
            files=9,
            cpu_s=0.2 * minute,
            received=100 * minute,
        )
        for minute in range(1, 61)
    ]
    counts = {"published": 5000, "received": 6000}
    return Hour(
        samples, Left(tasks=0, sockets=0, files=files, objects={}, counts=counts), {"outage": 2}
    )
