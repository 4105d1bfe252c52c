"""The programs of `docs/recipes/kubernetes.md`, as its manifests run them, on a real Pulsar."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

import pulsar_encore as encore
from tests.harness.admin import Admin, AdminError
from tests.harness.pulsar_server import Server
from tests.harness.recipes import EXAMPLES, RecipeProcess

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

LONGEST_S = 60
DELAY_S = 10
PODS = range(2)
_MANIFESTS = {path.stem: yaml.safe_load(path.read_text()) for path in EXAMPLES.glob("*/*.yaml")}
GRACE_S = _MANIFESTS["statefulset"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
#: The program with a shorter delay, and with a handler that never ends.
CODE = f"""
import asyncio, sys
import recipe_state as recipe

class Retry(recipe.encore.Retry):
    def __init__(self, delay):
        super().__init__({DELAY_S})

async def bill(order, msg, bill=recipe.bill):
    if order == b"stuck":
        print("stuck", flush=True)
        await asyncio.sleep(3600)
    await bill(order, msg)

recipe.encore.Retry, recipe.bill = Retry, bill
asyncio.run(recipe.main(*sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def partitioned_topic(admin: Admin) -> Iterator[None]:
    with contextlib.suppress(AdminError):
        admin.delete_topic("orders")
    admin.create_partitioned_topic("orders", len(PODS))
    yield
    admin.delete_topic("orders", partitioned=True)


def pod(pulsar: Server, number: int, folder: Path) -> RecipeProcess:
    """Start the command of the StatefulSet for one pod."""
    (container,) = _MANIFESTS["statefulset"]["spec"]["template"]["spec"]["containers"]
    *_, topic, _ = container["command"]
    topic = topic.replace("$(PARTITION)", str(number))
    output, state = folder / f"output-{number}", folder / f"volume-{number}" / "state"
    arguments = (pulsar.service_url, "0", topic, str(state))
    return RecipeProcess("state", *arguments, output=output, code=CODE)


async def wait_until(condition: Any) -> None:
    async with asyncio.timeout(LONGEST_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)


async def publish(pulsar: Server, partition: int, *orders: bytes) -> None:
    async with (
        encore.Client(pulsar.service_url) as client,
        client.create_producer(f"orders-partition-{partition}", batching_enabled=False) as producer,
    ):
        for order in orders:
            await producer.send(order)


def backlog(admin: Admin, partition: int) -> int:
    stats = admin.subscription_stats(f"orders-partition-{partition}", "billing")
    return int(stats["msgBacklog"])


async def test_a_killed_pod_keeps_due_times_though_another_one_runs(
    pulsar: Server, admin: Admin, tmp_path: Path
) -> None:
    output = tmp_path / "output-0"
    processes = [pod(pulsar, number, tmp_path) for number in PODS]
    try:
        await publish(pulsar, 0, b"later", b"now")
        await wait_until(lambda: output.exists() and "billed now" in output.read_text())
        delayed = time.monotonic()
        await wait_until(lambda: backlog(admin, 0) == 1)
        await asyncio.sleep(1)
        await asyncio.to_thread(processes[0].kill)
        assert "later" not in output.read_text()
        processes[0] = pod(pulsar, 0, tmp_path)
        await wait_until(lambda: "billed later at attempt 2" in output.read_text())
        assert DELAY_S - 1 < time.monotonic() - delayed < DELAY_S + 5
        await wait_until(lambda: backlog(admin, 0) == 0)
    finally:
        for each in processes:
            await asyncio.to_thread(each.kill)
    assert output.read_text().splitlines() == [
        "billed now at attempt 1",
        "billed later at attempt 2",
    ]
    assert (tmp_path / "output-1").read_text() == ""


async def test_a_pod_with_a_handler_that_does_not_end_leaves_within_its_grace(
    pulsar: Server, tmp_path: Path
) -> None:
    process = pod(pulsar, 0, tmp_path)
    try:
        await publish(pulsar, 0, b"stuck")
        output = tmp_path / "output-0"
        await wait_until(lambda: output.exists() and "stuck" in output.read_text())
        began = time.monotonic()
        await asyncio.to_thread(process.end, GRACE_S)
        assert time.monotonic() - began < GRACE_S - 5
    finally:
        process.kill()


async def test_the_admin_api_has_the_number_that_keda_reads(
    pulsar: Server, admin: Admin, tmp_path: Path
) -> None:
    """KEDA's scaler reads `msgBacklog`, of the statistics of one topic or of all partitions."""
    metadata = _MANIFESTS["scaledobject"]["spec"]["triggers"][0]["metadata"]
    topic = metadata["topic"].removeprefix("persistent://")
    process = pod(pulsar, 0, tmp_path)
    try:
        await publish(pulsar, 0, b"stuck")
        await wait_until(lambda: "stuck" in (tmp_path / "output-0").read_text())
        root = f"{pulsar.admin_url}/admin/v2/persistent/{topic}"
        with await asyncio.to_thread(urlopen, f"{root}/partitioned-stats") as answer:
            stats = json.load(answer)
        assert stats["subscriptions"][metadata["subscription"]]["msgBacklog"] == 1
    finally:
        process.kill()
