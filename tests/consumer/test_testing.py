"""The tools for users' tests: virtual time, the memory transport, the broker helper."""

from __future__ import annotations

import asyncio
import pydoc
import sys
import time
from typing import Any

import pytest
from consumer_kit import TOPIC, Subscribe, now_s

import pulsar_encore as encore
from pulsar_encore import testing
from pulsar_encore.options import Subscription
from pulsar_encore.testing import (
    BrokerSettings,
    Deadlock,
    Fault,
    FaultPlan,
    MemoryTransport,
    VirtualClockLoop,
    broker,
    run,
)


def test_a_virtual_hour_passes_at_once_and_timers_keep_their_order() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def sleeper(seconds: int) -> None:
            await asyncio.sleep(seconds)
            order.append(seconds)

        await asyncio.gather(*(sleeper(seconds) for seconds in (3600, 5, 60)))
        assert asyncio.get_running_loop().time() == pytest.approx(3600)
        return order

    begun = time.monotonic()
    assert run(main()) == [5, 60, 3600]
    assert time.monotonic() - begun < 3600 / 60  # however busy the machine is


def test_a_wait_without_end_raises_deadlock() -> None:
    with pytest.raises(Deadlock, match="timeout"):
        run(asyncio.Event().wait(), deadlock_timeout_s=0.01)


def test_virtual_time_waits_for_a_thread() -> None:
    async def main() -> str:
        return await asyncio.to_thread(lambda: "done")

    assert run(main()) == "done"


def test_run_waits_for_a_thread_that_is_busy_at_the_end() -> None:
    ended: list[str] = []

    def work() -> None:
        time.sleep(0.2)
        ended.append("work")

    async def main() -> None:
        asyncio.get_running_loop().run_in_executor(None, work)

    run(main())
    assert ended == ["work"]


def test_help_of_the_testing_module_is_short_and_names_its_own_objects() -> None:
    """Every name it refers to is one of its own, and it is no book."""
    help_text = pydoc.plain(pydoc.render_doc(testing))
    # From Python 3.13 on, a long signature has a line for each parameter.
    assert len(help_text.splitlines()) <= (1_300 if sys.version_info >= (3, 13) else 1_100)
    for name in ("Rules", "Broker", "FaultPlan", "BrokerThread", "VirtualClockLoop", "BrokerUrl"):
        if f"`{name}`" in help_text:
            assert hasattr(testing, name)
    assert "notes" not in help_text
    assert "See `" not in help_text.replace("See `BrokerSettings`", "")


async def test_put_refuses_payloads_properties_and_keys_of_a_wrong_type(
    transport: MemoryTransport,
) -> None:
    for payload, options, expected_error in (
        ("text", {}, "a payload must be bytes or None, got str"),
        (5, {}, "a payload must be bytes or None, got int"),
        (b"x", {"properties": {"a": 1}}, "properties"),
        (b"x", {"key": 5}, "key must be str or bytes"),
    ):
        with pytest.raises(encore.ConfigurationError, match=expected_error):
            transport.put(TOPIC, payload, **options)  # type: ignore[arg-type]
    assert not transport.catalogue.topics


