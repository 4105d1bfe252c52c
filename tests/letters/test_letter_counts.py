"""M + 1 deliveries on both paths, one dead letter, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from forwarding_kit import (
    DEAD,
    RETRY,
    TOPIC,
    Act,
    bodies,
    handle_all,
    nack,
    named,
    open_consumer,
    read_out,
    reconsume,
)

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.deadletters import DeadLetters
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport

ALL_TYPES = [
    encore.ConsumerType.Shared,
    encore.ConsumerType.KeyShared,
    encore.ConsumerType.Exclusive,
    encore.ConsumerType.Failover,
]


def nothing_left(transport: MemoryTransport) -> None:
    for topic in (TOPIC, RETRY):
        assert transport.backlog(topic, "s") == 0, topic


@pytest.mark.parametrize("most", [1, 2, 16])
@pytest.mark.parametrize("act", [nack, reconsume])
@pytest.mark.parametrize("batch", [1, 4])
async def test_a_failing_message_is_delivered_m_plus_1_times_and_dead_lettered_once(
    client: encore.Client, transport: MemoryTransport, most: int, act: Act, batch: int
) -> None:
    payloads = [b"%d" % each for each in range(4)]
    for start in range(0, 4, batch):
        transport.put(TOPIC, *payloads[start : start + batch])
    async with await open_consumer(client, most=most) as consumer:
        seen = await handle_all(consumer, act)
    assert seen == Counter(dict.fromkeys(payloads, most + 1))
    dead = await read_out(client, DEAD)
    assert sorted(bodies(dead)) == payloads
    times = str(most + 1) if act is reconsume else None
    assert named(dead, letters.RECONSUME_TIMES) == [times] * 4
    assert named(dead, letters.ATTEMPTS) == [str(most + 1)] * 4
    assert len(await read_out(client, RETRY)) == (4 * most if act is reconsume else 0)
    nothing_left(transport)


@pytest.mark.parametrize("kind", ALL_TYPES)
@pytest.mark.parametrize("act", [nack, reconsume])
@pytest.mark.parametrize("batch", [False, True])
async def test_every_subscription_type_dead_letters_after_m_plus_1_deliveries(
    client: encore.Client,
    transport: MemoryTransport,
    kind: encore.ConsumerType,
    act: Act,
    batch: bool,
) -> None:
    """Brokers count nothing on Exclusive and Failover; the counts are ours there."""
    if batch:
        transport.put(TOPIC, b"a", b"b")
    else:
        transport.put(TOPIC, b"a")
        transport.put(TOPIC, b"b")
    async with await open_consumer(client, most=2, consumer_type=kind) as consumer:
        seen = await handle_all(consumer, act)
    assert seen == Counter({b"a": 3, b"b": 3})
    assert sorted(bodies(await read_out(client, DEAD))) == [b"a", b"b"]
    nothing_left(transport)


@pytest.mark.parametrize("batch", [False, True])
async def test_each_message_without_an_ack_in_time_is_dead_lettered_once(
    client: encore.Client, transport: MemoryTransport, batch: bool
) -> None:
    """Java, on a consumer with retries, buried each of a batch three times: 9 letters of 3."""

    async def forget(consumer: encore.Consumer, message: encore.Message) -> None:
        pass

    for group in [(b"a", b"b", b"c")] if batch else [(b"a",), (b"b",), (b"c",)]:
        transport.put(TOPIC, *group)
    async with await open_consumer(
        client, most=2, unacked_messages_timeout_ms=1000, retry_enable=True
    ) as consumer:
        seen = await handle_all(consumer, forget)
    assert seen == Counter({b"a": 3, b"b": 3, b"c": 3})
    dead = await read_out(client, DEAD)
    assert sorted(bodies(dead)) == [b"a", b"b", b"c"]
    assert named(dead, letters.REASON) == ["ack timeout"] * 3
    nothing_left(transport)


async def test_an_ack_timeout_with_a_backoff_dead_letters_after_m_plus_1_deliveries(
    client: encore.Client, transport: MemoryTransport
) -> None:
    async def forget(consumer: encore.Consumer, message: encore.Message) -> None:
        pass

    transport.put(TOPIC, b"a")
    async with await open_consumer(
        client,
        most=1,
        unacked_messages_timeout_ms=1000,
        ack_timeout_redelivery_backoff=encore.Backoff(min_delay=2, max_delay=8),
    ) as consumer:
        seen = await handle_all(consumer, forget, quiet_s=60)
    assert seen == Counter({b"a": 2})
    assert bodies(await read_out(client, DEAD)) == [b"a"]
    nothing_left(transport)


async def test_a_nacked_retry_letter_is_dead_lettered_after_m_plus_1_deliveries_of_its_own(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """Its delivery attempts start at 1 and its RECONSUMETIMES stays, as with Java.

    `docs/notes/consumer-semantics.md#retry-letters`
    """
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=3) as consumer:
        for _ in range(2):
            await consumer.reconsume_later(await consumer.receive(timeout=5))
        seen = await handle_all(consumer, nack)
    assert seen == Counter({b"a": 4})
    dead = await read_out(client, DEAD)
    assert named(dead, letters.RECONSUME_TIMES) == ["2"]
    assert named(dead, letters.REAL_TOPIC) == [TOPIC]
    nothing_left(transport)


@pytest.mark.parametrize("text", ["", "-1", "x", "1.5", "٣", "9" * 30, " 1"])
async def test_an_invalid_reconsume_count_counts_as_0(
    client: encore.Client, transport: MemoryTransport, text: str
) -> None:
    transport.put(TOPIC, b"a", properties={letters.RECONSUME_TIMES: text})
    async with await open_consumer(client, most=1) as consumer:
        seen = await handle_all(consumer, reconsume)
    assert seen == Counter({b"a": 2})
    assert named(await read_out(client, DEAD), letters.RECONSUME_TIMES) == ["2"]


async def test_the_reconsume_count_of_another_client_on_a_letter_is_continued(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(RETRY, b"a", properties={letters.RECONSUME_TIMES: "2"})
    async with await open_consumer(client, most=2) as consumer:
        seen = await handle_all(consumer, reconsume)
    assert seen == Counter({b"a": 1})
    assert named(await read_out(client, DEAD), letters.RECONSUME_TIMES) == ["3"]


@pytest.mark.parametrize("act", [nack, reconsume])
async def test_letter_properties_of_a_publisher_change_no_count_and_no_origin(
    client: encore.Client, transport: MemoryTransport, act: Act
) -> None:
    """Publishers often copy these by accident, with all properties of a consumed message."""
    foreign = dict.fromkeys(letters.RESERVED, "5") | {letters.REAL_TOPIC: "payroll"}
    transport.put(TOPIC, b"a", properties=foreign)
    async with await open_consumer(client, most=2) as consumer:
        seen = await handle_all(consumer, act)
    assert seen == Counter({b"a": 3})
    dead = await read_out(client, DEAD)
    assert named(dead, letters.REAL_TOPIC) == [TOPIC]
    assert named(dead, letters.REAL_SUBSCRIPTION) == ["s"]
    assert named(dead, letters.RECONSUME_TIMES) == ["3" if act is reconsume else None]
    assert named(dead, letters.ATTEMPTS) == ["3"]
    assert named(dead, letters.ERROR_CLASS) == [None]


async def test_a_replay_with_keep_counters_counts_on_only_at_its_topic_and_subscription(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """And by the subscription it died of; by no other, and on no other topic."""
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=2) as consumer:
        assert await handle_all(consumer, reconsume) == Counter({b"a": 3})
        (letter,) = await read_out(client, DEAD)
        await DeadLetters(client, DEAD).replay(keep_counters=True)
        message = await consumer.receive(timeout=5)
        transport.put("persistent://public/default/u", b"copy", properties=message.properties())
        await consumer.reconsume_later(message)
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=60)  # its retries were used up
    again = (await read_out(client, DEAD))[1]
    for name in (letters.ORIGIN_MESSAGE_ID, letters.REAL_TOPIC):
        assert again.properties()[name] == letter.properties()[name]
    assert again.properties()[letters.RECONSUME_TIMES] == "4"
    async with await open_consumer(client, "u", most=2) as consumer:
        assert await handle_all(consumer, reconsume) == Counter({b"copy": 3})


async def test_acked_messages_of_a_batch_are_not_dead_lettered_with_the_rest(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """One is acked at its first delivery, one at its last, two become dead letters."""
    transport.put(TOPIC, b"early", b"late", b"x", b"y")

    async def act(consumer: encore.Consumer, message: encore.Message) -> None:
        if message.data() == b"early" or (
            message.data() == b"late" and message.redelivery_count() == 2
        ):
            await consumer.acknowledge(message)
        else:
            await consumer.negative_acknowledge(message)

    async with await open_consumer(client, most=2, ack_group_time_ms=0) as consumer:
        seen = await handle_all(consumer, act)
    assert seen == Counter({b"early": 1, b"late": 3, b"x": 3, b"y": 3})
    assert sorted(bodies(await read_out(client, DEAD))) == [b"x", b"y"]
    nothing_left(transport)


async def test_two_messages_of_a_batch_with_different_delays_become_two_dead_letters(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"fast", b"slow")

    async def act(consumer: encore.Consumer, message: encore.Message) -> None:
        await consumer.negative_acknowledge(message, 0.1 if message.data() == b"fast" else 10)

    async with await open_consumer(client, most=2) as consumer:
        seen = await handle_all(consumer, act, quiet_s=60)
    assert seen == Counter({b"fast": 3, b"slow": 3})
    assert bodies(await read_out(client, DEAD)) == [b"fast", b"slow"]
    nothing_left(transport)


async def test_a_batch_is_acked_only_after_the_letter_of_its_last_message(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"a", b"b")
    async with await open_consumer(client, most=1) as consumer:
        one, other = [await consumer.receive(timeout=5) for _ in range(2)]
        await consumer.reconsume_later(one)
        await asyncio.sleep(1)
        assert transport.backlog(TOPIC, "s") == 1
        await consumer.reconsume_later(other)
        await asyncio.sleep(1)
        assert transport.backlog(TOPIC, "s") == 0


async def test_attempts_survive_an_unload_and_an_ack_of_another_message_of_the_batch(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """Both set the broker's count to 0; the client's count continues.

    `docs/notes/consumer-semantics.md#redelivery-count`
    """
    transport.put(TOPIC, b"poison", b"fine")
    transport.put(TOPIC, b"plain")
    deliveries: Counter[bytes] = Counter()
    async with await open_consumer(client, most=3, ack_group_time_ms=0) as consumer:
        for round_ in range(4):
            for _ in range(3 if round_ == 0 else 2):
                message = await consumer.receive(timeout=5)
                deliveries[message.data()] += 1
                if message.data() == b"fine":
                    await consumer.acknowledge(message)
                else:
                    await consumer.negative_acknowledge(message)
            transport.disconnect()
            transport.reconnect(keep_ack_sets=False)
        assert await handle_all(consumer, nack) == Counter()
    assert deliveries == Counter({b"poison": 4, b"plain": 4, b"fine": 1})
    dead = await read_out(client, DEAD)
    assert sorted(bodies(dead)) == [b"plain", b"poison"]
    assert named(dead, letters.ATTEMPTS) == ["4", "4"]


async def test_nack_counts_end_with_the_last_consumer_and_reconsume_counts_do_not(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """Counts of the nack path are a process's; RECONSUMETIMES is the message's own."""
    transport.put(TOPIC, b"a")
    for _ in range(2):
        async with await open_consumer(client, most=1) as consumer:
            message = await consumer.receive(timeout=5)
            assert message.redelivery_count() == 0
            await consumer.negative_acknowledge(message)
    async with await open_consumer(client, most=1) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5))
    async with await open_consumer(client, most=1) as consumer:
        message = await consumer.receive(timeout=5)
        assert message.properties()[letters.RECONSUME_TIMES] == "1"
        await consumer.reconsume_later(message)
    assert bodies(await read_out(client, DEAD)) == [b"a"]


async def test_a_message_over_the_limit_is_dead_lettered_without_a_delivery(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """Another consumer without a policy let the count pass the limit (the R > M rule)."""
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=1) as strict:
        message = await strict.receive(timeout=5)
        async with await open_consumer(client, most=None, retry_enable=False) as lax:
            await strict.negative_acknowledge(message, 0)
            for _ in range(5):  # either consumer may get it; the strict one dead-letters it
                try:
                    await lax.negative_acknowledge(await lax.receive(timeout=2), 0)
                except encore.ReceiveTimeout:
                    break
            await asyncio.sleep(1)
        assert await handle_all(strict, nack) in (Counter(), Counter({b"a": 1}))
    assert bodies(await read_out(client, DEAD)) == [b"a"]


async def test_a_rewind_on_exclusive_sends_no_second_letter_for_a_message_being_forwarded(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """On Exclusive a due nack rewinds all messages except those being forwarded."""
    transport.put(TOPIC, b"nacked")
    transport.put(TOPIC, b"leaving")
    async with await open_consumer(
        client, most=5, consumer_type=encore.ConsumerType.Exclusive
    ) as consumer:
        first, second = [await consumer.receive(timeout=5) for _ in range(2)]
        transport.faults = FaultPlan([Fault(kind="delay", command="SEND", delay_ms=5000)])
        letter = asyncio.create_task(consumer.reconsume_later(second))
        await consumer.negative_acknowledge(first)
        again = await consumer.receive(timeout=5)
        assert again.data() == b"nacked"
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=3)
        await letter
        await consumer.acknowledge(again)
        await consumer.acknowledge(await consumer.receive(timeout=5))
    assert bodies(await read_out(client, RETRY)) == [b"leaving"]
    nothing_left(transport)


async def test_a_chunked_message_becomes_one_dead_letter_and_all_its_chunks_are_acked(
    client: encore.Client, transport: MemoryTransport
) -> None:
    transport.put_chunked(TOPIC, b"large", 3)
    async with await open_consumer(client, most=1) as consumer:
        assert await handle_all(consumer, nack) == Counter({b"large": 2})
    (letter,) = await read_out(client, DEAD)
    assert letter.data() == b"large"
    nothing_left(transport)


@pytest.mark.parametrize("kind", [encore.ConsumerType.Shared, encore.ConsumerType.KeyShared])
@pytest.mark.parametrize("on_the_way", [False, True])
async def test_a_message_redelivered_before_it_is_received_has_no_attempts(
    client: encore.Client, transport: MemoryTransport, kind: encore.ConsumerType, on_the_way: bool
) -> None:
    """The message is in our queue, or on its way here, when everything is requested again."""
    transport.put(TOPIC, b"a")
    if on_the_way:
        slow = [Fault(kind="delay", command="MESSAGE", delay_ms=500, times=50)]
        transport.faults = FaultPlan(slow)
    async with await open_consumer(client, most=2, consumer_type=kind) as consumer:
        for _ in range(10):
            await asyncio.sleep(0.2)
            consumer.redeliver_unacknowledged_messages()
        for count in range(3):
            message = await consumer.receive(timeout=5)
            assert message.redelivery_count() == count
            await consumer.negative_acknowledge(message)
    assert bodies(await read_out(client, DEAD)) == [b"a"]
    nothing_left(transport)


async def test_a_retry_letter_redelivered_before_its_due_time_has_no_attempts(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """Waiting for its due time in the client, and its return meanwhile, are no deliveries."""
    transport.put(TOPIC, b"a")
    async with await open_consumer(client, most=2) as consumer:
        await consumer.reconsume_later(await consumer.receive(timeout=5), 3)
        for _ in range(10):
            await asyncio.sleep(0.2)
            consumer.redeliver_unacknowledged_messages()
        letter = await consumer.receive(timeout=10)
        assert (letter.topic_name(), letter.redelivery_count()) == (RETRY, 0)
        await consumer.acknowledge(letter)


# Ids without a topic


def stripped(message: encore.Message) -> encore.MessageId:
    """Return the id as stored: its bytes do not carry the topic."""
    return encore.MessageId.deserialize(message.message_id().serialize())


@pytest.mark.parametrize("settle", ["ack", "nack"])
async def test_an_id_without_a_topic_settles_the_message_of_the_topic_with_its_ledger(
    client: encore.Client, transport: MemoryTransport, settle: str
) -> None:
    transport.put(TOPIC, b"a")
    transport.put(TOPIC, b"b")
    async with await open_consumer(client, most=5) as consumer:
        first = await consumer.receive(timeout=5)
        await consumer.reconsume_later(await consumer.receive(timeout=5))
        letter = await consumer.receive(timeout=5)
        assert letter.topic_name() == RETRY
        for message in (letter, first):
            if settle == "ack":
                await consumer.acknowledge(stripped(message))
            else:
                await consumer.negative_acknowledge(stripped(message), 1)
                again = await consumer.receive(timeout=5)
                assert (again.data(), again.topic_name()) == (message.data(), message.topic_name())
                await consumer.acknowledge(again)
        await asyncio.sleep(1)
        assert consumer.statistics().unacked == 0
    nothing_left(transport)


async def test_an_id_without_a_topic_and_of_an_unknown_ledger_is_refused(
    client: encore.Client, transport: MemoryTransport
) -> None:
    """It may be of the input or of the retry-letter topic; the wrong ack would lose a message."""
    (earlier,) = transport.put(TOPIC, b"a")
    async with await open_consumer(client) as consumer:
        await consumer.receive(timeout=5)
        unknown = encore.MessageId(-1, earlier.ledger_id() + 1000, 0)
        for settle in (consumer.acknowledge, consumer.negative_acknowledge):
            with pytest.raises(encore.MessageNotHeldError, match="with several topics give it"):
                await settle(unknown)
        await consumer.acknowledge(unknown.with_topic(TOPIC))
