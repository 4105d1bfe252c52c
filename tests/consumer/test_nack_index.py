"""`subscribe(nack_index=SpillingNackIndex(path))`: ids of waiting nacks overflow to disk."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from consumer_kit import TOPIC, counted, now_s, put_numbers, receive_all, receive_n
from durable_kit import Host

from pulsar_encore import (
    Client,
    ConfigurationError,
    Consumer,
    ConsumerType,
    InitialPosition,
    MessageId,
    MetricSample,
    NackIndexStatistics,
    ReceiveTimeout,
    RocksState,
    SpillingNackIndex,
    StateFormatError,
    StoreError,
)
from pulsar_encore.state import DirectoryBlobs, SpillingIndex
from pulsar_encore.testing import MemoryTransport

HOUR = 3600.0
SMALL: dict[str, Any] = {
    "min_index_count_per_bucket": 100,
    "max_indexes_per_bucket_snapshot_segment": 30,
}
BATCHES = pytest.mark.parametrize("batch", [1, 10])


async def subscribe(
    client: Client, path: Path, topic: str = TOPIC, spilling: dict[str, Any] = SMALL, **options: Any
) -> Consumer:
    options.setdefault("consumer_type", ConsumerType.Shared)
    return await client.subscribe(
        topic,
        "s",
        initial_position=InitialPosition.Earliest,
        nack_index=SpillingNackIndex(path, **spilling),
        **options,
    )


async def nack_all(consumer: Consumer, count: int, delay: float) -> None:
    for message in await receive_n(consumer, count):
        await consumer.negative_acknowledge(message, delay=delay)


async def until(consumer: Consumer, so: Callable[[NackIndexStatistics], bool]) -> None:
    """Let the thread of the consumer work: it has real time, the loop a little virtual time."""
    for _ in range(10_000):
        found = consumer.statistics().nack_index
        assert found is not None
        if so(found):
            return
        time.sleep(0.001)
        await asyncio.sleep(0.01)
    raise AssertionError(f"not in 100 virtual seconds: {found}")


async def spilled(consumer: Consumer) -> None:
    await until(consumer, lambda found: found.snapshots > 0 and found.in_memory < 450)


def directories(path: Path) -> list[Path]:
    return sorted(path.glob("spilled-*"))


@BATCHES
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
async def test_spilled_nacks_are_redelivered_once_when_they_are_due(
    transport: MemoryTransport, client: Client, tmp_path: Path, batch: int, kind: ConsumerType
) -> None:
    numbers = put_numbers(transport, 2_000, batch=batch)
    consumer = await subscribe(client, tmp_path, consumer_type=kind)
    begun = now_s()
    await nack_all(consumer, 2_000, HOUR)
    await spilled(consumer)
    found = consumer.statistics()
    assert found.nacked == found.unacked == 2_000
    assert found.nack_index is not None and found.nack_index.error is None
    assert found.nack_index.stored_bytes > 0
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout=begun + HOUR - now_s())
    again = await receive_all(consumer, quiet_s=120)
    assert counted(again) == Counter(numbers)
    assert {message.redelivery_count() for message in again} == {1}
    for message in again:
        await consumer.acknowledge(message)
    assert consumer.statistics().unacked == 0
    assert not await receive_all(consumer, quiet_s=2 * HOUR)


async def test_messages_acked_while_their_nacks_are_on_disk_are_not_redelivered(
    transport: MemoryTransport, client: Client, tmp_path: Path
) -> None:
    put_numbers(transport, 1_000)
    consumer = await subscribe(client, tmp_path)
    got = await receive_n(consumer, 1_000)
    for message in got:
        await consumer.negative_acknowledge(message, delay=HOUR)
    await spilled(consumer)
    for message in got[::2]:
        await consumer.acknowledge(message)
    for message in got[1::4]:
        await consumer.negative_acknowledge(message, delay=2 * HOUR)
    assert consumer.statistics().nacked == 500
    begun = now_s()
    times = dict.fromkeys(range(1, 1_000, 2), 0.0)
    for _ in range(500):
        message = await consumer.receive(timeout=100_000)
        times[int(message.data())] = now_s() - begun
        await consumer.acknowledge(message)
    for number, at in times.items():
        assert (1.9 if number % 4 == 1 else 0.9) * HOUR < at, (number, at)
    assert not await receive_all(consumer, quiet_s=2 * HOUR)


@pytest.mark.parametrize("how", ["redeliver", "seek"])
async def test_a_redeliver_call_or_seek_discards_spilled_nacks(
    transport: MemoryTransport, client: Client, tmp_path: Path, how: str
) -> None:
    numbers = put_numbers(transport, 1_000)
    consumer = await subscribe(client, tmp_path)
    await nack_all(consumer, 1_000, HOUR)
    await spilled(consumer)
    if how == "seek":
        await consumer.seek(MessageId.earliest)
    else:
        consumer.redeliver_unacknowledged_messages()
    assert consumer.statistics().nacked == 0
    again = await receive_all(consumer)
    assert counted(again) == Counter(numbers)
    for message in again:
        await consumer.acknowledge(message)
    assert not await receive_all(consumer, quiet_s=2 * HOUR)
    index = consumer.statistics().nack_index
    assert index is not None and index.in_memory == 0


async def test_a_full_disk_keeps_all_nacks_in_memory_and_is_reported(
    transport: MemoryTransport, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = DirectoryBlobs.create

    def full(self: DirectoryBlobs, generation: int) -> object:
        raise StoreError("could not write: No space left on device")

    monkeypatch.setattr(DirectoryBlobs, "create", full)
    numbers = put_numbers(transport, 1_000)
    consumer = await subscribe(client, tmp_path)
    await nack_all(consumer, 1_000, HOUR)
    await until(consumer, lambda found: found.error is not None)
    found = consumer.statistics().nack_index
    assert found is not None and "No space left" in (found.error or "")
    assert consumer.statistics().nacked == 1_000
    monkeypatch.setattr(DirectoryBlobs, "create", create)
    await asyncio.sleep(61)
    put_numbers(transport, 200)
    await nack_all(consumer, 200, HOUR)
    await spilled(consumer)
    found = consumer.statistics().nack_index
    assert found is not None and found.error is None
    again = await receive_all(consumer, quiet_s=2 * HOUR)
    assert counted(again) == Counter(numbers) + Counter(numbers[:200])


async def test_few_nacks_write_no_snapshot_and_close_removes_the_directory(
    transport: MemoryTransport, client: Client, tmp_path: Path
) -> None:
    put_numbers(transport, 600)
    one = await subscribe(client, tmp_path / "nacks", spilling={})
    two = await subscribe(client, tmp_path / "nacks", topic="other")
    assert len(directories(tmp_path / "nacks")) == 2
    await nack_all(one, 600, HOUR)
    await asyncio.sleep(1)
    files = [each.name for each in (tmp_path / "nacks").rglob("*") if each.is_file()]
    assert sorted(files) == ["owner", "owner"]
    await one.close()
    assert len(directories(tmp_path / "nacks")) == 1
    assert one.statistics().nacked == 600, "can be asked for after the close"
    await two.close()
    assert not directories(tmp_path / "nacks")


async def test_close_during_a_snapshot_write_removes_the_directory(
    transport: MemoryTransport, client: Client, tmp_path: Path
) -> None:
    numbers = put_numbers(transport, 1_000)
    consumer = await subscribe(client, tmp_path)
    await nack_all(consumer, 1_000, HOUR)
    await consumer.close()
    assert not directories(tmp_path)
    consumer = await subscribe(client, tmp_path)
    assert counted(await receive_all(consumer)) == Counter(numbers), "at once, from the broker"


async def test_shutdown_removes_the_directory(transport: MemoryTransport, tmp_path: Path) -> None:
    put_numbers(transport, 500)
    client = Client("pulsar://nowhere:6650", transport=transport)
    consumer = await subscribe(client, tmp_path)
    await nack_all(consumer, 500, HOUR)
    await spilled(consumer)
    client.shutdown()
    assert not directories(tmp_path)


async def test_a_directory_that_cannot_be_created_fails_before_any_subscribe_command(
    transport: MemoryTransport, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="name a directory"):
        await subscribe(client, tmp_path / "file" / "below")
    assert not transport.recorded("SUBSCRIBE")


async def test_a_failed_subscribe_leaves_no_directory(
    transport: MemoryTransport, client: Client, tmp_path: Path
) -> None:
    first = await subscribe(client, tmp_path, consumer_type=ConsumerType.Exclusive)
    with pytest.raises(Exception, match=r"(?i)consumer"):
        await subscribe(client, tmp_path, consumer_type=ConsumerType.Exclusive)
    assert len(directories(tmp_path)) == 1
    await first.close()


@pytest.mark.parametrize(
    ("wrong", "expected_error"),
    [
        ({"path": ""}, "path of a directory"),
        ({"path": 5}, "path of a directory"),
        ({"path": "a\0b"}, "must not contain NUL"),
        ({"path": b"nacks"}, "path of a directory, got b'nacks'"),
        ({"min_index_count_per_bucket": 0}, "min_index_count_per_bucket must be at least 1"),
        ({"max_indexes_per_bucket_snapshot_segment": 0}, "-1, for no limit"),
        ({"max_num_buckets": 0}, "max_num_buckets must be -1"),
        ({"max_num_buckets": True}, "max_num_buckets must be an int"),
        ({"max_time_step_per_bucket_snapshot_segment_seconds": 0}, "at least 0.001"),
        ({"max_time_step_per_bucket_snapshot_segment_seconds": float("nan")}, "finite"),
        ({"max_time_step_per_bucket_snapshot_segment_seconds": "1"}, "number of seconds"),
    ],
)
def test_invalid_spilling_options_are_refused(wrong: dict[str, Any], expected_error: str) -> None:
    with pytest.raises(ConfigurationError, match=expected_error):
        SpillingNackIndex(**({"path": "nacks"} | wrong))


async def test_a_plain_path_as_nack_index_is_refused(client: Client) -> None:
    with pytest.raises(ConfigurationError, match=r"SpillingNackIndex\(path\)"):
        await client.subscribe(TOPIC, "s", nack_index="/var/nacks")  # type: ignore[arg-type]


@pytest.mark.parametrize("below", ["", "nacks"])
async def test_a_nack_index_in_or_below_the_state_directory_is_refused(
    client: Client, tmp_path: Path, below: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with pytest.raises(ConfigurationError, match=r"nack_index, .*disk.* name another one"):
        await client.subscribe(
            TOPIC,
            "s",
            state=RocksState(tmp_path / "link"),
            nack_index=SpillingNackIndex(tmp_path / "disk" / below),
        )


async def test_a_state_can_use_the_directory_of_a_closed_nack_index(
    transport: MemoryTransport, client: Client, tmp_path: Path
) -> None:
    consumer = await subscribe(client, tmp_path)
    with pytest.raises(StateFormatError, match="is the directory of a nack_index"):
        await client.subscribe(TOPIC, "t", state=RocksState(tmp_path))
    await consumer.close()
    await client.subscribe(TOPIC, "t", state=RocksState(tmp_path))


async def test_with_a_state_due_times_survive_the_process_and_ids_spill(
    transport: MemoryTransport, tmp_path: Path
) -> None:
    host = Host(transport, tmp_path / "disk")
    nacks = SpillingNackIndex(tmp_path / "nacks", **SMALL)
    numbers = put_numbers(transport, 1_000)
    state = {"count_attempts": "before"}
    consumer = await host.start(nack_index=nacks, state=state)
    begun = now_s()
    await nack_all(consumer, 1_000, 24 * HOUR)
    await spilled(consumer)
    await host.kill()
    consumer = await host.start(nack_index=nacks, state=state)
    assert not await receive_all(consumer, quiet_s=HOUR)
    assert consumer.statistics().nacked == 1_000
    await spilled(consumer)
    again = await receive_n(consumer, 1_000)
    assert now_s() - begun >= 24 * HOUR
    assert counted(again) == Counter(numbers)
    assert not await receive_all(consumer, quiet_s=48 * HOUR)
    await host.kill()


# Metrics

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")


async def test_metrics_are_those_of_pip_195_with_topic_and_subscription(
    transport: MemoryTransport, client: Client, tmp_path: Path
) -> None:
    transport.catalogue.create_partitioned("parts", 2)
    consumer = await subscribe(client, tmp_path, topic="parts")
    assert consumer.metrics() == []
    for partition in range(2):
        for each in range(300):
            transport.put(f"persistent://public/default/parts-partition-{partition}", b"%d" % each)
    await nack_all(consumer, 600, HOUR)
    await spilled(consumer)
    samples = consumer.metrics()
    assert {(each.labels["topic"], each.labels["subscription"]) for each in samples} == {
        (f"persistent://public/default/parts-partition-{partition}", "s") for partition in range(2)
    }
    check_series(samples)
    (total,) = (
        each
        for each in samples
        if each.name.endswith("bucket_total") and each.labels["topic"].endswith("-1")
    )
    assert total.value >= 2 and total.kind == "gauge"


def check_series(samples: list[MetricSample]) -> None:
    """Raise AssertionError unless a Prometheus server could take the samples as they are."""
    kinds: dict[str, set[str]] = {}
    series = set()
    for each in samples:
        assert NAME.match(each.name) and each.help
        assert all(LABEL.match(label) for label in each.labels)
        name = (each.name, *sorted(each.labels.items()))
        assert name not in series, "a series twice"
        series.add(name)
        kinds.setdefault(each.name, set()).add(each.kind)
    assert all(len(some) == 1 for some in kinds.values())


def test_metrics_of_a_spilling_index_have_the_names_and_labels_of_pulsar(tmp_path: Path) -> None:
    with SpillingIndex(DirectoryBlobs(tmp_path), min_index_count_per_bucket=50) as index:
        for entry in range(200):
            index.add((1, entry, -1), entry, 0)
        while index.maintain():
            pass
        samples = index.metrics({"topic": "t", "subscription": "s"})
    check_series(samples)
    prefix = "pulsar_delayed_message_index_"
    found: dict[str, list[MetricSample]] = {}
    for each in samples:
        found.setdefault(each.name.removeprefix(prefix), []).append(each)
    assert set(found) == {
        "bucket_total",
        "loaded",
        "bucket_snapshot_size_bytes",
        "bucket_op_count",
        "bucket_op_latency_ms",
        "bucket_op_latency_ms_count",
        "bucket_op_latency_ms_sum",
    }
    types = {"create", "load", "delete", "merge"}
    for name in ("bucket_total", "loaded", "bucket_snapshot_size_bytes"):
        (one,) = found[name]
        assert one.labels == {"topic": "t", "subscription": "s"} and one.kind == "gauge"
    assert {(each.labels["state"], each.labels["type"]) for each in found["bucket_op_count"]} == {
        (state, kind) for state in ("succeed", "failed", "all") for kind in types
    }
    quantiles = {"50", "100", "500", "1000", "5000", "30000", "60000", "overflow"}
    latencies = {
        (each.labels["type"], each.labels["quantile"]): each.value
        for each in found["bucket_op_latency_ms"]
    }
    assert set(latencies) == {(kind, quantile) for kind in types for quantile in quantiles}
    counts = {each.labels["type"]: each.value for each in found["bucket_op_latency_ms_count"]}
    done = {
        each.labels["type"]: each.value
        for each in found["bucket_op_count"]
        if each.labels["state"] == "succeed"
    }
    assert counts == done and counts["create"] >= 3
    for kind in types:  # each latency is counted under one threshold
        assert counts[kind] == sum(latencies[kind, quantile] for quantile in quantiles)
