"""Events on a real broker when permissions are revoked and when topics end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

import pytest

import pulsar_encore as encore

from .secured_server import Secured

ROLE = "application"
EVENTS_S = 60.0

Events = list[encore.ConsumerEvent]
E = TypeVar("E", bound=encore.ConsumerEvent)


@pytest.fixture
def namespace(secured: Secured) -> Iterator[str]:
    """A namespace in which the application may produce and consume."""
    name = f"public/events-{uuid.uuid4().hex[:8]}"
    secured.admin.create_namespace(name)
    grant(secured, name)
    yield name
    secured.admin.delete_namespace(name)


@pytest.fixture
async def client(secured: Secured) -> AsyncIterator[encore.Client]:
    token = encore.AuthenticationToken(secured.credentials.token(ROLE))
    async with encore.Client(secured.plain_url, authentication=token, transport="native") as made:
        yield made


def grant(secured: Secured, namespace: str) -> None:
    path = f"/namespaces/{namespace}/permissions/{ROLE}"
    secured.admin.call("POST", path, ["produce", "consume"])


def revoke(secured: Secured, namespace: str) -> None:
    secured.admin.call("DELETE", f"/namespaces/{namespace}/permissions/{ROLE}")


async def first_event(
    events: Events, kind: type[E], component: str, reason: type[Exception] = Exception
) -> E:
    """Wait for the first event of a kind about a component, with an error of the given class."""
    async with asyncio.timeout(EVENTS_S):
        while True:
            for event in events:
                if (
                    isinstance(event, kind)
                    and getattr(event, "component", "") == component
                    and isinstance(getattr(event, "error", reason()), reason)
                ):
                    return event
            await asyncio.sleep(0.05)


def order(events: Events) -> list[str]:
    """Return the names of the events, without repetitions in succession."""
    names = [type(event).__name__ for event in events]
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


async def test_revoked_permissions_are_reported_until_they_are_granted(
    secured: Secured, client: encore.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    events: dict[str, Events] = {"consumer": [], "producer": [], "reader": []}
    producer = await client.create_producer(topic, event_listener=events["producer"].append)
    consumer = await client.subscribe(topic, "s", event_listener=events["consumer"].append)
    reader = await client.create_reader(
        topic, encore.MessageId.latest, event_listener=events["reader"].append
    )
    await producer.send(b"before")
    assert (await consumer.receive(timeout=30)).data() == b"before"
    assert (await reader.read_next(timeout=30)).data() == b"before"
    assert events == {"consumer": [], "producer": [], "reader": []}

    await asyncio.to_thread(revoke, secured, namespace)
    await asyncio.to_thread(secured.admin.unload, topic)
    for component, component_events in events.items():
        # Another error may come first, while the topic is being unloaded.
        refused = await first_event(
            component_events, encore.Retrying, component, encore.AuthorizationError
        )
        assert refused.topic == topic
        assert "not authorized" in str(refused.error), "the broker's reason"
    assert not consumer.is_connected()
    assert [each.topic for each in consumer.statistics().retrying] == [topic]

    await asyncio.to_thread(grant, secured, namespace)
    for component, component_events in events.items():
        await first_event(component_events, encore.Connected, component)
        assert order(component_events) == ["Disconnected", "Retrying", "Connected"]
    await producer.send(b"after")
    assert (await consumer.receive(timeout=30)).data() == b"after"
    assert (await reader.read_next(timeout=30)).data() == b"after"
    assert consumer.statistics().retrying == ()


async def test_a_producer_of_a_terminated_topic_fails_permanently(
    secured: Secured, client: encore.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    events: Events = []
    producer = await client.create_producer(topic, event_listener=events.append)
    await producer.send(b"x")
    await asyncio.to_thread(secured.admin.terminate, topic)
    with pytest.raises(encore.TopicTerminated):
        await producer.send(b"late")
    failed = await first_event(events, encore.Failed, "producer")
    assert failed.topic == topic
    assert isinstance(failed.error, encore.TopicTerminated)
    await asyncio.sleep(2)
    assert [type(each) for each in events].count(encore.Failed) == 1


async def test_a_fenced_producer_fails_permanently(client: encore.Client, namespace: str) -> None:
    topic = f"persistent://{namespace}/t"
    events: Events = []
    fenced = await client.create_producer(
        topic, access_mode=encore.ProducerAccessMode.Exclusive, event_listener=events.append
    )
    await client.create_producer(topic, access_mode=encore.ProducerAccessMode.ExclusiveWithFencing)
    with pytest.raises(encore.ProducerFenced):
        await fenced.send(b"late")
    failed = await first_event(events, encore.Failed, "producer")
    assert isinstance(failed.error, encore.ProducerFenced)


async def test_a_terminated_dead_letter_topic_is_reported(
    secured: Secured, client: encore.Client, namespace: str
) -> None:
    topic, dead = f"persistent://{namespace}/t", f"persistent://{namespace}/dead"
    await asyncio.to_thread(secured.admin.create_topic, dead)
    await asyncio.to_thread(secured.admin.terminate, dead)
    events: Events = []
    consumer = await client.subscribe(
        topic,
        "s",
        encore.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=encore.DeadLetterPolicy(1, dead),
        event_listener=events.append,
    )
    producer = await client.create_producer(topic)
    await producer.send(b"poison")
    for _ in range(2):
        await consumer.negative_acknowledge(await consumer.receive(timeout=30))
    failed = await first_event(events, encore.Failed, "letter producer")
    assert failed.topic == dead
    assert isinstance(failed.error, encore.TopicTerminated)
    assert consumer.is_connected()


async def test_a_refused_dead_letter_topic_is_reported_until_it_is_allowed(
    secured: Secured, client: encore.Client, namespace: str
) -> None:
    """The dead letter topic is in a namespace in which the application has no permission yet."""
    other = f"public/dead-{uuid.uuid4().hex[:8]}"
    await asyncio.to_thread(secured.admin.create_namespace, other)
    topic, dead = f"persistent://{namespace}/t", f"persistent://{other}/dead"
    events: Events = []
    consumer = await client.subscribe(
        topic,
        "s",
        encore.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=encore.DeadLetterPolicy(1, dead),
        event_listener=events.append,
    )
    producer = await client.create_producer(topic)
    await producer.send(b"poison")
    for _ in range(2):
        await consumer.negative_acknowledge(await consumer.receive(timeout=30))
    refused = await first_event(events, encore.Retrying, "letter producer")
    assert refused.topic == dead
    assert isinstance(refused.error, encore.AuthorizationError)
    assert consumer.statistics().retrying == (refused,)
    await asyncio.to_thread(grant, secured, other)
    back = await first_event(events, encore.Connected, "letter producer")
    assert back.topics == (dead,)
    assert consumer.statistics().retrying == ()


async def test_a_topic_recreated_with_partitions_is_reported_as_removed(
    secured: Secured, client: encore.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    events: dict[str, Events] = {"consumer": [], "producer": []}
    producer = await client.create_producer(topic, event_listener=events["producer"].append)
    consumer = await client.subscribe(topic, "s", event_listener=events["consumer"].append)
    await asyncio.to_thread(secured.admin.delete_topic, topic)
    await asyncio.sleep(3)
    await asyncio.to_thread(secured.admin.create_partitioned_topic, topic, 2)
    for component, component_events in events.items():
        assert (await first_event(component_events, encore.TopicRemoved, component)).topic == topic
        assert order(component_events)[0] == "Disconnected"
        assert encore.Connected((topic,), component) not in component_events  # type: ignore[arg-type]
    assert (await first_event(events["consumer"], encore.TopicAdded, "consumer")).topic.startswith(
        topic
    )
    await producer.send(b"after")
    assert (await consumer.receive(timeout=60)).data() == b"after"
    assert consumer.statistics().retrying == ()
