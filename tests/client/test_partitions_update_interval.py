"""`partitions_update_interval`: how often the client looks for new partitions of named topics."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread
from pulsar_encore.options import ClientOptions
from pulsar_encore.transport.native.service_options import of_options
from pulsar_encore.transport.transport_choice import VARIABLE

URL = "pulsar://h"


def interval_of(**options: Any) -> float:
    return of_options(ClientOptions(service_url=URL, **options))[1].discovery_s


def test_the_native_transport_uses_partitions_update_interval() -> None:
    assert interval_of() == 60.0
    for value in (0.1, 1, 2.5, 86_400):
        assert interval_of(partitions_update_interval=value) == value


@pytest.mark.parametrize(
    "value", [0, -1, 0.01, math.inf, -math.inf, math.nan, 2e9, "60", None, True, b"1", [5]]
)
def test_the_error_names_an_invalid_partitions_update_interval(value: Any) -> None:
    with pytest.raises(encore.ConfigurationError, match="partitions_update_interval must be"):
        encore.Client(URL, partitions_update_interval=value)


def test_the_stock_transport_refuses_another_interval_and_says_why_stock_was_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    athenz = encore.AuthenticationAthenz("{}")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"transport": "stock"}, "transport='stock'"),
        ({"authentication": athenz}, "AuthenticationAthenz"),
        ({"transport": "auto", "authentication": athenz}, "AuthenticationAthenz"),
    ]
    for options, why in cases:
        with pytest.raises(encore.NotSupportedError) as caught:
            encore.Client(URL, partitions_update_interval=5, **options)
        text = str(caught.value)
        assert "partitions_update_interval is not supported by the stock transport" in text
        assert why in text and "transport='native'" in text
    monkeypatch.setenv(VARIABLE, "stock")
    with pytest.raises(encore.NotSupportedError, match=f"{VARIABLE}='stock'"):
        encore.Client(URL, partitions_update_interval=5)


async def test_the_stock_transport_accepts_the_default(broker: BrokerThread) -> None:
    async with encore.Client(broker.url, transport="stock", partitions_update_interval=60):
        pass


async def test_consumers_producers_and_readers_find_new_partitions_after_the_interval(
    broker: BrokerThread, topic: str
) -> None:
    broker.create_partitioned_topic(topic, 1)
    earliest = encore.InitialPosition.Earliest
    async with (
        encore.Client(broker.url, transport="native", partitions_update_interval=0.1) as client,
        client.subscribe(topic, "s", initial_position=earliest) as consumer,
        client.create_producer(
            topic,
            batching_enabled=False,
            message_routing_mode=encore.PartitionsRoutingMode.RoundRobinDistribution,
        ) as producer,
        client.create_reader(topic, encore.MessageId.earliest) as reader,
        asyncio.timeout(20),
    ):
        broker.create_partitioned_topic(topic, 3)

        async def send_until(partitions: set[int]) -> None:
            """Send until each partition has a message. Sends rotate over the known partitions."""
            while partitions != {0, 1, 2}:
                partitions.add((await producer.send(b"x")).partition())
                await asyncio.sleep(0.01)

        async def read_until(read: Any, partitions: set[int]) -> None:
            while partitions != {0, 1, 2}:
                partitions.add((await read()).message_id().partition())

        calls: list[Coroutine[Any, Any, None]] = [
            send_until(set()),
            read_until(consumer.receive, set()),
            read_until(reader.read_next, set()),
        ]
        await asyncio.gather(*calls)
