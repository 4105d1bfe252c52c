"""Leases with a state directory survive the process: the message waits until its lease ends.

Until then another process can settle the message by the handle of the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from consumer_kit import TOPIC, now_s, put_numbers, receive_all
from durable_kit import Host

from pulsar_encore import (
    ConfigurationError,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    Lease,
    LeaseLostError,
    MessageNotHeldError,
)
from pulsar_encore.consumer.settlement.ack_sender import AckSender
from pulsar_encore.state.rocks import AttemptRecords, StateReader
from pulsar_encore.state.rocks.database import Database

BATCHES = pytest.mark.parametrize("batch", [1, 5])
WRITES = pytest.mark.parametrize("count", ["before", "lazy"])
ENDS = pytest.mark.parametrize("end", ["kill", "stop"])
LEASE = 600.0


@asynccontextmanager
async def ticking() -> AsyncIterator[None]:
    """While a thread opens or closes a state the clock runs on to whatever is next: to a tick."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.01)

    task = asyncio.ensure_future(tick())
    yield
    task.cancel()


async def end_process(host: Host, how: str) -> None:
    await (host.kill() if how == "kill" else host.stop())


async def pop_with_handles(consumer: Consumer, most: int, lease: float = LEASE) -> list[Lease]:
    """Pop leases and read their handles."""
    leases = await consumer.pop(most, lease=lease, wait=2 * LEASE)
    assert len({each.handle for each in leases}) == len(leases)
    return leases


async def pop_and_ack(consumer: Consumer, wait: float = 100_000) -> tuple[bytes, int, float]:
    (lease,) = await consumer.pop(1, wait=wait)
    await lease.ack()
    return lease.message.data(), lease.attempt, now_s()


async def start(host: Host, count: str = "before", **options: Any) -> Consumer:
    return await host.start(state={"count_attempts": count, "stay_buffer": 10}, **options)


@BATCHES
@WRITES
@ENDS
async def test_leased_messages_are_redelivered_when_their_leases_end_after_a_restart(
    host: Host, batch: int, count: str, end: str
) -> None:
    put_numbers(host.transport, 5, batch=batch)
    consumer = await start(host, count)
    begun = now_s()
    leases = await pop_with_handles(consumer, 5)
    await leases[3].ack()
    await leases[4].nack(delay=50)

    await asyncio.sleep(30)  # longer than hand-overs stay in memory
    await leases[0].extend(LEASE)
    await asyncio.sleep(3)
    await end_process(host, end)
    consumer = await start(host, count)
    redelivered = [await pop_and_ack(consumer) for _ in range(4)]
    assert [(data, attempt) for data, attempt, _ in redelivered] == [
        (b"4", 2),
        (b"1", 2),
        (b"2", 2),
        (b"0", 2),
    ]
    for (_, _, at), due in zip(redelivered, [50, LEASE, LEASE, 30 + LEASE], strict=True):
        assert begun + due <= at < begun + due + 2
    assert await consumer.pop(1, wait=2 * LEASE) == []


@ENDS
async def test_a_lease_without_a_handle_is_redelivered_at_once(host: Host, end: str) -> None:
    """Without a handle, no process could settle the lease."""
    put_numbers(host.transport, 1)
    consumer = await start(host)
    begun = now_s()
    (lease,) = await consumer.pop(1, lease=LEASE)
    await lease.extend(2 * LEASE)
    await asyncio.sleep(5)
    await end_process(host, end)
    consumer = await start(host)
    _, attempt, at = await pop_and_ack(consumer)
    assert at < begun + 7
    assert attempt == 2


@BATCHES
@ENDS
async def test_a_handle_acks_its_message_after_a_restart(host: Host, batch: int, end: str) -> None:
    put_numbers(host.transport, 5, batch=batch)
    consumer = await start(host)
    leases = await pop_with_handles(consumer, 5)
    for lease in leases[1:]:
        await lease.ack()
    await asyncio.sleep(2)  # acks are sent
    await end_process(host, end)
    consumer = await start(host)
    assert await receive_all(consumer) == []
    lease = await consumer.lease(leases[0].handle)
    assert lease.message_id == leases[0].message_id and lease.attempt == 1
    assert lease.handle == leases[0].handle
    with pytest.raises(MessageNotHeldError, match="not here until it is redelivered"):
        _ = lease.message
    await lease.ack()
    await lease.ack()
    with pytest.raises(LeaseLostError):
        await lease.nack()
    assert await consumer.pop(1, wait=3 * LEASE) == []
    assert host.transport.backlog(TOPIC, "s") == 0
    with pytest.raises(LeaseLostError):
        await consumer.lease(leases[0].handle)


