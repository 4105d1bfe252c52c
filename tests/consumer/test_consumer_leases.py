"""Leases: messages taken for a time, settled, extended, lost; who gets which, and who waits."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from consumer_kit import (
    REDELIVER,
    TOPIC,
    Subscribe,
    close_without_backlog,
    counted,
    now_s,
    parts_of,
    payloads,
    put_numbers,
    receive_all,
    receive_n,
    settle,
)

from pulsar_encore import (
    ClosedError,
    ConfigurationError,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    InvalidConfiguration,
    Lease,
    LeaseLostError,
    MessageId,
    WrongLoopError,
)
from pulsar_encore.consumer.consumer_factory import make_consumer, open_transport_consumer
from pulsar_encore.options import ConsumerOptions, InitialPosition
from pulsar_encore.testing import MemoryTransport

DEAD = "persistent://public/default/dead"
LATE_S = 0.15  # a bucket of 64 ms, one of the nack that follows, and the way to the broker
SHARING = pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])


async def pop_one(consumer: Consumer, lease: float = 60, wait: float = 1000) -> Lease:
    (found,) = await consumer.pop(1, lease=lease, wait=wait)
    return found


def words(leases: list[Lease]) -> list[bytes]:
    return payloads([lease.message for lease in leases])


def few(consumer: Consumer, leases: int) -> None:
    """Lower the bound on open leases from ten thousand to `leases`."""
    parts_of(consumer).leases.most = leases


# Taking


@SHARING
@pytest.mark.parametrize("batch", [1, 7])
async def test_a_backlog_larger_than_the_queue_is_popped_once(
    transport: MemoryTransport, subscribe: Subscribe, batch: int, kind: ConsumerType
) -> None:
    numbers = put_numbers(transport, 500, batch=batch)
    consumer = await subscribe(receiver_queue_size=20, consumer_type=kind)
    got = []
    while leases := await consumer.pop(wait=1):
        assert len(leases) <= 32
        got += words(leases)
        for lease in leases:
            await lease.ack()
    assert got == numbers
    await close_without_backlog(transport, consumer)


async def test_a_pop_waits_only_for_the_first_message_and_returns_all_queued_ones(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe()
    began = now_s()
    assert await consumer.pop(wait=5) == []
    assert 5 <= now_s() - began < 5.01
    assert await consumer.pop(wait=0) == []
    pop = asyncio.ensure_future(consumer.pop(wait=timedelta(hours=1)))
    await asyncio.sleep(7)
    began = now_s()
    put_numbers(transport, 3, batch=3)
    assert words(await pop) == [b"0", b"1", b"2"]
    assert now_s() - began < 0.1
    put_numbers(transport, 3, batch=3)
    await settle()
    assert words(await consumer.pop(2, wait=0)) == [b"0", b"1"]


async def test_unsettled_messages_of_a_closed_consumer_go_to_the_other_consumer(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    numbers = put_numbers(transport, 60, batch=3)
    one = await subscribe(receiver_queue_size=6)
    other = await subscribe(receiver_queue_size=6)
    got: dict[Consumer, list[Lease]] = {one: [], other: []}
    for _ in range(5):
        for consumer in got:
            got[consumer] += await consumer.pop(5, wait=1, lease=10_000)
    for lease in got[one]:
        await lease.ack()
    acked = words(got[one])
    assert got[one] and got[other]
    await other.close()
    rest = []
    while leases := await one.pop(wait=5):
        rest += words(leases)
        for lease in leases:
            await lease.ack()
    assert sorted(acked + rest) == sorted(numbers)


async def test_a_pop_requests_messages_with_a_receiver_queue_size_of_zero(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 3)
    consumer = await subscribe(receiver_queue_size=0)
    assert [(await pop_one(consumer)).message.data() for _ in range(3)] == [b"0", b"1", b"2"]


async def test_one_pop_in_five_takes_failed_messages_first(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """The failed message came last: behind 100 fresh ones, it is the fifth pop's."""
    numbers = put_numbers(transport, 101)
    consumer = await subscribe(receiver_queue_size=1000)
    await (await pop_one(consumer)).nack(0)
    for _ in range(100):  # all fresh ones are here before it comes again
        await asyncio.sleep(0)
    await asyncio.sleep(1)
    assert consumer.statistics().queued == 101
    got = [(await pop_one(consumer)) for _ in range(10)]
    assert [lease.attempt for lease in got] == [1, 1, 1, 2, 1, 1, 1, 1, 1, 1]  # the first made five
    assert words(got) == [*numbers[1:4], b"0", *numbers[4:10]]
    rest = await receive_all(consumer)
    assert payloads(rest) == numbers[10:]
    stats = consumer.statistics()
    assert (stats.queued, stats.in_flight, stats.leased) == (0, 101, 10)


