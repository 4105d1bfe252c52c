"""Cases on a real broker, behind proxies."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from tests.harness.admin import Admin
from tests.harness.faults.__main__ import failure, on_broker
from tests.harness.pulsar_server import Server

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

SEEDS = range(1, 101)
AT_ONCE = 8


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default:case .* Pulsar withholds")  # warnings are errors by default
async def test_no_message_is_lost_when_connections_fail(pulsar: Server, admin: Admin) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def run_one(seed: int) -> str:
        async with slots:
            verdict = await on_broker(seed, pulsar.service_url, admin)
        if verdict.withheld:
            warnings.warn(f"case {seed}: Pulsar withholds: {verdict.withheld}", stacklevel=1)
        return failure(verdict, "real", shown=400) if verdict.findings else ""

    failing = [report for report in await asyncio.gather(*map(run_one, SEEDS)) if report]
    if failing:
        pytest.fail("\n\n".join(failing), pytrace=False)
