"""Consumers and producers attach again after refusals at any step and after deletions."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from native_kit import TOPIC, Collector, Rig, run, subscription
from producer_kit import message, outcomes

from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.devbroker.rules.faults import Fault, FaultPlan
from pulsar_encore.errors import ConfigurationError, NotSupportedError, TransportTimeout
from pulsar_encore.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConsumerBusy,
    InvalidTopicName,
    ProducerFenced,
    TopicNotFound,
    TopicTerminated,
)
from pulsar_encore.options import ClientOptions, ConsumerType, InitialPosition, ProducerOptions
from pulsar_encore.transport.interface import RetryNotice
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.lookup.lookup_interface import Partitions
from pulsar_encore.transport.native.lookup.topic_shape import TopicShape
from pulsar_encore.transport.native.service_options import of_options
from pulsar_encore.transport.transport_choice import make_transport
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.wire import pulsar_pb2 as pb

FINAL = {"TopicTerminatedError", "ProducerFenced", "InvalidTopicName"}
CODES = [name for name in pb.ServerError.keys() if name not in FINAL]
STEPS = ("CONNECT", "PARTITIONED_METADATA", "LOOKUP", "SUBSCRIBE", "PRODUCER")


class Listening:
    """A `ProducerListener` that records its calls."""

    def __init__(self) -> None:
        self.notices: list[RetryNotice] = []
        self.calls: list[str] = []
        self.errors: list[Exception] = []

    def on_retrying(self, notice: RetryNotice) -> None:
        self.notices.append(notice)
        self.calls.append("retrying")

    def on_disconnected(self, topic: str) -> None:
        """Do nothing: the tests themselves cause the losses."""

    def on_connected(self, topic: str) -> None:
        self.calls.append("connected")

    def on_removed(self, topic: str) -> None:
        self.calls.append("removed")

    def on_failed(self, topic: str, error: Exception) -> None:
        self.calls.append("failed")
        self.errors.append(error)


class Both:
    """A consumer and a producer of one topic."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.listener = Collector()
        self.listening = Listening()
        self.transport_consumer: Any = None
        self.producer: Any = None
        self._number = 0

    async def open(self, **fields: Any) -> Both:
        self.transport_consumer = await self.rig.transport.subscribe(subscription(**fields))
        self.transport_consumer.start(self.listener)
        options = ProducerOptions(topic=TOPIC, batching_enabled=False)
        self.producer = await self.rig.transport.create_producer(options, self.listening)
        return self

    async def works(self, count: int = 8) -> None:
        """Assert that new messages are sent and received."""
        numbers = range(self._number, self._number + count)
        self._number += count
        ids = await outcomes(self.producer.publish(message(each)) for each in numbers)
        assert all(isinstance(each, MessageId) for each in ids), ids
        await asyncio.sleep(2)
        assert {b"%d" % each for each in numbers} <= set(self.listener.payloads)
        assert self.transport_consumer.is_connected() and self.producer.is_connected()

    def exists(self) -> bool:
        catalogue = self.rig.service.catalogue
        return TOPIC in catalogue.partitioned or any(
            each.partition("-partition-")[0] == TOPIC for each in catalogue.topics
        )


async def both(rig: Rig, **fields: Any) -> Both:
    return await Both(rig).open(**fields)


# Refusals


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("code", CODES)
def test_a_refusal_at_any_step_after_the_first_success_is_retried_until_it_stops(
    code: str, step: str
) -> None:
    async def main() -> None:
        rig = Rig()
        pair = await both(rig)
        await pair.works()
        rig.service.faults = FaultPlan(
            [Fault(kind="refuse", command=step, error=code, times=10_000)]
        )
        rig.dialer.drop()
        await asyncio.sleep(100)
        assert "failed" not in (*pair.listener.names, *pair.listening.calls)
        if step not in ("PRODUCER", "PARTITIONED_METADATA"):
            assert not pair.transport_consumer.is_connected()
            assert "retrying" in pair.listener.names
        if step != "SUBSCRIBE":
            assert not pair.producer.is_connected()
            assert "retrying" in pair.listening.calls
        rig.service.faults = None
        await asyncio.sleep(61)
        await pair.works()
        assert pair.listening.calls[-1:] == ["connected"]

    run(main())


