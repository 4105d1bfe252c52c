"""Events about lost connections: retried, connected again, or failed for good.

Consumers, letter producers, producers and readers report them in the same way. The tests use the
memory transport and virtual time.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest
from consumer_kit import TOPIC, Subscribe, service_of

from pulsar_encore import (
    AuthorizationError,
    Client,
    Connected,
    ConsumerEvent,
    ConsumerType,
    DeadLetterPolicy,
    Disconnected,
    Failed,
    InitialPosition,
    InvalidTopicName,
    MessageId,
    NotSupportedError,
    ProducerAccessMode,
    ProducerFenced,
    Retrying,
    ServiceUnitNotReady,
    TopicAdded,
    TopicNotFound,
    TopicRemoved,
    TopicTerminated,
)
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport

PARTS = "persistent://public/default/parts"
DEAD = f"{TOPIC}-s-DLQ"
RETRY = f"{TOPIC}-s-RETRY"

Events = list[ConsumerEvent]


def refuse(transport: MemoryTransport, command: str, times: int, **fault: Any) -> None:
    """Refuse the next attempts with `error`, which is retried by default."""
    transport.faults = FaultPlan([Fault(kind="refuse", command=command, times=times, **fault)])


async def lose(transport: MemoryTransport, seconds: float = 0) -> None:
    """Close all connections. The broker is reachable again after `seconds`."""
    transport.disconnect()
    await asyncio.sleep(seconds)
    transport.reconnect()


def kinds(events: Events) -> list[str]:
    return [type(event).__name__ for event in events]


def retries(events: Events) -> list[Retrying]:
    return [event for event in events if isinstance(event, Retrying)]


def failures(events: Events) -> list[Failed]:
    return [event for event in events if isinstance(event, Failed)]


# A loss, refusals, and the end of them


async def opened(client: Client, component: str, events: Events) -> Any:
    if component == "consumer":
        return await client.subscribe(TOPIC, "s", event_listener=events.append)
    if component == "reader":
        return await client.create_reader(TOPIC, MessageId.earliest, event_listener=events.append)
    return await client.create_producer(TOPIC, event_listener=events.append)


COMMANDS = [("consumer", "SUBSCRIBE"), ("reader", "SUBSCRIBE"), ("producer", "PRODUCER")]


@pytest.mark.parametrize(("component", "command"), COMMANDS)
async def test_refused_attempts_are_reported_until_one_succeeds(
    transport: MemoryTransport, client: Client, component: str, command: str
) -> None:
    events: Events = []
    opening = await opened(client, component, events)
    refuse(transport, command, 3)
    await lose(transport)
    await asyncio.sleep(60)
    assert opening.is_connected()
    lost, *tried, back = events
    assert lost == Disconnected((TOPIC,), component)  # type: ignore[arg-type]
    assert back == Connected((TOPIC,), component)  # type: ignore[arg-type]
    for event in tried:
        assert isinstance(event, Retrying)
        assert (event.topic, event.component) == (TOPIC, component)
        assert isinstance(event.error, ServiceUnitNotReady)
    assert retries(events)[0].attempts == 1


@pytest.mark.parametrize(("component", "command"), COMMANDS)
async def test_a_long_refusal_is_reported_at_growing_intervals(
    transport: MemoryTransport, client: Client, component: str, command: str
) -> None:
    events: Events = []
    await opened(client, component, events)
    refuse(transport, command, 10_000)
    await lose(transport)
    await asyncio.sleep(2 * 3600)
    reported = retries(events)
    gaps = [later.elapsed - first.elapsed for first, later in pairwise(reported)]
    assert reported[-1].elapsed > 6000, "it goes on"
    assert 15 < len(reported) < 60, "about one in 5 minutes at the end, more at the beginning"
    assert max(gaps) < 600
    assert sorted(each.attempts for each in reported) == [each.attempts for each in reported]


async def test_statistics_name_the_topics_that_are_refused_and_why(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.catalogue.create_partitioned(PARTS, 2)
    consumer = await subscribe(PARTS)
    assert consumer.statistics().retrying == ()
    refuse(transport, "SUBSCRIBE", 10_000, topic=f"{PARTS}-partition-1")
    await lose(transport)
    await asyncio.sleep(10)
    [event] = consumer.statistics().retrying
    assert event.topic == f"{PARTS}-partition-1"
    assert isinstance(event.error, ServiceUnitNotReady)
    assert not consumer.is_connected()
    transport.faults = None
    await asyncio.sleep(120)
    assert consumer.is_connected()
    assert consumer.statistics().retrying == ()
    assert consumer.statistics().failure is None


async def test_a_reconnect_at_the_first_attempt_reports_no_retrying(
    transport: MemoryTransport, client: Client
) -> None:
    events: Events = []
    await opened(client, "producer", events)
    await lose(transport)
    await asyncio.sleep(1)
    assert events == [Disconnected((TOPIC,), "producer"), Connected((TOPIC,), "producer")]


# Ended for good


async def test_a_terminated_topic_is_reported_once_as_failed_for_its_producer(
    transport: MemoryTransport, client: Client
) -> None:
    events: Events = []
    producer = await client.create_producer(TOPIC, event_listener=events.append)
    transport.terminate(TOPIC)
    for _ in range(2):
        with pytest.raises(TopicTerminated):
            await producer.send(b"late")
    await asyncio.sleep(1)
    [event] = failures(events)
    assert event == events[-1], "nothing follows"
    assert (event.topic, event.component) == (TOPIC, "producer")
    assert isinstance(event.error, TopicTerminated)


async def test_a_terminated_partition_fails_only_its_own_messages(
    transport: MemoryTransport, client: Client
) -> None:
    transport.catalogue.create_partitioned(PARTS, 3)
    events: Events = []
    producer = await client.create_producer(
        PARTS, event_listener=events.append, batching_enabled=False
    )
    transport.terminate(f"{PARTS}-partition-1")
    outcomes = await asyncio.gather(
        *(producer.send(b"x") for _ in range(6)), return_exceptions=True
    )
    assert len([each for each in outcomes if isinstance(each, MessageId)]) == 4
    await asyncio.sleep(1)
    assert [each.topic for each in failures(events)] == [f"{PARTS}-partition-1"]


async def test_a_fenced_producer_is_reported_as_failed(
    transport: MemoryTransport, client: Client
) -> None:
    events: Events = []
    first = await client.create_producer(
        TOPIC, access_mode=ProducerAccessMode.Exclusive, event_listener=events.append
    )
    await client.create_producer(TOPIC, access_mode=ProducerAccessMode.ExclusiveWithFencing)
    with pytest.raises(ProducerFenced):
        await first.send(b"late")
    await asyncio.sleep(60)
    [event] = failures(events)
    assert isinstance(event.error, ProducerFenced)
    assert event.component == "producer"


@pytest.mark.parametrize("component", ["consumer", "reader"])
async def test_a_consumer_or_reader_refused_for_good_is_reported_once_as_failed(
    transport: MemoryTransport, client: Client, component: str
) -> None:
    events: Events = []
    opening = await opened(client, component, events)
    refuse(transport, "SUBSCRIBE", 10_000, error="InvalidTopicName")
    await lose(transport)
    await asyncio.sleep(60)
    receive = opening.receive if component == "consumer" else opening.read_next
    for _ in range(2):
        with pytest.raises(InvalidTopicName):
            await receive()
    assert kinds(events)[0] == "Disconnected"
    assert kinds(events).count("Failed") == 1
    [event] = failures(events)
    assert event is events[-1]
    assert (event.topic, event.component) == (TOPIC, component)


async def test_failed_names_the_topic_that_failed_among_several(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    events: Events = []
    other = "persistent://public/default/u"
    consumer = await subscribe(TOPIC, other, event_listener=events.append)
    refuse(transport, "SUBSCRIBE", 10_000, error="InvalidTopicName", topic=other)
    await lose(transport)
    await asyncio.sleep(60)
    [event] = failures(events)
    assert event.topic == other
    assert consumer.statistics().failure == event
    assert consumer.statistics().retrying == ()


async def test_retrying_and_failed_name_the_retry_letter_topic(
    transport: MemoryTransport, client: Client
) -> None:
    """The retry letter topic is a separate subscription, merged with the main one."""
    events: Events = []
    await client.subscribe(
        TOPIC, "s", ConsumerType.Shared, retry_enable=True, event_listener=events.append
    )
    refuse(transport, "SUBSCRIBE", 2, topic=RETRY)
    await lose(transport)
    await asyncio.sleep(60)
    assert {each.topic for each in retries(events)} == {RETRY}
    assert Connected((RETRY,)) in events
    events.clear()
    refuse(transport, "SUBSCRIBE", 10_000, error="InvalidTopicName", topic=RETRY)
    await lose(transport)
    await asyncio.sleep(60)
    assert [(each.topic, each.component) for each in failures(events)] == [(RETRY, "consumer")]


async def test_failed_is_reported_to_a_consumer_with_a_message_listener(
    transport: MemoryTransport, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    events: Events = []
    await client.subscribe(
        TOPIC, "s", message_listener=lambda *_: None, event_listener=events.append
    )
    refuse(transport, "SUBSCRIBE", 10_000, error="InvalidTopicName")
    await lose(transport)
    await asyncio.sleep(60)
    assert len(failures(events)) == 1
    records = [each for each in caplog.records if "gets nothing more" in each.getMessage()]
    assert [each.levelno for each in records] == [logging.ERROR]


# Letter producers


async def letters_to_a_terminated_topic(
    transport: MemoryTransport, client: Client, events: Events
) -> Any:
    transport.put(TOPIC, b"poison")
    transport.state(DEAD)
    transport.terminate(DEAD)
    consumer = await client.subscribe(
        TOPIC,
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=DeadLetterPolicy(1, DEAD),
        event_listener=events.append,
    )
    await consumer.negative_acknowledge(await consumer.receive())
    await consumer.negative_acknowledge(await consumer.receive())
    await asyncio.sleep(600)
    return consumer


async def test_a_terminated_dead_letter_topic_is_reported_once(
    transport: MemoryTransport, client: Client
) -> None:
    events: Events = []
    consumer = await letters_to_a_terminated_topic(transport, client, events)
    [event] = events
    assert isinstance(event, Failed)
    assert (event.topic, event.component) == (DEAD, "letter producer")
    assert isinstance(event.error, TopicTerminated)
    assert consumer.is_connected(), "the consumer goes on"
    assert transport.backlog(TOPIC, "s") == 1, "its message is not lost"


async def test_letter_producers_that_are_refused_are_reported_until_they_are_created(
    transport: MemoryTransport, client: Client
) -> None:
    events: Events = []
    refuse(transport, "PRODUCER", 10_000, error="AuthorizationError", topic=DEAD)
    transport.put(TOPIC, b"poison")
    consumer = await client.subscribe(
        TOPIC,
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=DeadLetterPolicy(1, DEAD),
        event_listener=events.append,
    )
    await consumer.negative_acknowledge(await consumer.receive())
    await consumer.negative_acknowledge(await consumer.receive())
    await asyncio.sleep(3600)
    reported = retries(events)
    assert reported == events
    assert {(each.topic, each.component) for each in reported} == {(DEAD, "letter producer")}
    assert reported[0].attempts == 1
    assert 5 < len(reported) < 40, "at growing intervals"
    assert consumer.statistics().retrying == (reported[-1],)
    transport.faults = None
    await asyncio.sleep(600)
    assert events[-1] == Connected((DEAD,), "letter producer")
    assert kinds(events).count("Connected") == 1
    assert consumer.statistics().retrying == ()
    assert transport.backlog(TOPIC, "s") == 0


async def test_a_letter_producer_that_is_refused_after_a_loss_is_reported(
    transport: MemoryTransport, client: Client
) -> None:
    events: Events = []
    transport.put(TOPIC, b"poison")
    consumer = await client.subscribe(
        TOPIC,
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=DeadLetterPolicy(1, DEAD),
        event_listener=events.append,
    )
    await consumer.negative_acknowledge(await consumer.receive())
    await consumer.negative_acknowledge(await consumer.receive())
    await asyncio.sleep(1)
    assert events == []
    refuse(transport, "PRODUCER", 3, topic=DEAD)
    await lose(transport)
    await asyncio.sleep(60)
    about_consumer = [each for each in events if getattr(each, "component", "") == "consumer"]
    assert about_consumer == [Disconnected((TOPIC,)), Connected((TOPIC,))]
    about_letters = [each for each in events if each not in about_consumer]
    assert kinds(about_letters)[0] == "Retrying"
    assert about_letters[-1] == Connected((DEAD,), "letter producer")


# The listener


@pytest.mark.parametrize(("component", "command"), COMMANDS)
async def test_a_listener_that_raises_does_not_stop_events_or_messages(
    transport: MemoryTransport,
    client: Client,
    component: str,
    command: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Raising(list[ConsumerEvent]):
        def append(self, event: ConsumerEvent) -> None:
            super().append(event)
            raise ValueError("of the application")

    events = Raising()
    opening = await opened(client, component, events)
    refuse(transport, command, 2)
    await lose(transport)
    await asyncio.sleep(60)
    assert opening.is_connected()
    assert kinds(events)[-1] == "Connected"
    records = [each for each in caplog.records if "event_listener failed" in each.getMessage()]
    assert len(records) == len(events)


@pytest.mark.parametrize(("component", "command"), COMMANDS)
async def test_nothing_is_reported_after_close(
    transport: MemoryTransport, client: Client, component: str, command: str
) -> None:
    events: Events = []
    opening = await opened(client, component, events)
    refuse(transport, command, 10_000, error="InvalidTopicName")
    transport.disconnect()
    await opening.close()
    transport.reconnect()
    await asyncio.sleep(60)
    assert not [each for each in events if not isinstance(each, Disconnected)]


async def test_a_listener_may_close_its_producer(
    transport: MemoryTransport, client: Client
) -> None:
    closing: list[asyncio.Task[None]] = []

    def listen(event: ConsumerEvent) -> None:
        reported_events.append(event)
        if isinstance(event, Failed):
            closing.append(asyncio.ensure_future(producer.close()))

    reported_events: Events = []
    producer = await client.create_producer(TOPIC, event_listener=listen)
    transport.terminate(TOPIC)
    with pytest.raises(TopicTerminated):
        await producer.send(b"late")
    await asyncio.sleep(1)
    await closing[0]
    assert kinds(reported_events) == ["Disconnected", "Failed"]


# Transports that report nothing


async def test_a_transport_without_producer_events_refuses_an_event_listener(
    transport: MemoryTransport, client: Client
) -> None:
    transport.capabilities = type(transport.capabilities)(name="silent", producer_events=False)
    with pytest.raises(NotSupportedError, match="silent transport"):
        await client.create_producer(TOPIC, event_listener=print)
    assert not transport.recorded("PRODUCER")
    await client.create_producer(TOPIC)


@pytest.mark.parametrize("wrong", [5, "print"])
async def test_a_listener_that_cannot_be_called_is_refused(client: Client, wrong: Any) -> None:
    with pytest.raises(ValueError, match="event_listener must be a plain function"):
        await client.create_producer(TOPIC, event_listener=wrong)
    with pytest.raises(ValueError, match="event_listener must be a plain function"):
        await client.create_reader(TOPIC, MessageId.earliest, event_listener=wrong)


# Topics and partitions that are found later


async def test_a_new_partition_that_is_refused_is_reported_until_it_is_read(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.catalogue.create_partitioned(PARTS, 1)
    events: Events = []
    consumer = await subscribe(PARTS, event_listener=events.append)
    new = f"{PARTS}-partition-1"
    refuse(transport, "SUBSCRIBE", 10_000, error="AuthorizationError", topic=new)
    transport.catalogue.create_partitioned(PARTS, 2)
    await asyncio.sleep(3600)
    reported = retries(events)
    assert reported == events
    assert {each.topic for each in reported} == {new}
    assert isinstance(reported[0].error, AuthorizationError)
    assert 5 < len(reported) < 20, "at growing intervals"
    assert consumer.is_connected(), "the others are read"
    transport.faults = None
    events.clear()
    await asyncio.sleep(120)
    assert events == [TopicAdded(new)]


async def test_a_failed_search_for_new_partitions_is_logged_at_growing_intervals(
    transport: MemoryTransport, subscribe: Subscribe, caplog: pytest.LogCaptureFixture
) -> None:
    transport.catalogue.create_partitioned(PARTS, 1)
    consumer = await subscribe(PARTS)
    refuse(transport, "PARTITIONED_METADATA", 10_000, error="AuthorizationError")
    transport.catalogue.create_partitioned(PARTS, 2)  # triggers a look for new topics
    await asyncio.sleep(3600)
    records = [each for each in caplog.records if "cannot be looked for" in each.getMessage()]
    assert consumer.is_connected()
    assert 5 < len(records) < 20, "at growing intervals"


# Topics that are deleted


@pytest.mark.parametrize("component", ["consumer", "producer"])
async def test_a_topic_that_is_created_again_with_partitions_is_reported_as_removed(
    transport: MemoryTransport, client: Client, component: str
) -> None:
    events: Events = []
    opening = await opened(client, component, events)
    service_of(transport).delete(TOPIC)
    await asyncio.sleep(3)
    transport.catalogue.create_partitioned(TOPIC, 2)
    await asyncio.sleep(30)
    assert opening.is_connected()
    assert kinds(events)[0] == "Disconnected"
    removed = TopicRemoved(TOPIC, component)  # type: ignore[arg-type]
    assert [each for each in events if isinstance(each, TopicRemoved)] == [removed]
    assert {each.topic for each in retries(events)} <= {TOPIC}
    assert isinstance(retries(events)[0].error, TopicNotFound)
    assert Connected((TOPIC,), component) not in events  # type: ignore[arg-type]
    if component == "consumer":
        added = [each for each in events if isinstance(each, TopicAdded)]
        assert added == [TopicAdded(f"{TOPIC}-partition-{each}") for each in range(2)]
        assert opening.statistics().retrying == ()


async def test_new_partitions_of_a_producer_that_are_refused_are_reported_until_they_attach(
    transport: MemoryTransport, client: Client
) -> None:
    events: Events = []
    producer = await client.create_producer(TOPIC, event_listener=events.append)
    part = f"{TOPIC}-partition-1"
    service_of(transport).delete(TOPIC)
    transport.catalogue.create_partitioned(TOPIC, 2)
    refuse(transport, "PRODUCER", 3, topic=part, error="AuthorizationError")
    await asyncio.sleep(60)
    assert producer.is_connected()
    assert [each.topic for each in retries(events) if each.topic != TOPIC][:1] == [part]
    assert events.count(Connected((part,), "producer")) == 1
    assert events[-1] == Connected((part,), "producer")


async def test_a_topic_of_a_pattern_that_is_deleted_is_reported(
    transport: MemoryTransport, client: Client
) -> None:
    names = [f"persistent://public/default/p-{each}" for each in range(2)]
    for name in names:
        transport.put(name, b"x")
    events: Events = []
    consumer = await client.subscribe(
        "persistent://public/default/p-.*",
        "s",
        is_pattern_topic=True,
        event_listener=events.append,
    )
    service_of(transport).delete(names[0])
    await asyncio.sleep(120)
    assert [each for each in events if isinstance(each, TopicRemoved)] == [TopicRemoved(names[0])]
    assert consumer.is_connected()
    assert consumer.statistics().retrying == ()
