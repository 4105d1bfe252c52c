"""The Python blocks of `docs/readers.md` run, and a seek does as its table says."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client, testing
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block, text_of

PAGE = text_of("readers.md")
READ, SINCE, SEEK, REPLAY = blocks_of("readers.md")
EARLIEST = encore.InitialPosition.Earliest


@pytest.fixture
def names(client: Client) -> dict[str, Any]:
    return {"client": client, "encore": encore}


async def rest(consumer: encore.Consumer) -> list[encore.Message]:
    """Receive until nothing comes for a minute."""
    found: list[encore.Message] = []
    while True:
        try:
            found.append(await consumer.receive(timeout=60))
        except encore.ReceiveTimeout:
            return found


async def test_a_reader_reads_to_the_end_and_stops(
    names: dict[str, Any], transport: MemoryTransport, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in range(3):
        transport.put("orders", b"%d" % each)
    await run_block(READ, names)
    assert re.findall(r"b'(\d)'", capsys.readouterr().out) == ["0", "1", "2"]


async def test_a_reader_reads_from_a_time_to_the_end(
    names: dict[str, Any], transport: MemoryTransport
) -> None:
    transport.put("orders", b"early")
    await asyncio.sleep(3600)
    since = datetime.fromtimestamp(transport.wall_ms() / 1000, UTC)
    transport.put("orders", b"on time")
    await asyncio.sleep(60)
    transport.put("orders", b"late")

    class Since(datetime):
        def __new__(cls, *_: Any, **__: Any) -> Any:
            return since - timedelta(milliseconds=1)

    names |= {"datetime": Since, "UTC": UTC, "found": []}
    code = SINCE.code.replace("from datetime import UTC, datetime\n", "")
    await run_block(replace(SINCE, code=code), names)
    assert names["found"] == [b"on time", b"late"]


@pytest.mark.parametrize(("inclusive", "expected"), [(False, [b"3"]), (True, [b"2", b"3"])])
async def test_a_reader_starts_at_an_id_inside_of_a_batch(
    client: Client, transport: MemoryTransport, inclusive: bool, expected: list[bytes]
) -> None:
    transport.put("orders", *[b"%d" % each for each in range(4)])
    async with client.create_reader("orders", encore.MessageId.earliest) as reader:
        ids = [(await reader.read_next()).message_id() for _ in range(4)]
    start = encore.MessageId.deserialize(ids[2].serialize())
    async with client.create_reader(
        "orders", start, start_message_id_inclusive=inclusive
    ) as reader:
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next()).data())
    assert found == expected


async def test_a_consumer_seeks_to_the_message_that_it_acked(
    names: dict[str, Any], transport: MemoryTransport
) -> None:
    subscribing = asyncio.create_task(run_block(SEEK, names))
    await asyncio.sleep(1)
    for each in range(3):
        transport.put("orders", b"%d" % each)
    await subscribing
    assert [each.data() for each in await rest(names["consumer"])] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("kind", [encore.ConsumerType.Shared, encore.ConsumerType.Exclusive])
async def test_a_seek_drops_nacks_and_repeats_acked_held_and_queued_messages_once(
    client: Client, transport: MemoryTransport, kind: encore.ConsumerType
) -> None:
    for each in range(4):
        transport.put("orders", b"%d" % each)
    async with client.subscribe("orders", "billing", kind, initial_position=EARLIEST) as consumer:
        acked, nacked, _held = [await consumer.receive() for _ in range(3)]
        await consumer.acknowledge(acked)
        await consumer.negative_acknowledge(nacked, delay=10)
        await consumer.seek(encore.MessageId.earliest)
        again = await rest(consumer)
        assert [each.data() for each in again] == [b"0", b"1", b"2", b"3"]
        assert {each.attempt for each in again} == {1}


async def test_a_seek_ends_leases(client: Client, transport: MemoryTransport) -> None:
    transport.put("orders", b"0")
    async with client.subscribe(
        "orders", "billing", encore.ConsumerType.Shared, initial_position=EARLIEST
    ) as consumer:
        [lease] = await consumer.pop(lease=60)
        await consumer.seek(encore.MessageId.earliest)
        with pytest.raises(encore.LeaseLostError):
            await lease.ack()
        assert [each.data() for each in await rest(consumer)] == [b"0"]


async def test_a_replay_sends_the_letters_of_one_error_as_new_messages(
    names: dict[str, Any],
    client: Client,
    transport: MemoryTransport,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def bill(value: bytes) -> None:
        if value == b"slow":
            raise TimeoutError("gateway took 5 s")
        raise KeyError("EUR")

    for value in (b"slow", b"wrong"):
        transport.put("orders", value)
    worker = encore.Worker(
        client,
        "orders",
        "billing",
        bill,
        initial_position=EARLIEST,
        retry=encore.RetryPolicy(attempts=1),
    )
    await testing.drain(worker)
    await run_block(REPLAY, names)
    assert capsys.readouterr().out == "1 []\n"
    async with client.subscribe("orders", "audit", initial_position=EARLIEST) as consumer:
        assert [each.data() for each in await rest(consumer)] == [b"slow", b"wrong", b"slow"]


async def test_the_page_names_no_unknown_call() -> None:
    for name in re.findall(r"`(?:await )?reader\.(\w+)\(", PAGE):
        assert hasattr(encore.Reader, name)