@pytest.mark.parametrize(
    ("code", "step", "error"),
    [
        ("TopicTerminatedError", "PRODUCER", TopicTerminated),
        ("ProducerFenced", "PRODUCER", ProducerFenced),
        ("InvalidTopicName", "LOOKUP", InvalidTopicName),
        ("InvalidTopicName", "SUBSCRIBE", InvalidTopicName),
    ],
)
def test_a_terminated_topic_a_fenced_producer_and_an_invalid_name_are_final(
    code: str, step: str, error: type[Exception]
) -> None:
    async def main() -> None:
        rig = Rig()
        pair = await both(rig)
        rig.service.faults = FaultPlan([Fault(kind="refuse", command=step, error=code, times=9)])
        rig.dialer.drop()
        await asyncio.sleep(5)
        if step != "SUBSCRIBE":
            assert pair.listening.calls.count("failed") == 1
            assert isinstance(pair.listening.errors[0], error)
            with pytest.raises(error):
                await pair.producer.publish(message(1))
        if step != "PRODUCER":
            assert pair.listener.names.count("failed") == 1

    run(main())


def test_retries_are_reported_at_growing_intervals_with_the_reason() -> None:
    async def main() -> None:
        rig = Rig()
        pair = await both(rig)
        refusals = [
            Fault(kind="refuse", command=each, error="AuthorizationError", times=10_000)
            for each in ("SUBSCRIBE", "PRODUCER")
        ]
        rig.service.faults = FaultPlan(refusals)
        rig.dialer.drop()
        await asyncio.sleep(3600)
        notices = pair.listening.notices
        assert isinstance(notices[0].error, AuthorizationError)
        assert notices[0].attempts == 1 and notices[0].topic == TOPIC
        times = [each.elapsed_s for each in notices]
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert times[0] <= 0.2 and max(gaps) <= 300 + 61
        assert len(notices) < 30
        assert [each.attempts for each in notices] == sorted(each.attempts for each in notices)
        notices = [each[2] for each in pair.listener.calls if each[0] == "retrying"]
        assert notices and all(isinstance(each, RetryNotice) for each in notices)

    run(main())


@pytest.mark.parametrize(
    "broker_text",
    [
        "Topic reached max consumers limit",
        "Topic reached max same address consumers limit",
        "Subscription reached max consumers limit",
        "Topic 't' reached max producers limit",
        "Reached the maximum number of connections",
        "Exceed maximum number of topics in namespace",
    ],
)
def test_the_advice_for_a_limit_names_the_limit_and_no_other_subscription_type(
    broker_text: str,
) -> None:
    from pulsar_encore.transport.native.connection.requests import is_limit, refusal

    error = refusal(pb.ConsumerBusy, broker_text, "subscribe")
    assert is_limit(error) and error.retryable
    assert "limit" in str(error) and "consumer_type" not in str(error)
    other = refusal(pb.ConsumerBusy, "Exclusive consumer is already connected", "subscribe")
    assert not is_limit(other) and "consumer_type=Shared" in str(other)


def test_reattach_timeout_ends_the_retrying_with_the_last_refusal() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(reattach_timeout_s=20.0))
        pair = await both(rig)
        loop = asyncio.get_running_loop()
        rig.service.faults = FaultPlan(
            [
                Fault(kind="refuse", command=each, error="AuthenticationError", times=999)
                for each in ("SUBSCRIBE", "PRODUCER")
            ]
        )
        began = loop.time()
        rig.dialer.drop()
        while "failed" not in pair.listener.names or "failed" not in pair.listening.calls:
            await asyncio.sleep(0.1)
        assert 20 <= loop.time() - began <= 21
        assert isinstance(pair.listening.errors[0], AuthenticationError)
        assert isinstance(pair.listener.calls[-1][1], AuthenticationError)

    run(main())


def test_reattach_timeout_ends_an_attempt_that_hangs() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(reattach_timeout_s=10.0))
        pair = await both(rig)
        rig.service.faults = FaultPlan([Fault(kind="drop", command="SUBSCRIBE", times=999)])
        rig.dialer.drop()
        await asyncio.sleep(11)
        assert pair.listener.names[-1] == "failed"
        assert isinstance(pair.listener.calls[-1][1], TransportTimeout)

    run(main())


