"""Everyday use of the C++ client over TCP."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, JsonSchema, Record, String, StringSchema

from pulsar_encore.devbroker import BrokerThread

WAIT_MS = 5000
NOTHING_MS = 100
Connect = Callable[..., pulsar.Client]
Start = Callable[..., BrokerThread]
TYPES = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.KeyShared,
]


def send(client: pulsar.Client, topic: str, count: int, batch: int = 0, **fields: Any) -> list[Any]:
    """Publish ``m0``, ``m1`` ..., in batches of `batch` if given, and return the ids."""
    ids: list[Any] = []
    producer = client.create_producer(
        topic,
        batching_enabled=bool(batch),
        batching_max_messages=batch or 2,
        batching_max_publish_delay_ms=5000,
        max_pending_messages=5000,
    )
    for i in range(count):
        producer.send_async(b"m%d" % i, lambda _, mid: ids.append(mid), **fields)
    producer.flush()
    producer.close()
    return ids


def receive(consumer: Any, count: int) -> list[Any]:
    """Receive this number of messages."""
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def assert_nothing(consumer: Any) -> None:
    """Assert that no message arrives now."""
    with pytest.raises(pulsar.Timeout):
        consumer.receive(NOTHING_MS)


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until the broker has noticed a change."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.mark.parametrize("batch", [0, 10])
@pytest.mark.parametrize("kind", TYPES)
def test_produce_consume_ack(
    broker: BrokerThread, client: pulsar.Client, kind: pulsar.ConsumerType, batch: int
) -> None:
    consumer = client.subscribe("t", "s", consumer_type=kind)
    ids = send(client, "t", 50, batch)
    messages = receive(consumer, 50)
    assert [m.data() for m in messages] == [b"m%d" % i for i in range(50)]
    assert [str(m.message_id()) for m in messages] == [str(mid) for mid in ids]
    for message in messages:
        consumer.acknowledge(message)
    until(lambda: broker.backlog("t", "s") == 0)


@pytest.mark.parametrize(
    "codec",
    [pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD],
)
def test_compressed_batches_are_not_decompressed(client: pulsar.Client, codec: Any) -> None:
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t", compression_type=codec, batching_enabled=True)
    for i in range(100):
        producer.send_async(b"x" * 100 + b"%d" % i, lambda *_: None, properties={"i": str(i)})
    producer.flush()
    assert [m.properties()["i"] for m in receive(consumer, 100)] == [str(i) for i in range(100)]


def test_a_large_message_arrives(client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s")
    body = b"x" * (5 * 1024 * 1024 - 20_000)
    client.create_producer("t").send(body)
    assert consumer.receive(WAIT_MS).data() == body


def test_chunks(client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s")
    producer = client.create_producer("t", chunking_enabled=True, batching_enabled=False)
    body = bytes(range(256)) * 40_000
    producer.send(body)
    assert consumer.receive(WAIT_MS).data() == body


def test_nack_counts(client: pulsar.Client) -> None:
    consumer = client.subscribe(
        "t",
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
    )
    send(client, "t", 1)
    counts = []
    for _ in range(4):
        message = consumer.receive(WAIT_MS)
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    assert counts == [0, 1, 2, 3]


def test_two_shared_consumers_split_the_work(client: pulsar.Client) -> None:
    shared = pulsar.ConsumerType.Shared
    consumers = [client.subscribe("t", "s", consumer_type=shared) for _ in range(2)]
    producer = client.create_producer("t", batching_enabled=False)
    for _ in range(20):
        producer.send(b"")
    for consumer in consumers:
        receive(consumer, 10)


def test_messages_of_a_closed_consumer_go_to_another(client: pulsar.Client) -> None:
    shared = pulsar.ConsumerType.Shared
    first = client.subscribe("t", "s", consumer_type=shared)
    send(client, "t", 5)
    receive(first, 5)
    second = client.subscribe("t", "s", consumer_type=shared)
    first.close()
    assert [m.redelivery_count() for m in receive(second, 5)] == [0] * 5


def test_exclusive_is_busy_and_types_cannot_be_mixed(
    broker: BrokerThread, connect: Connect
) -> None:
    first = connect(broker).subscribe("t", "s")
    other = connect(broker)
    with pytest.raises(pulsar.ConsumerBusy):
        other.subscribe("t", "s")
    with pytest.raises(pulsar.ConsumerBusy):
        other.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    first.close()
    other.subscribe("t", "s")


def test_failover_activates_the_next_consumer(broker: BrokerThread, connect: Connect) -> None:
    failover = pulsar.ConsumerType.Failover
    broker.create_partitioned_topic("t", 1)
    first, second = connect(broker), connect(broker)
    a = first.subscribe("t-partition-0", "s", consumer_type=failover, consumer_name="a")
    b = second.subscribe("t-partition-0", "s", consumer_type=failover, consumer_name="b")
    send(first, "t-partition-0", 4)
    got = receive(a, 4)
    a.acknowledge(got[0])
    assert_nothing(b)
    a.close()
    assert [m.data() for m in receive(b, 3)] == [b"m1", b"m2", b"m3"]
    assert len(broker.recorded("ACTIVE_CONSUMER_CHANGE")) >= 3


@pytest.mark.parametrize("overtaken", [0.0, 1.0])
def test_a_redelivery_in_the_middle_of_a_backlog_skips_a_block_unless_disabled(
    start: Start, connect: Connect, overtaken: float
) -> None:
    client = connect(start(rewind_overtaken=overtaken))
    missing = 0
    for number in range(5):  # The read ends before the REDELIVER if this thread has to wait.
        assert len(send(client, f"t{number}", 3000)) == 3000
        consumer = client.subscribe(
            f"t{number}", "s", initial_position=pulsar.InitialPosition.Earliest
        )
        got = {m.data() for m in receive(consumer, 500)}  # of 1000: the last message sends a FLOW
        consumer.redeliver_unacknowledged_messages()
        with contextlib.suppress(pulsar.Timeout):
            while True:
                got.add(consumer.receive(300).data())
        consumer.close()
        missing = 3000 - len(got)
        if missing:
            break
    assert bool(missing) is (overtaken > 0)


def test_key_shared_sends_each_key_to_one_consumer(client: pulsar.Client) -> None:
    kind = pulsar.ConsumerType.KeyShared
    consumers = [client.subscribe("t", "s", consumer_type=kind) for _ in range(2)]
    producer = client.create_producer("t", batching_enabled=False)
    for i in range(60):
        producer.send(b"", partition_key=f"k{i % 20}")
    keys: list[set[str]] = []
    for consumer in consumers:
        mine = set()
        while True:
            try:
                mine.add(consumer.receive(NOTHING_MS).partition_key())
            except pulsar.Timeout:
                break
        keys.append(mine)
    assert keys[0] and keys[1]
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == 20


def test_key_batches_are_routed_by_their_key(client: pulsar.Client) -> None:
    kind = pulsar.ConsumerType.KeyShared
    consumers = [client.subscribe("t", "s", consumer_type=kind) for _ in range(2)]
    producer = client.create_producer(
        "t",
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=5000,
    )
    for i in range(100):
        producer.send_async(b"%d" % (i // 20), lambda *_: None, partition_key=f"k{i % 20}")
    producer.flush()
    orders: list[dict[str, list[bytes]]] = []
    entries = set()
    for consumer in consumers:
        mine: dict[str, list[bytes]] = {}
        with contextlib.suppress(pulsar.Timeout):
            while True:
                message = consumer.receive(NOTHING_MS)
                mine.setdefault(message.partition_key(), []).append(message.data())
                entries.add(message.message_id().entry_id())
        orders.append(mine)
    assert orders[0] and orders[1]
    assert not orders[0].keys() & orders[1].keys()
    assert list((orders[0] | orders[1]).values()) == [[b"0", b"1", b"2", b"3", b"4"]] * 20
    assert len(entries) == 20


def test_partitioned_topic(broker: BrokerThread, client: pulsar.Client) -> None:
    broker.create_partitioned_topic("t", 3)
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer("t", batching_enabled=False)
    for i in range(30):
        producer.send(b"%d" % i)
    messages = receive(consumer, 30)
    assert {m.topic_name() for m in messages} == {
        f"persistent://public/default/t-partition-{i}" for i in range(3)
    }
    for message in messages:
        consumer.acknowledge(message)
    until(lambda: broker.backlog("t", "s") == 0)
    assert client.get_topic_partitions("t") == [
        f"persistent://public/default/t-partition-{i}" for i in range(3)
    ]


def test_topics_are_created_partitioned_if_configured(start: Start, connect: Connect) -> None:
    broker = start(auto_create_partitions=2)
    client = connect(broker)
    client.create_producer("t").send(b"")
    client.create_producer("t-DLQ").send(b"")
    assert broker.topics() == [
        f"persistent://public/default/t-{name}" for name in ("DLQ", "partition-0", "partition-1")
    ]


def test_growth_copies_durable_subscriptions(broker: BrokerThread, client: pulsar.Client) -> None:
    broker.create_partitioned_topic("t", 1)
    client.subscribe("t", "s").close()
    broker.create_partitioned_topic("t", 3)
    send(client, "t-partition-2", 4)
    assert broker.backlog("t", "s") == 4


def test_pattern_subscription(broker: BrokerThread, client: pulsar.Client) -> None:
    for name in ("ord-1", "ord-2", "other"):
        broker.create_topic(name)
    consumer = client.subscribe(re.compile("persistent://public/default/ord-.*"), "s")
    for name in ("ord-1", "ord-2", "other"):
        send(client, name, 1)
    names = sorted(m.topic_name().rsplit("/", 1)[1] for m in receive(consumer, 2))
    assert names == ["ord-1", "ord-2"]
    assert_nothing(consumer)


def test_reader(broker: BrokerThread, client: pulsar.Client) -> None:
    ids = send(client, "t", 5)
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(5)] == [b"m%d" % i for i in range(5)]
    assert not reader.has_message_available()
    reader.seek(ids[3])
    assert reader.has_message_available()
    reader.seek(pulsar.MessageId.earliest)
    assert reader.read_next(WAIT_MS).data() == b"m0"
    reader.close()
    after = client.create_reader("t", ids[2])
    assert after.read_next(WAIT_MS).data() == b"m3"
    latest = client.create_reader("t", pulsar.MessageId.latest)
    assert not latest.has_message_available()
    after.close()
    latest.close()
    assert broker.call(lambda b: len(b.service.catalogue.topic("t").subscriptions)) == 0


def test_seek_by_id_and_time(client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s")
    ids = send(client, "t", 3)
    time.sleep(0.02)
    between_ms = int(time.time() * 1000)
    time.sleep(0.02)
    send(client, "t", 2)
    for message in receive(consumer, 5):
        consumer.acknowledge(message)
    consumer.seek(ids[1])
    # The C++ client leaves out the id itself, and the broker starts at it.
    assert consumer.receive(WAIT_MS).data() in (b"m1", b"m2")
    consumer.seek(between_ms)
    assert [m.data() for m in receive(consumer, 2)] == [b"m0", b"m1"]
    consumer.seek(pulsar.MessageId.earliest)
    assert len(receive(consumer, 5)) == 5


def test_initial_positions(broker: BrokerThread, client: pulsar.Client) -> None:
    send(client, "t", 2)
    latest = client.subscribe("t", "latest")
    earliest = client.subscribe("t", "earliest", initial_position=pulsar.InitialPosition.Earliest)
    assert len(receive(earliest, 2)) == 2
    assert_nothing(latest)
    assert broker.backlog("t", "latest") == 0


def test_unsubscribe(broker: BrokerThread, client: pulsar.Client) -> None:
    shared = pulsar.ConsumerType.Shared
    a = client.subscribe("t", "s", consumer_type=shared)
    b = client.subscribe("t", "s", consumer_type=shared)
    with pytest.raises(pulsar.PulsarException):
        a.unsubscribe()
    b.close()
    a.unsubscribe()
    assert broker.call(lambda one: one.subscription("t", "s")) is None


def test_last_message_id(client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s")
    assert consumer.get_last_message_id().entry_id() == -1
    ids = send(client, "t", 3)
    assert consumer.get_last_message_id().entry_id() == ids[-1].entry_id()
    send(client, "t", 7, batch=7)
    assert consumer.get_last_message_id().batch_index() == 6


def test_batch_index_acks(broker: BrokerThread, client: pulsar.Client) -> None:
    def subscribe() -> Any:
        return client.subscribe(
            "t",
            "s",
            consumer_type=pulsar.ConsumerType.Shared,
            batch_index_ack_enabled=True,
        )

    consumer = subscribe()
    send(client, "t", 5, batch=5)
    messages = receive(consumer, 5)
    for i in (0, 3):
        consumer.acknowledge(messages[i])
    until(lambda: len(broker.recorded("ACK")) > 0)
    consumer.close()
    consumer = subscribe()
    assert [m.data() for m in receive(consumer, 3)] == [b"m1", b"m2", b"m4"]
    sent = broker.recorded("MESSAGE")[-1].command.message
    assert list(sent.ack_set) == [0b10110]


def test_cumulative_ack(broker: BrokerThread, client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s")
    send(client, "t", 10)
    messages = receive(consumer, 10)
    consumer.acknowledge_cumulative(messages[6])
    until(lambda: broker.backlog("t", "s") == 3)


def test_delayed_delivery(start: Start, connect: Connect) -> None:
    broker = start(delayed_tick_ms=50)
    client = connect(broker)
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer("t")
    started = time.monotonic()
    due = int(time.time() * 1000) + 200
    producer.send(b"late", deliver_at=due)
    producer.send(b"now")
    assert consumer.receive(WAIT_MS).data() == b"now"
    assert consumer.receive(WAIT_MS).data() == b"late"
    assert time.monotonic() - started >= 0.14


def test_unacked_limit_holds_a_stock_consumer(start: Start, connect: Connect) -> None:
    broker = start(max_unacked_per_consumer=10)
    client = connect(broker)
    consumer = client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared)
    send(client, "t", 20)
    messages = receive(consumer, 10)
    assert_nothing(consumer)
    for message in messages[:5]:
        consumer.acknowledge(message)
    assert len(receive(consumer, 5)) == 5


class Order(Record):  # type: ignore[misc]
    """A record for the schema tests."""

    who = String()


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
def test_record_schemas(client: pulsar.Client, make: Any) -> None:
    consumer = client.subscribe("t", "s", schema=make(Order))
    client.create_producer("t", schema=make(Order)).send(Order(who="me"))
    message = consumer.receive(WAIT_MS)
    assert message.value().who == "me"
    assert message.schema_version() == "\0" * 8


def test_incompatible_schemas_are_refused(client: pulsar.Client) -> None:
    consumer = client.subscribe("t", "s", schema=StringSchema())
    client.create_producer("t", schema=StringSchema()).send("text")
    assert consumer.receive(WAIT_MS).value() == "text"
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("t", schema=JsonSchema(Order))
    client.create_producer("t").send(b"bytes are allowed")


def test_producer_names_and_access_modes(client: pulsar.Client) -> None:
    first = client.create_producer("t", producer_name="mine")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer("t", producer_name="mine")
    first.close()
    exclusive = pulsar.ProducerAccessMode.Exclusive
    holder = client.create_producer("t", access_mode=exclusive)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("t", access_mode=exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer("t")
    holder.close()
    client.create_producer("t")


def test_the_c_clients_dead_letter_topic_works(client: pulsar.Client) -> None:
    consumer = client.subscribe(
        "t",
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            max_redeliver_count=1, initial_subscription_name="look"
        ),
    )
    send(client, "t", 1)
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    dead = client.subscribe("t-s-DLQ", "look")
    assert dead.receive(WAIT_MS).data() == b"m0"


def test_token(start: Start, connect: Connect) -> None:
    broker = start(token="right")
    client = connect(broker, authentication=pulsar.AuthenticationToken("right"))
    client.create_producer("t").send(b"")
    wrong = connect(
        broker,
        authentication=pulsar.AuthenticationToken("wrong"),
        operation_timeout_seconds=1,
    )
    # The C++ client treats the answer like a failed handshake and retries until its timeout.
    with pytest.raises(pulsar.PulsarException):
        wrong.create_producer("t")
    assert broker.recorded("ERROR")[0].command.error.message == "Failed to authenticate"


def test_creation_off_and_unknown_namespace(start: Start, connect: Connect) -> None:
    broker = start(auto_create=False)
    client = connect(broker, operation_timeout_seconds=1)
    for topic in ("missing", "persistent://other/place/t"):
        with pytest.raises(pulsar.TopicNotFound):
            client.subscribe(topic, "s")
    broker.create_topic("there")
    client.subscribe("there", "s")
