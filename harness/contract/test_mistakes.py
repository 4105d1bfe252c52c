"""The same mistake, made with both stock clients and with this one: the same name for it.

Stock's blocking client raises a class of `pulsar.exceptions`, its asyncio client one class with a
`pulsar.Result` in it. Here it is the class of that name, which is both, and it stands where the
tree of errors says who must act.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pulsar
import pulsar.asyncio
import pytest

import pulsar_encore as encore

from .cluster import QUIET, Cluster, Engine

Act = Callable[[Any, Any, str], Awaitable[None]]
"""A mistake: made with a package's names, a client of it and a topic."""

# Stock's asyncio client has its names in two modules.
ASYNCIO = SimpleNamespace(**{**vars(pulsar), "Client": pulsar.asyncio.Client})
WAIT_S = 2
PATIENT_S = 10  # a busy broker may take longer than that, for what is not about time
YOURS, BROKERS, LATE, NOBODYS = (
    encore.ConfigurationError,
    encore.TransportError,
    encore.ClosedError,
    encore.ReceiveTimeout,
)


class Note(pulsar.schema.Record):  # type: ignore[misc]
    """Something that no text is."""

    number = pulsar.schema.Integer()


async def done(call: Any) -> Any:
    """What the call gives, of a blocking client or another."""
    return await call if inspect.isawaitable(call) else call


@dataclass(frozen=True)
class Mistake:
    """Attributes: its name for stock, who must act, and whether asyncio's client can make it."""

    label: str
    act: Act
    name: str
    blame: type[encore.EncoreError]
    asyncio: bool = True


MISTAKES: list[Mistake] = []


def mistake(
    name: str, blame: type[encore.EncoreError], *, asyncio: bool = True
) -> Callable[[Act], Act]:
    def add(act: Act) -> Act:
        label = act.__name__
        MISTAKES.append(Mistake(label, act, name, blame, asyncio))
        return act

    return add


def no_topic(wrong: str) -> None:
    async def producer(names: Any, client: Any, topic: str) -> None:
        await done(client.create_producer(wrong))

    async def consumer(names: Any, client: Any, topic: str) -> None:
        await done(client.subscribe(wrong, "s"))

    async def several(names: Any, client: Any, topic: str) -> None:
        await done(client.subscribe([topic, wrong], "s"))

    async def reader(names: Any, client: Any, topic: str) -> None:
        await done(client.create_reader(wrong, names.MessageId.earliest))

    async def partitions(names: Any, client: Any, topic: str) -> None:
        await done(client.get_topic_partitions(wrong))

    for act in (producer, consumer, several, reader, partitions):
        label = f"{act.__name__} of {wrong!r}"
        MISTAKES.append(Mistake(label, act, "InvalidTopicName", YOURS))


for each in ("a//b", "a/b", "kafka://a/b/c", "persistent://a b/c/d", ""):
    no_topic(each)


@mistake("InvalidConfiguration", YOURS)
async def no_subscription_name(names: Any, client: Any, topic: str) -> None:
    await done(client.subscribe(topic, ""))


@mistake("InvalidConfiguration", YOURS)
async def read_compacted_and_shared(names: Any, client: Any, topic: str) -> None:
    shared = names.ConsumerType.Shared
    await done(client.subscribe(topic, "s", consumer_type=shared, is_read_compacted=True))


@mistake("InvalidConfiguration", YOURS, asyncio=False)
async def receive_beside_a_listener(names: Any, client: Any, topic: str) -> None:
    consumer = await done(client.subscribe(topic, "s", message_listener=lambda *_: None))
    await done(consumer.receive())


async def cumulative(client: Any, topic: str, kind: Any) -> None:
    consumer = await done(client.subscribe(topic, "s", consumer_type=kind))
    producer = await done(client.create_producer(topic))
    await done(producer.send(b"x"))
    await done(consumer.acknowledge_cumulative(await done(consumer.receive())))


@mistake("CumulativeAcknowledgementNotAllowedError", YOURS)
async def cumulative_and_shared(names: Any, client: Any, topic: str) -> None:
    await cumulative(client, topic, names.ConsumerType.Shared)


@mistake("CumulativeAcknowledgementNotAllowedError", YOURS)
async def cumulative_and_key_shared(names: Any, client: Any, topic: str) -> None:
    await cumulative(client, topic, names.ConsumerType.KeyShared)


@mistake("OperationNotSupported", YOURS)
async def last_id_of_two_topics(names: Any, client: Any, topic: str) -> None:
    consumer = await done(client.subscribe([topic, f"{topic}-2"], "s"))
    await done(consumer.get_last_message_id())


@mistake("OperationNotSupported", YOURS)
async def seek_of_two_topics_to_an_id(names: Any, client: Any, topic: str) -> None:
    consumer = await done(client.subscribe([topic, f"{topic}-2"], "s"))
    await done(consumer.seek(names.MessageId(0, 1, 1)))