def test_a_supplier_that_raises_or_returns_nothing_for_a_while_is_called_again() -> None:
    class Supplier:
        method_name = "token"
        calls = 0
        answer: Any = b"t"

        async def data(self) -> bytes:
            self.calls += 1
            if isinstance(self.answer, Exception):
                raise self.answer
            given: bytes = self.answer
            return given

    async def main() -> None:
        for answer in (ZeroDivisionError("theirs"), None, "text", OSError("no file"), b"", b"x"):
            rig = Rig(BrokerSettings(token="t"))
            supplier = Supplier()
            rig.transport = type(rig.transport)(
                "pulsar://memory", credentials=supplier, dialer=rig.dialer
            )
            pair = await both(rig)
            supplier.answer = answer
            calls = supplier.calls
            rig.dialer.drop()
            await asyncio.sleep(10)
            assert supplier.calls >= calls + 4, "asked at each attempt"
            assert not pair.transport_consumer.is_connected()
            supplier.answer = b"t"
            await asyncio.sleep(30)
            await pair.works()

    run(main())


def test_a_first_attempt_waits_for_a_limit_and_not_for_another_consumer() -> None:
    async def main() -> None:
        rig = Rig()
        await both(rig, consumer_type=ConsumerType.Exclusive)
        began = asyncio.get_running_loop().time()
        with pytest.raises(ConsumerBusy):
            await rig.transport.subscribe(subscription(consumer_type=ConsumerType.Exclusive))
        assert asyncio.get_running_loop().time() - began < 1

    run(main())


# Topics that are deleted

BEFORE_AND_AFTER = [(0, 0), (0, 4), (4, 4), (4, 2), (4, 0), (2, 4)]
KINDS = [ConsumerType.Shared, ConsumerType.Exclusive, ConsumerType.Failover, ConsumerType.KeyShared]


def create(rig: Rig, count: int) -> None:
    catalogue = rig.service.catalogue
    if count:
        catalogue.create_partitioned(TOPIC, count)
    else:
        catalogue.create(TOPIC)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), BEFORE_AND_AFTER)
def test_a_topic_that_is_created_again_with_any_number_of_partitions_works(
    before: int, after: int, kind: ConsumerType
) -> None:
    async def main() -> None:
        rig = Rig()
        create(rig, before)
        pair = await both(rig, consumer_type=kind)
        await pair.works()
        rig.service.delete(TOPIC)
        await asyncio.sleep(3)
        assert not pair.exists(), "our own reconnect has not brought it back"
        assert not pair.transport_consumer.is_connected() and not pair.producer.is_connected()
        waiting = [pair.producer.publish(message(each)) for each in range(100, 120)]
        flush = asyncio.ensure_future(pair.producer.flush())
        create(rig, after)
        await asyncio.sleep(8)
        stored = await outcomes(waiting)
        assert all(isinstance(each, MessageId) for each in stored), stored
        assert flush.done() and flush.exception() is None
        assert {b"%d" % each for each in range(100, 120)} <= set(pair.listener.payloads)
        await pair.works()
        assert len(pair.producer.parts) == max(1, after)
        assert "failed" not in (*pair.listener.names, *pair.listening.calls)
        parts = {
            int(stored[each].partition())
            for each in range(20)
            if isinstance(stored[each], MessageId)
        }
        assert parts <= set(range(after)) or parts == {-1}
        await pair.transport_consumer.close()
        await pair.producer.close()

    run(main())


@pytest.mark.parametrize("position", list(InitialPosition))
@pytest.mark.parametrize("after", [0, 4])
def test_messages_of_a_topic_created_again_are_received_from_the_first_one(
    after: int, position: InitialPosition
) -> None:
    """The producer may attach first, and the subscription was deleted with the topic."""

    async def main() -> None:
        rig = Rig()
        create(rig, 0)
        pair = await both(rig, initial_position=position)
        await pair.works()
        rig.service.delete(TOPIC)
        await asyncio.sleep(3)
        create(rig, after)
        rig.store(b"first", topic=f"{TOPIC}-partition-3" if after else TOPIC)
        await asyncio.sleep(8)
        assert b"first" in pair.listener.payloads
        await pair.works()

    run(main())


@pytest.mark.parametrize(("before", "after"), BEFORE_AND_AFTER)
def test_a_reader_continues_in_a_recreated_topic(before: int, after: int) -> None:
    async def main() -> None:
        rig = Rig()
        create(rig, before)
        fields = {"durable": False, "start_message_id": MessageId.earliest}
        pair = await both(rig, consumer_type=ConsumerType.Exclusive, **fields)
        await pair.works()
        rig.service.delete(TOPIC)
        await asyncio.sleep(3)
        assert not pair.exists()
        create(rig, after)
        await asyncio.sleep(8)
        await pair.works()
        assert len(pair.listener.payloads) == 16, "nothing twice"

    run(main())


