"""Small cases, run with the stock client and with this package: results and errors must be equal.

A case has `await` before every call, as `pulsar.asyncio` and this package need it. The stock
blocking client is wrapped in `AsyncFacade`, which runs its calls in threads.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
import os
import re
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any

import pulsar as stock
import pytest
from pulsar import asyncio as stock_asyncio

import pulsar_encore as encore
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

from .program_runner import TRANSPORTS

LONGEST_S = 30
WAIT_MS = 10_000


class AsyncFacade:
    """An object of the blocking client with awaitable calls, which run in a thread."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._thing, name)
        if not callable(member):
            return member

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = await asyncio.to_thread(member, *args, **kwargs)
            made = (stock.Producer, stock.Consumer, stock.Reader)
            return AsyncFacade(result) if isinstance(result, made) else result

        return call


@dataclass(frozen=True, kw_only=True)
class Api:
    """One package under test.

    Attributes:
        name: Used in names of topics.
        pulsar: The module that a program imports as `pulsar`.
        client: A client.
        topic: A topic that no other run uses.
        url: The broker's service URL.
        admin_url: URL of its admin API.
        compared_with: The package that it is compared with.
    """

    name: str
    pulsar: ModuleType
    client: Any
    topic: str
    url: str
    admin_url: str
    compared_with: str = ""
    transport: str = "stock"

    def connect(self, *args: Any, **kwargs: Any) -> Any:
        """Create another client of the same kind."""
        if self.name == "stock":
            return AsyncFacade(stock.Client(*args, **kwargs))
        if self.name == "asyncio":
            return stock_asyncio.Client(*args, **kwargs)
        return encore.Client(*args, transport=self.transport, **kwargs)


Case = Callable[[Api], Awaitable[Any]]
BLOCKING: list[Case] = []
ASYNCIO: list[Case] = []


def blocking(case: Case) -> Case:
    """Register a case in which this package must agree with the stock blocking client."""
    BLOCKING.append(case)
    return case


def asynchronous(case: Case) -> Case:
    """Register a case in which this package must agree with the stock asyncio client."""
    ASYNCIO.append(case)
    return case


def both(case: Case) -> Case:
    """Register a case for both stock clients."""
    return asynchronous(blocking(case))


async def outcome(api: Api, awaitable: Any) -> Any:
    """Return the result of a call, or the names of its error."""
    try:
        return await awaitable if inspect.isawaitable(awaitable) else awaitable
    except Exception as error:
        return error_names(api, error)


def error_names(api: Api, error: BaseException) -> list[str]:
    """Return the public names by which a program can catch the error, or with asyncio its
    result.
    """
    if api.name == "asyncio":
        assert isinstance(error, stock_asyncio.PulsarException), error
        return [error.error().name]
    if api.compared_with == "asyncio":
        assert isinstance(error, stock_asyncio.PulsarException), error
        assert isinstance(error, api.pulsar.PulsarException), error
        return [error.error().name]
    names = {name: kind for name, kind in vars(api.pulsar).items() if name in ERRORS}
    caught = [name for name, kind in names.items() if isinstance(error, kind)]
    caught += [kind.__name__ for kind in (ValueError, TypeError) if isinstance(error, kind)]
    return sorted(caught) or [f"only {type(error).__name__}"]


ERRORS = {
    name
    for name, kind in vars(stock).items()
    if isinstance(kind, type) and issubclass(kind, stock.PulsarException)
}


# Receiving and time-outs


