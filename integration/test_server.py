"""The test harness itself: the stock client on the real broker, restarts, and the admin API."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar as stock
import pytest

from tests.harness import pulsar_server
from tests.harness.admin import Admin, AdminError
from tests.harness.pulsar_server import (
    NoBrokerError,
    Server,
    Standalone,
    StandaloneError,
    running_server,
)

from .conftest import OwnPulsar

DOCKER = Path(__file__).resolve().parent.parent / "docker"
RECEIVE_MS = 10_000


@contextlib.contextmanager
def connected(url: str) -> Iterator[stock.Client]:
    client = stock.Client(url, logger=stock.ConsoleLogger(stock.LoggerLevel.Error))
    try:
        yield client
    finally:
        client.close()


def produce(url: str, topic: str, *payloads: bytes) -> None:
    with connected(url) as client:
        producer = client.create_producer(topic)
        for payload in payloads:
            producer.send(payload)


def drain(url: str, topic: str, count: int) -> list[bytes]:
    with connected(url) as client:
        consumer = client.subscribe(topic, "s", initial_position=stock.InitialPosition.Earliest)
        received = []
        for _ in range(count):
            message = consumer.receive(RECEIVE_MS)
            consumer.acknowledge(message)
            received.append(bytes(message.data()))
        return received


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_the_stock_client_produces_and_consumes(pulsar: Server, topic: str) -> None:
    produce(pulsar.service_url, topic, b"a", b"b", b"c")
    assert drain(pulsar.service_url, topic, 3) == [b"a", b"b", b"c"]


def test_an_unload_redelivers_unacked_messages(pulsar: Server, admin: Admin, topic: str) -> None:
    with connected(pulsar.service_url) as client:
        # The broker counts unacked messages only on types with individual acks.
        consumer = client.subscribe(topic, "s", consumer_type=stock.ConsumerType.Shared)
        produce(pulsar.service_url, topic, b"a")
        first = consumer.receive(RECEIVE_MS)
        assert admin.subscription_stats(topic, "s")["unackedMessages"] == 1
        admin.unload(topic)
        again = consumer.receive(RECEIVE_MS)
        assert again.message_id() == first.message_id()


def test_the_admin_api_manages_subscriptions(pulsar: Server, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    assert topic in admin.topics()
    admin.create_subscription(topic, "a/b")  # a name that must be quoted in a path
    produce(pulsar.service_url, topic, b"a", b"b")
    assert admin.subscription_stats(topic, "a/b")["msgBacklog"] == 2
    admin.skip_all(topic, "a/b")
    assert admin.subscription_stats(topic, "a/b")["msgBacklog"] == 0
    admin.reset_cursor(topic, "a/b", 0)
    assert admin.subscription_stats(topic, "a/b")["msgBacklog"] == 2
    last = admin.terminate(topic)
    admin.reset_cursor_to(topic, "a/b", last["ledgerId"], last["entryId"])
    assert admin.subscription_stats(topic, "a/b")["msgBacklog"] == 1
    admin.delete_subscription(topic, "a/b")
    assert "a/b" not in admin.stats(topic)["subscriptions"]
    assert admin.internal_stats(topic)["state"] == "Terminated"
    with connected(pulsar.service_url) as client, pytest.raises(stock.TopicTerminated):
        client.create_producer(topic)
    admin.delete_topic(topic)
    assert topic not in admin.topics()


def test_the_admin_api_manages_partitioned_topics(pulsar: Server, admin: Admin, topic: str) -> None:
    admin.create_partitioned_topic(topic, 2)
    admin.grow_partitioned_topic(topic, 3)
    with connected(pulsar.service_url) as client:
        assert len(client.get_topic_partitions(topic)) == 3
    assert admin.partitioned_stats(topic)["metadata"]["partitions"] == 3
    admin.delete_topic(topic, partitioned=True)
    assert not [name for name in admin.topics() if name.startswith(topic)]


def test_the_admin_api_manages_namespaces_and_policies(admin: Admin, topic: str) -> None:
    namespace = "public/" + topic.rpartition("/")[2]
    admin.create_namespace(namespace)
    inside = f"{namespace}/t"
    admin.set_namespace_policy(namespace, "deduplication", True)
    admin.create_topic(inside)
    admin.set_topic_policy(inside, "maxUnackedMessagesOnConsumer", 7)
    assert eventually(lambda: admin.topic_policy(inside, "maxUnackedMessagesOnConsumer") == 7)
    admin.delete_namespace(namespace)
    with pytest.raises(AdminError) as refused:
        admin.topics(namespace)
    assert refused.value.status == 404


@pytest.mark.either_kind
def test_a_restart_or_kill_keeps_data_and_ports(own_pulsar: OwnPulsar, topic: str) -> None:
    broker = own_pulsar(maxUnackedMessagesPerConsumer=10)
    url, pid = broker.service_url, broker.pid
    produce(url, topic, b"a")
    broker.restart()
    assert (broker.service_url, broker.pid != pid) == (url, True)
    produce(url, topic, b"b")
    broker.kill()
    assert not broker.running
    broker.start()
    assert drain(url, topic, 2) == [b"a", b"b"]


@pytest.mark.either_kind
def test_settings_reach_the_broker(own_pulsar: OwnPulsar) -> None:
    broker = own_pulsar(activeConsumerFailoverDelayTimeMillis=17, delayedDeliveryTickTimeMillis=100)
    found = Admin(broker.admin_url).call("GET", "/brokers/configuration/runtime")
    assert found["activeConsumerFailoverDelayTimeMillis"] == "17"
    assert found["delayedDeliveryTickTimeMillis"] == "100"
    assert found["acknowledgmentAtBatchIndexLevelEnabled"] == "true"


@pytest.mark.either_kind
def test_a_broker_that_cannot_start_shows_its_log(own_pulsar: OwnPulsar) -> None:
    with pytest.raises(StandaloneError, match="exit code") as failed:
        own_pulsar(managedLedgerDefaultEnsembleSize="many")
    assert "managedLedgerDefaultEnsembleSize" in str(failed.value)


def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StandaloneError, match="not free"):
            with Standalone(port=taken.getsockname()[1]):
                pass


def test_without_any_broker_the_error_names_the_missing_tools(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PULSAR_URL", "PULSAR_BROKER", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(pulsar_server, "_container", pulsar_server._container.__wrapped__)
    with pytest.raises(NoBrokerError, match=r"PULSAR_URL.*engine.*Java.*install"):
        with running_server():
            pass


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_the_command_never_leaves_a_broker_behind(
    signal_number: signal.Signals, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    command = [sys.executable, str(DOCKER / "standalone.py"), "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        url = program.stdout.readline().decode().strip()
        port = int(url.rpartition(":")[2])
        produce(url, "t", b"a")
        program.send_signal(signal_number)
        program.communicate(timeout=30)
    assert program.returncode == (0 if signal_number is signal.SIGTERM else -signal.SIGKILL)
    assert eventually(lambda: not listening(port))
    assert (data / "broker.log").exists()


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
