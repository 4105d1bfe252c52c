"""Injected faults of the broker, and how the C++ client reacts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from pulsar_encore.devbroker import BrokerThread, Fault, FaultPlan
from pulsar_encore.errors import ClosedError, ConfigurationError

WAIT_MS = 5000
Connect = Callable[..., pulsar.Client]
Start = Callable[..., BrokerThread]


def shared(client: pulsar.Client, **options: Any) -> Any:
    """Subscribe to ``t`` with Shared."""
    return client.subscribe("t", "s", consumer_type=pulsar.ConsumerType.Shared, **options)


def drain(consumer: Any, count: int) -> list[bytes]:
    """Receive this number of bodies."""
    return [consumer.receive(WAIT_MS).data() for _ in range(count)]


def test_messages_arrive_after_dropped_connections(
    broker: BrokerThread, client: pulsar.Client
) -> None:
    consumer = shared(client)
    producer = client.create_producer("t", batching_enabled=False)
    producer.send(b"one")
    first = consumer.receive(WAIT_MS)
    assert broker.drop_connections() == 1
    again = consumer.receive(WAIT_MS)
    assert (again.data(), again.redelivery_count()) == (first.data(), 0)
    producer.send(b"two")
    assert drain(consumer, 1) == [b"two"]


def test_an_outage_keeps_port_and_topics(broker: BrokerThread, client: pulsar.Client) -> None:
    consumer = shared(client)
    producer = client.create_producer("t")
    producer.send(b"kept")
    url = broker.url
    started = time.monotonic()
    broker.outage(0.3)
    producer.send(b"after")
    assert time.monotonic() - started >= 0.3
    seen: set[bytes] = set()
    while seen != {b"kept", b"after"}:
        seen.add(consumer.receive(WAIT_MS).data())
    assert broker.url == url
    assert broker.backlog("t", "s") == 2


def test_outage_until_resume(broker: BrokerThread, connect: Connect) -> None:
    broker.outage()
    client = connect(broker, operation_timeout_seconds=1)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("t")
    broker.resume()
    client.create_producer("t").send(b"")


def test_an_unload_closes_consumers_and_forgets_counts_and_partial_acks(
    broker: BrokerThread, client: pulsar.Client
) -> None:
    consumer = shared(client, negative_ack_redelivery_delay_ms=100, batch_index_ack_enabled=True)
    producer = client.create_producer(
        "t", batching_enabled=True, batching_max_messages=2, batching_max_publish_delay_ms=5000
    )
    for body in (b"a", b"b"):
        producer.send_async(body, lambda *_: None)
    messages = [consumer.receive(WAIT_MS) for _ in range(2)]
    consumer.negative_acknowledge(messages[0])
    assert [consumer.receive(WAIT_MS).redelivery_count() for _ in range(2)] == [1, 1]
    consumer.acknowledge(messages[1])
    while not broker.recorded("ACK"):
        time.sleep(0.005)
    broker.unload("t")
    again = [consumer.receive(WAIT_MS) for _ in range(2)]
    assert [(m.data(), m.redelivery_count()) for m in again] == [(b"a", 0), (b"b", 0)]
    producer.send_async(b"c", lambda *_: None)
    producer.send(b"d")
    assert drain(consumer, 2) == [b"c", b"d"]
    out = {one.type for one in broker.recorded(direction="out")}
    assert {"CLOSE_CONSUMER", "CLOSE_PRODUCER"} <= out


def test_a_terminated_topic_is_reported_when_all_messages_are_acked(
    broker: BrokerThread, client: pulsar.Client
) -> None:
    consumer = shared(client)
    producer = client.create_producer("t", send_timeout_millis=1000)
    producer.send(b"last")
    broker.terminate("t")
    assert not broker.recorded("REACHED_END_OF_TOPIC")
    consumer.acknowledge(consumer.receive(WAIT_MS))
    end = time.monotonic() + 5
    while not broker.recorded("REACHED_END_OF_TOPIC"):
        assert time.monotonic() < end
        time.sleep(0.005)
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer("t")


def test_a_dropped_message_arrives_with_the_next_redelivery(start: Start, connect: Connect) -> None:
    broker = start()
    broker.faults = FaultPlan([Fault(kind="drop", command="MESSAGE", nth=2)])
    client = connect(broker)
    consumer = shared(client)
    producer = client.create_producer("t", batching_enabled=False)
    for i in range(3):
        producer.send(b"%d" % i)
    assert drain(consumer, 2) == [b"0", b"2"]
    consumer.redeliver_unacknowledged_messages()
    assert drain(consumer, 3) == [b"0", b"1", b"2"]
    assert broker.faults is not None and broker.faults.done


def test_duplicated_and_delayed_messages(broker: BrokerThread, client: pulsar.Client) -> None:
    broker.faults = FaultPlan(
        [
            Fault(kind="duplicate", command="MESSAGE", nth=1),
            Fault(kind="delay", command="MESSAGE", nth=2, delay_ms=60),
        ]
    )
    consumer = shared(client)
    producer = client.create_producer("t", batching_enabled=False)
    for i in range(3):
        producer.send(b"%d" % i)
    assert drain(consumer, 4) == [b"0", b"0", b"2", b"1"]


@pytest.mark.parametrize("kind", ["close_before", "close_after"])
@pytest.mark.parametrize("command", ["ACK", "FLOW", "SUCCESS", "MESSAGE"])
def test_a_close_at_any_step_loses_nothing(
    broker: BrokerThread, client: pulsar.Client, kind: Any, command: str
) -> None:
    broker.faults = plan = FaultPlan([Fault(kind=kind, command=command)])
    consumer = shared(client)
    producer = client.create_producer("t", batching_enabled=False)
    for i in range(5):
        producer.send(b"%d" % i)
    seen = set()
    while len(seen) < 5 or not plan.done:
        message = consumer.receive(WAIT_MS)
        seen.add(message.data())
        consumer.acknowledge(message)
        if not plan.done:
            time.sleep(0.02)
            producer.send(b"0")
    assert [fired.fault.kind for fired in plan.fired] == [kind]


def test_a_producer_and_a_subscriber_can_be_refused(
    broker: BrokerThread, client: pulsar.Client
) -> None:
    broker.faults = FaultPlan(
        [
            Fault(kind="refuse", command="PRODUCER", error="ProducerBusy"),
            Fault(kind="refuse", command="SUBSCRIBE", error="AuthorizationError"),
        ]
    )
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer("t")
    client.create_producer("t")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe("t", "s")
    client.subscribe("t", "s")


def test_a_fault_can_be_limited_to_a_topic(broker: BrokerThread, client: pulsar.Client) -> None:
    topic = "persistent://public/default/mine"
    broker.faults = plan = FaultPlan(
        [
            Fault(kind="refuse", command="SUBSCRIBE", error="AuthorizationError", topic=topic),
            Fault(kind="drop", command="MESSAGE", topic=topic),
        ]
    )
    client.subscribe("other", "s")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe("mine", "s")
    consumers = [client.subscribe(name, "s2") for name in ("other", "mine")]
    for name in ("other", "mine"):
        client.create_producer(name).send(b"x")
    assert consumers[0].receive(WAIT_MS).data() == b"x"
    with pytest.raises(pulsar.Timeout):
        consumers[1].receive(100)
    assert plan.done


def test_outage_at_a_step(broker: BrokerThread, client: pulsar.Client) -> None:
    broker.faults = plan = FaultPlan([Fault(kind="outage", command="ACK", outage_s=0.1)])
    consumer = shared(client)
    producer = client.create_producer("t")
    producer.send(b"1")
    consumer.acknowledge(consumer.receive(WAIT_MS))
    assert drain(consumer, 1) == [b"1"]
    assert plan.done


def test_the_recorder_sees_all_commands_and_is_bounded(start: Start, connect: Connect) -> None:
    broker = start(record_limit=10)
    client = connect(broker)
    producer = client.create_producer("t", batching_enabled=False)
    for _ in range(20):
        producer.send(b"")
    assert len(broker.commands) == 10
    receipts = broker.recorded("SEND_RECEIPT", "out")
    assert [one.command.send_receipt.sequence_id for one in receipts][-1] == 19
    times = [one.at_ms for one in broker.commands]
    assert times == sorted(times)
    broker.forget_commands()
    assert broker.commands == []


def test_nothing_is_recorded_when_the_recorder_is_off(start: Start, connect: Connect) -> None:
    broker = start(record=False)
    connect(broker).create_producer("t").send(b"")
    assert broker.commands == []


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "drop", "command": "NACK"},
        {"kind": "drop", "command": "ACK", "nth": 0},
        {"kind": "drop", "command": "ACK", "times": 0},
        {"kind": "delay", "command": "ACK", "delay_ms": -1},
        {"kind": "refuse", "command": "ACK"},
        {"kind": "refuse", "command": "PRODUCER", "error": "Nonsense"},
        {"kind": "explode", "command": "ACK"},
    ],
)
def test_a_fault_that_cannot_fire_is_an_error(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Fault(**fields)


def test_a_plan_counts_by_type_and_direction() -> None:
    plan = FaultPlan([Fault(kind="drop", command="PING", nth=2, times=2, direction="out")])
    steps = [bool(plan.step("out", "PING")) for _ in range(4)]
    assert steps == [False, True, True, False]
    assert plan.step("in", "PING") == []
    assert [fired.step for fired in plan.fired] == [2, 3]
    assert plan.done


def test_a_closed_broker_raises_an_error_that_says_so(start: Start) -> None:
    broker = start()
    broker.close()
    broker.close()
    with pytest.raises(ClosedError):
        broker.unload("t")
