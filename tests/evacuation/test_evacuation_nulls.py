"""Evacuation keeps the difference between a null value and an empty value."""

from __future__ import annotations

import pytest
from evacuation_kit import HOUR, TOPIC, OldHost, take_over

from pulsar_encore import Client
from pulsar_encore.evacuation import evacuate
from pulsar_encore.schema import StringSchema
from pulsar_encore.testing import MemoryTransport


@pytest.mark.parametrize("batched", [False, True])
async def test_null_stays_null_and_empty_stays_empty(
    transport: MemoryTransport, client: Client, host: OldHost, batched: bool
) -> None:
    values: list[bytes | None] = [None, b"", b"text"]
    for entry in [values] if batched else [[each] for each in values]:
        transport.put(TOPIC, *entry)
    consumer = await host.start(schema=StringSchema())
    for _ in values:
        await consumer.negative_acknowledge(await consumer.receive(timeout=100), delay=HOUR)
    await consumer.close()
    report = await evacuate(client, host.path)
    assert report.moved == 3
    elsewhere = await take_over(client, schema=StringSchema())
    got = [await elsewhere.receive(timeout=2 * HOUR) for _ in values]
    assert {each.value() for each in got} == {None, "", "text"}
