"""The workloads of `java_transactions` with our client, and the rows beside plain figures."""

from __future__ import annotations

import asyncio

import pytest

import pulsar_encore as encore
from integration.benchmarks.java_transactions import answer, beside_plain
from integration.benchmarks.processes import broker, fresh_topic
from integration.benchmarks.transaction_cost import GROUP

PLAIN = {"ours": [{"per_s": 100.0}, {"per_s": 200.0}], "java": [{"per_s": 400.0}] * 2}
FOUND = {"ours": [{"per_s": 50.0}] * 2, "java": [{"per_s": 100.0}, {"per_s": 50.0}]}


def test_a_figure_beside_plain_is_the_ratio_of_each_pair() -> None:
    row, shares = beside_plain("acks", FOUND, PLAIN)
    assert (row.ours, row.other, row.bar) == ((50, 50), (100, 50), None)
    assert (shares.ours, shares.other) == ((0.5, 0.25), (0.25, 0.125))
    assert shares.met


@pytest.mark.parametrize(("key", "met"), [("per_s", False), ("p50_ms", True)])
def test_a_smaller_share_is_worse_for_rates_and_better_for_times(key: str, met: bool) -> None:
    plain = {side: [{key: 100.0}] for side in ("ours", "java")}
    found = {"ours": [{key: 40.0}], "java": [{key: 50.0}]}
    _, shares = beside_plain("acks", found, plain, key)
    assert shares.met is met


async def _filled(url: str, count: int) -> str:
    topic = fresh_topic()
    async with encore.Client(url) as client:
        # The topic keeps its messages for this subscription.
        await client.subscribe(topic, "keep", initial_position=encore.InitialPosition.Earliest)
        async with client.create_producer(topic, block_if_queue_full=True) as producer:
            await asyncio.gather(*(producer.send(b"x") for _ in range(count)))
    return topic


def test_our_process_answers_to_each_workload() -> None:
    with broker(None) as url:
        topic = asyncio.run(_filled(url, 2 * GROUP))
        for size in (0, 10):
            assert (answer(url, f"sends {fresh_topic()} 40 {size}")["per_s"] or 0) > 0
        for transactional in (0, 1):
            assert (answer(url, f"acks {topic} {GROUP} {transactional}")["per_s"] or 0) > 0
        for kind in ("plain", "transaction", "empty"):
            figures = answer(url, f"singles {topic} 8 4 {kind}")
            assert figures.keys() == {"per_s", "p50_ms"}
            assert (figures["p50_ms"] or 0) > 0
