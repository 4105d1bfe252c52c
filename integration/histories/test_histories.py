"""A fixed set of histories on a real broker: some of each family, and all written by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.harness.histories.brokers import Brokers
from tests.harness.histories.clients import OURS, ClientName
from tests.harness.histories.fixed import FIXED
from tests.harness.histories.generator import FAMILIES, generate
from tests.harness.histories.history_report import full
from tests.harness.histories.history_runner import Outcome, Runner
from tests.harness.histories.workload import Workload
from tests.harness.pulsar_server import Server

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

SEEDS = range(1, 7)
BREAKING_SEEDS = range(1, 2)  # each stops a private broker and waits for reconnects
AT_ONCE = 8
#: (client, family, seed) -> the kind of a finding that comes in a few of 100 runs, and is listed in
#: docs/broker-limits.md under "The stock transport". Other kinds fail the test.
KNOWN = {(OURS["stock"], "backlog", 6): "gap"}


clients = pytest.mark.parametrize("client", OURS.values(), ids=OURS)


async def no_finding(server: Server, workloads: Sequence[Workload], client: ClientName) -> None:
    """Play workloads side by side. A failing one is printed with the command that repeats it."""
    async with Brokers("real", server) as brokers:
        runner = Runner(brokers, AT_ONCE)
        outcomes = await asyncio.gather(*(runner.run(each, client) for each in workloads))
    failing = [each for each in outcomes if not is_as_known(each)]
    if failing:
        report = "\n\n".join(full(each, "real", of_seed=False) for each in failing)
        pytest.fail(report, pytrace=False)


def is_as_known(outcome: Outcome) -> bool:
    workload = outcome.workload
    known = KNOWN.get((outcome.client, workload.name, workload.seed))
    return all(finding.kind == known for finding in outcome.verdict.findings)


@clients
async def test_fixed_workloads_have_no_finding(pulsar: Server, client: ClientName) -> None:
    await no_finding(pulsar, [workload for workload in FIXED.values() for _ in range(3)], client)


def _of_family(family: str) -> list[Workload]:
    return [generate(seed, family) for seed in (BREAKING_SEEDS if family == "broken" else SEEDS)]


@clients
@pytest.mark.parametrize("family", [name for name, (weight, _) in FAMILIES.items() if weight])
async def test_random_workloads_of_each_family_have_no_finding(
    pulsar: Server, family: str, client: ClientName
) -> None:
    await no_finding(pulsar, _of_family(family), client)