@pytest.mark.parametrize("batch", [1, 4])
async def test_a_pop_that_takes_failed_messages_first_fills_up_with_new_ones(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    numbers = put_numbers(transport, 200, batch=batch)
    consumer = await subscribe(receiver_queue_size=1000)
    taken: list[Lease] = []
    for _ in range(4):
        taken += await consumer.pop(8)
    failed = taken[::3]
    for lease in failed:
        await lease.nack(0)
    await asyncio.sleep(1)
    fifth = await consumer.pop(len(failed) + 5)
    assert sorted(words(fifth)[: len(failed)]) == sorted(words(failed))
    assert {lease.attempt for lease in fifth[: len(failed)]} == {2}
    assert words(fifth)[len(failed) :] == numbers[32:37]
    rest = [lease for _ in range(6) for lease in await consumer.pop(50, wait=1)]
    kept = [lease for lease in taken if lease not in failed]
    assert sorted(words(kept + fifth + rest)) == sorted(numbers)
    for lease in kept + fifth + rest:
        await lease.ack()
    await close_without_backlog(transport, consumer)


# Settling


async def test_a_nack_of_a_lease_waits_for_its_delay_and_refuses_a_bad_one(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe(negative_ack_redelivery_delay_ms=3_000)
    lease = await pop_one(consumer)
    with pytest.raises(ConfigurationError, match="delay"):
        await lease.nack(-1)
    with pytest.raises(ConfigurationError):
        await lease.nack(error=5)  # type: ignore[arg-type]
    for delay, took in ((30, 30), (None, 3), (timedelta(minutes=1), 60)):
        began = now_s()
        await lease.nack(delay)
        for call in (lease.ack, lease.nack, partial(lease.extend, 5)):
            with pytest.raises(LeaseLostError, match="nacked"):
                await call()
        attempt = lease.attempt
        lease = await pop_one(consumer)
        assert lease.attempt == attempt + 1
        assert took <= now_s() - began <= took + 1


async def test_an_acked_lease_accepts_another_ack_and_refuses_a_nack_or_extension(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2, batch=2)
    consumer = await subscribe()
    lease, other = await consumer.pop()
    await lease.ack()
    await lease.ack()
    for call in (lease.nack, partial(lease.extend, 5)):
        with pytest.raises(LeaseLostError, match="acked"):
            await call()
    await other.ack()
    assert await receive_all(consumer, 200) == []
    assert transport.recorded(REDELIVER) == []
    assert transport.backlog(TOPIC, "s") == 0


async def test_a_lease_is_lost_when_another_call_settles_its_message(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 3)
    consumer = await subscribe()
    acked, nacked, forgotten = await consumer.pop(lease=10)
    await consumer.acknowledge(acked.message)
    await consumer.negative_acknowledge(nacked.message, delay=100)
    for lease in (acked, nacked):
        with pytest.raises(LeaseLostError, match="by another call"):
            await lease.extend(50)
    await consumer.acknowledge(forgotten.message)
    assert consumer.statistics().leased == 1
    await asyncio.sleep(11)
    assert consumer.statistics().leased == 0
    assert payloads(await receive_all(consumer, 200)) == [b"1"]


async def test_an_ack_of_a_lease_waits_for_its_receipt_and_is_sent_even_if_cancelled(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe(ack_receipt_enabled=True)
    lease, other = await consumer.pop()
    await lease.ack()
    assert transport.backlog(TOPIC, "s") == 1
    transport.disconnect()
    ack = asyncio.ensure_future(other.ack())
    await settle()
    assert not ack.done()
    ack.cancel()
    transport.reconnect()
    await asyncio.sleep(5)
    assert transport.backlog(TOPIC, "s") == 0


# Time


@pytest.mark.parametrize("length", [0.001, 0.9, 10, 3600])
@pytest.mark.parametrize("batch", [1, 3])
async def test_an_expired_lease_redelivers_only_its_own_message(
    transport: MemoryTransport, subscribe: Subscribe, length: float, batch: int
) -> None:
    put_numbers(transport, 3, batch=batch)
    consumer = await subscribe()
    acked, kept, expired = await consumer.pop(lease=length)
    began = now_s()
    await kept.extend(100_000)
    await acked.ack()
    again = await pop_one(consumer, wait=100_000)
    assert again.message.data() == expired.message.data()
    assert (expired.attempt, again.attempt) == (1, 2)
    assert length <= now_s() - began <= length + LATE_S
    for call in (expired.ack, expired.nack, partial(expired.extend, 1)):
        with pytest.raises(LeaseLostError, match="expired"):
            await call()
    await again.ack()
    await kept.ack()
    assert await receive_all(consumer, 200) == []
    assert transport.backlog(TOPIC, "s") == 0


async def test_extending_moves_the_end_of_a_lease_later_or_earlier(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe()
    began = now_s()
    longer, shorter = await consumer.pop(lease=60)
    await longer.extend(100)
    await shorter.extend(timedelta(seconds=5))
    assert (longer.expires_at - shorter.expires_at).total_seconds() == 95
    assert longer.expires_at.tzinfo is UTC
    again = await pop_one(consumer, lease=1000)
    assert again.message.data() == shorter.message.data()
    assert 5 <= now_s() - began <= 5 + LATE_S
    again = await pop_one(consumer)
    assert again.message.data() == longer.message.data()
    assert 100 <= now_s() - began <= 100 + LATE_S


async def test_expires_at_is_a_wall_clock_time(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    wall = asyncio.get_running_loop().wall_time  # type: ignore[attr-defined]
    lease = await pop_one(consumer, lease=90)
    left = lease.expires_at - datetime.fromtimestamp(wall(), UTC)
    assert timedelta(seconds=89.99) < left < timedelta(seconds=90.01)
    assert repr(lease).startswith("<Lease on ") and "until" in repr(lease)


async def test_each_of_3_000_leases_that_expire_together_is_redelivered_once(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 3_000, batch=50)
    consumer = await subscribe()
    taken = 0
    while taken < 3_000:
        taken += len(await consumer.pop(1_000, lease=50))
    assert consumer.statistics().leased == 3_000
    began = now_s()
    again = []
    while leases := await consumer.pop(5_000, wait=100, lease=10_000):
        again += leases
        assert 49 <= now_s() - began <= 52
    assert len({*words(again)}) == len(again) == 3_000
    assert {lease.attempt for lease in again} == {2}


async def test_an_expired_lease_that_cannot_be_nacked_does_not_delay_the_others(
    transport: MemoryTransport, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    put_numbers(transport, 5)
    consumer = await subscribe()
    await consumer.pop(lease=10)
    router = parts_of(consumer).nack_handler
    nack, calls = router.nack, []

    def fails_once(message: Any, *args: Any) -> None:
        calls.append(message)
        if len(calls) == 2:
            raise OSError("no space left")
        nack(message, *args)

    monkeypatch.setattr(router, "nack", fails_once)
    # A dead letter policy or a state also makes each expiry do some work.
    monkeypatch.setattr(router, "redeliver_expired", lambda state, held: False)
    assert len(await consumer.pop(wait=100, lease=1000)) == 4
    began = now_s()
    assert (await pop_one(consumer)).message.data() == b"1"
    assert 0.5 <= now_s() - began <= 1.2
    assert "could not be nacked" in caplog.text


async def test_an_expired_lease_counts_an_attempt_of_the_dead_letter_policy(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    options = ConsumerOptions(
        topics=(TOPIC,),
        pattern=None,
        subscription_name="s",
        consumer_type=ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        dead_letter_policy=DeadLetterPolicy(max_redeliver_count=2, dead_letter_topic=DEAD),
    )
    transport_consumer = await open_transport_consumer(transport, options)
    consumer = make_consumer(transport, transport_consumer, options, lambda _: None)
    reader = await subscribe(DEAD, subscription_name="d")
    attempts = [(await pop_one(consumer, lease=5)).attempt for _ in range(3)]
    assert attempts == [1, 2, 3]
    letter = await reader.receive(timeout=100)
    assert letter.data() == b"0"
    assert "the lease expired" in letter.properties().values()
    assert await consumer.pop(wait=100) == []
    await close_without_backlog(transport, consumer)


async def test_no_ack_timeout_runs_for_a_leased_message(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 4, batch=2)
    consumer = await subscribe(unacked_messages_timeout_ms=10_000)
    leases = await consumer.pop(3, lease=100)
    received = await consumer.receive()
    began = now_s()
    back = await consumer.receive()
    assert back.data() == received.data() and 10 <= now_s() - began <= 11
    await consumer.acknowledge(back)
    again = await consumer.pop(lease=1000, wait=200)
    assert words(again) == words(leases)[: len(again)]
    assert 100 <= now_s() - began <= 100 + LATE_S


# Handles


async def test_a_handle_finds_its_lease_and_no_other(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    old = (await pop_one(consumer, lease=1)).handle
    again = await pop_one(consumer)
    assert again.handle == again.handle != old
    with pytest.raises(LeaseLostError, match="has ended"):
        await consumer.lease(old)
    parts = again.handle.split(".")
    bad: Any
    for bad in ("", "a.b.c.d", "x", again.handle + "g", "é" + again.handle, None, b"x", 7):
        with pytest.raises(ConfigurationError, match="handle"):
            await consumer.lease(bad)
    forged = f"{old.split('.')[0][:-2]}.{again.handle.split('.', 1)[1]}"
    with pytest.raises(ConfigurationError, match="handle"):
        await consumer.lease(forged)
    with pytest.raises(LeaseLostError, match="has ended"):
        await consumer.lease(".".join([*parts[:3], "ffff", *parts[4:]]))
    other = await subscribe()
    with pytest.raises(LeaseLostError, match="another consumer"):
        await other.lease(again.handle)
    found = await consumer.lease(again.handle)
    assert (found.message, found.attempt) == (again.message, 2)
    await found.ack()
    await again.ack()  # harmless
    with pytest.raises(LeaseLostError, match="acked or nacked"):
        await consumer.lease(again.handle)


# Blocks that keep a lease


async def test_a_kept_lease_lasts_beyond_its_time_up_to_the_limit(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe()
    lease = await pop_one(consumer, lease=10)
    async with lease.kept():
        await asyncio.sleep(1_000)
        await lease.ack()
        await asyncio.sleep(1_000)  # settled is not lost
    lease, began = await pop_one(consumer, lease=10), now_s()
    with pytest.raises(LeaseLostError, match="expired"):
        async with lease.kept(limit=100):
            await asyncio.sleep(1_000)
    assert 100 <= now_s() - began <= 100 + LATE_S
    current = asyncio.current_task()
    assert current is not None and current.cancelling() == 0


async def test_a_kept_block_never_shortens_its_lease_and_stops_extending_it_at_the_end(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    lease = await pop_one(consumer, lease=10)
    await lease.extend(500)
    before = lease.expires_at
    async with lease.kept():
        await asyncio.sleep(100)
        assert abs(lease.expires_at - before) < timedelta(seconds=0.01)
        with pytest.raises(ConfigurationError, match="another block"):
            async with lease.kept():
                pass
    began = now_s()
    await pop_one(consumer)
    assert 399 <= now_s() - began <= 401


@pytest.mark.parametrize("seconds", [0.1, 5, 3_000])
async def test_a_lease_extended_inside_its_kept_block_is_still_kept(
    transport: MemoryTransport, subscribe: Subscribe, seconds: float
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    lease = await pop_one(consumer, lease=30)
    async with lease.kept():
        await asyncio.sleep(1)
        await lease.extend(seconds)
        await asyncio.sleep(10_000)
        await lease.ack()


async def test_leases_settled_early_leave_few_timer_buckets_until_their_ends(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """Of 12 hours each, they would be 50 MB."""
    put_numbers(transport, 2_000)
    consumer = await subscribe()
    kept = await pop_one(consumer, lease=3 * 3600)
    for _ in range(1_999):
        await (await pop_one(consumer, lease=2 * 3600)).ack()
        await asyncio.sleep(0.064)
    leases = parts_of(consumer).leases
    assert len(leases._buckets) == len(leases._edges) < 200
    began = now_s()
    (again,) = await consumer.pop(wait=4 * 3600)
    assert again.message.data() == kept.message.data()
    assert abs(now_s() - began - 3 * 3600 + 1_999 * 0.064) < LATE_S


@pytest.mark.parametrize("how", ["seek", "close", "redeliver", "unsubscribe"])
async def test_a_kept_block_is_cancelled_when_its_lease_is_lost(
    transport: MemoryTransport, subscribe: Subscribe, how: str
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    lease = await pop_one(consumer)

    async def work() -> None:
        async with lease.kept():
            await asyncio.sleep(1_000_000)

    task = asyncio.ensure_future(work())
    await settle()
    match how:
        case "seek":
            await consumer.seek(MessageId.earliest)
        case "close":
            await consumer.close()
        case "unsubscribe":
            await consumer.unsubscribe()
        case _:
            consumer.redeliver_unacknowledged_messages()
    with pytest.raises(LeaseLostError):
        await asyncio.wait_for(task, 1)
    with pytest.raises(LeaseLostError):
        await lease.ack()
    heir = consumer if how in ("seek", "redeliver") else await subscribe()
    assert len(await heir.pop(wait=10)) == 1


async def test_a_kept_block_cancelled_from_outside_raises_no_lease_lost_error(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    lease = await pop_one(consumer)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(100), lease.kept():
            await asyncio.sleep(1_000)

    async def work() -> None:
        async with lease.kept():
            await asyncio.sleep(1_000)

    task = asyncio.ensure_future(work())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    await lease.ack()


@pytest.mark.parametrize("first", ["outside", "lost"])
async def test_a_kept_block_cancelled_and_lost_at_once_raises_cancelled_error(
    transport: MemoryTransport, subscribe: Subscribe, first: str
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    lease = await pop_one(consumer)

    async def work() -> None:
        async with lease.kept():
            await asyncio.sleep(1_000)

    task = asyncio.ensure_future(work())
    await settle()
    loop = asyncio.get_running_loop()
    if first == "outside":
        task.cancel()
        consumer.redeliver_unacknowledged_messages()
    else:
        consumer.redeliver_unacknowledged_messages()
        loop.call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_raised_by_a_kept_block_is_not_replaced(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe()
    for error in (KeyError("x"), None):
        lease = await pop_one(consumer, lease=5)
        with pytest.raises(KeyError if error else LeaseLostError):
            async with lease.kept(limit=1):
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    if error is not None:
                        raise error from None


async def test_a_kept_block_that_raises_lease_lost_error_itself_is_not_cancelled_later(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    lease = await pop_one(consumer)
    with pytest.raises(LeaseLostError, match="by another call"):
        async with lease.kept():
            await consumer.acknowledge(lease.message)
            await lease.extend(10)
    await asyncio.sleep(1)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    with pytest.raises(LeaseLostError):
        async with lease.kept():
            pytest.fail("a lost lease is not kept")


# Who waits


async def test_a_cancelled_pop_loses_no_message(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe()
    pops = [asyncio.ensure_future(consumer.pop(1, wait=1000)) for _ in range(6)]
    await settle()
    numbers = put_numbers(transport, 3)
    pops[0].cancel()
    await asyncio.sleep(1)
    pops[-1].cancel()
    done = [pop for pop in pops if pop.done() and not pop.cancelled()]
    assert [words(pop.result()) for pop in done] == [[number] for number in numbers]
    await consumer.close()
    for pop in pops[4:-1]:
        with pytest.raises(ClosedError):
            await pop


@pytest.mark.parametrize("passes", range(8))
async def test_a_pop_cancelled_at_any_loop_pass_loses_no_message(
    transport: MemoryTransport, subscribe: Subscribe, passes: int
) -> None:
    consumer = await subscribe()
    pop = asyncio.ensure_future(consumer.pop(wait=1000))
    await settle()
    numbers = put_numbers(transport, 3)
    for _ in range(passes):
        await asyncio.sleep(0)
    pop.cancel()
    got = []
    try:
        got = words(await pop)
    except asyncio.CancelledError:
        got = words(await consumer.pop(wait=10))
    assert got == numbers


async def test_waiting_pops_are_served_in_order_and_none_starves(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe()
    order = []

    async def worker(name: int) -> None:
        while leases := await consumer.pop(1, wait=50):
            order.append(name)
            await leases[0].ack()

    workers = [asyncio.ensure_future(worker(name)) for name in range(5)]
    await settle()
    for _ in range(20):
        put_numbers(transport, 5)
        await asyncio.sleep(0.1)
    await asyncio.gather(*workers)
    assert [order.count(name) for name in range(5)] == [20] * 5


async def test_pops_wait_while_the_maximum_of_leases_is_open(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 6)
    consumer = await subscribe()
    few(consumer, 2)
    out = await consumer.pop(lease=100)
    assert len(out) == 2
    began = now_s()
    assert await consumer.pop(wait=1) == []
    assert 1 <= now_s() - began < 1.01
    waiting = [asyncio.ensure_future(consumer.pop(wait=1000, lease=5000)) for _ in range(4)]
    await settle()
    late = asyncio.ensure_future(consumer.pop(wait=2))
    await out[0].ack()
    await settle()
    assert [pop.done() for pop in waiting] == [True, False, False, False]
    await asyncio.sleep(5)
    assert late.result() == []
    waiting[1].cancel()
    await settle()
    await waiting[0].result()[0].nack(5_000)
    await settle()
    assert waiting[2].done() and not waiting[3].done()
    assert (await waiting[3]) and now_s() - began >= 99  # the other expired
    assert consumer.statistics().leased == 2
    blocked = asyncio.ensure_future(consumer.pop(wait=1000))
    await settle()
    await consumer.close()
    with pytest.raises(ClosedError):
        await blocked


async def test_waiting_receive_and_pop_calls_are_served_in_their_order(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer = await subscribe()
    first = asyncio.ensure_future(consumer.receive())
    await settle()
    pop = asyncio.ensure_future(consumer.pop(1, lease=10))
    await settle()
    last = asyncio.ensure_future(consumer.receive())
    await settle()
    put_numbers(transport, 3)
    assert (await first).data() == b"0"
    assert words(await pop) == [b"1"]
    assert (await last).data() == b"2"
    again = await receive_all(consumer, 100)  # only the leased one has a time
    assert payloads(again) == [b"1"] and again[0].redelivery_count() == 1
    for message in (await first, await last, again[0]):
        await consumer.acknowledge(message)
    await close_without_backlog(transport, consumer)


# Endings


async def test_unsettled_leased_messages_go_to_the_next_consumer_after_close(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 10, batch=5)
    consumer = await subscribe()
    leases = await consumer.pop(8)
    for lease in leases[:3]:
        await lease.ack()
    await leases[3].nack(1000)
    waiting = asyncio.ensure_future(consumer.pop(wait=1000))
    await waiting  # the two that were left
    waiting = asyncio.ensure_future(consumer.pop(wait=1000))
    await settle()
    await asyncio.wait_for(consumer.close(), 1)
    with pytest.raises(ClosedError):
        await waiting
    await leases[0].ack()  # it was
    for call in (leases[5].ack, leases[5].nack, partial(leases[5].extend, 5)):
        with pytest.raises(LeaseLostError, match="closed"):
            await call()
    with pytest.raises(ClosedError):
        await consumer.pop()
    with pytest.raises(ClosedError):
        await consumer.lease(leases[5].handle)
    heir = await subscribe()
    delivered = await receive_all(heir)
    assert counted(delivered) == {b"%d" % number: 1 for number in range(3, 10)}


@pytest.mark.parametrize("batch", [1, 3])
async def test_a_lease_survives_a_reconnect(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    put_numbers(transport, 3, batch=batch)
    consumer = await subscribe()
    acked, expired, kept = await consumer.pop(lease=20)
    began = now_s()
    transport.disconnect()
    await acked.ack()
    await kept.extend(1000)
    transport.reconnect()
    await asyncio.sleep(1)
    again = await pop_one(consumer)
    assert again.message.data() == expired.message.data()
    assert 20 <= now_s() - began <= 20 + LATE_S
    await again.ack()
    await kept.ack()
    assert await consumer.pop(wait=100) == []
    assert transport.backlog(TOPIC, "s") == 0


async def test_leases_that_expire_while_disconnected_are_redelivered_after_the_reconnect(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe()
    lease, other = await consumer.pop(lease=20)
    transport.disconnect()
    await asyncio.sleep(30)
    with pytest.raises(LeaseLostError, match="expired"):
        await lease.ack()
    transport.reconnect()
    again = await consumer.pop(wait=100)
    again += await consumer.pop(wait=10) if len(again) < 2 else []
    assert sorted(words(again)) == sorted(words([lease, other]))


async def test_redeliver_unacknowledged_messages_ends_leases_and_redelivers_once(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 6, batch=3)
    consumer = await subscribe()
    leases = await consumer.pop(lease=5)
    await leases[0].ack()
    consumer.redeliver_unacknowledged_messages()
    assert consumer.statistics().leased == 0
    again = await receive_n(consumer, 5)
    assert sorted(payloads(again)) == sorted(words(leases[1:]))
    assert await receive_all(consumer, 100) == []


# Wrong arguments


async def test_pop_refuses_other_subscription_types_listeners_and_bad_arguments(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    for name, kind in (("a", ConsumerType.Exclusive), ("b", ConsumerType.Failover)):
        alone = await subscribe(consumer_type=kind, subscription_name=name)
        with pytest.raises(ConfigurationError, match=r"ConsumerType\.Shared"):
            await alone.pop()
    listening = await subscribe(subscription_name="c", message_listener=lambda *_: None)
    with pytest.raises(InvalidConfiguration, match="message_listener"):
        await listening.pop()
    shared = await subscribe(subscription_name="d")
    bad: dict[str, Any]
    for bad in (
        {"lease": 0},
        {"lease": 31 * 86400},
        {"lease": "1"},
        {"wait": -1},
        {"wait": float("inf")},
        {"max_messages": 0},
        {"max_messages": 2.5},
    ):
        with pytest.raises(ConfigurationError, match=next(iter(bad))):
            await shared.pop(**bad)
    put_numbers(transport, 1)
    lease = await pop_one(shared)
    for seconds in (0, -1, 1e12):
        with pytest.raises(ConfigurationError, match="seconds"):
            await lease.extend(seconds)
    with pytest.raises(ConfigurationError, match="limit"):
        lease.kept(limit=0)
    await lease.ack()


async def test_a_lease_is_refused_on_another_event_loop(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    lease = await pop_one(consumer)

    refused = []

    def elsewhere() -> None:
        for call in (lease.ack, lease.nack, partial(lease.extend, 5), consumer.pop):
            with pytest.raises(WrongLoopError):
                asyncio.run(call())
            refused.append(call)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()  # awaited, an hour of this loop's time would pass
    assert len(refused) == 4
    await lease.ack()
