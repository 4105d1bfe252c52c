"""Observers of a client see its consumers and producers, and cannot break them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client, ConfigurationError, ConsumerType
from pulsar_encore.testing import MemoryTransport
from tests.observability.recording import Recording


class Asynchronous(encore.Observer):
    async def sent(  # type: ignore[override]
        self, sending: encore.Sending, error: BaseException | None
    ) -> None: ...


@pytest.mark.parametrize(
    ("observers", "match"),
    [
        (Recording(), "must be a list"),
        ("abc", "must be a list"),
        (None, "must be a list"),
        ([Recording], r"observers=\[Recording\(\)\]"),
        ([object()], "inherit from Observer"),
        ([Asynchronous()], "must be a plain method"),
    ],
)
async def test_wrong_observers_are_refused(
    transport: MemoryTransport, observers: Any, match: str
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Client("memory://", transport=transport, observers=observers)


async def test_a_send_gets_properties_and_the_dict_of_the_caller_stays(
    client: Client, seen: Recording
) -> None:
    given = {"order": "7"}
    consumer = await client.subscribe("jobs", "worker")
    async with client.create_producer("jobs") as producer:
        message_id = await producer.send(b"12345", given, "k")
        await producer.send(None)
    message = await consumer.receive()
    assert message.properties() == {"order": "7", "trace": "t1"}
    assert given == {"order": "7"}
    [(sending, error), (tombstone, _)] = seen.of("sent")
    assert error is None
    assert sending.message_id == message_id
    assert (sending.payload_size, sending.partition_key) == (5, "k")
    assert sending.topic == "persistent://public/default/jobs"
    assert tombstone.payload_size == 0


async def test_sent_is_called_before_the_caller_goes_on(client: Client, seen: Recording) -> None:
    async with client.create_producer("jobs") as producer:
        await producer.send(b"one")
        assert seen.names()[-2:] == ["sending", "sent"]
        results: list[Any] = []
        producer.send_async(b"two", lambda result, _: results.append(result))
        await producer.flush()
        assert results == [encore.Result.Ok]
    assert len(seen.of("sent")) == 2


async def test_a_cancelled_send_has_ended_once(client: Client, seen: Recording) -> None:
    async with client.create_producer("jobs") as producer:
        task = asyncio.create_task(producer.send(b"one"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [type(error) for _, error in seen.of("sent")] == [asyncio.CancelledError]


async def test_a_failed_send_has_its_error(client: Client, seen: Recording) -> None:
    producer = await client.create_producer("jobs")
    sending = asyncio.create_task(producer.send(b"x" * 6_000_000))
    with pytest.raises(encore.MessageTooBig):
        await sending
    [(_, error)] = seen.of("sent")
    assert isinstance(error, encore.MessageTooBig)


async def test_consumers_and_producers_close_once(client: Client, seen: Recording) -> None:
    first = await client.subscribe("jobs", "one")
    second = await client.subscribe("jobs", "two")
    third = await client.subscribe("jobs", "three")
    producer = await client.create_producer("jobs")
    reader = await client.create_reader("jobs", encore.MessageId.earliest)
    await reader.close()
    await first.close()
    second.close_soon()
    third.abandon()
    producer.abandon()
    await client.close()
    assert [each for (each,) in seen.of("consumer_opened")] == [first, second, third]
    assert [each for (each,) in seen.of("consumer_closed")] == [first, second, third]
    assert seen.of("producer_opened") == seen.of("producer_closed") == [(producer,)]


async def test_events_need_no_listener(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    own: list[Any] = []
    silent = await client.subscribe("jobs", "one")
    listening = await client.subscribe("jobs", "two", event_listener=own.append)
    producer = await client.create_producer("jobs")
    transport.disconnect()
    await asyncio.sleep(30)
    consumers = {id(consumer) for consumer, _ in seen.of("consumer_event")}
    assert consumers == {id(silent), id(listening)}
    assert own == [event for each, event in seen.of("consumer_event") if each is listening]
    assert {producer} == {each for each, _ in seen.of("producer_event")}


async def test_letters_are_written_and_not_sent(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    consumer = await client.subscribe(
        "jobs",
        "worker",
        ConsumerType.Shared,
        retry_enable=True,
        dead_letter_policy=encore.DeadLetterPolicy(max_redeliver_count=1),
    )
    transport.put("jobs", b"one")
    await consumer.reconsume_later(await consumer.receive())
    await consumer.reconsume_later(await consumer.receive())
    assert [letter.kind for (letter,) in seen.of("letter_written")] == ["retry", "dead"]
    assert seen.of("letter_written")[0][0].subscription == "worker"
    assert seen.of("sending") == []


async def test_a_filling_window_is_reported_again_after_it_was_calm(
    client: Client, transport: MemoryTransport, seen: Recording
) -> None:
    consumer = await client.subscribe(
        "jobs", "worker", ConsumerType.Shared, max_unacked_messages=10
    )
    for expected in (1, 2):
        held = []
        for _ in range(9):
            transport.put("jobs", b"one")
            held.append(await consumer.receive())
        assert len(seen.of("window_filling")) == expected
        for each in held:
            await consumer.acknowledge(each)
    filling = seen.of("window_filling")[0][0]
    assert (filling.unacked, filling.size, filling.subscription) == (8, 10, "worker")


async def test_an_observer_that_fails_is_logged_once_and_breaks_nothing(
    transport: MemoryTransport, caplog: pytest.LogCaptureFixture, seen: Recording
) -> None:
    class Broken(encore.Observer):
        def sending(self, sending: encore.Sending) -> None:
            raise RuntimeError("no")

        def consumer_opened(self, consumer: encore.Consumer[Any]) -> None:
            raise RuntimeError("no")

    async with Client("memory://", transport=transport, observers=[Broken(), seen]) as client:
        await client.subscribe("jobs", "worker")
        async with client.create_producer("jobs") as producer:
            await producer.send(b"one")
            await producer.send(b"two")
    failures = [each for each in caplog.records if "the observer Broken" in each.getMessage()]
    assert len(failures) == 2
    assert all(each.exc_info is not None for each in failures)
    assert len(seen.of("sent")) == 2


async def test_an_observer_that_spoils_the_properties_breaks_nothing(
    transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    class Spoiling(encore.Observer):
        def sending(self, sending: encore.Sending) -> None:
            sending.properties["number"] = 1  # type: ignore[assignment]

    async with Client("memory://", transport=transport, observers=[Spoiling()]) as client:
        consumer = await client.subscribe("jobs", "worker")
        async with client.create_producer("jobs") as producer:
            await producer.send(b"one", {"a": "b"})
        assert (await consumer.receive()).properties() == {"a": "b"}
    assert "must be a string" in caplog.text