async def test_recorded_and_backlog_refuse_unknown_names(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    """An empty list, or 0, would let a test pass that asks for the wrong thing."""
    transport.put(TOPIC, b"x")
    await subscribe()
    async with broker() as url:
        url.broker.create_topic(TOPIC)
        for asked in (transport, url.broker):
            with pytest.raises(encore.ConfigurationError, match=r"'ACKS' is no.* is ACK"):
                asked.recorded("ACKS")
            with pytest.raises(encore.ConfigurationError, match="nope"):
                asked.backlog("nope", "s")
            with pytest.raises(encore.ConfigurationError, match="no subscription 'other'"):
                asked.backlog(TOPIC, "other")
        with pytest.raises(encore.ConfigurationError, match="direction"):
            url.broker.recorded("ACK", "inwards")


def test_virtual_time_advances_only_forward() -> None:
    loop = VirtualClockLoop()
    try:
        loop.advance(5)
        assert loop.time() == 5
        with pytest.raises(ValueError, match="forward"):
            loop.advance(-1)
    finally:
        loop.close()


async def test_a_reader_reads_from_the_earliest_message_or_from_an_id(
    transport: MemoryTransport,
    client: encore.Client,
) -> None:
    ids = transport.put(TOPIC, b"0", b"1") + transport.put(TOPIC, b"2")
    async with await client.create_reader(TOPIC, encore.MessageId.earliest) as reader:
        got = [await reader.read_next(1000) for _ in range(3)]
        assert [each.data() for each in got] == [b"0", b"1", b"2"]
        assert [each.message_id() for each in got] == ids
        assert not await reader.has_message_available()
        with pytest.raises(encore.ReceiveTimeout):
            await reader.read_next(1000)
    async with await client.create_reader(TOPIC, ids[0]) as reader:
        assert (await reader.read_next()).data() == b"1"


async def test_a_reader_goes_on_at_its_position_after_a_lost_connection(
    transport: MemoryTransport,
    client: encore.Client,
) -> None:
    transport.put(TOPIC, b"0", b"1", b"2")
    async with client.create_reader(TOPIC, encore.MessageId.earliest) as reader:
        assert (await reader.read_next()).data() == b"0"
        transport.put(TOPIC, b"3")
        transport.disconnect()
        with pytest.raises(encore.NotConnected):
            await reader.seek(0)
        transport.put(TOPIC, b"4", b"5")
        assert [(await reader.read_next()).data() for _ in range(2)] == [b"1", b"2"]
        with pytest.raises(encore.ReceiveTimeout):
            await reader.read_next(1000)
        transport.reconnect()
        assert [(await reader.read_next()).data() for _ in range(3)] == [b"3", b"4", b"5"]
        transport.disconnect()
        transport.reconnect()
        assert not await reader.has_message_available()
        with pytest.raises(encore.ReceiveTimeout):
            await reader.read_next(1000)


async def test_a_reader_reads_entries_and_knows_the_last_id(
    transport: MemoryTransport, client: encore.Client
) -> None:
    ids = transport.put(TOPIC, b"0", b"1", b"2")
    transport.put_chunked(TOPIC, b"long", 3)
    [last] = transport.put(TOPIC, b"3")
    for start, inclusive, expected in (
        (encore.MessageId.earliest, False, [[b"0", b"1", b"2"], [b"long"], [b"3"]]),
        (ids[0], False, [[b"1", b"2"], [b"long"], [b"3"]]),
        (ids[2], True, [[b"2"], [b"long"], [b"3"]]),
        (encore.MessageId.latest, True, [[b"3"]]),
    ):
        async with client.create_reader(
            TOPIC, start, start_message_id_inclusive=inclusive
        ) as reader:
            for payloads in expected:
                assert await reader.has_message_available()
                entry = await reader.read_entry(timeout=1)
                assert [each.data() for each in entry] == payloads
            assert entry[0].message_id() == last
            assert await reader.last_message_id() == last
            assert not await reader.has_message_available()
            with pytest.raises(encore.ReceiveTimeout):
                await reader.read_entry(timeout_millis=100)


async def test_a_reader_prefetches_no_more_than_its_queue_size(
    transport: MemoryTransport, client: encore.Client
) -> None:
    for number in range(200):
        transport.put(TOPIC, b"%d" % number)
    async with client.create_reader(
        TOPIC, encore.MessageId.earliest, receiver_queue_size=10
    ) as reader:
        for number in range(200):
            await asyncio.sleep(1)
            assert len(transport.recorded("MESSAGE")) <= number + 10
            assert (await reader.read_next()).data() == b"%d" % number


async def test_a_reader_finds_partitions_that_are_added(
    transport: MemoryTransport, client: encore.Client
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 1)
    async with client.create_reader(TOPIC, encore.MessageId.latest) as reader:
        transport.catalogue.create_partitioned(TOPIC, 2)
        transport.put(f"{TOPIC}-partition-1", b"new")  # before the reader has looked
        assert (await reader.read_next()).data() == b"new"


async def test_a_reader_of_a_partitioned_topic_reads_all_its_partitions(
    transport: MemoryTransport,
    client: encore.Client,
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 3)
    parts = [f"{TOPIC}-partition-{each}" for each in range(3)]
    ids = [transport.put(part, b"%d" % at)[0] for at, part in enumerate(parts)]
    async with await client.create_reader(TOPIC, encore.MessageId.earliest) as reader:
        assert reader.topic() == TOPIC
        got = [await reader.read_next(1000) for _ in range(3)]
        assert sorted(each.data() for each in got) == [b"0", b"1", b"2"]
        assert {each.message_id() for each in got} == set(ids)
        assert {each.topic_name() for each in got} == set(parts)
        assert not await reader.has_message_available()
        reading = asyncio.create_task(reader.read_next())
        await asyncio.sleep(1)
        transport.put(parts[1], b"late")
        assert (await reading).data() == b"late"
        await reader.seek(encore.MessageId.earliest)
        assert len({(await reader.read_next(1000)).data() for _ in range(4)}) == 4
        await reader.seek(0)
        assert await reader.has_message_available()
        while await reader.has_message_available():
            await reader.read_next(1000)
        await reader.seek(ids[1])  # of one partition, and the others stay where they are
        assert (await reader.read_next(1000)).data() == b"late"
        assert not await reader.has_message_available()
    async with await client.create_reader(TOPIC, encore.MessageId.latest) as reader:
        assert not await reader.has_message_available()


async def subscribe_pattern(client: encore.Client, pattern: str, **options: Any) -> encore.Consumer:
    return await client.subscribe(
        pattern,
        "s",
        is_pattern_topic=True,
        consumer_type=encore.ConsumerType.Shared,
        initial_position=encore.InitialPosition.Earliest,
        **options,
    )


@pytest.mark.parametrize("watchers", [True, False])
async def test_a_pattern_finds_new_topics_within_its_period(watchers: bool) -> None:
    transport = MemoryTransport(BrokerSettings(topic_watchers=watchers))
    async with encore.Client("pulsar://memory", transport=transport) as client:
        consumer = await subscribe_pattern(client, f"{TOPIC}-.*", pattern_auto_discovery_period=7)
        await asyncio.sleep(3)
        transport.put(f"{TOPIC}-new", b"new")
        transport.put("persistent://public/default/other", b"other")
        message = await consumer.receive(timeout=5)
        # The broker tells of it; one without watchers is asked.
        expected = 3 if watchers else 7
        assert (message.data(), now_s()) == (b"new", pytest.approx(expected, abs=0.1))
        await consumer.acknowledge(message)
        transport.catalogue.create_partitioned(f"{TOPIC}-parts", 2)
        transport.put(f"{TOPIC}-parts-partition-1", b"part")
        assert (await consumer.receive(timeout=8)).data() == b"part"
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=20)
    assert transport.backlog(f"{TOPIC}-new", "s") == 0