@BATCHES
@ENDS
async def test_a_handle_nacks_its_message_after_a_restart(host: Host, batch: int, end: str) -> None:
    put_numbers(host.transport, 5, batch=batch)
    consumer = await start(host)
    leases = await pop_with_handles(consumer, 5)
    for lease in leases[1:]:
        await lease.ack()
    await end_process(host, end)
    consumer = await start(host, negative_ack_redelivery_delay_ms=7_000)
    await receive_all(consumer)
    begun = now_s()
    await (await consumer.lease(leases[0].handle)).nack()
    data, attempt, at = await pop_and_ack(consumer)
    assert (data, attempt) == (b"0", 2)
    assert begun + 7 <= at < begun + 9
    with pytest.raises(LeaseLostError):
        await consumer.lease(leases[0].handle)


@BATCHES
async def test_extensions_and_nacks_by_handle_survive_the_next_kill(host: Host, batch: int) -> None:
    put_numbers(host.transport, 5, batch=batch)
    consumer = await start(host)
    leases = await pop_with_handles(consumer, 5)
    begun = now_s()
    await host.kill()
    consumer = await start(host)
    await (await consumer.lease(leases[0].handle)).extend(2 * LEASE)
    await (await consumer.lease(leases[1].handle)).nack(delay=10)
    await (await consumer.lease(leases[2].handle)).extend(30)
    await host.kill()
    consumer = await start(host)
    await (await consumer.lease(leases[2].handle)).extend(60)
    redelivered = [await pop_and_ack(consumer) for _ in range(5)]
    expected = [(b"1", 10), (b"2", 60), (b"3", LEASE), (b"4", LEASE), (b"0", 2 * LEASE)]
    assert [(data, attempt) for data, attempt, _ in redelivered] == [
        (data, 2) for data, _ in expected
    ]
    for (_, _, at), (_, due) in zip(redelivered, expected, strict=True):
        assert begun + due <= at < begun + due + 5


async def test_a_handle_works_at_any_consumer_of_the_process_after_a_restart(host: Host) -> None:
    """The message waits at one of the consumers; the caller cannot know at which."""
    put_numbers(host.transport, 20)
    consumer = await start(host)
    await asyncio.sleep(1)  # all of it is here
    leases = await pop_with_handles(consumer, 20, 1_000_000)
    await host.kill()
    async with ticking():
        first, second = await start(host), await start(host)
    assert await receive_all(first) == [] == await receive_all(second)
    for lease in leases[:10]:
        await (await first.lease(lease.handle)).ack()
    begun = now_s()
    for lease in leases[10:]:
        await (await second.lease(lease.handle)).nack(delay=5)
    got = [await first.pop(20, wait=20), await second.pop(20, wait=20)]
    redelivered = sorted(each.message.data() for some in got for each in some)
    assert redelivered == sorted(b"%d" % each for each in range(10, 20))
    assert now_s() < begun + 30
    for some in got:
        for each in some:
            await each.ack()
    assert await first.pop(1, wait=2 * LEASE) == []
    assert await second.pop(1, wait=2 * LEASE) == []
    assert host.transport.backlog(TOPIC, "s") == 0


async def test_a_handle_of_a_live_consumer_is_refused_by_another_until_the_first_closes(
    host: Host,
) -> None:
    put_numbers(host.transport, 2)
    first = await start(host)
    leases = await pop_with_handles(first, 2, 1_000_000)
    async with ticking():
        second = await start(host)
    for lease in leases:
        with pytest.raises(LeaseLostError, match="another consumer"):
            await second.lease(lease.handle)
    async with ticking():
        await first.close()
    assert await receive_all(second) == []
    await (await second.lease(leases[0].handle)).ack()


