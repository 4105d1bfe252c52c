"""The same mistake in both stock clients and in this client raises an exception of the same name.

The stock blocking client raises a class of `pulsar.exceptions`. The stock asyncio client raises one
class with a `pulsar.Result`. This client raises the class of that name with that result, at the
place in the error tree that says who must act.
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

# The names of the stock asyncio client are in two modules.
ASYNCIO = SimpleNamespace(**{**vars(pulsar), "Client": pulsar.asyncio.Client})
WAIT_S = 2
PATIENT_S = 10  # a busy broker may need more than `WAIT_S`
CALLER, BROKER, CLOSED, TIMEOUT = (
    encore.ConfigurationError,
    encore.TransportError,
    encore.ClosedError,
    encore.ReceiveTimeout,
)


class Note(pulsar.schema.Record):  # type: ignore[misc]
    """A record that does not fit a string schema."""

    number = pulsar.schema.Integer()


async def result_of(call: Any) -> Any:
    """Return the result of a call, awaited if it is awaitable."""
    return await call if inspect.isawaitable(call) else call


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        label: Its test id.
        act: The calls.
        name: Name of the exception and of the result in the stock client.
        base: The base class that says who must act.
        asyncio: Whether the stock asyncio client can make the mistake.
    """

    label: str
    act: Act
    name: str
    base: type[encore.EncoreError]
    asyncio: bool = True


MISTAKES: list[Mistake] = []


def mistake(
    name: str, base: type[encore.EncoreError], *, asyncio: bool = True
) -> Callable[[Act], Act]:
    def add(act: Act) -> Act:
        label = act.__name__
        MISTAKES.append(Mistake(label, act, name, base, asyncio))
        return act

    return add


def add_invalid_topic(wrong: str) -> None:
    async def producer(names: Any, client: Any, topic: str) -> None:
        await result_of(client.create_producer(wrong))

    async def consumer(names: Any, client: Any, topic: str) -> None:
        await result_of(client.subscribe(wrong, "s"))

    async def several(names: Any, client: Any, topic: str) -> None:
        await result_of(client.subscribe([topic, wrong], "s"))

    async def reader(names: Any, client: Any, topic: str) -> None:
        await result_of(client.create_reader(wrong, names.MessageId.earliest))

    async def partitions(names: Any, client: Any, topic: str) -> None:
        await result_of(client.get_topic_partitions(wrong))

    for act in (producer, consumer, several, reader, partitions):
        label = f"{act.__name__} of {wrong!r}"
        MISTAKES.append(Mistake(label, act, "InvalidTopicName", CALLER))


for each in ("a//b", "a/b", "kafka://a/b/c", "persistent://a b/c/d", ""):
    add_invalid_topic(each)


@mistake("InvalidConfiguration", CALLER)
async def no_subscription_name(names: Any, client: Any, topic: str) -> None:
    await result_of(client.subscribe(topic, ""))


@mistake("InvalidConfiguration", CALLER)
async def read_compacted_and_shared(names: Any, client: Any, topic: str) -> None:
    shared = names.ConsumerType.Shared
    await result_of(client.subscribe(topic, "s", consumer_type=shared, is_read_compacted=True))


@mistake("InvalidConfiguration", CALLER, asyncio=False)
async def receive_beside_a_listener(names: Any, client: Any, topic: str) -> None:
    consumer = await result_of(client.subscribe(topic, "s", message_listener=lambda *_: None))
    await result_of(consumer.receive())


async def cumulative(client: Any, topic: str, kind: Any) -> None:
    consumer = await result_of(client.subscribe(topic, "s", consumer_type=kind))
    producer = await result_of(client.create_producer(topic))
    await result_of(producer.send(b"x"))
    await result_of(consumer.acknowledge_cumulative(await result_of(consumer.receive())))