@pytest.mark.parametrize("before", [0, 4])
def test_a_deleted_topic_is_created_again_after_recreate_after(before: int) -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(recreate_after_s=20.0))
        create(rig, before)
        pair = await both(rig)
        await pair.works()
        rig.service.delete(TOPIC)
        await asyncio.sleep(19)
        assert not pair.exists()
        await asyncio.sleep(10)
        assert pair.exists()
        await pair.works()
        assert not rig.service.catalogue.partitioned, "as the broker creates topics by itself"

    run(main())


def test_a_broker_that_creates_partitioned_topics_does_so_after_a_while() -> None:
    async def main() -> None:
        rig = Rig(
            BrokerSettings(auto_create_partitions=3), settings=ClientSettings(recreate_after_s=20.0)
        )
        pair = await both(rig)
        rig.service.delete(TOPIC)
        await asyncio.sleep(19)
        assert not pair.exists()
        await asyncio.sleep(10)
        assert rig.service.catalogue.partitioned == {TOPIC: 3}
        await pair.works()

    run(main())


def test_a_consumer_waits_for_a_deleted_topic_on_a_broker_without_creation() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(auto_create=False))
        create(rig, 2)
        pair = await both(rig)
        rig.service.delete(TOPIC)
        await asyncio.sleep(1000)
        assert not pair.exists()
        assert "failed" not in (*pair.listener.names, *pair.listening.calls)
        create(rig, 2)
        await asyncio.sleep(61)
        await pair.works()

    run(main())


def test_a_single_partition_that_is_missing_is_waited_for_and_then_created() -> None:
    async def main() -> None:
        rig = Rig()
        create(rig, 2)
        pair = await both(rig)
        state = rig.service.catalogue.topics.pop(f"{TOPIC}-partition-1")
        rig.dialer.drop()
        await asyncio.sleep(30)
        assert f"{TOPIC}-partition-1" not in rig.service.catalogue.topics
        assert state is not None
        await asyncio.sleep(60)
        await pair.works()

    run(main())


def test_a_non_persistent_topic_is_created_again_at_once() -> None:
    async def main() -> None:
        rig = Rig()
        topic = TOPIC.replace("persistent", "non-persistent")
        transport_consumer = await rig.transport.subscribe(subscription(topics=(topic,)))
        producer = await rig.transport.create_producer(ProducerOptions(topic=topic))
        rig.service.delete(topic)
        await asyncio.sleep(2)
        assert transport_consumer.is_connected() and producer.is_connected()

    run(main())


def test_a_topic_of_a_pattern_is_removed_and_found_again() -> None:
    async def main() -> None:
        rig = Rig()
        create(rig, 0)
        pair = await both(rig, topics=(), pattern="persistent://public/default/t.*")
        await pair.works()
        rig.service.delete(TOPIC)
        await asyncio.sleep(3)
        assert not pair.exists() and pair.transport_consumer.is_connected()
        create(rig, 4)
        await asyncio.sleep(10)
        await pair.works()
        rig.service.delete(TOPIC)
        create(rig, 2)
        await asyncio.sleep(10)
        await pair.works()

    run(main())


def test_chunked_batched_and_keyed_messages_move_whole_to_the_new_partitions() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(max_message_size=15_000))
        create(rig, 0)
        listener = Collector()
        transport_consumer = await rig.transport.subscribe(subscription())
        transport_consumer.start(listener)
        batched = await rig.transport.create_producer(ProducerOptions(topic=TOPIC))
        chunked = await rig.transport.create_producer(
            ProducerOptions(topic=TOPIC, chunking_enabled=True, batching_enabled=False)
        )
        rig.service.delete(TOPIC)
        await asyncio.sleep(1)
        waiting = [
            batched.publish(message(each, partition_key=f"k{each % 3}")) for each in range(9)
        ]
        waiting.append(chunked.publish(message(0, properties={"big": "x"})))
        large = message(1)
        large.payload = b"y" * 40_000
        waiting.append(chunked.publish(large))
        await asyncio.sleep(1)
        create(rig, 4)
        await asyncio.sleep(8)
        stored = await outcomes(waiting)
        assert all(isinstance(each, MessageId) for each in stored), stored[-2:]
        assert large.payload in listener.payloads
        assert {b"%d" % each for each in range(9)} <= set(listener.payloads)

    run(main())


