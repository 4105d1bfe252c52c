"""The program of `docs/recipes/key-order.md`, in two workers that share a subscription."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_encore import BatchingType, Client, testing
from pulsar_encore.testing import MemoryTransport
from tests.harness.key_lines import KeyLines
from tests.harness.recipes import load_recipe

TOPIC = "persistent://public/default/orders"
KEYS = [f"customer-{number}" for number in range(8)]


@pytest.fixture
def recipe() -> Any:
    return load_recipe("key_order")


async def run_two(recipe: Any, client: Client, seconds: float) -> None:
    """Publish to two workers, and run them for a while."""
    async with recipe.billing(client) as first, recipe.billing(client) as second:
        producer = await recipe.publisher(client)
        sends = []
        for number in range(10):
            for key in KEYS:
                is_declined = (key, number) == (KEYS[0], 3)
                value = b"declined" if is_declined else b"order%d" % number
                sends.append(producer.send(value, partition_key=key))
        await asyncio.gather(*sends)
        await asyncio.sleep(seconds)
        assert first.report().received > 0 < second.report().received


async def test_two_workers_keep_the_order_of_each_key(
    recipe: Any, client: Client, transport: MemoryTransport, capsys: pytest.CaptureFixture[str]
) -> None:
    await run_two(recipe, client, 60)
    lines = KeyLines(capsys.readouterr().out)
    for key in KEYS:
        expected = [f"order{number}" for number in range(10)]
        if key == KEYS[0]:
            expected[3] = "declined"
        assert lines.values(key, "ends") == expected
        assert not lines.overlaps(key)
    assert lines.values(KEYS[0], "begins").count("declined") == 3
    assert transport.backlog(TOPIC, "billing") == 0


async def test_a_failed_message_holds_back_its_key_only(
    recipe: Any, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    await run_two(recipe, client, 0.9)  # the first delay is 0.8 to 1.2 s
    lines = KeyLines(capsys.readouterr().out)
    assert lines.values(KEYS[0], "ends") == ["order0", "order1", "order2"]
    for key in KEYS[1:]:
        assert len(lines.values(key, "ends")) == 10


async def test_default_batches_are_named_in_a_warning(
    recipe: Any, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    async with recipe.billing(client):
        producer = await client.create_producer("orders", batching_type=BatchingType.Default)
        await asyncio.gather(*(producer.send(b"order", partition_key=key) for key in KEYS))
        await asyncio.sleep(1)
    assert "KeyBased" in caplog.text


async def test_a_declined_order_that_never_succeeds_frees_its_key_in_the_end(
    recipe: Any, client: Client, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def decline(order: bytes) -> None:
        if order == b"declined":
            raise OSError("the card was declined")

    monkeypatch.setattr(recipe, "bill", decline)
    for value in (b"declined", b"next"):
        transport.put("orders", value, key="a")
    drained = await testing.drain(recipe.billing(client))
    settlements = [each.settlement for each in drained.outcomes]
    assert settlements == ["retry"] * 4 + ["dead letter", "ack"]
    assert 25 < drained.elapsed < 50  # the sum of the delays, 36 s