@blocking
async def a_receive_that_times_out(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub")
    return await outcome(api, consumer.receive(100)), await outcome(
        api, consumer.receive(timeout_millis=1)
    )


@blocking
async def a_read_that_times_out(api: Api) -> Any:
    reader = await api.client.create_reader(api.topic, api.pulsar.MessageId.earliest)
    return await outcome(api, reader.read_next(100))


@blocking
async def getters_of_a_message(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub")
    producer = await api.client.create_producer(api.topic, producer_name="named")
    await producer.send(
        b"payload",
        properties={"a": "1", "b": ""},
        partition_key="key",
        ordering_key="order",
        sequence_id=7,
        event_timestamp=1234567890123,
    )
    msg = await consumer.receive(WAIT_MS)
    return (
        msg.data(),
        msg.value(),
        msg.properties(),
        msg.partition_key(),
        msg.ordering_key(),
        msg.event_timestamp(),
        msg.producer_name(),
        msg.redelivery_count(),
        msg.has_null_value(),
        msg.schema_version(),
        msg.encryption_context(),
        abs(msg.publish_timestamp() / 1000 - time.time()) < 60,
        msg.topic_name().endswith(api.topic),
        await producer.last_sequence_id() if api.name == "stock" else producer.last_sequence_id(),
    )


@both
async def a_message_without_anything(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub")
    producer = await api.client.create_producer(api.topic)
    await producer.send(b"")
    msg = await consumer.receive()
    return (
        msg.data(),
        msg.properties(),
        msg.partition_key(),
        msg.ordering_key(),
        msg.event_timestamp(),
    )


@both
async def keywords_by_position(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub", api.pulsar.ConsumerType.Shared)
    producer = await api.client.create_producer(api.topic)
    await producer.send(b"1", {"n": "1"}, "key", "order")
    msg = await consumer.receive()
    return msg.properties(), msg.partition_key(), msg.ordering_key()


@blocking
async def redelivery_counts(api: Api) -> Any:
    consumer = await api.client.subscribe(
        api.topic,
        "sub",
        consumer_type=api.pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=300,
    )
    producer = await api.client.create_producer(api.topic)
    await producer.send(b"again")
    counts = []
    for _ in range(4):
        msg = await consumer.receive(WAIT_MS)
        counts.append(msg.redelivery_count())
        await consumer.negative_acknowledge(msg)
    return counts


@blocking
async def a_nacked_batch_on_an_exclusive_consumer_is_redelivered_in_order(api: Api) -> Any:
    consumer = await api.client.subscribe(
        api.topic,
        "sub",
        schema=api.pulsar.schema.StringSchema(),
        negative_ack_redelivery_delay_ms=500,
    )
    producer = await api.client.create_producer(
        api.topic, schema=api.pulsar.schema.StringSchema(), batching_max_publish_delay_ms=100
    )
    await asyncio.gather(*(producer.send(f"hello {n}") for n in range(5)))
    first = []
    for _ in range(5):
        msg = await consumer.receive(WAIT_MS)
        first.append(msg.value())
        await consumer.negative_acknowledge(msg)
    again = []
    for _ in range(5):
        msg = await consumer.receive(WAIT_MS)
        again.append(msg.value())
        await consumer.acknowledge(msg)
    return sorted(first), again == first, await outcome(api, consumer.receive(800))


@blocking
async def unacked_messages_are_redelivered_on_request(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub", api.pulsar.ConsumerType.Shared)
    producer = await api.client.create_producer(api.topic, batching_enabled=False)
    for number in range(4):
        await producer.send(b"%d" % number)
    messages = [await consumer.receive(WAIT_MS) for _ in range(4)]
    await consumer.acknowledge(messages[1])
    await asyncio.sleep(0.2)
    await outcome(api, consumer.redeliver_unacknowledged_messages())
    again = [await consumer.receive(WAIT_MS) for _ in range(3)]
    return sorted((msg.data(), msg.redelivery_count()) for msg in again)


@both
async def a_cumulative_ack(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub")
    producer = await api.client.create_producer(api.topic, batching_enabled=False)
    for number in range(4):
        await producer.send(b"%d" % number)
    messages = [await consumer.receive() for _ in range(4)]
    await consumer.acknowledge_cumulative(messages[2])
    await asyncio.sleep(0.2)
    await consumer.close()
    again = await api.client.subscribe(api.topic, "sub")
    return (await again.receive()).data()


@both
async def a_cumulative_ack_on_shared_is_refused(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub", api.pulsar.ConsumerType.Shared)
    producer = await api.client.create_producer(api.topic)
    await producer.send(b"one")
    msg = await consumer.receive()
    try:
        await consumer.acknowledge_cumulative(msg)
    except Exception:
        return "refused"


@both
async def acks_by_the_id_of_a_message_and_by_the_last_id(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub", api.pulsar.ConsumerType.Shared)
    producer = await api.client.create_producer(api.topic, batching_enabled=False)
    for number in range(3):
        await producer.send(b"%d" % number)
    messages = [await consumer.receive() for _ in range(3)]
    await consumer.acknowledge(messages[0].message_id())
    last = await consumer.get_last_message_id()
    await consumer.acknowledge(last)
    await asyncio.sleep(0.2)
    await consumer.close()
    again = await api.client.subscribe(api.topic, "sub", api.pulsar.ConsumerType.Shared)
    return last.entry_id(), (await again.receive()).data()


@blocking
async def initial_positions(api: Api) -> Any:
    producer = await api.client.create_producer(api.topic)
    await producer.send(b"before")
    position = api.pulsar.InitialPosition
    early = await api.client.subscribe(api.topic, "early", initial_position=position.Earliest)
    late = await api.client.subscribe(api.topic, "late", initial_position=position.Latest)
    await producer.send(b"after")
    return [(await each.receive(WAIT_MS)).data() for each in (early, early, late)]


@both
async def unsubscribing_deletes_the_subscription(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub")
    producer = await api.client.create_producer(api.topic)
    await producer.send(b"forgotten")
    await consumer.unsubscribe()
    again = await api.client.subscribe(api.topic, "sub")
    await producer.send(b"new")
    return (await again.receive()).data()


@blocking
async def a_listener_is_paused_and_resumed(api: Api) -> Any:
    received: list[bytes] = []

    def listener(consumer: Any, message: Any) -> None:
        received.append(message.data())
        consumer.acknowledge(message)

    consumer = await api.client.subscribe(api.topic, "sub", message_listener=listener)
    producer = await api.client.create_producer(api.topic)
    await producer.send(b"one")
    await wait_until(lambda: received == [b"one"])
    await outcome(api, consumer.pause_message_listener())
    await producer.send(b"two")
    await asyncio.sleep(0.3)
    paused = list(received)
    await outcome(api, consumer.resume_message_listener())
    await wait_until(lambda: len(received) == 2)
    return paused, received


@blocking
async def a_listener_beside_receive_is_refused(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub", message_listener=lambda *_: None)
    try:
        await consumer.receive(100)
    except Exception:
        return "refused"


# Producing


@blocking
async def send_async_with_a_callback(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub")
    producer = await api.client.create_producer(api.topic)
    stored: list[Any] = []
    for number in range(3):
        await outcome(
            api, producer.send_async(b"%d" % number, lambda result, _: stored.append(result))
        )
    await outcome(api, producer.send_async(b"3", None))
    await outcome(api, producer.send_async(b"4", callback=None, properties={"n": "4"}))
    await producer.flush()
    await wait_until(lambda: len(stored) == 3)
    data = [(await consumer.receive(WAIT_MS)).data() for _ in range(5)]
    return data, [result == api.pulsar.Result.Ok for result in stored]


@blocking
async def sequence_ids(api: Api) -> Any:
    producer = await api.client.create_producer(api.topic, initial_sequence_id=40)
    found = [last_sequence_id(producer)]
    await producer.send(b"a")
    found.append(last_sequence_id(producer))
    await producer.send(b"b", sequence_id=50)
    found.append(last_sequence_id(producer))
    return found


@asynchronous
async def message_ids_of_a_batch(api: Api) -> Any:
    producer = await api.client.create_producer(api.topic, batching_max_publish_delay_ms=200)
    ids = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(5)))
    return sorted(each.batch_index() for each in ids), len({each.entry_id() for each in ids})


@asynchronous
async def a_flush_sends_pending_messages(api: Api) -> Any:
    producer = await api.client.create_producer(api.topic, batching_max_publish_delay_ms=60_000)
    sends = [asyncio.ensure_future(producer.send(b"waits")) for _ in range(2)]
    waiting = (await asyncio.wait(sends, timeout=0.5))[0]
    await producer.flush()
    return len(waiting), [each.batch_index() for each in await asyncio.gather(*sends)]


@blocking
async def wrong_arguments_of_send(api: Api) -> Any:
    producer = await api.client.create_producer(api.topic)
    found: list[Any] = [await refused(producer.send, 5)]
    for name, value in (
        ("properties", "test"),
        ("partition_key", 5),
        ("sequence_id", "test"),
        ("replication_clusters", 5),
        ("disable_replication", "test"),
        ("event_timestamp", "test"),
        ("deliver_at", "test"),
        ("deliver_after", "test"),
    ):
        found.append((name, await refused(producer.send, b"", **{name: value})))
    return found


@blocking
async def wrong_arguments_of_create_producer(api: Api) -> Any:
    create = api.client.create_producer
    return (
        [await refused(create, None)]
        + [
            (name, await refused(create, api.topic, **{name: value}))
            for name, value in (
                ("producer_name", 5),
                ("initial_sequence_id", "test"),
                ("send_timeout_millis", "test"),
                ("compression_type", None),
                ("max_pending_messages", "test"),
                ("block_if_queue_full", "test"),
                ("batching_enabled", "test"),
                ("batching_max_allowed_size_in_bytes", "test"),
                ("batching_max_publish_delay_ms", "test"),
            )
        ]
        + [await refused(create, api.topic, chunking_enabled=True, batching_enabled=True)]
    )


@blocking
async def wrong_arguments_of_subscribe(api: Api) -> Any:
    subscribe = api.client.subscribe
    return [await refused(subscribe, None, "sub"), await refused(subscribe, api.topic, None)] + [
        (name, await refused(subscribe, api.topic, "sub", **{name: value}))
        for name, value in (
            ("consumer_type", None),
            ("receiver_queue_size", "test"),
            ("consumer_name", 5),
            ("unacked_messages_timeout_ms", "test"),
            ("broker_consumer_stats_cache_time_ms", "test"),
        )
    ]


@blocking
async def wrong_arguments_of_create_reader(api: Api) -> Any:
    create, earliest = api.client.create_reader, api.pulsar.MessageId.earliest
    return [
        await refused(create, None, earliest),
        await refused(create, api.topic, None),
        await refused(create, api.topic, earliest, receiver_queue_size="test"),
        await refused(create, api.topic, earliest, reader_name=5),
    ]


@blocking
async def wrong_arguments_of_the_client(api: Api) -> Any:
    url = "pulsar://localhost:6650"

    async def make(*args: Any, **kwargs: Any) -> None:
        api.pulsar.Client(*args, **kwargs)

    return [await refused(make, None), await refused(make, "no url")] + [
        (name, await refused(make, url, **{name: value}))
        for name, value in (
            ("authentication", "test"),
            ("operation_timeout_seconds", "test"),
            ("io_threads", "test"),
            ("message_listener_threads", "test"),
            ("concurrent_lookup_requests", "test"),
            ("log_conf_file_path", 5),
            ("use_tls", "test"),
            ("tls_trust_certs_file_path", 5),
            ("tls_allow_insecure_connection", "test"),
        )
    ]


@blocking
async def a_delayed_message(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub", api.pulsar.ConsumerType.Shared)
    producer = await api.client.create_producer(api.topic)
    await producer.send(b"later", deliver_after=timedelta(seconds=2.5))
    early = await outcome(api, consumer.receive(800))
    return early, (await consumer.receive(WAIT_MS)).data()


@both
async def a_router_chooses_the_partition(api: Api) -> Any:
    seen: list[Any] = []

    def router(message: Any, partitions: int) -> int:
        seen.append((message.data(), partitions))
        return 0

    mode = api.pulsar.PartitionsRoutingMode.CustomPartition
    producer = await api.client.create_producer(
        api.topic, message_routing_mode=mode, message_router=router
    )
    return isinstance((await producer.send(b"unpartitioned")).entry_id(), int), seen


# Errors


@blocking
async def a_busy_subscription(api: Api) -> Any:
    kept = await api.client.subscribe(api.topic, "sub")
    return await outcome(api, api.client.subscribe(api.topic, "sub")), kept is not None


@blocking
async def a_producer_name_that_is_taken(api: Api) -> Any:
    kept = await api.client.create_producer(api.topic, producer_name="same")
    again = await outcome(api, api.client.create_producer(api.topic, producer_name="same"))
    return again, kept is not None


@blocking
async def an_exclusive_producer_keeps_others_out(api: Api) -> Any:
    access = api.pulsar.ProducerAccessMode
    kept = await api.client.create_producer(api.topic, access_mode=access.Exclusive)
    second = await outcome(api, api.client.create_producer(api.topic, access_mode=access.Exclusive))
    return second, kept is not None


@blocking
async def a_topic_of_a_missing_namespace(api: Api) -> Any:
    create, subscribe = api.client.create_producer, api.client.subscribe
    return [
        await outcome(api, create("no-tenant/no-namespace/topic")),
        await outcome(api, subscribe("no-tenant/no-namespace/topic", "sub")),
        await outcome(
            api,
            api.client.create_reader("no-tenant/no-namespace/topic", api.pulsar.MessageId.earliest),
        ),
    ]


@blocking
async def a_message_that_is_too_big(api: Api) -> Any:
    producer = await api.client.create_producer(api.topic)
    return await outcome(api, producer.send(b"x" * 10 * 1024 * 1024))


@blocking
async def an_incompatible_schema(api: Api) -> Any:
    schema = api.pulsar.schema

    class One(schema.Record):  # type: ignore[misc, name-defined]
        field = schema.String(required=True)

    class Two(schema.Record):  # type: ignore[misc, name-defined]
        field = schema.Integer(required=True)

    kept = await api.client.create_producer(api.topic, schema=schema.JsonSchema(One))
    return (
        await outcome(api, api.client.create_producer(api.topic, schema=schema.JsonSchema(Two))),
        await outcome(api, api.client.subscribe(api.topic, "sub", schema=schema.JsonSchema(Two))),
        await refused(kept.send, Two(field=1)),
    )


@blocking
async def calls_on_closed_objects(api: Api) -> Any:
    producer = await api.client.create_producer(api.topic)
    consumer = await api.client.subscribe(api.topic, "sub")
    reader = await api.client.create_reader(api.topic, api.pulsar.MessageId.earliest)
    await producer.send(b"one")
    msg = await consumer.receive(WAIT_MS)
    for each in (producer, consumer, reader):
        await each.close()
    return [
        await outcome(api, producer.send(b"two")),
        await outcome(api, consumer.receive(100)),
        await outcome(api, awaiting(consumer.acknowledge, msg)),
        await outcome(api, reader.read_next(100)),
        [await outcome(api, each.is_connected()) for each in (producer, consumer, reader)],
    ]


@blocking
async def a_client_that_is_closed(api: Api) -> Any:
    client = api.client
    await client.close()
    return [
        await outcome(api, client.create_producer(api.topic)),
        await outcome(api, client.subscribe(api.topic, "sub")),
        await outcome(api, client.create_reader(api.topic, api.pulsar.MessageId.earliest)),
        await outcome(api, client.get_topic_partitions(api.topic)),
    ]


@blocking
async def a_client_that_is_shut_down(api: Api) -> Any:
    producer = await api.client.create_producer(api.topic)
    await outcome(api, api.client.shutdown())
    return "PulsarException" in await outcome(api, producer.send(b"late"))


@asynchronous
async def a_receive_that_waits_while_it_is_closed(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub")
    waiting = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0.2)
    await consumer.close()
    return await outcome(api, waiting)


# Readers, ids and positions


@blocking
async def has_message_available_after_a_seek(api: Api) -> Any:
    producer = await api.client.create_producer(api.topic)
    reader = await api.client.create_reader(api.topic, api.pulsar.MessageId.earliest)
    await producer.send(b"0")
    found = [await reader.has_message_available()]
    await reader.seek(api.pulsar.MessageId.latest)
    found.append(await reader.has_message_available())
    await producer.send(b"1")
    found.append(await reader.has_message_available())
    return found


@blocking
async def the_latest_message_inclusively(api: Api) -> Any:
    producer = await api.client.create_producer(api.topic)
    await producer.send(b"last")
    latest = api.pulsar.MessageId.latest
    without = await api.client.create_reader(api.topic, latest)
    including = await api.client.create_reader(
        api.topic, start_message_id=latest, start_message_id_inclusive=True
    )
    return (
        await without.has_message_available(),
        await including.has_message_available(),
        (await including.read_next(WAIT_MS)).data(),
    )


@blocking
async def seeks_of_a_consumer(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub", api.pulsar.ConsumerType.Shared)
    producer = await api.client.create_producer(api.topic)
    ids, times = [], []
    for number in range(5):
        await producer.send(b"%d" % number)
        await asyncio.sleep(0.02)
    for _ in range(5):
        msg = await consumer.receive(WAIT_MS)
        ids.append(msg.message_id())
        times.append(msg.publish_timestamp())
        await consumer.acknowledge(msg)
    found = []
    for position in (api.pulsar.MessageId.earliest, ids[2], times[1]):
        await consumer.seek(position)
        await asyncio.sleep(0.3)
        found.append((await consumer.receive(WAIT_MS)).data())
    return found


@blocking
async def a_reader_from_the_middle_of_a_batch(api: Api) -> Any:
    producer = await api.client.create_producer(api.topic, batching_max_publish_delay_ms=300)
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(6)))
    reader = await api.client.create_reader(api.topic, api.pulsar.MessageId.earliest)
    for _ in range(3):
        msg = await reader.read_next(WAIT_MS)
    rest = await api.client.create_reader(api.topic, msg.message_id())
    return sum([1 async for _ in counted(rest, 3)]), await outcome(api, rest.read_next(200))


async def counted(reader: Any, count: int) -> Any:
    for _ in range(count):
        yield await reader.read_next(WAIT_MS)


@both
async def constants_and_bytes_of_ids(api: Api) -> Any:
    kind = api.pulsar.MessageId
    return [
        (each.serialize(), kind.deserialize(each.serialize()) == each)
        for each in (kind.earliest, kind.latest)
    ]


@both
async def ids_compare(api: Api) -> Any:
    kind = api.pulsar.MessageId
    ids = [kind(-1, 5, 1, -1), kind(-1, 5, 2, 0), kind(-1, 5, 2, 1), kind(0, 6, 0, -1)]
    shuffled = [ids[2], ids[0], ids[3], ids[1]]
    return (
        [ids.index(each) for each in sorted(shuffled)],
        [[a < b, a <= b, a == b, a != b, a > b, a >= b] for a in ids for b in ids],
        [each.serialize() for each in ids],
        [(e.partition(), e.ledger_id(), e.entry_id(), e.batch_index()) for e in ids],
    )


@both
async def partitions_of_a_topic_without(api: Api) -> Any:
    return [name.endswith(api.topic) for name in await api.client.get_topic_partitions(api.topic)]


# Schemas


@blocking
async def record_schemas(api: Api) -> Any:
    schema = api.pulsar.schema

    class Colour(enum.Enum):
        RED = 1

    class Inner(schema.Record):  # type: ignore[misc, name-defined]
        a = schema.Integer(default=3)

    class Outer(schema.Record):  # type: ignore[misc, name-defined]
        _sorted_fields = True
        text = schema.String(required=True)
        inner = Inner()
        many = schema.Array(Inner())
        table = schema.Map(schema.String())
        colour = schema.CustomEnum(Colour)

    value = Outer(text="t", inner=Inner(a=1), many=[Inner()], table={"k": "v"}, colour=Colour.RED)
    found = [Outer.schema(), await refused(make, Outer, text=5), value == Outer(text="t")]
    for kind in (schema.JsonSchema, schema.AvroSchema):
        made = kind(Outer)
        topic = f"{api.topic}-{kind.__name__}"
        consumer = await api.client.subscribe(topic, "sub", schema=made)
        producer = await api.client.create_producer(topic, schema=made)
        await producer.send(value)
        decoded = (await consumer.receive(WAIT_MS)).value()
        found += [made.encode(value), decoded == value, decoded.inner.a, decoded.many[0].a]
    return found


async def awaiting(call: Callable[..., Any], *args: Any) -> Any:
    """Call and await, so that an error of the call itself is an error of the `await`."""
    return await call(*args)


async def make(kind: Callable[..., Any], **fields: Any) -> None:
    kind(**fields)


@blocking
async def a_null_message(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub")
    producer = await api.client.create_producer(api.topic)
    await producer.send(b"", partition_key="gone")
    msg = await consumer.receive(WAIT_MS)
    return msg.data(), msg.has_null_value(), msg.partition_key()


# Clients


@blocking
async def the_id_sent_is_the_id_received(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub")
    producer = await api.client.create_producer(api.topic, batching_enabled=False)
    sent = await producer.send(b"one")
    msg = await consumer.receive(WAIT_MS)
    last = await consumer.get_last_message_id()
    return sent == msg.message_id(), last == sent, str(sent) == str(msg.message_id())


@both
async def an_http_service_url(api: Api) -> Any:
    client = api.connect(api.admin_url)
    consumer = await client.subscribe(api.topic, "sub")
    producer = await client.create_producer(api.topic)
    await producer.send(b"by lookup over http")
    found = (await consumer.receive()).data()
    await client.close()
    return found


@both
async def loggers(api: Api) -> Any:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        level = api.pulsar.LoggerLevel
        file = os.path.join(folder, "engine.log")
        python = logging.getLogger(f"engine-{api.name}")
        for logger in (
            api.pulsar.ConsoleLogger(level.Error),
            api.pulsar.FileLogger(level.Info, file),
            python,
        ):
            client = api.connect(api.url, logger=logger)
            producer = await client.create_producer(api.topic)
            found.append((await producer.send(b"logged")).entry_id())
            await client.close()
        found.append(await asyncio.to_thread(os.path.getsize, file) > 0)
    return found


@asynchronous
async def a_token_supplier_that_raises(api: Api) -> Any:
    def supplier() -> str:
        raise RuntimeError("no token today")

    client = api.connect(
        api.url,
        authentication=api.pulsar.AuthenticationToken(supplier),
        operation_timeout_seconds=3,
    )
    found = []
    for call in (client.create_producer, partial(client.subscribe, subscription_name="s")):
        try:
            await call(api.topic)
        except Exception as error:
            # The text of subscribe's error is in this package's C++ log. Another test may have
            # created the first client of this process, with another logger.
            has_text = isinstance(call, partial) or "no token today" in str(error)
            found.append((error_names(api, error), has_text))
    await client.close()
    return found


@both
async def a_listener_name_that_no_broker_has(api: Api) -> Any:
    client = api.connect(api.url, listener_name="nobody", operation_timeout_seconds=3)
    found = await outcome(api, client.create_producer(api.topic))
    await client.close()
    return found


@both
async def a_connection_refused(api: Api) -> Any:
    client = api.connect(
        "pulsar://127.0.0.1:1", operation_timeout_seconds=2, connection_timeout_ms=500
    )
    found = await outcome(api, client.create_producer(api.topic))
    await client.close()
    return found


@blocking
async def topics_by_a_compiled_pattern(api: Api) -> Any:
    producer = await api.client.create_producer(f"{api.topic}-one")
    await producer.send(b"one")
    consumer = await api.client.subscribe(
        re.compile(f"persistent://public/default/{api.topic}-.*"),
        "sub",
        initial_position=api.pulsar.InitialPosition.Earliest,
        pattern_auto_discovery_period=1,
    )
    return (await consumer.receive(WAIT_MS)).data()


@both
async def values_of_other_types_are_refused(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub")
    reader = await api.client.create_reader(api.topic, api.pulsar.MessageId.earliest)
    return [
        await refused(consumer.acknowledge, None),
        await refused(consumer.acknowledge, "1:2:3"),
        await refused(consumer.acknowledge_cumulative, 5),
        await refused(consumer.negative_acknowledge, None),
        await refused(consumer.seek, "yesterday"),
        await refused(reader.seek, None),
        await refused(api.client.get_topic_partitions, 5),
        await refused(api.client.subscribe, ["a", 5], "sub"),
    ]


@asynchronous
async def lists_of_topics_and_patterns(api: Api) -> Any:
    subscribe = api.client.subscribe
    return [
        await refused(subscribe, [api.topic], "sub", is_pattern_topic=True),
        await refused(subscribe, 5, "sub"),
    ]


@both
async def an_unsubscribed_consumer_is_closed(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub")
    await consumer.unsubscribe()
    return await outcome(api, consumer.receive()), await outcome(api, consumer.unsubscribe())


@both
async def a_nack_by_id(api: Api) -> Any:
    consumer = await api.client.subscribe(
        api.topic, "sub", api.pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=300
    )
    producer = await api.client.create_producer(api.topic, batching_enabled=False)
    await producer.send(b"again")
    msg = await consumer.receive()
    await consumer.negative_acknowledge(msg.message_id())
    again = await consumer.receive()
    return again.data(), again.redelivery_count(), again.message_id() == msg.message_id()


@both
async def names_and_connection_states(api: Api) -> Any:
    consumer = await api.client.subscribe(api.topic, "sub", consumer_name="me")
    producer = await api.client.create_producer(api.topic, producer_name="you")
    reader = await api.client.create_reader(api.topic, api.pulsar.MessageId.earliest)
    return [
        await outcome(api, each)
        for each in (
            consumer.topic(),
            consumer.subscription_name(),
            consumer.consumer_name(),
            producer.topic(),
            producer.producer_name(),
            producer.is_connected(),
            reader.topic(),
            reader.is_connected(),
        )
    ]


@both
async def failover_has_one_active_consumer(api: Api) -> Any:
    kind = api.pulsar.ConsumerType.Failover
    consumers = [
        await api.client.subscribe(api.topic, "sub", kind, consumer_name=name) for name in "ab"
    ]
    producer = await api.client.create_producer(api.topic)
    await producer.send(b"one")
    waiting = [asyncio.ensure_future(each.receive()) for each in consumers]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    active = waiting.index(next(each for each in waiting if each.done()))
    msg = waiting[active].result()
    await consumers[active].acknowledge(msg)
    await asyncio.sleep(0.2)
    await consumers[active].close()
    await producer.send(b"two")
    return msg.data(), (await waiting[1 - active]).data()


@blocking
async def sequence_ids_and_deduplication(api: Api) -> Any:
    admin = Admin(api.admin_url)
    namespace = f"public/{api.topic.replace('_', '-')}"
    await asyncio.to_thread(admin.create_namespace, namespace, {"deduplicationEnabled": True})
    topic = f"{namespace}/topic"
    consumer = await api.client.subscribe(topic, "sub")
    producer = await api.client.create_producer(topic, producer_name="same")
    found = [last_sequence_id(producer)]
    for number in (0, 1, 2, 1, 2):
        await producer.send(b"%d" % number, sequence_id=number)
    found.append(last_sequence_id(producer))
    await producer.close()
    producer = await api.client.create_producer(topic, producer_name="same")
    found.append(last_sequence_id(producer))
    await producer.send(b"twice", sequence_id=2)
    await producer.send(b"3")
    found.append(last_sequence_id(producer))
    found += [(await consumer.receive(WAIT_MS)).data() for _ in range(4)]
    await producer.close()
    await consumer.close()
    await asyncio.to_thread(admin.delete_namespace, namespace)
    return found


@both
async def policies_return_their_arguments(api: Api) -> Any:
    pulsar = api.pulsar
    dead = pulsar.ConsumerDeadLetterPolicy(3, "dead", "sub")
    sticky = pulsar.ConsumerKeySharedPolicy(
        key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 10), (20, 30)]
    )
    return [
        (dead.max_redeliver_count, dead.dead_letter_topic, dead.initial_subscription_name),
        (sticky.key_shared_mode.name, sticky.sticky_ranges, sticky.allow_out_of_order_delivery),
        await refused(make, pulsar.ConsumerDeadLetterPolicy, max_redeliver_count=0),
        await refused(make, pulsar.ConsumerKeySharedPolicy, sticky_ranges=[(5, 1)]),
    ]


# The harness


async def refused(call: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """True if the call raises a ValueError or a TypeError, as a program expects."""
    try:
        await call(*args, **kwargs)
    except (ValueError, TypeError):
        return True
    return False


def last_sequence_id(producer: Any) -> int:
    thing = producer._thing if isinstance(producer, AsyncFacade) else producer
    found: int = thing.last_sequence_id()
    return found


async def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


async def run_case(case: Case, api: Api) -> str:
    """Return the result of a case, without the name of the run's topic."""
    try:
        async with asyncio.timeout(LONGEST_S):
            result = repr(await case(api))
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    finally:
        await outcome(api, api.client.close())
    return result.replace(api.topic, "TOPIC")


def case_id(case: Case) -> str:
    return re.sub("_", " ", case.__name__)  # type: ignore[attr-defined]


def topic_of(case: Case) -> str:
    return f"{case.__name__}-{uuid.uuid4().hex[:8]}"  # type: ignore[attr-defined]


#: Known differences of the native transport: errors are raised at once, are more exact, and have
#: the stock client's names. (The text of a failing supplier may be secret, so it is in the error's
#: cause only.)
NATIVE_DIFFERENCES = {
    "a_listener_name_that_no_broker_has": {
        "stock": "['PulsarException', 'ServiceUnitNotReady']",
        "asyncio": "['ServiceUnitNotReady']",
    },
    "a_token_supplier_that_raises": {
        "asyncio": "[(['AuthenticationError'], False), (['AuthenticationError'], True)]",
    },
    # The C++ client logs where the first client of the process does.
    "loggers": {"stock": "[0, 1, 2, True]", "asyncio": "[0, 1, 2, True]"},
    "a_connection_refused": {
        "stock": "['ConnectError', 'PulsarException']",
        "asyncio": "['ConnectError']",
    },
}


#: Known differences of the stock transport. A supplier that raises inside the C++ client can end
#: the process, so the C++ client gets an empty token instead. The first call fails without the text
#: of the supplier. This broker requires no authentication, and then accepts the empty token.
STOCK_DIFFERENCES = {
    "a_token_supplier_that_raises": {"asyncio": "[(['AuthenticationError'], False)]"},
}


async def compare(case: Case, name: str, transport: str, server: Server) -> None:
    apis = [
        Api(
            name=each,
            pulsar=encore if each == "ours" else stock,
            client=None,
            topic=topic_of(case),
            url=server.service_url,
            admin_url=server.admin_url,
            compared_with=name,
            transport=transport,
        )
        for each in (name, "ours")
    ]
    apis = [replace(each, client=each.connect(each.url)) for each in apis]
    expected, found = await asyncio.gather(*(run_case(case, each) for each in apis))
    known_differences = NATIVE_DIFFERENCES if transport == "auto" else STOCK_DIFFERENCES
    differences: dict[str, str] = known_differences.get(case.__name__, {})  # type: ignore[attr-defined]
    expected = differences.get(name, expected)
    assert found == expected


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("case", BLOCKING, ids=case_id)
async def test_this_package_behaves_like_the_stock_blocking_client(
    case: Case, transport: str, pulsar: Server
) -> None:
    await compare(case, "stock", transport, pulsar)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("case", ASYNCIO, ids=case_id)
async def test_this_package_behaves_like_the_stock_asyncio_client(
    case: Case, transport: str, pulsar: Server
) -> None:
    await compare(case, "asyncio", transport, pulsar)