@mistake("CumulativeAcknowledgementNotAllowedError", CALLER)
async def cumulative_and_shared(names: Any, client: Any, topic: str) -> None:
    await cumulative(client, topic, names.ConsumerType.Shared)


@mistake("CumulativeAcknowledgementNotAllowedError", CALLER)
async def cumulative_and_key_shared(names: Any, client: Any, topic: str) -> None:
    await cumulative(client, topic, names.ConsumerType.KeyShared)


@mistake("OperationNotSupported", CALLER)
async def last_id_of_two_topics(names: Any, client: Any, topic: str) -> None:
    consumer = await result_of(client.subscribe([topic, f"{topic}-2"], "s"))
    await result_of(consumer.get_last_message_id())


@mistake("OperationNotSupported", CALLER)
async def seek_of_two_topics_to_an_id(names: Any, client: Any, topic: str) -> None:
    consumer = await result_of(client.subscribe([topic, f"{topic}-2"], "s"))
    await result_of(consumer.seek(names.MessageId(0, 1, 1)))


@mistake("OperationNotSupported", CALLER)
async def ack_of_an_id_without_its_topic(names: Any, client: Any, topic: str) -> None:
    consumer = await result_of(client.subscribe([topic, f"{topic}-2"], "s"))
    await result_of(consumer.acknowledge(names.MessageId(0, 1, 1)))


async def closed_consumer(client: Any, topic: str) -> Any:
    consumer = await result_of(client.subscribe(topic, "s"))
    await result_of(consumer.close())
    return consumer


@mistake("AlreadyClosed", CLOSED)
async def receive_when_closed(names: Any, client: Any, topic: str) -> None:
    await result_of((await closed_consumer(client, topic)).receive())


@mistake("AlreadyClosed", CLOSED)
async def ack_when_closed(names: Any, client: Any, topic: str) -> None:
    await result_of((await closed_consumer(client, topic)).acknowledge(names.MessageId(-1, 1, 1)))


@mistake("AlreadyClosed", CLOSED)
async def seek_when_closed(names: Any, client: Any, topic: str) -> None:
    await result_of((await closed_consumer(client, topic)).seek(1))


@mistake("AlreadyClosed", CLOSED)
async def last_id_when_closed(names: Any, client: Any, topic: str) -> None:
    await result_of((await closed_consumer(client, topic)).get_last_message_id())


@mistake("AlreadyClosed", CLOSED)
async def unsubscribe_when_closed(names: Any, client: Any, topic: str) -> None:
    await result_of((await closed_consumer(client, topic)).unsubscribe())


@mistake("AlreadyClosed", CLOSED)
async def send_when_closed(names: Any, client: Any, topic: str) -> None:
    producer = await result_of(client.create_producer(topic))
    await result_of(producer.close())
    await result_of(producer.send(b"x"))


@mistake("AlreadyClosed", CLOSED)
async def flush_when_closed(names: Any, client: Any, topic: str) -> None:
    producer = await result_of(client.create_producer(topic))
    await result_of(producer.close())
    await result_of(producer.flush())


@mistake("AlreadyClosed", CLOSED)
async def read_when_closed(names: Any, client: Any, topic: str) -> None:
    reader = await result_of(client.create_reader(topic, names.MessageId.earliest))
    await result_of(reader.close())
    await result_of(reader.read_next())


@mistake("AlreadyClosed", CLOSED)
async def subscribe_with_a_closed_client(names: Any, client: Any, topic: str) -> None:
    await result_of(client.close())
    await result_of(client.subscribe(topic, "s"))


@mistake("Timeout", TIMEOUT, asyncio=False)
async def receive_with_a_timeout(names: Any, client: Any, topic: str) -> None:
    consumer = await result_of(client.subscribe(topic, "s"))
    await result_of(consumer.receive(timeout_millis=20))


@mistake("Timeout", TIMEOUT, asyncio=False)
async def read_with_a_timeout(names: Any, client: Any, topic: str) -> None:
    reader = await result_of(client.create_reader(topic, names.MessageId.earliest))
    await result_of(reader.read_next(timeout_millis=20))