async def test_a_topic_of_a_pattern_created_while_disconnected_is_found_after_the_reconnect(
    transport: MemoryTransport,
    client: encore.Client,
) -> None:
    consumer = await subscribe_pattern(client, f"{TOPIC}-.*", pattern_auto_discovery_period=1)
    transport.disconnect()
    transport.put(f"{TOPIC}-new", b"new")
    await asyncio.sleep(5)
    transport.reconnect()
    assert (await consumer.receive(timeout=1)).data() == b"new"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("public/default/t.*", True),
        ("persistent://public/default/t", True),
        (".*/t", False),
        ("t", True),
        ("persistent://public/default/", False),
    ],
)
async def test_a_pattern_matches_the_whole_topic_name_without_its_domain(
    transport: MemoryTransport, client: encore.Client, pattern: str, found: bool
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 1)
    transport.put(f"{TOPIC}-partition-0", b"x")
    consumer = await subscribe_pattern(client, pattern)
    if found:
        assert (await consumer.receive(timeout=1)).data() == b"x"
    else:
        with pytest.raises(encore.ReceiveTimeout):
            await consumer.receive(timeout=100)


async def test_new_partitions_are_found_within_a_minute(
    transport: MemoryTransport, client: encore.Client
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 1)
    consumer = await client.subscribe(TOPIC, "s", consumer_type=encore.ConsumerType.Shared)
    transport.catalogue.create_partitioned(TOPIC, 2)
    transport.put(f"{TOPIC}-partition-1", b"x")
    assert (await consumer.receive(timeout=61)).data() == b"x"


@pytest.mark.parametrize("kind", ["drop", "delay"])
async def test_a_send_without_a_receipt_fails_after_its_timeout(
    transport: MemoryTransport, client: encore.Client, kind: Any
) -> None:
    transport.faults = FaultPlan([Fault(kind=kind, command="SEND", delay_ms=60_000)])
    producer = await client.create_producer(TOPIC, send_timeout_millis=2500)
    with pytest.raises(encore.TransportError, match="send_timeout_millis") as caught:
        await producer.send(b"lost")
    assert (caught.value.result, caught.value.retryable) == ("Timeout", True)
    assert now_s() == pytest.approx(2.5, abs=0.02)  # with the wait for a batch
    await producer.send(b"stored")
    await producer.flush()