async def test_a_handle_is_lost_once_its_message_is_leased_again(host: Host) -> None:
    put_numbers(host.transport, 1)
    consumer = await start(host)
    (old,) = await pop_with_handles(consumer, 1)
    await host.kill()
    consumer = await start(host)
    (new,) = await pop_with_handles(consumer, 1)
    with pytest.raises(LeaseLostError):
        await consumer.lease(old.handle)
    await host.kill()
    consumer = await start(host)
    with pytest.raises(LeaseLostError):
        await consumer.lease(old.handle)
    await (await consumer.lease(new.handle)).ack()


async def test_an_inherited_lease_that_is_used_after_its_end_is_lost(host: Host) -> None:

    put_numbers(host.transport, 1)
    consumer = await start(host)
    (old,) = await pop_with_handles(consumer, 1)
    await host.kill()
    consumer = await start(host)
    lease = await consumer.lease(old.handle)
    await asyncio.sleep(2 * LEASE)
    for call in (lease.ack, lease.nack, lambda: lease.extend(5)):
        with pytest.raises(LeaseLostError):
            await call()
    assert (await pop_and_ack(consumer))[:2] == (b"0", 2)


async def test_an_inherited_lease_is_kept_while_its_block_runs_up_to_the_limit(host: Host) -> None:

    put_numbers(host.transport, 1)
    consumer = await start(host)
    (old,) = await pop_with_handles(consumer, 1, 60)
    await host.kill()
    consumer = await start(host)
    lease: Lease = await consumer.lease(old.handle)
    async with lease.kept(limit=LEASE):
        assert await consumer.pop(1, wait=500) == []
        await lease.ack()
    lease = await start_again(host, consumer)
    with pytest.raises(LeaseLostError):
        async with lease.kept(limit=LEASE):
            await asyncio.sleep(2 * LEASE)


async def start_again(host: Host, consumer: Consumer) -> Lease:
    put_numbers(host.transport, 1)
    (old,) = await pop_with_handles(consumer, 1, 60)
    await host.kill()
    consumer = await start(host)
    return await consumer.lease(old.handle)


async def test_with_ordered_leases_a_key_waits_for_its_inherited_lease(host: Host) -> None:
    for number in range(3):
        host.transport.put(TOPIC, b"%d" % number, key="k")
    options: dict[str, Any] = {"consumer_type": ConsumerType.KeyShared, "ordered_leases": True}
    consumer = await start(host, **options)
    (old,) = await pop_with_handles(consumer, 1)
    await host.kill()
    consumer = await start(host, **options)
    assert await consumer.pop(3, wait=LEASE / 2) == []
    begun = now_s()
    await (await consumer.lease(old.handle)).nack(delay=20)
    assert (await pop_and_ack(consumer))[:2] == (b"0", 2)
    assert begun + 20 <= now_s() < begun + 23
    assert [(await pop_and_ack(consumer))[:2] for _ in range(2)] == [(b"1", 1), (b"2", 1)]


@BATCHES
async def test_a_leased_message_that_kills_its_process_is_dead_lettered(
    host: Host, batch: int
) -> None:
    put_numbers(host.transport, 5, batch=batch)
    policy = DeadLetterPolicy(2)
    attempts = []
    for _ in range(3):
        consumer = await start(host, dead_letter_policy=policy)
        while True:
            (lease,) = await pop_with_handles(consumer, 1, 60)
            if lease.message.data() == b"2":
                break
            await lease.ack()
        attempts.append(lease.attempt)
        await host.kill()
    consumer = await start(host, dead_letter_policy=policy)
    assert await consumer.pop(5, wait=LEASE) == []
    assert attempts == [1, 2, 3]
    assert host.transport.backlog(TOPIC, "s") == 0


async def test_redeliver_unacknowledged_messages_redelivers_leased_messages_at_once(
    host: Host,
) -> None:
    put_numbers(host.transport, 3)
    consumer = await start(host)
    await pop_with_handles(consumer, 3)
    begun = now_s()
    consumer.redeliver_unacknowledged_messages()
    again = await consumer.pop(3)
    assert len(again) == 3 and now_s() < begun + 2
    await host.kill()
    consumer = await start(host)
    assert len(await consumer.pop(3, wait=2 * LEASE)) == 3


