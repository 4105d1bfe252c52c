"""Negative acks and ack timeouts: each message comes back at its own time, and only it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from consumer_kit import (
    REDELIVER,
    TOPIC,
    Subscribe,
    armed_timers,
    close_without_backlog,
    counted,
    now_s,
    parts_of,
    payloads,
    put_numbers,
    receive_all,
    receive_n,
    receive_numbers,
    redelivered,
)

from pulsar_encore import (
    Backoff,
    ConfigurationError,
    ConsumerType,
    MessageId,
    NotConnected,
    ReceiveTimeout,
)
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport

SHARING = pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])


def late_by(delay_s: float) -> float:
    """How late a nack of that delay may be: a bucket (1/64 of the delay, at least 32 ms)."""
    return (delay_s / 64 if delay_s > 32.768 else 0.032) + 0.005


@SHARING
async def test_two_messages_of_one_batch_are_redelivered_after_their_own_delays(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType
) -> None:
    consumer, (first, second, acked, held) = await receive_numbers(
        transport, subscribe, 4, batch=4, consumer_type=kind
    )
    await consumer.negative_acknowledge(first, delay=3)
    await consumer.negative_acknowledge(second, delay=1)
    await consumer.acknowledge(acked)
    back = await consumer.receive()
    assert back.data() == b"1"
    assert 1 <= now_s() <= 1 + late_by(1)
    back = await consumer.receive()
    assert back.data() == b"0"
    assert 3 <= now_s() <= 3 + late_by(3)
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout=100)
    await consumer.acknowledge(held)


@pytest.mark.parametrize("start_ms", range(1, 9))
async def test_a_nack_made_late_in_a_millisecond_is_not_redelivered_early(
    transport: MemoryTransport, subscribe: Subscribe, start_ms: int
) -> None:
    """The ring of the one before it finds it due, if its time counts from the ms it began in."""
    consumer, messages = await receive_numbers(
        transport, subscribe, 2, negative_ack_precision_bit_cnt=0
    )
    nacked = []
    for message, pause_ms in zip(messages, (start_ms, 1.9), strict=True):
        await asyncio.sleep(pause_ms / 1000)
        nacked.append(now_s())
        await consumer.negative_acknowledge(message, delay=1)
    for at in nacked:
        await consumer.receive()
        assert at + 1 <= now_s() <= at + 1.003


async def test_a_message_nacked_for_an_hour_is_redelivered_after_an_hour(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    await consumer.negative_acknowledge(await consumer.receive(), delay=timedelta(hours=1))
    assert (await consumer.receive()).redelivery_count() == 1
    assert 3600 <= now_s() <= 3600 + late_by(3600)


async def test_continuous_nacks_do_not_postpone_earlier_ones(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """A nack each 100 ms for 12 s with a delay of 3 s: the stock client's first is at 13 s."""
    put_numbers(transport, 120)
    consumer = await subscribe()
    for message in await receive_n(consumer, 120):
        await consumer.negative_acknowledge(message, delay=3)
        await asyncio.sleep(0.1)
    await receive_n(consumer, 120)
    times = [(entry, at) for at, entries in redelivered(transport) for _, entry in entries]
    assert [entry for entry, _ in times] == list(range(120))
    for entry, at in times:
        assert 100 * entry + 3000 <= at <= 100 * entry + 3000 + 1000 * late_by(3)