@pytest.mark.parametrize("kind", ["close_before", "outage"])
async def test_a_send_lost_with_its_connection_is_sent_again(
    transport: MemoryTransport, client: encore.Client, kind: Any
) -> None:
    transport.faults = FaultPlan([Fault(kind=kind, command="SEND", outage_s=3)])
    producer = await client.create_producer(TOPIC)
    first = asyncio.create_task(producer.send(b"first"))
    await asyncio.sleep(0)
    await producer.flush()
    assert now_s() > 0
    reader = await client.create_reader(TOPIC, encore.MessageId.earliest)
    assert (await reader.read_next(1000)).message_id() == await first
    assert not await reader.has_message_available()


async def test_a_delayed_send_whose_connection_is_lost_is_stored_once(
    transport: MemoryTransport,
    client: encore.Client,
) -> None:
    transport.faults = FaultPlan([Fault(kind="delay", command="SEND", delay_ms=1000)])
    producer = await client.create_producer(TOPIC)
    sending = asyncio.create_task(producer.send(b"x"))
    await asyncio.sleep(0.5)
    transport.disconnect()
    transport.reconnect()
    await sending
    await asyncio.sleep(5)
    assert transport.state(TOPIC).log.end == 1


async def test_pending_sends_fail_when_the_producer_or_transport_is_closed(
    transport: MemoryTransport,
    client: encore.Client,
) -> None:
    for end in ("close", "shutdown"):
        transport.faults = FaultPlan([Fault(kind="drop", command="SEND")])
        producer = await client.create_producer(TOPIC, send_timeout_millis=0)
        sending = asyncio.create_task(producer.send(b"x"))
        await asyncio.sleep(1000)
        assert not sending.done()
        if end == "close":
            await producer.close()
        else:
            transport.shutdown()
        with pytest.raises(encore.ClosedError):
            await sending


async def test_can_ack_is_true_only_while_connected_and_open(transport: MemoryTransport) -> None:
    transport_consumer = await transport.subscribe(
        Subscription(topics=(TOPIC,), subscription_name="s")
    )
    seen = [transport_consumer.can_ack(0)]
    transport.disconnect()
    seen.append(transport_consumer.can_ack(0))
    transport.reconnect()
    await asyncio.sleep(0.01)
    seen.append(transport_consumer.can_ack(0))
    await transport_consumer.close()
    seen.append(transport_consumer.can_ack(0))
    assert seen == [True, False, True, False]


async def test_producers_spread_over_partitions_and_keep_keys_together(
    transport: MemoryTransport,
    client: encore.Client,
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 3)
    assert len(await client.get_topic_partitions(TOPIC)) == 3
    producer = await client.create_producer(TOPIC)
    spread = {(await producer.send(b"x")).partition() for _ in range(6)}
    assert spread == {0, 1, 2}
    keyed = {(await producer.send(b"x", partition_key="k")).partition() for _ in range(6)}
    assert len(keyed) == 1
    assert producer.topic() == TOPIC


async def test_transport_errors_name_the_result_of_the_broker(transport: MemoryTransport) -> None:
    transport.faults = FaultPlan(
        [Fault(kind="refuse", command="SUBSCRIBE", error="AuthorizationError")]
    )
    async with encore.Client("pulsar://memory", transport=transport) as client:
        with pytest.raises(encore.TransportError) as caught:
            await client.subscribe(TOPIC, "s")
        assert caught.value.result == "AuthorizationError"
        await client.subscribe(TOPIC, "s")
        with pytest.raises(encore.TransportError) as caught:
            await client.subscribe(TOPIC, "s")
        assert caught.value.result == "ConsumerBusy"
        transport.disconnect()
        with pytest.raises(encore.TransportError):
            await client.create_producer(TOPIC)
    assert transport.faults.done


def test_the_broker_context_manager_runs_a_broker_for_its_block() -> None:
    async def main() -> None:
        async with broker() as url:
            assert url.startswith("pulsar://127.0.0.1:")
            url.broker.create_topic("t")
            assert url.broker.topics() == [TOPIC]
        with pytest.raises(encore.ClosedError):
            url.broker.topics()

    asyncio.run(main())
