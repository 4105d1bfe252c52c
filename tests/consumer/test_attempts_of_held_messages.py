"""Attempts at messages that an application holds: at an orderly close, and of copies elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from consumer_kit import TOPIC, parts_of, put_numbers, receive_n, service_of, settle
from durable_kit import Host

from pulsar_encore import (
    Client,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    Message,
    MessageId,
    ReceiveTimeout,
    RocksState,
)
from pulsar_encore.state.rocks import StateReader
from pulsar_encore.testing import MemoryTransport

COUNTS = pytest.mark.parametrize("count_attempts", ["lazy", "before"])


async def by_client(client: Client, consumer: Consumer) -> None:
    await client.close()


async def by_consumer(client: Client, consumer: Consumer) -> None:
    await consumer.close()
    await client.close()


async def by_context(client: Client, consumer: Consumer) -> None:
    async with consumer:
        pass
    await client.close()


async def by_cancelled_task(client: Client, consumer: Consumer) -> None:
    async def work() -> None:
        async with client, consumer:
            await asyncio.sleep(3_600)

    task = asyncio.ensure_future(work())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_shutdown(client: Client, consumer: Consumer) -> None:
    client.shutdown()
    await settle()


@COUNTS
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Exclusive])
@pytest.mark.parametrize(
    "close", [by_client, by_consumer, by_context, by_cancelled_task, by_shutdown]
)
async def test_an_orderly_close_counts_the_attempts_of_held_messages(
    host: Host,
    transport: MemoryTransport,
    close: Callable[[Client, Consumer], Awaitable[None]],
    kind: ConsumerType,
    batch: int,
    count_attempts: str,
) -> None:
    put_numbers(transport, 10, batch=batch)
    options: dict[str, Any] = {
        "state": {"count_attempts": count_attempts},
        "consumer_type": kind,
    }
    for attempt in range(3):
        consumer = await host.start(**options)
        (client,) = host.running
        messages = await receive_n(consumer, 10)
        assert [each.redelivery_count() for each in messages[:5]] == [attempt] * 5
        if attempt == 0:
            assert [each.redelivery_count() for each in messages[5:]] == [0] * 5
            for message in messages[5:]:
                await consumer.acknowledge(message)
            put_numbers(transport, 5, batch=batch)
            await consumer._settle_and_send()
        else:
            # Messages that were queued and not handed out have no attempt.
            assert [each.redelivery_count() for each in messages[5:]] == [attempt - 1] * 5
        await close(client, consumer)
        host.running.clear()


@COUNTS
async def test_an_orderly_close_counts_the_attempts_of_leased_messages(
    host: Host, transport: MemoryTransport, count_attempts: str
) -> None:
    put_numbers(transport, 4, batch=2)
    for attempt in (1, 2, 3):
        consumer = await host.start(state={"count_attempts": count_attempts})
        leases = await consumer.pop(lease=1000)
        assert [lease.attempt for lease in leases] == [attempt] * 4
        await host.stop()


async def test_closing_with_50_000_held_messages_writes_at_most_500_entries_per_step(
    host: Host, transport: MemoryTransport
) -> None:
    put_numbers(transport, 50_000, batch=10)
    consumer = await host.start(state={"count_attempts": "lazy"}, receiver_queue_size=50_000)
    await receive_n(consumer, 50_000)
    durability = parts_of(consumer).state_writer
    assert durability is not None
    entries = 0
    steps = []
    for _ in durability._write_all_held():
        counts = durability.statistics()
        assert counts is not None
        written = counts.entries
        steps.append(written - entries)
        entries = written
    assert entries == 5_000 and max(steps) <= 500


# Copies that several consumers of a process have


async def two(client: Client, path: Path, **options: Any) -> tuple[Consumer, Consumer]:
    async def subscribe() -> Consumer:
        return await client.subscribe(
            TOPIC,
            "s",
            consumer_type=ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            state=RocksState(path, count_attempts=options.get("count_attempts")),
            dead_letter_policy=options.get("dead_letter_policy"),
            negative_ack_redelivery_delay_ms=1_000,
            receiver_queue_size=4,
            batch_index_ack_enabled=True,
        )

    return await subscribe(), await subscribe()


async def fail_until_the_other_has_it(holder: Consumer, heir: Consumer, failing: Message) -> None:
    """Nack a message of a batch until the broker sends the batch to the other consumer."""
    for _ in range(20):
        await holder.negative_acknowledge(failing, 0)
        await asyncio.sleep(1)
        if heir.statistics().queued:
            return
        failing = await holder.receive()
        assert failing.data() == b"0"
    raise AssertionError("the broker sent the batch to one consumer only")


async def queued_at_one(
    client: Client, path: Path, transport: MemoryTransport, **options: Any
) -> tuple[Consumer, Consumer]:
    """Two consumers; the first has a batch of two queued."""
    one, other = await two(client, path, **options)
    put_numbers(transport, 2, batch=2)
    await settle()
    return (one, other) if one.statistics().queued else (other, one)


def count_of_1(messages: list[Message]) -> int:
    (count,) = [each.redelivery_count() for each in messages if each.data() == b"1"]
    return count


@COUNTS
@pytest.mark.parametrize("by_list", [False, True])
async def test_the_delivery_of_a_copy_that_was_queued_early_is_the_next_attempt(
    transport: MemoryTransport, client: Client, tmp_path: Path, count_attempts: str, by_list: bool
) -> None:
    """Each of two consumers has a copy of message 2 queued when the first of them takes it.

    The ack of message 0 sets the broker's redelivery count back to 0, so both copies come with a
    count of 1.
    """
    consumers = [
        *await two(client, tmp_path, count_attempts=count_attempts),
        *await two(client, tmp_path, count_attempts=count_attempts),
    ]

    async def queued() -> Consumer:
        await asyncio.sleep(1)
        (found,) = [each for each in consumers if each.statistics().queued]
        consumers.remove(found)
        return found

    put_numbers(transport, 3, batch=3)
    first = await queued()
    await first.negative_acknowledge(await first.receive(), 0)
    second = await queued()
    await second.acknowledge(await second.receive())
    await second._settle_and_send()
    await second.negative_acknowledge(await second.receive(), 0)
    third = await queued()
    one = await second.receive(timeout=1)
    assert (one.data(), one.redelivery_count()) == (b"2", 1)
    await second.negative_acknowledge(one, 3_600)
    copies = await third.batch_receive() if by_list else await receive_n(third, 2)
    assert [(each.data(), each.redelivery_count()) for each in copies][-1] == (b"2", 2)


@COUNTS
async def test_a_copy_of_a_message_held_by_another_consumer_is_the_next_attempt(
    transport: MemoryTransport, client: Client, tmp_path: Path, count_attempts: str
) -> None:
    """Neither attempt has failed when the copy arrives."""
    holder, heir = await queued_at_one(client, tmp_path, transport, count_attempts=count_attempts)
    failing, held = await receive_n(holder, 2)
    await fail_until_the_other_has_it(holder, heir, failing)
    copies = await receive_n(heir, 2)
    assert count_of_1(copies) == 1
    await holder.negative_acknowledge(held, 10)
    for copy in copies:
        await heir.negative_acknowledge(copy, 3_600 if copy.data() == b"0" else 10)
    got = []
    for consumer in (holder, heir):
        with suppress(ReceiveTimeout):
            got.append(await consumer.receive(timeout=30))
    assert max(each.redelivery_count() for each in got if each.data() == b"1") == 2


@COUNTS
async def test_the_dead_letter_policy_counts_deliveries_of_copies(
    transport: MemoryTransport, client: Client, tmp_path: Path, count_attempts: str
) -> None:
    """Two attempts are allowed: one at each consumer."""
    options = {"dead_letter_policy": DeadLetterPolicy(1), "count_attempts": count_attempts}
    holder, heir = await queued_at_one(client, tmp_path, transport, **options)
    failing, held = await receive_n(holder, 2)
    await fail_until_the_other_has_it(holder, heir, failing)
    await holder.negative_acknowledge(held, 3_600)
    for copy in await receive_n(heir, 2):
        await heir.negative_acknowledge(copy)
    async with await client.create_reader(f"{TOPIC}-s-DLQ", MessageId.earliest) as reader:
        letters = [await reader.read_next(timeout_millis=5_000) for _ in range(2)]
    assert {each.data() for each in letters} == {b"0", b"1"}


async def close_first(transport: MemoryTransport) -> None:
    """The broker gives the messages of the first consumer to the others, and closes it."""
    service = service_of(transport)
    state = transport.state(TOPIC)
    subscription = state.subscriptions["s"]
    first = subscription.consumers[0]
    subscription.remove_consumer(first, service.clock.wall_ms())
    service.scheduler.wake(state, subscription)
    await settle()
    service.close_consumers([first])
    await settle()


@COUNTS
@pytest.mark.parametrize("policy", [None, DeadLetterPolicy(3)])
async def test_copies_of_plain_messages_held_by_another_consumer_are_their_next_attempt(
    transport: MemoryTransport,
    client: Client,
    tmp_path: Path,
    count_attempts: str,
    policy: DeadLetterPolicy | None,
) -> None:
    """The broker counts no redelivery when it closes a consumer."""
    options = {"count_attempts": count_attempts, "dead_letter_policy": policy}
    holder, heir = await two(client, tmp_path, **options)
    put_numbers(transport, 4)
    held = await receive_n(holder, 4)
    await close_first(transport)
    copies = await receive_n(heir, 4)
    assert [(each.data(), each.attempt) for each in copies] == [(each.data(), 2) for each in held]


@COUNTS
@pytest.mark.parametrize("wait_s", [0, 1.5])
@pytest.mark.parametrize("policy", [None, DeadLetterPolicy(3)])
async def test_the_ack_of_a_copy_ends_the_record_of_another_consumer(
    transport: MemoryTransport,
    client: Client,
    tmp_path: Path,
    count_attempts: str,
    wait_s: float,
    policy: DeadLetterPolicy | None,
) -> None:
    options = {"count_attempts": count_attempts, "dead_letter_policy": policy}
    holder, heir = await two(client, tmp_path, **options)
    put_numbers(transport, 4)
    held = await receive_n(holder, 4)
    await close_first(transport)
    copies = await receive_n(heir, 4)
    await asyncio.sleep(wait_s)
    for message in held:
        await holder.negative_acknowledge(message, 3_600)
    for copy in copies:
        await heir.acknowledge(copy)
    await client.close()
    with StateReader(tmp_path) as reader:
        assert list(reader.waiting()) == [] and list(reader.records()) == []