async def test_a_shorter_nack_delay_after_a_longer_one_is_due_first(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    consumer, (long, short) = await receive_numbers(transport, subscribe, 2)
    await consumer.negative_acknowledge(long, delay=40)
    await consumer.negative_acknowledge(short, delay=0.2)
    assert (await consumer.receive()).data() == b"1"
    assert 0.2 <= now_s() <= 0.2 + late_by(0.2)


@pytest.mark.parametrize("batch", [1, 3])
async def test_an_ack_cancels_a_nack(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    consumer, messages = await receive_numbers(transport, subscribe, 3, batch=batch)
    for message in messages:
        await consumer.negative_acknowledge(message, delay=1)
    for message in messages:
        await consumer.acknowledge(message)
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout=10)
    assert transport.recorded(REDELIVER) == []
    assert transport.backlog(TOPIC, "s") == 0
    assert consumer.statistics().nacked == 0


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("first", "then"), [(1, 5), (5, 1)])
async def test_a_second_nack_moves_the_due_time(
    transport: MemoryTransport, subscribe: Subscribe, batch: int, first: float, then: float
) -> None:
    put_numbers(transport, 3, batch=batch)
    consumer = await subscribe()
    message = (await receive_n(consumer, 3))[1]
    await consumer.negative_acknowledge(message, delay=first)
    await consumer.negative_acknowledge(message, delay=then)
    assert (await consumer.receive()).data() == b"1"
    assert then <= now_s() <= then + late_by(then)
    assert len(transport.recorded(REDELIVER)) == 1


@pytest.mark.parametrize("batch", [1, 3])
async def test_a_message_object_of_an_earlier_delivery_nacks_nothing(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    """That delivery has ended: a later delivery of the message is held now, maybe elsewhere."""
    put_numbers(transport, 3, batch=batch)
    consumer = await subscribe()
    stale = (await receive_n(consumer, 3))[0]
    await consumer.negative_acknowledge(stale, delay=0.1)
    again = await consumer.receive()
    assert again.data() == stale.data()
    await consumer.negative_acknowledge(stale, delay=0.1)
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout=10)
    assert consumer.statistics().in_flight == 3


async def test_the_backoff_grows_for_nacks_by_message_and_by_id(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 4, batch=2)
    backoff = Backoff(min_delay=1, max_delay=6, multiplier=2)
    consumer = await subscribe(negative_ack_redelivery_backoff=backoff)
    deliveries: dict[bytes, list[float]] = {}
    by_id = (b"1", b"2")
    while now_s() < 20:
        try:
            message = await consumer.receive(timeout=8)
        except ReceiveTimeout:
            break
        deliveries.setdefault(message.data(), []).append(now_s())
        assert message.redelivery_count() == len(deliveries[message.data()]) - 1
        await consumer.negative_acknowledge(
            message.message_id() if message.data() in by_id else message
        )
    for times in deliveries.values():
        gaps = [after - before for before, after in pairwise(times)]
        for gap, delay in zip(gaps, [1, 2, 4, 6, 6], strict=False):
            assert delay <= gap <= delay + late_by(delay)
        assert len(gaps) >= 4