@mistake("ConsumerBusy", BROKER)
async def second_exclusive_consumer(names: Any, client: Any, topic: str) -> None:
    holder = await result_of(client.subscribe(topic, "s"))
    await result_of(client.subscribe(topic, "s"))
    await result_of(holder.close())


@mistake("ProducerBusy", BROKER)
async def producer_name_in_use(names: Any, client: Any, topic: str) -> None:
    holder = await result_of(client.create_producer(topic, producer_name="one"))
    await result_of(client.create_producer(topic, producer_name="one"))
    await result_of(holder.close())


@mistake("ProducerFenced", BROKER)
async def second_exclusive_producer(names: Any, client: Any, topic: str) -> None:
    exclusive = names.ProducerAccessMode.Exclusive
    holder = await result_of(client.create_producer(topic, access_mode=exclusive))
    await result_of(client.create_producer(topic, access_mode=exclusive))
    await result_of(holder.close())


@mistake("IncompatibleSchema", BROKER)
async def another_schema(names: Any, client: Any, topic: str) -> None:
    holder = await result_of(client.create_producer(topic, schema=names.schema.StringSchema()))
    await result_of(client.create_producer(topic, schema=names.schema.JsonSchema(Note)))
    await result_of(holder.close())


@mistake("MessageTooBig", BROKER)
async def message_too_big(names: Any, client: Any, topic: str) -> None:
    producer = await result_of(client.create_producer(topic, batching_enabled=False))
    await result_of(producer.send(b"x" * 6_000_000))


async def raised_by(names: Any, url: str, act: Act, topic: str, wait_s: int = WAIT_S) -> Exception:
    """Return the exception of a stock client. The blocking client runs on a thread of its own."""
    client = names.Client(url, operation_timeout_seconds=wait_s, logger=QUIET)
    blocking = names is pulsar

    async def make() -> None:
        await act(names, client, topic)

    try:
        await (asyncio.to_thread(asyncio.run, make()) if blocking else make())
    except Exception as error:
        return error
    finally:
        with contextlib.suppress(Exception):  # some mistakes close the client
            await (asyncio.to_thread(client.close) if blocking else client.close())
    raise AssertionError("the stock client raised no exception")


async def not_timed_out(made: Mistake, attempt: Callable[[int], Awaitable[Exception]]) -> Exception:
    """Return the exception of an attempt. After an unexpected timeout, try once with more time."""
    error = await attempt(WAIT_S)
    late = isinstance(error, pulsar.Timeout)
    if isinstance(error, pulsar.asyncio.PulsarException):
        late = error.error() == pulsar.Result.Timeout
    return await attempt(PATIENT_S) if late and made.name != "Timeout" else error


@pytest.mark.parametrize("made", MISTAKES, ids=lambda made: str(made.label))
async def test_a_mistake_raises_the_exception_of_the_stock_clients_name(
    cluster: Cluster, engine: Engine, topic: str, made: Mistake
) -> None:
    kind, result = getattr(pulsar, made.name), getattr(pulsar.Result, made.name)

    async def attempt_stock(names: Any, stock_topic: str, wait_s: int) -> Exception:
        return await raised_by(names, cluster.url, made.act, stock_topic, wait_s)

    assert (
        type(await not_timed_out(made, partial(attempt_stock, pulsar, f"{topic}-blocking"))) is kind
    )
    if made.asyncio:
        stock_error = await not_timed_out(made, partial(attempt_stock, ASYNCIO, f"{topic}-asyncio"))
        assert isinstance(stock_error, pulsar.asyncio.PulsarException)
        assert stock_error.error() == result

    async def attempt_own(wait_s: int) -> Exception:
        async with engine.client(cluster.url, operation_timeout_seconds=wait_s) as client:
            with pytest.raises(encore.EncoreError) as caught:
                await made.act(encore, client, topic)
        return caught.value

    own_error = await not_timed_out(made, attempt_own)
    assert isinstance(own_error, getattr(encore, made.name))
    assert isinstance(own_error, made.base)
    if engine.name == "stock":
        assert isinstance(own_error, kind)
        assert isinstance(own_error, pulsar.asyncio.PulsarException)
    assert own_error.error() == result
    assert len(str(own_error)) > len(made.name)  # the text says more than the name