def test_sends_without_a_topic_end_by_their_own_timeout() -> None:
    async def main() -> None:
        rig = Rig()
        create(rig, 2)
        options = ProducerOptions(topic=TOPIC, send_timeout_millis=5_000)
        producer = await rig.transport.create_producer(options)
        rig.service.delete(TOPIC)
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        results = await outcomes(producer.publish(message(each)) for each in range(4))
        assert all(isinstance(each, TransportTimeout) for each in results)
        assert asyncio.get_running_loop().time() - began == pytest.approx(5, abs=0.1)

    run(main())


def test_a_lazy_partition_does_not_recreate_a_deleted_topic() -> None:
    async def main() -> None:
        rig = Rig()
        create(rig, 4)
        options = ProducerOptions(
            topic=TOPIC, lazy_start_partitioned_producers=True, send_timeout_millis=20_000
        )
        producer = await rig.transport.create_producer(options)
        rig.service.delete(TOPIC)
        await asyncio.sleep(0.1)
        waiting = [producer.publish(message(each, partition_key=f"{each}")) for each in range(8)]
        await asyncio.sleep(5)
        assert not rig.service.catalogue.topics
        create(rig, 2)
        await asyncio.sleep(8)
        stored = await outcomes(waiting)
        assert all(isinstance(each, MessageId) for each in stored), stored

    run(main())


# Options


@pytest.mark.parametrize("value", [0, -1, "60", True, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["reattach_timeout", "recreate_after"])
def test_a_value_that_is_not_a_number_of_seconds_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        ClientOptions(service_url="pulsar://h:1", **{name: value})


def test_the_options_reach_the_native_transport_and_not_the_stock_transport() -> None:
    options = ClientOptions(service_url="pulsar://h:1", reattach_timeout=7, recreate_after=1.5)
    settings = of_options(options)[1]
    assert (settings.reattach_timeout_s, settings.recreate_after_s) == (7, 1.5)
    with pytest.raises(NotSupportedError, match="reattach_timeout"):
        make_transport(options, "stock")
    assert of_options(ClientOptions(service_url="pulsar://h:1"))[1] == ClientSettings()


def test_a_consumer_that_waits_for_a_deleted_topic_reports_topic_not_found() -> None:
    async def main() -> None:
        rig = Rig()
        pair = await both(rig)
        rig.service.delete(TOPIC)
        await asyncio.sleep(1)
        assert isinstance(pair.listening.notices[0].error, TopicNotFound)

    run(main())


def test_changed_credentials_are_sent_on_a_new_connection_after_a_refusal() -> None:
    class Supplier:
        method_name = "token"
        token = b"t"

        async def data(self) -> bytes:
            return self.token

    async def main() -> None:
        rig = Rig(BrokerSettings(token=None, credentials=()))
        supplier = Supplier()
        rig.transport = type(rig.transport)(
            "pulsar://memory", credentials=supplier, dialer=rig.dialer
        )
        pair = await both(rig)
        other = await rig.transport.subscribe(subscription(topics=(f"{TOPIC}-other",)))
        refused = Fault(kind="refuse", command="SUBSCRIBE", error="AuthorizationError", times=6)
        rig.service.faults = FaultPlan([refused])
        supplier.token = b"another role"
        for each in pair.transport_consumer.topic_consumers:  # like an unload
            each.on_closed_by_broker(None)
        await asyncio.sleep(20)
        assert len(rig.dialer.lines) == 2, "one with each token"
        await pair.works()
        assert other.is_connected()
        connects = [
            each.command.connect.auth_data for each in rig.service.recorder.find("CONNECT", "in")
        ]
        assert connects == [b"t", b"another role"]

    run(main())


def test_0_partitions_from_a_broker_without_pip_344_removes_no_partition() -> None:
    """Brokers without PIP-344 answer 0 for a missing topic and for one without partitions."""

    async def main() -> None:
        async def ask_partitions(topic: str, *, create: bool) -> Partitions:
            return Partitions(0, tells_missing=False)

        async def partitions(topic: str, *, create: bool) -> int:
            return 0

        lookup: Any = SimpleNamespace(
            partitions=partitions,
            ask_partitions=ask_partitions,
            pool=SimpleNamespace(
                loop=asyncio.get_running_loop(), settings=ClientSettings(recreate_after_s=10.0)
            ),
        )
        assert await TopicShape(lookup, TOPIC, creates=True).ask() == 0
        shape = TopicShape(lookup, TOPIC, creates=True, partitions=4)
        assert await shape.ask() is None and not shape.may_create
        await asyncio.sleep(10)
        assert await shape.ask() == 0 and shape.may_create

    run(main())
