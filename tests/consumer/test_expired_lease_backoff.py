"""An expired lease waits for the backoff of its attempt (RIP-73: revive)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from consumer_kit import TOPIC, Subscribe, now_s, put_numbers
from durable_kit import Host

from pulsar_encore import (
    Backoff,
    BackoffTable,
    Client,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    Lease,
    LeaseLostError,
)
from pulsar_encore.testing import MemoryTransport

LATE_S = 0.3  # buckets of the lease and of the wait, and the way to the broker
TABLE = [10, 60, 600]
KINDS = pytest.mark.parametrize(
    "options",
    [
        {"consumer_type": ConsumerType.Shared},
        {"consumer_type": ConsumerType.KeyShared},
        {"consumer_type": ConsumerType.KeyShared, "ordered_leases": True},
        {"consumer_type": ConsumerType.Shared, "dead_letter_policy": DeadLetterPolicy(10)},
    ],
    ids=["shared", "key_shared", "ordered", "dead_letters"],
)
ENDS = pytest.mark.parametrize("ends", ["stop", "kill"])


async def pop_one(consumer: Consumer, lease: float = 5, wait: float = 10_000) -> Lease:
    (found,) = await consumer.pop(1, lease=lease, wait=wait)
    return found


def is_about(seconds: float, expected: float) -> bool:
    return expected <= seconds <= expected * 1.02 + LATE_S


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@KINDS
async def test_an_expired_lease_waits_for_the_backoff_of_its_attempt(
    transport: MemoryTransport, host: Host, options: dict[str, Any], batch: int, state: bool
) -> None:
    transport.put(TOPIC, *[b"%d" % each for each in range(batch)], key="k")
    consumer = await host.start(negative_ack_redelivery_backoff=TABLE, **options)
    if not state:
        await host.stop()
        client = Client("pulsar://nowhere:6650", transport=transport)
        host.running.append(client)
        consumer = await client.subscribe(
            TOPIC,
            "plain",
            initial_position=InitialPosition.Earliest,
            negative_ack_redelivery_backoff=TABLE,
            **options,
        )
    lease = await pop_one(consumer)
    for attempt, delay in enumerate([10, 60, 600, 600], start=2):
        began = now_s()
        while True:  # siblings that came are of no interest
            again = await pop_one(consumer)
            if again.message.data() == lease.message.data():
                break
            await again.ack()
        assert again.attempt == attempt
        assert is_about(now_s() - began, 5 + delay), (attempt, now_s() - began)
        with pytest.raises(LeaseLostError):
            await lease.ack()
        lease = again


async def test_without_a_backoff_an_expired_lease_is_redelivered_at_once(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 1)
    consumer = await subscribe(negative_ack_redelivery_delay_ms=60_000)
    await pop_one(consumer)
    began = now_s()
    assert (await pop_one(consumer)).attempt == 2
    assert is_about(now_s() - began, 5)


async def test_leases_that_expire_together_are_redelivered_once_after_the_backoff(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    put_numbers(transport, 3_000, batch=50)
    consumer = await subscribe(negative_ack_redelivery_backoff=BackoffTable([30]))
    taken = 0
    while taken < 3_000:
        taken += len(await consumer.pop(1_000, lease=50))
    began = now_s()
    again: list[Lease] = []
    while leases := await consumer.pop(5_000, wait=200, lease=10_000):
        again += leases
        assert 79 <= now_s() - began <= 83
    assert len({lease.message.data() for lease in again}) == len(again) == 3_000


async def test_a_key_waits_until_its_message_with_an_expired_lease_is_popped_again(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    for number in range(3):
        transport.put(TOPIC, b"%d" % number, key="a")
    transport.put(TOPIC, b"other", key="b")
    consumer = await subscribe(
        consumer_type=ConsumerType.KeyShared,
        ordered_leases=True,
        negative_ack_redelivery_backoff=Backoff(min_delay=30, max_delay=60),
    )
    first = await pop_one(consumer)
    assert first.message.data() == b"0"
    await (await pop_one(consumer)).ack()
    began = now_s()
    again = await consumer.pop(10, lease=1000, wait=1000)
    assert [(each.message.data(), each.attempt) for each in again] == [
        (b"0", 2),
        (b"1", 1),
        (b"2", 1),
    ]
    assert is_about(now_s() - began, 35)


@ENDS
@pytest.mark.parametrize("away", [0, 12, 300])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
async def test_an_inherited_lease_waits_for_its_backoff_after_its_end(
    host: Host, transport: MemoryTransport, ends: str, away: float, ordered: bool, batch: int
) -> None:
    """Its handle is good until its end. The process is away for some time, maybe past the end."""
    transport.put(TOPIC, *[b"%d" % each for each in range(batch)], key="k")
    options: dict[str, Any] = {"negative_ack_redelivery_backoff": [200]}
    if ordered:
        options |= {"consumer_type": ConsumerType.KeyShared, "ordered_leases": True}
    consumer = await host.start(**options)
    lease = await pop_one(consumer, lease=10)
    handle, began = lease.handle, now_s()
    await (host.stop() if ends == "stop" else host.kill())
    await asyncio.sleep(away)
    consumer = await host.start(**options)
    if away < 10:
        assert (await consumer.lease(handle)).attempt == 1
    else:
        with pytest.raises(LeaseLostError):
            await consumer.lease(handle)
    while True:
        again = await pop_one(consumer, lease=1000)
        if again.message.data() == b"0":
            break
        await again.ack()
    assert again.attempt == 2
    expected = max(210, away)
    assert expected - 0.1 <= now_s() - began <= expected * 1.02 + 2, now_s() - began


@ENDS
async def test_the_backoff_of_an_expired_lease_goes_on_over_several_restarts(
    host: Host, transport: MemoryTransport, ends: str
) -> None:
    put_numbers(transport, 1)
    options: dict[str, Any] = {"negative_ack_redelivery_backoff": [600]}
    consumer = await host.start(**options)
    began = now_s()
    assert (await pop_one(consumer, lease=10)).handle
    for _ in range(3):
        await (host.stop() if ends == "stop" else host.kill())
        consumer = await host.start(**options)
        assert await consumer.pop(wait=150) == []
    assert await consumer.pop(wait=100) == []
    again = await pop_one(consumer)
    assert again.attempt == 2
    assert 609.9 <= now_s() - began <= 625


async def test_extending_an_inherited_lease_moves_its_backoff(
    host: Host, transport: MemoryTransport
) -> None:
    put_numbers(transport, 1)
    options: dict[str, Any] = {"negative_ack_redelivery_backoff": [30]}
    consumer = await host.start(**options)
    handle = (await pop_one(consumer, lease=10)).handle
    await host.kill()
    consumer = await host.start(**options)
    began = now_s()
    await (await consumer.lease(handle)).extend(100)
    assert (await pop_one(consumer)).attempt == 2
    assert 130 <= now_s() - began <= 133


async def test_a_nack_of_an_inherited_lease_uses_its_own_delay(
    host: Host, transport: MemoryTransport
) -> None:
    put_numbers(transport, 1)
    options: dict[str, Any] = {"negative_ack_redelivery_backoff": [30]}
    consumer = await host.start(**options)
    handle = (await pop_one(consumer, lease=10)).handle
    await host.kill()
    consumer = await host.start(**options)
    began = now_s()
    await (await consumer.lease(handle)).nack(5)
    assert (await pop_one(consumer)).attempt == 2
    assert is_about(now_s() - began, 5)
