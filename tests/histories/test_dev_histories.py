"""A few short histories on the development broker."""

from __future__ import annotations

import asyncio

import pytest

from tests.harness.histories.brokers import Brokers
from tests.harness.histories.clients import OURS, ClientName
from tests.harness.histories.fixed import FIXED
from tests.harness.histories.history_report import full
from tests.harness.histories.history_runner import Runner

# looptime's plugin asks for a loop before every synchronous test. See the fixtures of the contract
# tests.
asyncio.set_event_loop(None)

NAMES = ("one-nack", "redeliver-all", "interleaved", "batch-receive")


@pytest.mark.parametrize("client", OURS.values(), ids=OURS)
async def test_histories_on_the_development_broker_have_no_findings(client: ClientName) -> None:
    async with Brokers("dev", None) as brokers:
        runner = Runner(brokers, len(NAMES))
        outcomes = await asyncio.gather(*(runner.run(FIXED[name], client) for name in NAMES))
    failing = [outcome for outcome in outcomes if outcome.verdict.findings]
    if failing:
        reports = "\n\n".join(full(each, "dev", of_seed=False) for each in failing)
        pytest.fail(reports, pytrace=False)
