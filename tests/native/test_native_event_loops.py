"""Events of a producer that is used on several event loops, one after the other."""

from __future__ import annotations

import asyncio
from typing import Any

from producer_kit import TOPIC, Network

from pulsar_encore import Client, Connected, Disconnected, Producer, ProducerEvent
from pulsar_encore.testing import run
from pulsar_encore.transport.native.native_transport import NativeTransport


class NetworkOfTheLoop:
    """A `Dialer` with a separate memory broker for each event loop."""

    def __init__(self) -> None:
        self.networks: dict[asyncio.AbstractEventLoop, Network] = {}

    def here(self) -> Network:
        """Return the broker of the running loop."""
        return self.networks.setdefault(asyncio.get_running_loop(), Network())

    async def dial(self, *asked: Any) -> Any:
        return await self.here().dial(*asked)


def test_events_of_a_producer_follow_it_to_the_next_loop() -> None:
    dialer = NetworkOfTheLoop()
    client = Client(
        "pulsar://memory:1", transport=NativeTransport("pulsar://memory:1", dialer=dialer)
    )
    events: list[ProducerEvent] = []
    loops: set[asyncio.AbstractEventLoop] = set()

    def listen(event: ProducerEvent) -> None:
        events.append(event)
        loops.add(asyncio.get_running_loop())

    async def begin() -> Producer:
        producer = await client.create_producer(TOPIC, event_listener=listen)
        await producer.send(b"1")
        return producer

    async def go_on(producer: Producer) -> None:
        dialer.here().service.catalogue.create(TOPIC)
        await producer.send(b"2")
        assert events == [], "the end of a loop is no loss"
        dialer.here().drop()
        await asyncio.sleep(10)
        assert loops == {asyncio.get_running_loop()}, "the listener runs on the producer's loop"
        await producer.close()
        await client.close()

    producer = run(begin())
    run(go_on(producer))
    assert events == [Disconnected((TOPIC,), "producer"), Connected((TOPIC,), "producer")]