async def test_only_the_stock_client_raises_on_a_second_close(
    cluster: Cluster, engine: Engine, topic: str
) -> None:
    async def twice(names: Any, client: Any, topic: str) -> None:
        producer = await result_of(client.create_producer(topic))
        await result_of(producer.close())
        await result_of(producer.close())

    assert type(await raised_by(pulsar, cluster.url, twice, topic)) is pulsar.AlreadyClosed
    async with engine.client(cluster.url) as client:
        await twice(encore, client, topic)


async def test_a_topic_name_of_six_parts_is_invalid(client: encore.Client) -> None:
    """The broker refuses it as well. The stock client retries until its timeout, and raises
    Timeout.
    """
    with pytest.raises(encore.InvalidTopicName, match="tenant/namespace/name"):
        await client.create_producer("persistent://a/b/c/d/e/f")


# Errors that point the right way


@pytest.mark.parametrize(
    ("supplier", "expected"),
    [(lambda: 1 // 0, "ZeroDivisionError"), (lambda: 3, "a token is a str")],
    ids=["raises", "is no text"],
)
async def test_a_failing_token_supplier_is_reported_as_a_local_failure(
    cluster: Cluster, engine: Engine, topic: str, supplier: Callable[[], Any], expected: str
) -> None:
    options = {"authentication": encore.AuthenticationToken(supplier)}
    async with engine.client(cluster.url, operation_timeout_seconds=WAIT_S, **options) as client:
        with pytest.raises(
            encore.AuthenticationError, match="authentication= failed here"
        ) as caught:
            await client.create_producer(topic)
    assert expected in str(caught.value)
    assert not caught.value.retryable


async def test_an_http_service_url_on_the_binary_port_is_named_in_the_error(
    cluster: Cluster, engine: Engine, topic: str
) -> None:
    url = cluster.url.replace("pulsar://", "http://")
    async with engine.client(url, operation_timeout_seconds=WAIT_S) as client:
        with pytest.raises(encore.TransportError, match=r"port of the web service") as caught:
            await client.create_producer(topic)
    assert "service_url" in str(caught.value)


async def test_a_service_url_with_the_web_port_is_named_in_the_error(
    engine: Engine, topic: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with engine.client(url, operation_timeout_seconds=1) as client:
            with pytest.raises(encore.TransportError, match=r"not the web service's \(8080\)"):
                await client.create_producer(topic)


async def test_tls_on_a_plain_port_is_named_in_the_error(
    cluster: Cluster, engine: Engine, topic: str
) -> None:
    url = cluster.url.replace("pulsar://", "pulsar+ssl://")
    async with engine.client(url, operation_timeout_seconds=WAIT_S) as client:
        with pytest.raises(encore.TransportError, match=r"pulsar\+ssl://"):
            await client.create_producer(topic)


def test_missing_files_are_named_before_connecting(cluster: Cluster, engine: Engine) -> None:
    with pytest.raises(encore.ConfigurationError, match=r"tls_trust_certs_file_path: .*'/no/such'"):
        engine.client(cluster.url, tls_trust_certs_file_path="/no/such")
    for path in ("/no/such", "file:///no/such"):
        parameters = {"issuer_url": "https://issuer", "private_key": path, "audience": "a"}
        with pytest.raises(encore.ConfigurationError, match=r"private_key: .*'/no/such'"):
            encore.AuthenticationOauth2(json.dumps(parameters))
