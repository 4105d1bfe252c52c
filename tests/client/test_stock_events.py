"""Events of the stock transport: connections of consumers, and failed consumers and readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

import pulsar_encore as encore
from pulsar_encore import testing
from pulsar_encore.transport.stock.stock_consumer import StockConsumer
from pulsar_encore.transport.stock.stock_reader import StockReader


def ignore(*_: Any) -> None:
    """Ignore the result of a close that the test makes inside the library."""


async def until(found: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not found():
            await asyncio.sleep(0.02)


async def test_a_consumer_closed_by_the_cpp_client_is_reported_as_failed(
    make_client: Callable[..., encore.Client], topic: str
) -> None:
    events: list[encore.ConsumerEvent] = []
    async with make_client(transport="stock") as client:
        consumer = await client.subscribe(topic, "s", event_listener=events.append)
        transport_consumer = cast(StockConsumer, consumer._transport_consumer)
        # The library never answers a receive that begins while it closes.
        await until(lambda: transport_consumer._pump._receiving)
        await asyncio.sleep(0.2)
        transport_consumer._native.close_async(ignore)
        await until(lambda: [each for each in events if isinstance(each, encore.Failed)])
        [event] = [each for each in events if isinstance(each, encore.Failed)]
        assert event.topic.endswith(topic)
        assert event.component == "consumer"
        assert consumer.statistics().failure == event
        with pytest.raises(encore.UnknownError, match="stopped delivering"):
            await consumer.receive()


async def test_a_reader_closed_by_the_cpp_client_is_reported_as_failed(
    make_client: Callable[..., encore.Client], topic: str
) -> None:
    events: list[encore.ReaderEvent] = []
    async with make_client(transport="stock") as client:
        reader = await client.create_reader(
            topic, encore.MessageId.earliest, event_listener=events.append
        )
        cast(StockReader, reader._transport_consumer)._native.close_async(ignore)
        await until(lambda: events)
        [event] = events
        assert isinstance(event, encore.Failed)
        assert event.component == "reader"
        with pytest.raises(encore.PulsarException):
            await reader.read_next()


async def test_closing_reports_no_event(
    make_client: Callable[..., encore.Client], topic: str
) -> None:
    events: list[encore.ConsumerEvent] = []
    async with make_client(transport="stock") as client:
        async with client.subscribe(topic, "s", event_listener=events.append):
            pass
        reader = client.create_reader(
            topic, encore.MessageId.earliest, event_listener=events.append
        )
        async with reader:
            pass
        await asyncio.sleep(0.3)
    assert events == []


async def test_a_lost_connection_names_the_topic_before_any_message() -> None:
    """The topics were empty, and `Connected` never came."""
    events: list[encore.ConsumerEvent] = []
    async with (
        testing.broker() as url,
        encore.Client(url, transport="stock") as client,
        client.subscribe("t", "s", event_listener=events.append),
    ):
        await asyncio.sleep(0.3)
        url.broker.drop_connections()
        await until(lambda: [each for each in events if isinstance(each, encore.Connected)])
    topics = ("persistent://public/default/t",)
    assert events[:2] == [encore.Disconnected(topics), encore.Connected(topics)]


async def test_events_of_producers_are_not_supported(
    make_client: Callable[..., encore.Client], topic: str
) -> None:
    async with make_client(transport="stock") as client:
        with pytest.raises(encore.NotSupportedError, match="stock transport") as refused:
            await client.create_producer(topic, event_listener=print)
        assert "transport='native'" in str(refused.value)
