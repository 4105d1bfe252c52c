"""Consumer events: connections, Failover activation, ends of topics, new topics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from consumer_kit import TOPIC, Subscribe, logged, put_numbers, receive_n

from pulsar_encore import (
    BecameActive,
    BecameInactive,
    Client,
    ClosedError,
    ConfigurationError,
    Connected,
    ConsumerEvent,
    ConsumerType,
    Disconnected,
    EndOfTopic,
    InitialPosition,
    Retrying,
    TopicAdded,
    TopicTerminated,
)
from pulsar_encore.testing import BrokerSettings, Fault, FaultPlan, MemoryTransport

PARTS = "persistent://public/default/parts"


def part(number: int) -> str:
    return f"{PARTS}-partition-{number}"


async def take_events(events: list[ConsumerEvent], after_s: float = 0.01) -> list[ConsumerEvent]:
    """Return the events since the last call, after waiting `after_s` for those in flight."""
    await asyncio.sleep(after_s)
    found, events[:] = list(events), []
    return found


def without_retries(events: list[ConsumerEvent]) -> list[ConsumerEvent]:
    return [each for each in events if not isinstance(each, Retrying)]


# Connections


async def test_disconnected_and_connected_are_reported_for_each_topic(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.catalogue.create_partitioned(PARTS, 2)
    events: list[ConsumerEvent] = []
    await subscribe(TOPIC, PARTS, event_listener=events.append)
    assert await take_events(events) == [], "it was connected from the start"
    transport.disconnect()
    topics = (TOPIC, part(0), part(1))
    assert await take_events(events) == [Disconnected((each,)) for each in topics]
    transport.reconnect()
    assert await take_events(events) == [Connected((each,)) for each in topics]


async def test_disconnected_is_reported_for_the_retry_letter_topic(
    transport: MemoryTransport,
    client: Client,
) -> None:
    events: list[ConsumerEvent] = []
    await client.subscribe(
        TOPIC, "s", ConsumerType.Shared, retry_enable=True, event_listener=events.append
    )
    transport.disconnect()
    assert await take_events(events) == [
        Disconnected((TOPIC,)),
        Disconnected((f"{TOPIC}-s-RETRY",)),
    ]


# Failover


async def test_failover_reports_active_and_inactive_partitions(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.catalogue.create_partitioned(PARTS, 2)
    options: dict[str, Any] = {"consumer_type": ConsumerType.Failover}
    ours: list[ConsumerEvent] = []
    theirs: list[ConsumerEvent] = []
    first = await subscribe(PARTS, consumer_name="a", event_listener=ours.append, **options)
    assert await take_events(ours) == [BecameActive(part(0)), BecameActive(part(1))]
    assert first.statistics().inactive_topics == ()
    second = await subscribe(PARTS, consumer_name="b", event_listener=theirs.append, **options)
    assert await take_events(ours) == [BecameInactive(part(1))]
    assert await take_events(theirs) == [BecameInactive(part(0)), BecameActive(part(1))]
    assert first.statistics().inactive_topics == (part(1),)
    assert second.statistics().inactive_topics == (part(0),)
    await second.close()
    assert await take_events(ours) == [BecameActive(part(1))]
    assert await take_events(theirs) == []


async def test_became_active_is_reported_after_a_reconnect_but_not_after_a_seek(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    events: list[ConsumerEvent] = []
    consumer = await subscribe(consumer_type=ConsumerType.Failover, event_listener=events.append)
    assert await take_events(events) == [BecameActive(TOPIC)]
    transport.disconnect()
    await asyncio.sleep(1)
    transport.reconnect()
    lost, back = Disconnected((TOPIC,)), Connected((TOPIC,))
    reported = await take_events(events)
    assert without_retries(reported) == [lost, back, BecameActive(TOPIC)]
    await consumer.seek(0)
    assert await take_events(events) == [], "what is repeated is no news"


async def test_a_standby_gets_no_became_active_notice_in_flight_at_a_disconnect(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """A notice that was in flight when the connection was lost does not arrive."""
    events: list[ConsumerEvent] = []
    first = await subscribe(consumer_type=ConsumerType.Failover, consumer_name="a")
    await subscribe(
        consumer_type=ConsumerType.Failover, consumer_name="b", event_listener=events.append
    )
    reported = await take_events(events)
    assert reported in ([BecameInactive(TOPIC)], [BecameActive(TOPIC)])
    await first.close()
    transport.disconnect()
    assert await take_events(events) == [Disconnected((TOPIC,))]


async def test_exclusive_and_shared_report_no_active_or_inactive_topic(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    events: list[ConsumerEvent] = []
    await subscribe(consumer_type=ConsumerType.Exclusive, event_listener=events.append)
    await subscribe(subscription_name="t", event_listener=events.append)
    assert await take_events(events) == []


# End of topic


async def test_end_of_topic_is_reported_once_when_all_messages_are_acked(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    events: list[ConsumerEvent] = []
    consumer = await subscribe(event_listener=events.append, ack_group_time_ms=0)
    one, two = await receive_n(consumer, 2)
    await consumer.acknowledge(one)
    transport.terminate(TOPIC)
    assert await take_events(events) == []
    assert not consumer.has_reached_end_of_topic()
    await consumer.acknowledge(two)
    assert await take_events(events) == [EndOfTopic(TOPIC)]
    assert consumer.has_reached_end_of_topic()
    assert consumer.statistics().ended_topics == (TOPIC,)
    transport.disconnect()
    transport.reconnect()
    assert EndOfTopic(TOPIC) not in await take_events(events), "reported once"
    late: list[ConsumerEvent] = []
    newcomer = await subscribe(event_listener=late.append)
    assert await take_events(late) == [EndOfTopic(TOPIC)]
    assert newcomer.has_reached_end_of_topic()


async def test_end_of_topic_is_reported_again_after_a_seek(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    transport.terminate(TOPIC)
    events: list[ConsumerEvent] = []
    consumer = await subscribe(event_listener=events.append, ack_group_time_ms=0)
    await consumer.acknowledge(await consumer.receive())
    assert await take_events(events) == [EndOfTopic(TOPIC)]
    await consumer.seek(0)
    assert not consumer.has_reached_end_of_topic()
    await consumer.acknowledge(await consumer.receive())
    assert await take_events(events) == [EndOfTopic(TOPIC)]
    assert consumer.has_reached_end_of_topic()


async def test_has_reached_end_of_topic_is_true_only_at_the_end_of_all_partitions(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.catalogue.create_partitioned(PARTS, 2)
    events: list[ConsumerEvent] = []
    consumer = await subscribe(PARTS, event_listener=events.append)
    transport.terminate(part(0))
    assert await take_events(events) == [EndOfTopic(part(0))]
    assert not consumer.has_reached_end_of_topic()
    transport.terminate(PARTS)
    assert await take_events(events) == [EndOfTopic(part(1))]
    assert consumer.has_reached_end_of_topic()
    transport.catalogue.create_partitioned(PARTS, 3)
    assert await take_events(events, 61) == [TopicAdded(part(2))]
    assert not consumer.has_reached_end_of_topic(), "there is more to come"


async def test_sending_to_a_terminated_topic_raises_topic_terminated(
    transport: MemoryTransport,
) -> None:
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        producer = await client.create_producer(TOPIC)
        transport.faults = FaultPlan([Fault(kind="delay", command="SEND", delay_ms=1_000)])
        under_way = asyncio.ensure_future(producer.send(b"late"))
        await asyncio.sleep(0.1)
        transport.terminate(TOPIC)
        for sending in (under_way, producer.send(b"x"), client.create_producer(TOPIC)):
            with pytest.raises(TopicTerminated):
                await sending
    with pytest.raises(ConfigurationError, match="nowhere"):
        transport.terminate("nowhere")


# New topics


async def test_a_new_topic_of_a_pattern_is_reported_without_topic_watchers() -> None:
    transport = MemoryTransport(BrokerSettings(topic_watchers=False))
    events: list[ConsumerEvent] = []
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        consumer = await client.subscribe(
            "persistent://public/default/new-.*",
            "s",
            is_pattern_topic=True,
            initial_position=InitialPosition.Earliest,
            event_listener=events.append,
        )
        transport.put("persistent://public/default/new-1", b"x")
        assert await take_events(events, 59) == []
        assert await take_events(events, 2) == [TopicAdded("persistent://public/default/new-1")]
        assert (await consumer.receive()).data() == b"x"


# The listener


async def test_an_event_listener_that_raises_is_logged_and_does_not_stop_the_consumer(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    put_numbers(transport, 3)
    heard_of: list[ConsumerEvent] = []

    def listen(event: ConsumerEvent) -> None:
        heard_of.append(event)
        raise ValueError("of the application")

    consumer = await subscribe(event_listener=listen)
    messages = await receive_n(consumer, 3)
    transport.disconnect()
    await consumer.acknowledge(messages)
    await asyncio.sleep(1)
    transport.reconnect()
    await asyncio.sleep(1)
    assert transport.backlog(TOPIC, "s") == 0
    assert without_retries(heard_of) == [Disconnected((TOPIC,)), Connected((TOPIC,))]
    messages = [each.getMessage() for each in logged(caplog)]
    assert [each for each in messages if "event_listener" in each] == [
        f"the event_listener failed at {event!r}" for event in heard_of
    ]


async def test_an_event_listener_may_ack_messages_and_close_the_consumer(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """The listener is called after the consumer has handled the event."""
    put_numbers(transport, 2)
    seen: list[bool] = []

    def listen(event: ConsumerEvent) -> None:
        if isinstance(event, Retrying):
            return
        seen.append(consumer.is_connected())
        if isinstance(event, Connected):
            consumer.acknowledge(messages)
            closing.append(asyncio.ensure_future(consumer.close()))

    closing: list[asyncio.Future[None]] = []
    consumer = await subscribe(event_listener=listen)
    messages = await receive_n(consumer, 2)
    transport.disconnect()
    await asyncio.sleep(1)
    transport.reconnect()
    await asyncio.sleep(1)
    await closing[0]
    assert seen == [False, True]
    assert transport.backlog(TOPIC, "s") == 0


async def test_a_closed_consumer_reports_no_event(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    events: list[ConsumerEvent] = []
    consumer = await subscribe(event_listener=events.append)
    await consumer.close()
    transport.disconnect()
    transport.reconnect()
    assert await take_events(events) == []
    with pytest.raises(ClosedError):
        await consumer.receive()


async def coroutine_function(event: ConsumerEvent) -> None: ...


class WithAsyncCall:
    async def __call__(self, event: ConsumerEvent) -> None: ...


@pytest.mark.parametrize("wrong", [coroutine_function, WithAsyncCall(), 5])
async def test_an_event_listener_that_is_no_plain_function_is_refused(
    subscribe: Subscribe, wrong: Any
) -> None:
    with pytest.raises(ConfigurationError, match="event_listener must be a plain function"):
        await subscribe(event_listener=wrong)