async def test_malformed_and_forged_handles_are_refused(host: Host) -> None:
    put_numbers(host.transport, 2)
    consumer = await start(host)
    old, _ = await pop_with_handles(consumer, 2)
    await host.kill()
    consumer = await start(host)
    topic, message_number, granter, number, attempt, first = old.handle.split(".")
    for handle in (
        f"{topic}.{message_number}.{granter}.{number}.{attempt}",
        f"{topic}..{granter}.{number}.{attempt}.{first}",
        f"{topic}.AAAA.{granter}.{number}.{attempt}.{first}",
        f"{topic}.{message_number}.{granter}.{number}.-.{first}",
    ):
        with pytest.raises(ConfigurationError, match="handle"):
            await consumer.lease(handle)
    with pytest.raises(LeaseLostError):
        await consumer.lease(f"{topic}.{message_number}.{granter}.{number}.9.{first}")
    other = topic[:-4] + "AAAA"
    with pytest.raises((LeaseLostError, ConfigurationError)):
        await consumer.lease(f"{other}.{message_number}.{granter}.{number}.{attempt}.{first}")
    await (await consumer.lease(old.handle)).ack()


@WRITES
async def test_a_handle_stays_valid_when_siblings_in_its_batch_are_settled(
    host: Host, count: str
) -> None:
    put_numbers(host.transport, 5, batch=5)
    consumer = await start(host, count)
    handle = (await consumer.pop(5, lease=LEASE, wait=10))[0].handle
    await host.kill()
    consumer = await start(host, count)
    rest = await consumer.pop(5, lease=60, wait=10)
    assert sorted(each.message.data() for each in rest) == [b"1", b"2", b"3", b"4"]
    assert {each.handle for each in rest}
    await asyncio.sleep(30)  # longer than hand-overs stay in memory
    await (await consumer.lease(handle)).extend(LEASE)
    await rest[0].ack()
    await asyncio.sleep(2)  # the ack is sent
    await host.kill()
    consumer = await start(host, count)
    await (await consumer.lease(handle)).ack()
    again = await consumer.pop(5, wait=2 * LEASE)
    assert sorted((each.message.data(), each.attempt) for each in again) == [
        (each.message.data(), each.attempt + 1) for each in rest[1:]
    ]


@BATCHES
@WRITES
async def test_each_restart_counts_an_attempt_and_makes_old_handles_invalid(
    host: Host, batch: int, count: str
) -> None:
    put_numbers(host.transport, batch, batch=batch)
    handles: list[str] = []
    for attempt in range(1, 6):
        consumer = await start(host, count)
        leases = await consumer.pop(5, lease=60, wait=100)
        assert [each.attempt for each in leases] == [attempt] * batch
        old, handles = handles, [each.handle for each in leases]
        await host.kill()
        consumer = await start(host, count)
        for each in old:
            with pytest.raises(LeaseLostError):
                await consumer.lease(each)
        for each in handles:
            assert (await consumer.lease(each)).attempt == attempt
        await host.kill()
    consumer = await start(host, count)
    for each in handles:
        await (await consumer.lease(each)).ack()
    assert await consumer.pop(5, wait=2 * LEASE) == []


@WRITES
async def test_a_redelivered_message_that_is_leased_again_has_a_new_handle(
    host: Host, count: str
) -> None:
    put_numbers(host.transport, 1)
    consumer = await start(host, count)
    (old,) = await pop_with_handles(consumer, 1)
    consumer.redeliver_unacknowledged_messages()
    (new,) = await pop_with_handles(consumer, 1)
    assert new.attempt == 2
    await host.kill()
    consumer = await start(host, count)
    with pytest.raises(LeaseLostError):
        await consumer.lease(old.handle)
    await (await consumer.lease(new.handle)).ack()