@mistake("OperationNotSupported", YOURS)
async def ack_of_an_id_without_its_topic(names: Any, client: Any, topic: str) -> None:
    consumer = await done(client.subscribe([topic, f"{topic}-2"], "s"))
    await done(consumer.acknowledge(names.MessageId(0, 1, 1)))


async def closed_consumer(client: Any, topic: str) -> Any:
    consumer = await done(client.subscribe(topic, "s"))
    await done(consumer.close())
    return consumer


@mistake("AlreadyClosed", LATE)
async def receive_when_closed(names: Any, client: Any, topic: str) -> None:
    await done((await closed_consumer(client, topic)).receive())


@mistake("AlreadyClosed", LATE)
async def ack_when_closed(names: Any, client: Any, topic: str) -> None:
    await done((await closed_consumer(client, topic)).acknowledge(names.MessageId(-1, 1, 1)))


@mistake("AlreadyClosed", LATE)
async def seek_when_closed(names: Any, client: Any, topic: str) -> None:
    await done((await closed_consumer(client, topic)).seek(1))


@mistake("AlreadyClosed", LATE)
async def last_id_when_closed(names: Any, client: Any, topic: str) -> None:
    await done((await closed_consumer(client, topic)).get_last_message_id())


@mistake("AlreadyClosed", LATE)
async def unsubscribe_when_closed(names: Any, client: Any, topic: str) -> None:
    await done((await closed_consumer(client, topic)).unsubscribe())


@mistake("AlreadyClosed", LATE)
async def send_when_closed(names: Any, client: Any, topic: str) -> None:
    producer = await done(client.create_producer(topic))
    await done(producer.close())
    await done(producer.send(b"x"))


@mistake("AlreadyClosed", LATE)
async def flush_when_closed(names: Any, client: Any, topic: str) -> None:
    producer = await done(client.create_producer(topic))
    await done(producer.close())
    await done(producer.flush())


@mistake("AlreadyClosed", LATE)
async def read_when_closed(names: Any, client: Any, topic: str) -> None:
    reader = await done(client.create_reader(topic, names.MessageId.earliest))
    await done(reader.close())
    await done(reader.read_next())


@mistake("AlreadyClosed", LATE)
async def subscribe_with_a_closed_client(names: Any, client: Any, topic: str) -> None:
    await done(client.close())
    await done(client.subscribe(topic, "s"))


@mistake("Timeout", NOBODYS, asyncio=False)
async def receive_with_a_timeout(names: Any, client: Any, topic: str) -> None:
    consumer = await done(client.subscribe(topic, "s"))
    await done(consumer.receive(timeout_millis=20))


@mistake("Timeout", NOBODYS, asyncio=False)
async def read_with_a_timeout(names: Any, client: Any, topic: str) -> None:
    reader = await done(client.create_reader(topic, names.MessageId.earliest))
    await done(reader.read_next(timeout_millis=20))


@mistake("ConsumerBusy", BROKERS)
async def second_exclusive_consumer(names: Any, client: Any, topic: str) -> None:
    kept = await done(client.subscribe(topic, "s"))
    await done(client.subscribe(topic, "s"))
    await done(kept.close())


@mistake("ProducerBusy", BROKERS)
async def producer_name_in_use(names: Any, client: Any, topic: str) -> None:
    kept = await done(client.create_producer(topic, producer_name="one"))
    await done(client.create_producer(topic, producer_name="one"))
    await done(kept.close())


@mistake("ProducerFenced", BROKERS)
async def second_exclusive_producer(names: Any, client: Any, topic: str) -> None:
    alone = names.ProducerAccessMode.Exclusive
    kept = await done(client.create_producer(topic, access_mode=alone))
    await done(client.create_producer(topic, access_mode=alone))
    await done(kept.close())


@mistake("IncompatibleSchema", BROKERS)
async def another_schema(names: Any, client: Any, topic: str) -> None:
    kept = await done(client.create_producer(topic, schema=names.schema.StringSchema()))
    await done(client.create_producer(topic, schema=names.schema.JsonSchema(Note)))
    await done(kept.close())


@mistake("MessageTooBig", BROKERS)
async def message_too_big(names: Any, client: Any, topic: str) -> None:
    producer = await done(client.create_producer(topic, batching_enabled=False))
    await done(producer.send(b"x" * 6_000_000))


async def raised_by(names: Any, url: str, act: Act, topic: str, wait_s: int = WAIT_S) -> Exception:
    """What a stock client raises; the blocking one makes its mistakes on a thread of its own."""
    client = names.Client(url, operation_timeout_seconds=wait_s, logger=QUIET)
    blocking = names is pulsar

    async def make() -> None:
        await act(names, client, topic)

    try:
        await (asyncio.to_thread(asyncio.run, make()) if blocking else make())
    except Exception as error:
        return error
    finally:
        with contextlib.suppress(Exception):  # some of the mistakes close it
            await (asyncio.to_thread(client.close) if blocking else client.close())
    raise AssertionError("stock does not mind")


