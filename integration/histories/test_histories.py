"""A fixed set of histories on the real broker: some of each family, and those made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from harness.histories.brokers import Brokers
from harness.histories.clients import OURS, ClientName
from harness.histories.fixed import FIXED
from harness.histories.generator import FAMILIES, generate
from harness.histories.history_report import full
from harness.histories.history_runner import Runner
from harness.histories.workload import Workload
from harness.pulsar_server import Server

# looptime's plugin asks for a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

SEEDS = range(1, 7)
BREAKING_SEEDS = range(1, 2)  # stops a broker of its own, and waits for clients to come back
AT_ONCE = 8


clients = pytest.mark.parametrize("client", OURS.values(), ids=OURS)


async def no_finding(server: Server, workloads: Sequence[Workload], client: ClientName) -> None:
    """Plays them side by side; a failing one is printed with the command that runs it again."""
    async with Brokers("real", server) as brokers:
        runner = Runner(brokers, AT_ONCE)
        outcomes = await asyncio.gather(*(runner.run(each, client) for each in workloads))
    failing = [outcome for outcome in outcomes if outcome.verdict.findings]
    if failing:
        said = "\n\n".join(full(each, "real", of_seed=False) for each in failing)
        pytest.fail(said, pytrace=False)


@clients
async def test_the_losses_that_were_seen(pulsar: Server, client: ClientName) -> None:
    await no_finding(pulsar, [workload for workload in FIXED.values() for _ in range(3)], client)


def _of_family(family: str) -> list[Workload]:
    return [generate(seed, family) for seed in (BREAKING_SEEDS if family == "broken" else SEEDS)]


@clients
@pytest.mark.parametrize("family", [name for name, (weight, _) in FAMILIES.items() if weight])
async def test_histories(pulsar: Server, family: str, client: ClientName) -> None:
    await no_finding(pulsar, _of_family(family), client)