async def test_a_copy_at_another_consumer_waits_until_the_extended_end_of_the_lease(
    host: Host,
) -> None:
    put_numbers(host.transport, 1)
    first = await start(host)
    (lease,) = await pop_with_handles(first, 1, 60)
    async with ticking():
        second = await start(host)
    for _ in range(40):  # until the broker gives it to the other one
        host.transport.disconnect()
        await asyncio.sleep(0.1)
        host.transport.reconnect()
        await asyncio.sleep(0.1)
        if second.statistics().nacked:
            break
        # Which consumer of two comes back first is the same each time: another one may be sooner.
        async with (
            ticking()
        ):  # the disk is closed in a thread, and the lease must not end meanwhile
            await second.close()
            second = await start(host)
    assert second.statistics().nacked == 1
    await lease.extend(LEASE)
    assert await second.pop(1, wait=100) == []
    await host.kill()
    consumer = await start(host)
    await (await consumer.lease(lease.handle)).ack()
    assert await consumer.pop(1, wait=2 * LEASE) == []


async def test_closing_with_2_000_extended_leases_writes_at_most_200_per_loop_pass(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_numbers(host.transport, 2_000)
    consumer = await start(host, receiver_queue_size=2_000)
    leases: list[Lease] = []
    while len(leases) < 2_000:
        leases += await pop_with_handles(consumer, 2_000)
    await asyncio.sleep(5)
    for lease in leases:
        await lease.extend(2 * LEASE)
    written, most = 0, 0
    write = AttemptRecords.record_lease

    def counted(*args: Any, **options: Any) -> None:
        nonlocal written, most
        written += 1
        most = max(most, written)
        write(*args, **options)

    async def turns() -> None:
        nonlocal written
        while True:
            written = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(AttemptRecords, "record_lease", counted)
    counting = asyncio.ensure_future(turns())
    await consumer.close()
    counting.cancel()
    assert 0 < most <= 200
    consumer = await start(host)
    for lease in leases[::100]:
        again = await consumer.lease(lease.handle)
        assert abs(again.expires_at - lease.expires_at) < timedelta(seconds=1)


@BATCHES
@WRITES
async def test_unsubscribe_deletes_the_records_and_due_times_of_leases(
    host: Host, batch: int, count: str
) -> None:
    put_numbers(host.transport, 10, batch=batch)
    consumer = await start(host, count)
    await pop_with_handles(consumer, 5)
    await host.kill()
    consumer = await start(host, count)
    leases = await pop_with_handles(consumer, 5)
    await asyncio.sleep(30)  # longer than hand-overs stay in memory
    for lease in leases[:3]:
        await lease.extend(2 * LEASE)
    await leases[0].ack()
    await leases[1].nack(delay=LEASE)
    await consumer.unsubscribe()
    with StateReader(host.path) as reader:
        assert list(reader.waiting()) == [] == list(reader.records())


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("settled", ["at once", "later"])
async def test_an_ack_by_handle_removes_the_message_at_whichever_consumer_it_waits(
    host: Host, ordered: bool, settled: str
) -> None:
    for number in range(20):
        host.transport.put(TOPIC, b"%d" % number, key=f"key-{number}")
    options: dict[str, Any] = {"consumer_type": ConsumerType.KeyShared, "ordered_leases": ordered}
    consumer = await start(host, **options)
    await asyncio.sleep(1)  # all of it is here
    leases = await pop_with_handles(consumer, 20)
    await host.kill()
    async with ticking():
        first, second = await start(host, **options), await start(host, **options)
    if settled == "later":
        await asyncio.sleep(3)
    for lease in leases:
        await (await second.lease(lease.handle)).ack()
    for number in range(20):
        host.transport.put(TOPIC, b"next %d" % number, key=f"key-{number}")
    begun, redelivered = now_s(), []
    while len(redelivered) < 20:
        for each in [*await first.pop(20, wait=1), *await second.pop(20, wait=1)]:
            redelivered.append(each.message.data())
            await each.ack()
    assert sorted(redelivered) == sorted(b"next %d" % number for number in range(20))
    assert now_s() < begun + 5
    assert await first.pop(1, wait=2 * LEASE) == [] == await second.pop(1, wait=2 * LEASE)
    assert host.transport.backlog(TOPIC, "s") == 0
    assert first.statistics().nacked == 0 == second.statistics().nacked
    await host.stop()
    with StateReader(host.path) as reader:
        assert list(reader.waiting()) == []


@pytest.mark.parametrize("again", ["seek", "lost ack"])
async def test_a_handle_from_before_a_seek_or_a_lost_ack_is_lost(host: Host, again: str) -> None:
    put_numbers(host.transport, 1)
    consumer = await start(host)
    (old,) = await pop_with_handles(consumer, 1)
    if again == "seek":
        await consumer.seek(0)
        await asyncio.sleep(1)
    else:
        host.transport.disconnect()
        await old.ack()
        await asyncio.sleep(3)  # longer than its record stays on disk
        await host.kill()
        host.transport.reconnect()
        consumer = await start(host)
    (new,) = await pop_with_handles(consumer, 1)
    assert new.attempt == 1
    await host.kill()
    consumer = await start(host)
    with pytest.raises(LeaseLostError):
        await consumer.lease(old.handle)
    await (await consumer.lease(new.handle)).ack()


async def test_the_last_nack_ends_its_lease_even_if_a_kill_follows_before_the_letter_is_stored(
    host: Host,
) -> None:
    put_numbers(host.transport, 1)
    policy = DeadLetterPolicy(1, dead_letter_topic="dead", initial_subscription_name="look")
    consumer = await start(host, dead_letter_policy=policy)
    (lease,) = await pop_with_handles(consumer, 1)
    await lease.nack(0)
    (lease,) = await pop_with_handles(consumer, 1)
    host.transport.disconnect()
    await lease.nack(0)  # no letter can be stored
    await host.kill()
    host.transport.reconnect()
    consumer = await start(host, dead_letter_policy=policy)
    with pytest.raises(LeaseLostError):
        await consumer.lease(lease.handle)
    assert await consumer.pop(1, wait=20) == []
    # The letter in flight may be stored over the next connection.
    assert host.transport.backlog("dead", "look") in (1, 2)


@pytest.mark.parametrize("ordered", [True, False])
async def test_redelivering_1_000_leased_messages_takes_at_most_5_writes(
    host: Host, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_numbers(host.transport, 1_000)
    options: dict[str, Any] = {"receiver_queue_size": 1_000}
    if ordered:
        options |= {"consumer_type": ConsumerType.KeyShared, "ordered_leases": True}
    consumer = await start(host, **options)
    leases: list[Lease] = []
    while len(leases) < 1_000:
        leases += await pop_with_handles(consumer, 1_000)
    writes = 0
    write = Database.write

    def counted(database: Database, what: Any) -> None:
        nonlocal writes
        writes += 1
        write(database, what)

    monkeypatch.setattr(Database, "write", counted)
    consumer.redeliver_unacknowledged_messages()
    assert 0 < writes <= 5
    assert {each.attempt for each in await consumer.pop(1_000, wait=10)} == {2}


async def test_acks_by_handle_start_no_retries_at_a_consumer_that_is_closing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_numbers(host.transport, 20)
    consumer = await start(host)
    await asyncio.sleep(1)  # all of it is here
    leases = await pop_with_handles(consumer, 20)
    await host.kill()
    async with ticking():
        first, second = await start(host), await start(host)
    tried, closing = 0, asyncio.Event()
    again = AckSender._retry_acks

    def counted(sender: AckSender) -> None:
        nonlocal tried
        tried += 1
        again(sender)

    monkeypatch.setattr(AckSender, "_retry_acks", counted)
    transport_consumer = host.transport.consumers[-1]
    close = transport_consumer.close

    async def slowly() -> None:
        closing.set()
        await close()
        await asyncio.sleep(5)

    monkeypatch.setattr(transport_consumer, "close", slowly)
    async with ticking():
        ending = asyncio.ensure_future(second.close())
        await closing.wait()
        await asyncio.sleep(1)
        for lease in leases:
            await (await first.lease(lease.handle)).ack()
        await ending
    await asyncio.sleep(60)
    assert tried == 0  # or its timers would never end
    assert await first.pop(1, wait=2 * LEASE) == []