async def in_time(made: Mistake, attempt: Callable[[int], Awaitable[Exception]]) -> Exception:
    """What an attempt raises; of one that only took too long, another."""
    error = await attempt(WAIT_S)
    late = isinstance(error, pulsar.Timeout)
    if isinstance(error, pulsar.asyncio.PulsarException):
        late = error.error() == pulsar.Result.Timeout
    return await attempt(PATIENT_S) if late and made.name != "Timeout" else error


@pytest.mark.parametrize("made", MISTAKES, ids=lambda made: str(made.label))
async def test_a_mistake_has_stocks_name(
    cluster: Cluster, engine: Engine, topic: str, made: Mistake
) -> None:
    kind, result = getattr(pulsar, made.name), getattr(pulsar.Result, made.name)

    async def stocks(names: Any, where: str, wait_s: int) -> Exception:
        return await raised_by(names, cluster.url, made.act, where, wait_s)

    assert type(await in_time(made, partial(stocks, pulsar, f"{topic}-blocking"))) is kind
    if made.asyncio:
        theirs = await in_time(made, partial(stocks, ASYNCIO, f"{topic}-asyncio"))
        assert isinstance(theirs, pulsar.asyncio.PulsarException)
        assert theirs.error() == result

    async def own(wait_s: int) -> Exception:
        async with engine.client(cluster.url, operation_timeout_seconds=wait_s) as client:
            with pytest.raises(encore.EncoreError) as caught:
                await made.act(encore, client, topic)
        return caught.value

    ours = await in_time(made, own)
    assert isinstance(ours, getattr(encore, made.name))
    assert isinstance(ours, made.blame)
    if engine.name == "stock":
        assert isinstance(ours, kind)
        assert isinstance(ours, pulsar.asyncio.PulsarException)
    assert ours.error() == result
    assert len(str(ours)) > len(made.name)  # and says more than its name


async def test_stock_minds_a_second_close_and_nobody_else(
    cluster: Cluster, engine: Engine, topic: str
) -> None:
    async def twice(names: Any, client: Any, topic: str) -> None:
        producer = await done(client.create_producer(topic))
        await done(producer.close())
        await done(producer.close())

    assert type(await raised_by(pulsar, cluster.url, twice, topic)) is pulsar.AlreadyClosed
    async with engine.client(cluster.url) as client:
        await twice(encore, client, topic)


async def test_a_topic_of_six_parts_is_no_topic(client: encore.Client) -> None:
    """The broker says so too; stock asks it on and on, and then speaks of a time-out."""
    with pytest.raises(encore.InvalidTopicName, match="tenant/namespace/name"):
        await client.create_producer("persistent://a/b/c/d/e/f")


# Errors that point the right way


@pytest.mark.parametrize(
    ("supply", "says"),
    [(lambda: 1 // 0, "ZeroDivisionError"), (lambda: 3, "a token is a str")],
    ids=["raises", "is no text"],
)
async def test_a_token_supplier_that_fails_is_not_blamed_on_the_broker(
    cluster: Cluster, engine: Engine, topic: str, supply: Callable[[], Any], says: str
) -> None:
    options = {"authentication": encore.AuthenticationToken(supply)}
    async with engine.client(cluster.url, operation_timeout_seconds=WAIT_S, **options) as client:
        with pytest.raises(
            encore.AuthenticationError, match="authentication= failed here"
        ) as caught:
            await client.create_producer(topic)
    assert says in str(caught.value)
    assert not caught.value.retryable


async def test_a_web_address_on_the_binary_port_is_told_from_a_missing_topic(
    cluster: Cluster, engine: Engine, topic: str
) -> None:
    url = cluster.url.replace("pulsar://", "http://")
    async with engine.client(url, operation_timeout_seconds=WAIT_S) as client:
        with pytest.raises(encore.TransportError, match=r"port of the web service") as caught:
            await client.create_producer(topic)
    assert "service_url" in str(caught.value)


async def test_the_port_of_the_web_service_is_among_the_reasons(engine: Engine, topic: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with engine.client(url, operation_timeout_seconds=1) as client:
            with pytest.raises(encore.TransportError, match=r"not the web service's \(8080\)"):
                await client.create_producer(topic)


async def test_tls_on_a_plain_port_is_among_the_reasons(
    cluster: Cluster, engine: Engine, topic: str
) -> None:
    url = cluster.url.replace("pulsar://", "pulsar+ssl://")
    async with engine.client(url, operation_timeout_seconds=WAIT_S) as client:
        with pytest.raises(encore.TransportError, match=r"pulsar\+ssl://"):
            await client.create_producer(topic)


def test_files_that_are_missing_are_named_before_anything_connects(
    cluster: Cluster, engine: Engine
) -> None:
    with pytest.raises(encore.ConfigurationError, match=r"tls_trust_certs_file_path: .*'/no/such'"):
        engine.client(cluster.url, tls_trust_certs_file_path="/no/such")
    for path in ("/no/such", "file:///no/such"):
        parameters = {"issuer_url": "https://issuer", "private_key": path, "audience": "a"}
        with pytest.raises(encore.ConfigurationError, match=r"private_key: .*'/no/such'"):
            encore.AuthenticationOauth2(json.dumps(parameters))