async def test_a_partial_ack_does_not_restart_the_backoff_of_its_siblings(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """The broker's count goes back to 0 at every partial ack; ours does not."""
    put_numbers(transport, 4, batch=4)
    consumer = await subscribe(negative_ack_redelivery_backoff=Backoff(min_delay=1, max_delay=60))
    held = await receive_n(consumer, 4)
    counts = []
    for sibling in held[1:]:
        await consumer.negative_acknowledge(held[0])
        await consumer.acknowledge(sibling)
        held[0] = await consumer.receive()
        counts.append(held[0].redelivery_count())
    assert counts == [1, 2, 3]
    assert now_s() >= 1 + 2 + 4


async def test_jitter_spreads_nack_delays_within_its_share(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 50)
    backoff = Backoff(min_delay=1, max_delay=100, multiplier=4, jitter=0.5)
    consumer = await subscribe(negative_ack_redelivery_backoff=backoff)
    for message in await receive_n(consumer, 50):
        await consumer.negative_acknowledge(message)
    again = await receive_n(consumer, 50)
    begun = now_s()
    for message in again:
        await consumer.negative_acknowledge(message)
    times = []
    for _ in range(50):
        await consumer.receive()
        times.append(now_s() - begun)
    assert min(times) >= 2
    assert max(times) <= 4 + late_by(4)
    assert max(times) - min(times) > 0.5


async def test_a_nack_without_a_delay_uses_the_delay_of_the_subscription(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe(negative_ack_redelivery_delay_ms=2500)
    await consumer.negative_acknowledge(await consumer.receive())
    await consumer.receive()
    assert 2.5 <= now_s() <= 2.5 + late_by(2.5)


async def test_a_fixed_precision_groups_nacks_into_few_redelivery_requests(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 64)
    consumer = await subscribe(negative_ack_precision_bit_cnt=10)
    for message in await receive_n(consumer, 64):
        await consumer.negative_acknowledge(message, delay=5)
        await asyncio.sleep(0.03)
    await receive_n(consumer, 64)
    assert len({at for at, _ in redelivered(transport)}) <= 4


async def test_a_nack_with_a_delay_of_zero_is_redelivered_at_once(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    await consumer.negative_acknowledge(await consumer.receive(), delay=0)
    await consumer.receive(timeout=0.1)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e300, "3", True, timedelta(-1)])
async def test_an_invalid_nack_delay_is_refused_and_the_message_stays_held(
    transport: MemoryTransport, subscribe: Subscribe, delay: object
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    message = await consumer.receive()
    with pytest.raises(ConfigurationError, match=r"delay|due time"):
        await consumer.negative_acknowledge(message, delay=delay)  # type: ignore[arg-type]
    assert consumer.statistics().in_flight == 1
    await consumer.negative_acknowledge(message, delay=1)
    assert (await consumer.receive(timeout=5)).data() == b"0"


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
async def test_a_due_nack_on_exclusive_and_failover_rewinds_all_unacked_messages(
    transport: MemoryTransport, subscribe: Subscribe, kind: ConsumerType
) -> None:
    """As Java's client: a due nack brings everything unacked again, in order."""
    numbers = put_numbers(transport, 6)
    consumer = await subscribe(consumer_type=kind)
    messages = await receive_n(consumer, 4)
    await consumer.acknowledge(messages[1])
    start = now_s()
    await consumer.negative_acknowledge(messages[2], delay=1)
    await consumer.negative_acknowledge(messages[0], delay=30)
    await asyncio.sleep(1.5)
    back = await receive_all(consumer, quiet_s=60)
    assert payloads(back) == [numbers[each] for each in (0, 2, 3, 4, 5)]
    assert len(transport.recorded(REDELIVER)) == 1
    assert 1 <= redelivered(transport)[0][0] / 1000 - start <= 1 + late_by(1)


async def test_redeliver_unacknowledged_messages_redelivers_each_unacked_message_once(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    numbers = put_numbers(transport, 9, batch=3)
    consumer = await subscribe()
    messages = await receive_n(consumer, 7)
    await consumer.acknowledge([messages[0], messages[4]])
    await consumer.negative_acknowledge(messages[1], delay=60)
    consumer.redeliver_unacknowledged_messages()
    left = set(numbers) - {b"0", b"4"}
    assert counted(await receive_all(consumer, quiet_s=200)) == dict.fromkeys(left, 1)


async def test_redelivery_is_requested_earlier_from_a_slow_transport(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.capabilities = replace(transport.capabilities, redeliver_lead_ms=116)
    put_numbers(transport, 1)
    consumer = await subscribe()
    await consumer.negative_acknowledge(await consumer.receive(), delay=1)
    await consumer.receive()  # delivered early, so requested a second time
    assert 1 <= now_s() <= 2 + late_by(1)
    assert len(transport.recorded(REDELIVER)) == 2


async def test_a_message_object_of_an_earlier_delivery_acks_the_redelivered_message(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe()
    message = await consumer.receive()
    await consumer.negative_acknowledge(message, delay=0.1)
    await asyncio.sleep(0.3)
    await consumer.acknowledge(message)
    assert await receive_all(consumer) == []
    await close_without_backlog(transport, consumer)


async def test_no_timer_or_request_runs_while_no_nack_is_due(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 100)
    consumer = await subscribe()
    for message in await receive_n(consumer, 100):
        await consumer.negative_acknowledge(message, delay=10_000)
    before = len(armed_timers())
    await asyncio.sleep(5000)
    assert len(transport.recorded(REDELIVER)) == 0
    assert len(armed_timers()) <= before


async def test_a_nacked_chunked_message_is_requested_with_all_its_chunks(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    transport.put_chunked(TOPIC, b"large", chunks=4)
    consumer = await subscribe()
    message = await consumer.receive()
    await consumer.negative_acknowledge(message, delay=1)
    again = await consumer.receive(timeout=5)
    assert again.data() == b"large"
    assert sorted(entry for _, entry in redelivered(transport)[0][1]) == [0, 1, 2, 3]
    assert again.message_id().first_chunk == MessageId(-1, again.message_id().ledger_id(), 0)
    await consumer.acknowledge(again)
    await close_without_backlog(transport, consumer)


# Ack timeouts


async def test_the_ack_timeout_counts_from_delivery(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 2)
    consumer = await subscribe(unacked_messages_timeout_ms=2000)
    await asyncio.sleep(10)  # only prefetched: no ack timeout runs yet
    assert transport.recorded(REDELIVER) == []
    begun = now_s()
    first = await consumer.receive()
    await asyncio.sleep(1)
    await consumer.receive()
    again = await consumer.receive()
    assert again.data() == first.data()
    assert again.redelivery_count() == 1
    assert 2 <= now_s() - begun <= 2 + late_by(2)
    assert (await consumer.receive()).data() == b"1"
    assert 3 <= now_s() - begun <= 3 + late_by(2)


@pytest.mark.parametrize("batch", [1, 2])
async def test_settled_messages_have_no_ack_timeout(
    transport: MemoryTransport, subscribe: Subscribe, batch: int
) -> None:
    consumer, (acked, nacked) = await receive_numbers(
        transport, subscribe, 2, batch=batch, unacked_messages_timeout_ms=1000
    )
    await consumer.acknowledge(acked)
    await consumer.negative_acknowledge(nacked, delay=5)
    assert (await consumer.receive()).data() == b"1"
    assert 5 <= now_s() <= 5 + late_by(5)


async def test_the_ack_timeout_backoff_is_added_to_the_timeout(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe(
        unacked_messages_timeout_ms=1000,
        ack_timeout_redelivery_backoff=Backoff(min_delay=0.5, max_delay=60),
    )
    times = []
    for _ in range(5):
        await consumer.receive()
        times.append(now_s())
    gaps = [after - before for before, after in pairwise(times)]
    for gap, delay in zip(gaps, [1.5, 2, 3, 5], strict=True):
        assert delay <= gap <= delay + 2 * late_by(delay)


async def test_the_ack_timeout_of_one_message_does_not_redeliver_its_siblings(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 3, batch=3)
    consumer = await subscribe(unacked_messages_timeout_ms=1000)
    await consumer.receive()
    await asyncio.sleep(0.9)
    await consumer.acknowledge(await consumer.receive())
    await asyncio.sleep(0.5)
    got = payloads([await consumer.receive(), await consumer.receive()])
    assert got == [b"2", b"0"]


async def test_an_ack_timeout_on_exclusive_rewinds_all_unacked_messages(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 3)
    consumer = await subscribe(
        consumer_type=ConsumerType.Exclusive, unacked_messages_timeout_ms=1000
    )
    first = await receive_n(consumer, 2)
    await consumer.acknowledge(first[0])
    await asyncio.sleep(1.1)
    assert payloads(await receive_n(consumer, 2)) == [b"1", b"2"]


async def test_a_rewind_without_redelivery_is_repeated_beside_a_busy_topic(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """Queued messages of another topic do not show that this topic was rewound."""
    transport.faults = FaultPlan([Fault(kind="drop", command=REDELIVER)])
    quiet, busy = f"{TOPIC}-quiet", f"{TOPIC}-busy"
    consumer = await subscribe(
        quiet, busy, consumer_type=ConsumerType.Exclusive, receiver_queue_size=10
    )
    transport.put(quiet, b"0")
    nacked = await consumer.receive()
    for _ in range(1000):
        transport.put(busy, b"busy")
    await consumer.negative_acknowledge(nacked, delay=1)
    await asyncio.sleep(1.2)
    begun = now_s()
    while (message := await consumer.receive(timeout=10)).data() == b"busy":
        await consumer.acknowledge(message)
        await asyncio.sleep(0.1)
    assert now_s() - begun < 20, "long before the busy topic is done, after 100 s"


@pytest.mark.parametrize("batch", [1, 4], ids=["plain", "batches"])
@pytest.mark.parametrize("waits", ["nack", "ack timeout"])
async def test_a_failed_redelivery_request_is_retried(
    transport: MemoryTransport,
    subscribe: Subscribe,
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    waits: str,
) -> None:
    """A redelivery request that fails is retried."""
    numbers = put_numbers(transport, 8, batch)
    options = {"unacked_messages_timeout_ms": 5000} if waits == "ack timeout" else {}
    consumer = await subscribe(receiver_queue_size=100, **options)
    transport_consumer = parts_of(consumer).transport_consumer
    real, refused = transport_consumer.redeliver, 0

    def refuses(*asked: Any) -> None:
        nonlocal refused
        refused += 1
        if refused <= 3:
            raise NotConnected("not connected")
        real(*asked)

    monkeypatch.setattr(transport_consumer, "redeliver", refuses)
    for message in await receive_n(consumer, 8):
        if message.data() in (b"1", b"6"):
            await consumer.acknowledge(message)
        elif waits == "nack":
            await consumer.negative_acknowledge(message, delay=5)
    await asyncio.sleep(5.15)
    assert refused > 0 and consumer.statistics().nacked == consumer.statistics().unacked == 6
    again = await receive_all(consumer, quiet_s=2)
    assert counted(again) == Counter(set(numbers) - {b"1", b"6"})
    assert {message.redelivery_count() for message in again} == {1}
    assert refused > 3
    await consumer.acknowledge(again)
    assert consumer.statistics().unacked == 0
    await close_without_backlog(transport, consumer)


async def test_failing_redelivery_requests_are_retried_at_growing_intervals(
    transport: MemoryTransport, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_numbers(transport, 2_000)
    consumer = await subscribe(receiver_queue_size=5_000)
    transport_consumer = parts_of(consumer).transport_consumer
    real, tries, up = transport_consumer.redeliver, 0, False

    def refuses(*asked: Any) -> None:
        nonlocal tries
        tries += 1
        if not up:
            raise NotConnected("not connected")
        real(*asked)

    monkeypatch.setattr(transport_consumer, "redeliver", refuses)
    for message in await receive_n(consumer, 2_000):
        await consumer.negative_acknowledge(message, delay=0.1)
    await asyncio.sleep(60)
    assert tries < 20, "one burst a try, however much is due"
    up = True
    again = await receive_all(consumer, quiet_s=6)
    assert len(again) == 2_000
    await consumer.acknowledge(again)
    await close_without_backlog(transport, consumer)


async def test_a_queued_message_nacked_by_its_id_counts_its_later_nacks(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """Of a batch that is handed out in part: it comes back before its first copy was reached."""
    put_numbers(transport, 3, batch=3)
    consumer = await subscribe()
    (first,) = await receive_n(consumer, 1)
    sibling = replaced(first.message_id(), batch_index=1)
    await consumer.negative_acknowledge(sibling, delay=0.1)
    await asyncio.sleep(0.5)
    deliveries = []
    for _ in range(3):
        async with asyncio.timeout(5):
            while (message := await consumer.receive()).data() != b"1":
                pass
        deliveries.append(message.redelivery_count())
        await consumer.negative_acknowledge(message, delay=0.1)
    assert deliveries == [1, 2, 3]
    await consumer.close()


def replaced(message_id: MessageId, *, batch_index: int) -> MessageId:
    """The id of a sibling in the same batch."""
    return MessageId(
        message_id.partition(),
        message_id.ledger_id(),
        message_id.entry_id(),
        batch_index,
        batch_size=message_id.batch_size,
        topic=message_id.topic,
    )
