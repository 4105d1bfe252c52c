"""Events of a connection where the transport does not know the topics yet."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pulsar_encore.consumer.event_publisher import EventPublisher
from pulsar_encore.consumer.events import Connected, ConsumerEvent, Disconnected

NAMED = ("persistent://public/default/a", "persistent://public/default/b")


class FakeTransportConsumer:
    """A transport consumer that learns its topics from messages."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def topic_numbers(self) -> range:
        return range(len(self.names))

    def topic_of(self, topic_number: int) -> tuple[str, int]:
        return self.names[topic_number], -1


async def announced(*, learns: str = "") -> list[ConsumerEvent]:
    transport_consumer, events = FakeTransportConsumer(), cast("list[ConsumerEvent]", [])
    loop = asyncio.get_running_loop()
    event_publisher = EventPublisher(
        cast("Any", transport_consumer), events.append, loop, named=NAMED
    )
    for lost in (event_publisher.uncertain, event_publisher.disconnected):
        lost(None)
        if learns:
            transport_consumer.names.append(learns)
        event_publisher.connected(None)
        event_publisher.connected(None)  # no news
    await asyncio.sleep(0)
    return events


async def test_events_name_the_topics_of_the_application_before_any_is_known() -> None:
    assert await announced() == [Disconnected(NAMED), Connected(NAMED)] * 2


@pytest.mark.parametrize("topic", NAMED)
async def test_topics_reported_as_disconnected_are_reported_as_connected(topic: str) -> None:
    events = await announced(learns=topic)
    assert events[:2] == [Disconnected(NAMED), Connected(NAMED)]
    assert events[2:] == [Disconnected((topic,)), Connected((topic,))]
