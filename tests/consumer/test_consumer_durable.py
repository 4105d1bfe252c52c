"""Due times and attempts in a state directory survive a killed process."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from consumer_kit import TOPIC, now_s, payloads, put_numbers, receive_all, receive_n, settle
from durable_kit import Host

from pulsar_encore import (
    Backoff,
    Client,
    ConfigurationError,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    Message,
    ReceiveTimeout,
    RocksState,
    StateFormatError,
    StateInUseError,
    StoreError,
    letters,
)
from pulsar_encore.consumer.state_writer import StateWriter
from pulsar_encore.evacuation import evacuate
from pulsar_encore.eventloop.alarm import wall_now_ms
from pulsar_encore.options import ConsumerOptions
from pulsar_encore.state.rocks import RocksStore, StateReader
from pulsar_encore.state.rocks.database import Database
from pulsar_encore.testing import MemoryTransport

TYPES = pytest.mark.parametrize(
    "kind", [ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Exclusive]
)
BATCHES = pytest.mark.parametrize("batch", [1, 10])
HOUR = 3600.0


async def receive_at(consumer: Consumer) -> tuple[bytes, float]:
    message = await consumer.receive(timeout=100_000)
    return message.data(), now_s()


# Due times


@TYPES
@BATCHES
async def test_a_message_nacked_for_an_hour_is_redelivered_after_an_hour_despite_a_kill(
    host: Host, kind: ConsumerType, batch: int
) -> None:
    numbers = put_numbers(host.transport, 10, batch=batch)
    consumer = await host.start(consumer_type=kind)
    got = await receive_n(consumer, 10)
    begun = now_s()
    await consumer.negative_acknowledge(got[3], delay=HOUR)
    await host.kill()
    consumer = await host.start(consumer_type=kind)
    again = await receive_all(consumer)
    assert sorted(payloads(again)) == sorted(set(numbers) - {b"3"})
    for message in again:
        await consumer.acknowledge(message)
    data, at = await receive_at(consumer)
    assert data == b"3"
    assert begun + HOUR <= at <= begun + HOUR * 1.04


async def test_each_of_3_000_nacked_messages_is_redelivered_at_its_due_time_after_a_kill(
    host: Host,
) -> None:
    put_numbers(host.transport, 3_000, batch=7)
    consumer = await host.start(receiver_queue_size=500)
    due: dict[bytes, float] = {}
    for at, message in enumerate(await receive_n(consumer, 3_000)):
        delay = 60.0 + at % 50 * 10
        due[message.data()] = now_s() + delay
        await consumer.negative_acknowledge(message, delay=delay)
    await host.kill()
    consumer = await host.start(receiver_queue_size=500)
    for _ in range(3_000):
        message = await consumer.receive(timeout=10_000)
        asked = due.pop(message.data())
        assert asked <= now_s() <= asked + 30
        await consumer.acknowledge(message)
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout=2_000)


class Platters:
    """The log sizes at the last fsync; a power cut loses the rest of the logs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sizes: dict[str, int] = {}
        sync = Database.sync

        def synced(database: Database) -> None:
            sizes = {log.name: log.stat().st_size for log in database.path.glob("*.log")}
            sync(database)
            self._sizes.update(sizes)

        monkeypatch.setattr(Database, "sync", synced)

    def lose(self, path: Path) -> None:
        """Truncate the logs to their state after a power cut."""
        for log in (path / "db").glob("*.log"):
            os.truncate(log, min(self._sizes.get(log.name, 0), log.stat().st_size))

    def lacks(self, path: Path) -> bool:
        return any(
            log.stat().st_size > self._sizes.get(log.name, 0) for log in (path / "db").glob("*.log")
        )


@pytest.mark.parametrize("durability", ["power", "kill"])
async def test_due_times_survive_a_power_cut_only_with_durability_power(
    host: Host, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    platters = Platters(monkeypatch)
    put_numbers(host.transport, 50)
    consumer = await host.start(state={"durability": durability})
    begun = now_s()
    for message in await receive_n(consumer, 50):
        await consumer.negative_acknowledge(message, delay=HOUR)

    def bursts_end() -> None:
        deadline = time.monotonic() + 30
        while platters.lacks(host.path) and time.monotonic() < deadline:
            time.sleep(0.01)

    if durability == "power":
        bursts_end()  # on this thread: beside a thread the hour would fly by
    await host.kill()
    platters.lose(host.path)
    consumer = await host.start(state={"durability": durability})
    at_once = len(await receive_all(consumer))
    if durability == "kill":
        assert at_once == 50  # as documented: no fsync in this mode
        return
    assert at_once == 0
    for _ in range(50):
        _, at = await receive_at(consumer)
        assert at >= begun + HOUR


async def test_a_due_time_survives_several_kills(host: Host) -> None:
    put_numbers(host.transport, 1)
    consumer = await host.start()
    await consumer.negative_acknowledge(await consumer.receive(), delay=HOUR)
    begun = now_s()
    for _ in range(5):
        await host.kill()
        consumer = await host.start()
        with pytest.raises(ReceiveTimeout):
            await consumer.receive(timeout=600)
    data, at = await receive_at(consumer)
    assert data == b"0" and begun + HOUR <= at


async def test_a_message_due_while_no_process_ran_is_redelivered_at_once(host: Host) -> None:
    put_numbers(host.transport, 1)
    consumer = await host.start()
    await consumer.negative_acknowledge(await consumer.receive(), delay=60)
    await host.kill()
    await asyncio.sleep(HOUR)
    begun = now_s()
    consumer = await host.start()
    assert (await receive_at(consumer))[1] < begun + 1


async def test_a_due_time_survives_an_orderly_close(host: Host) -> None:
    put_numbers(host.transport, 2)
    consumer = await host.start()
    await consumer.negative_acknowledge(await consumer.receive(), delay=HOUR)
    begun = now_s()
    await consumer.close()
    consumer = await host.start()
    assert (await consumer.receive(timeout=1)).data() == b"1"
    data, at = await receive_at(consumer)
    assert data == b"0" and at >= begun + HOUR


async def test_a_due_time_is_kept_when_another_consumer_of_the_process_gets_the_message(
    host: Host,
) -> None:
    put_numbers(host.transport, 40)
    one, other = await host.start(), await host.start()
    mine = await receive_all(one)
    begun = now_s()
    for message in mine:
        await one.negative_acknowledge(message, delay=HOUR)
    for message in await receive_all(other):
        await other.acknowledge(message)
    await one.close()
    assert await receive_all(other) == []  # all of them are its own now
    assert other.statistics().nacked == len(mine) > 0
    data, at = await receive_at(other)
    assert data in payloads(mine) and at >= begun + HOUR


async def test_the_longest_nack_delay_is_accepted_and_survives_a_kill(host: Host) -> None:
    put_numbers(host.transport, 1)
    consumer = await host.start()
    message = await consumer.receive()
    longest_s = 2**63 / 1000
    with pytest.raises(ConfigurationError):
        await consumer.negative_acknowledge(message, delay=longest_s * 2)
    assert consumer.statistics().in_flight == 1
    await consumer.negative_acknowledge(message, delay=longest_s - 1_000_000)  # by the wall, more
    assert (consumer.statistics().in_flight, consumer.statistics().nacked) == (0, 1)
    await host.kill()
    consumer = await host.start()
    with pytest.raises(ReceiveTimeout):
        await consumer.receive(timeout=HOUR)
    consumer.redeliver_unacknowledged_messages()
    again = await consumer.receive(timeout=1)
    assert again.redelivery_count() == 1
    await consumer.acknowledge(again)


async def test_redeliver_unacknowledged_messages_discards_stored_due_times(host: Host) -> None:
    put_numbers(host.transport, 20, batch=5)
    consumer = await host.start()
    for message in await receive_n(consumer, 20):
        await consumer.negative_acknowledge(message, delay=HOUR)
    consumer.redeliver_unacknowledged_messages()
    assert len(await receive_all(consumer)) == 20
    await host.kill()
    consumer = await host.start()
    assert len(await receive_all(consumer)) == 20


async def test_moved_and_cancelled_nacks_survive_a_kill(host: Host) -> None:
    put_numbers(host.transport, 3)
    consumer = await host.start()
    moved, acked, by_id = await receive_n(consumer, 3)
    begun = now_s()
    await consumer.negative_acknowledge(moved, delay=10)
    await consumer.negative_acknowledge(moved, delay=HOUR)
    await consumer.negative_acknowledge(acked, delay=10)
    await consumer.acknowledge(acked)
    await consumer.negative_acknowledge(by_id.message_id(), delay=2 * HOUR)
    await asyncio.sleep(1)  # the ack leaves
    await host.kill()
    consumer = await host.start()
    assert (await receive_at(consumer)) >= (b"0", begun + HOUR)
    data, at = await receive_at(consumer)
    assert data == b"2" and at >= begun + 2 * HOUR


async def test_a_seek_and_an_unsubscribe_discard_stored_due_times(host: Host) -> None:
    put_numbers(host.transport, 2)
    consumer = await host.start()
    first = await consumer.receive()
    await consumer.negative_acknowledge(first, delay=HOUR)
    await consumer.seek(0)
    assert len(await receive_all(consumer)) == 2
    await consumer.negative_acknowledge(first.message_id(), delay=HOUR)
    await consumer.unsubscribe()
    consumer = await host.start()
    assert payloads(await receive_all(consumer)) == [b"0", b"1"]
    assert (await receive_all(consumer)) == []


# Attempts


@TYPES
@BATCHES
async def test_a_message_that_kills_its_process_reaches_the_dead_letter_topic(
    host: Host, kind: ConsumerType, batch: int
) -> None:
    put_numbers(host.transport, 20, batch=batch)
    policy = DeadLetterPolicy(3, dead_letter_topic="dead", initial_subscription_name="look")
    seen = []
    for _ in range(10):
        consumer = await host.start(consumer_type=kind, dead_letter_policy=policy)
        while True:
            try:
                message = await consumer.receive(timeout=1)
            except ReceiveTimeout:
                break
            if message.data() == b"7":
                seen.append(message.redelivery_count())
                break
            await consumer.acknowledge(message)
            await settle()
        else:
            break
        await host.kill()
    assert seen == [0, 1, 2, 3]
    assert host.transport.backlog("dead", "look") == 1


@pytest.mark.parametrize("end", ["kill", "nack"])
@BATCHES
async def test_a_dead_letter_names_the_time_of_a_first_attempt_before_a_kill(
    host: Host, batch: int, end: str
) -> None:
    put_numbers(host.transport, batch, batch=batch)
    policy = DeadLetterPolicy(2, dead_letter_topic="dead", initial_subscription_name="look")
    begun = now_s()
    for _ in range(3):
        consumer = await host.start(dead_letter_policy=policy)
        for message in await receive_n(consumer, batch):
            if message.data() != b"0":
                await consumer.acknowledge(message)
            elif end == "nack":
                await consumer.negative_acknowledge(message, delay=10)
        batch = 1
        await asyncio.sleep(20)
        await host.kill()
    consumer = await host.start(dead_letter_policy=policy)
    await asyncio.sleep(20)
    reader = await host.start("dead", state={}, consumer_type=ConsumerType.Exclusive)
    given = (await reader.receive(timeout=100)).properties()
    assert given[letters.ATTEMPTS] == "3"
    last, first = int(given[letters.LAST_TIME]), int(given[letters.FIRST_TIME])
    assert last - first >= 40_000
    wall = wall_now_ms(asyncio.get_running_loop())
    assert wall - first <= 1000 * (now_s() - begun) + 10


@pytest.mark.parametrize("connected", [True, False])
async def test_a_close_after_a_dead_letter_keeps_its_record_only_if_the_ack_was_not_sent(
    host: Host, connected: bool
) -> None:
    put_numbers(host.transport, 2)
    options: dict[str, Any] = {
        "dead_letter_policy": DeadLetterPolicy(
            1, dead_letter_topic="dead", initial_subscription_name="look"
        )
    }
    consumer = await host.start(ack_group_time_ms=60_000, **options)
    await consumer.acknowledge(await consumer.receive())
    for _ in range(2):
        await consumer.negative_acknowledge(await consumer.receive(timeout=10), delay=1)
    await asyncio.sleep(8)
    assert host.transport.backlog("dead", "look") == 1
    if not connected:
        host.transport.disconnect()
    await consumer.close()
    with StateReader(host.path) as reader:
        assert len(list(reader.records())) == (0 if connected else 1)
    host.transport.reconnect()
    consumer = await host.start(**options)
    # After a lost ack the message is redelivered, and dead-lettered a second time.
    assert payloads(await receive_all(consumer)) == ([] if connected else [b"0"])
    assert host.transport.backlog("dead", "look") == (1 if connected else 2)


@TYPES
@BATCHES
async def test_attempts_add_up_over_nacks_and_kills(
    host: Host, kind: ConsumerType, batch: int
) -> None:
    put_numbers(host.transport, 10, batch=batch)
    seen = []
    for _ in range(3):
        consumer = await host.start(consumer_type=kind, state={"count_attempts": "before"})
        for _ in range(2):
            for message in await receive_all(consumer):
                if message.data() == b"4":
                    seen.append(message.redelivery_count())
                    await consumer.negative_acknowledge(message, delay=2)
                else:
                    await consumer.acknowledge(message)
            await asyncio.sleep(3)
        await host.kill()
    assert seen == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
async def test_messages_rewound_along_with_a_failed_message_count_no_failure(
    host: Host, kind: ConsumerType
) -> None:
    put_numbers(host.transport, 4)
    options: dict[str, Any] = {"consumer_type": kind, "state": {"count_attempts": "before"}}
    consumer = await host.start(**options)
    for _ in range(5):
        bad, *_ = await receive_n(consumer, 4)
        assert bad.data() == b"0"
        await consumer.negative_acknowledge(bad, delay=1)
    counts = {each.data(): each.redelivery_count() for each in await receive_n(consumer, 4)}
    await host.kill()
    consumer = await host.start(**options)
    after = {each.data(): each.redelivery_count() for each in await receive_n(consumer, 4)}
    assert [after[data] - counts[data] for data in counts] == [
        6 if counts[b"0"] == 0 else 1,  # as the broker does not count there
        1,
        1,
        1,
    ]


async def test_lazy_counting_writes_nothing_for_fast_acks_and_counts_messages_held_long(
    host: Host,
) -> None:
    put_numbers(host.transport, 2_000, batch=10)
    consumer = await host.start(state={"count_attempts": "lazy", "stay_buffer": 10})
    store = RocksStore(host.path, wall_now_ms=0)
    writes = store.statistics().writes
    held = await consumer.receive()
    for _ in range(1_999):
        await consumer.acknowledge(await consumer.receive(timeout=1))
    assert store.statistics().writes == writes + 1  # the source's own name
    await asyncio.sleep(25)
    assert store.statistics().writes == writes + 2
    store.close()
    await host.kill()
    consumer = await host.start()
    again = await consumer.receive(timeout=1)
    assert (again.data(), again.redelivery_count()) == (held.data(), 1)


@pytest.mark.parametrize("count_attempts", ["lazy", "before"])
async def test_messages_acked_before_a_kill_are_not_evacuated(
    host: Host, count_attempts: str
) -> None:
    put_numbers(host.transport, 300)
    consumer = await host.start(state={"count_attempts": count_attempts})
    for message in await receive_n(consumer, 300):
        await consumer.negative_acknowledge(message, delay=5)
    again = await receive_n(consumer, 300)
    await asyncio.sleep(30)
    store = RocksStore(host.path, wall_now_ms=0)
    writes = store.statistics().writes
    for message in again:
        await consumer.acknowledge(message)
    assert store.statistics().writes == writes  # not for each
    await asyncio.sleep(2)
    assert store.statistics().writes == writes + 1
    await asyncio.sleep(20)
    assert store.statistics().writes == writes + 1
    store.close()
    await host.kill()
    client = Client("pulsar://nowhere:6650", transport=host.transport)
    report = await evacuate(client, host.path)
    assert (report.waiting, report.moved) == (0, 0)
    await client.close()
    with StateReader(host.path) as reader:
        assert list(reader.records()) == []


async def test_the_last_acks_are_written_at_close_while_another_consumer_uses_the_directory(
    host: Host,
) -> None:
    put_numbers(host.transport, 1)
    consumer = await host.start()
    other = await host.start("another")
    await consumer.negative_acknowledge(await consumer.receive(), delay=1)
    await consumer.acknowledge(await consumer.receive(timeout=10))
    await consumer.close()
    with StateReader(host.path) as reader:
        assert list(reader.waiting()) == [] and list(reader.records()) == []
    await other.close()


async def test_acked_messages_leave_no_record_and_no_due_time(host: Host) -> None:
    put_numbers(host.transport, 300, batch=3)
    consumer = await host.start(state={"count_attempts": "before"})
    for at, message in enumerate(await receive_n(consumer, 300)):
        if at % 5 == 0:
            await consumer.negative_acknowledge(message, delay=1 + at % 7)
        else:
            await consumer.acknowledge(message)
    for message in await receive_n(consumer, 60):
        await consumer.acknowledge(message)
    await consumer.close()
    with StateReader(host.path) as reader:
        assert list(reader.waiting()) == [] and list(reader.records()) == []


async def test_a_cumulative_ack_keeps_the_attempts_of_later_messages(host: Host) -> None:
    put_numbers(host.transport, 10, batch=4)
    consumer = await host.start(
        consumer_type=ConsumerType.Exclusive, state={"count_attempts": "before"}
    )
    got = await receive_n(consumer, 10)
    await consumer.acknowledge_cumulative(got[5])
    await asyncio.sleep(1)
    await host.kill()
    consumer = await host.start(consumer_type=ConsumerType.Exclusive)
    again = await receive_all(consumer)
    assert payloads(again) == [b"6", b"7", b"8", b"9"]
    assert [message.redelivery_count() for message in again] == [1, 1, 1, 1]


async def test_an_expired_ack_timeout_counts_an_attempt_over_a_kill(host: Host) -> None:
    put_numbers(host.transport, 4, batch=4)
    options: dict[str, Any] = {
        "unacked_messages_timeout_ms": 5_000,
        "state": {"count_attempts": "before"},
        "ack_timeout_redelivery_backoff": Backoff(min_delay=20, max_delay=20),
    }
    consumer = await host.start(**options)
    await receive_n(consumer, 4)
    await asyncio.sleep(6)
    await host.kill()
    consumer = await host.start(**options)
    begun = now_s()
    again = await receive_n(consumer, 4)
    assert [message.redelivery_count() for message in again] == [1, 1, 1, 1]
    assert now_s() > begun + 15  # the backoff's rest


async def test_redelivery_counts_over_a_retry_letter_and_kills_equal_those_of_one_process(
    host: Host,
) -> None:
    put_numbers(host.transport, 1)
    options: dict[str, Any] = {
        "retry_enable": True,
        "dead_letter_policy": DeadLetterPolicy(9, dead_letter_topic="dead"),
    }
    consumer = await host.start(**options)
    counts = []
    for _ in range(4):
        message = await consumer.receive(timeout=100)
        counts.append(message.redelivery_count())
        await consumer.negative_acknowledge(message, delay=1)
    message = await consumer.receive(timeout=100)
    counts.append(message.redelivery_count())
    await consumer.reconsume_later(message, delay=1)
    for _ in range(3):
        message = await consumer.receive(timeout=100)
        counts.append(message.redelivery_count())
        await consumer.negative_acknowledge(message, delay=1)
        await host.kill()
        consumer = await host.start(**options)
    plain = await without_state(host.transport)
    assert counts == plain


async def without_state(transport: MemoryTransport) -> list[int]:
    """Return the counts of the test above for one process that is never killed."""
    transport.put("other", b"0")
    client = Client("pulsar://nowhere:6650", transport=transport)
    consumer = await client.subscribe(
        "other",
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        retry_enable=True,
        dead_letter_policy=DeadLetterPolicy(9, dead_letter_topic="dead"),
    )
    counts = []
    for step in range(8):
        message = await consumer.receive(timeout=100)
        counts.append(message.redelivery_count())
        if step == 4:
            await consumer.reconsume_later(message, delay=1)
        else:
            await consumer.negative_acknowledge(message, delay=1)
    await client.close()
    return counts


async def test_batch_receive_and_receive_count_attempts_alike(host: Host) -> None:
    put_numbers(host.transport, 60, batch=6)
    consumer = await host.start(state={"count_attempts": "before"})
    got: list[Message] = []
    while len(got) < 30:
        got += await consumer.batch_receive()
    for _ in range(60 - len(got)):
        got.append(await consumer.receive(timeout=1))
    await host.kill()
    consumer = await host.start()
    again = await receive_all(consumer)
    assert len(again) == 60
    assert {message.redelivery_count() for message in again} == {1}


# A disk, and who has it


@asynccontextmanager
async def full_disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Every write fails as long as the block lasts."""

    def refuse(self: Database, writes: object) -> None:
        raise StoreError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", refuse)
        yield


async def test_a_full_disk_stops_no_nack_and_is_reported_in_the_statistics(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_numbers(host.transport, 20, batch=4)
    consumer = await host.start(state={"count_attempts": "before"})
    assert consumer.statistics().state_failure is None
    async with full_disk(monkeypatch):
        for message in await receive_n(consumer, 20):
            await consumer.negative_acknowledge(message, delay=HOUR)
        assert "no space left" in str(consumer.statistics().state_failure)
    await asyncio.sleep(10)
    assert consumer.statistics().state_failure is None
    begun = now_s()
    await host.kill()
    consumer = await host.start()
    assert (await receive_at(consumer))[1] > begun + HOUR - 60


async def nacked_while_the_disk_was_full(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    async with full_disk(monkeypatch):
        for message in await receive_n(consumer, count):
            await consumer.negative_acknowledge(message, delay=HOUR)


async def test_failed_writes_are_retried_within_about_a_second_of_free_disk_space(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_numbers(host.transport, 3_000, batch=100)
    consumer = await host.start(receiver_queue_size=3_000)
    await nacked_while_the_disk_was_full(consumer, monkeypatch, 3_000)
    assert consumer.statistics().state_failure is not None
    await asyncio.sleep(1.1)
    assert consumer.statistics().state_failure is None
    with StateReader(host.path) as reader:
        assert len(list(reader.waiting())) == 3_000


@pytest.mark.parametrize("shared", [False, True])
async def test_close_writes_all_that_failed_once_the_disk_has_space_again(
    host: Host, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    put_numbers(host.transport, 3_000, batch=100)
    if shared:  # another consumer of the process, that has nothing to look at
        await host.start("persistent://public/default/quiet")
    consumer = await host.start(receiver_queue_size=3_000)
    await nacked_while_the_disk_was_full(consumer, monkeypatch, 3_000)
    await consumer.close()
    with StateReader(host.path) as reader:
        assert len(list(reader.waiting())) == 3_000


async def test_a_failed_fsync_is_reported_in_the_statistics(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()

    def fails(database: Database) -> None:
        tried.set()
        raise StoreError("Input/output error")

    put_numbers(host.transport, 1)
    consumer = await host.start(state={"durability": "power"})
    with monkeypatch.context() as patch:
        patch.setattr(Database, "sync", fails)
        await consumer.negative_acknowledge(await consumer.receive(), delay=HOUR)
        assert await asyncio.to_thread(tried.wait, 10)
        deadline = time.monotonic() + 10
        while consumer.statistics().state_failure is None and time.monotonic() < deadline:
            await asyncio.to_thread(time.sleep, 0.001)
        assert "Input/output" in str(consumer.statistics().state_failure)


async def test_a_consumer_closes_and_logs_lost_records_while_the_disk_stays_full(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put_numbers(host.transport, 4)
    consumer = await host.start()
    async with full_disk(monkeypatch):
        await consumer.negative_acknowledge(await consumer.receive(), delay=HOUR)
        await consumer.close()
    assert "are lost" in caplog.text
    shutil.rmtree(host.path)
    host.path.mkdir()
    consumer = await host.start()
    assert len(await receive_all(consumer)) == 4  # nothing is lost but how long they wait


async def test_a_directory_of_another_process_is_refused_before_any_subscribe_command(
    host: Host, tmp_path: Path
) -> None:
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "from pulsar_encore.state.rocks import RocksStore\n"
            "store = RocksStore(sys.argv[1], wall_now_ms=0)\n"
            "print('there', flush=True)\n"
            "sys.stdin.read()\n",
            str(host.path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None and owner.stdin is not None
    assert owner.stdout.readline() == b"there\n"
    with pytest.raises(StateInUseError, match=str(owner.pid)):
        await host.start()
    assert host.transport.recorded("SUBSCRIBE") == []
    owner.kill()
    owner.wait()
    owner.stdin.close()
    owner.stdout.close()
    consumer = await host.start()  # a crashed owner's opens at once
    await consumer.close()


async def test_a_state_directory_is_refused_on_another_event_loop_before_any_message(
    host: Host,
) -> None:
    consumer = await host.start()

    async def there() -> None:
        options = ConsumerOptions(
            topics=(TOPIC,), pattern=None, subscription_name="t", state=RocksState(host.path)
        )
        with pytest.raises(StateInUseError, match="another thread"):
            await StateWriter.open(options)

    await asyncio.to_thread(asyncio.run, there())
    await consumer.close()


async def test_unsubscribe_raises_a_store_error_and_still_closes_the_consumer(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_numbers(host.transport, 1)
    consumer = await host.start()
    await consumer.negative_acknowledge(await consumer.receive(), delay=HOUR)

    def fails(store: RocksStore, subscription: str, of: object) -> None:
        raise StoreError("out of order")

    with monkeypatch.context() as patch:
        patch.setattr(RocksStore, "forget", fails)
        with pytest.raises(StoreError, match="out of order"):
            await consumer.unsubscribe()
    assert "closed" in repr(consumer)
    with StateReader(host.path) as reader:
        assert reader.owner is not None and reader.owner.closed


async def test_a_directory_with_foreign_files_is_refused(host: Host) -> None:
    host.path.mkdir()
    (host.path / "holiday.jpg").write_bytes(b"beach")
    with pytest.raises(StateFormatError, match=r"holiday\.jpg"):
        await host.start()


async def test_a_failed_subscription_releases_the_state_directory(host: Host) -> None:
    with pytest.raises(ConfigurationError):
        await host.start(consumer_name=7)
    first = await host.start(consumer_type=ConsumerType.Exclusive)
    with pytest.raises(Exception, match="ConsumerBusy"):
        await host.start(consumer_type=ConsumerType.Exclusive)
    await first.close()
    with StateReader(host.path) as reader:
        assert reader.owner is not None and reader.owner.closed


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RocksState(""), "path"),
        (lambda: RocksState(7), "path"),  # type: ignore[arg-type]
        (lambda: RocksState("a\0b"), "NUL"),
        (lambda: RocksState("a\udcff"), "valid Unicode"),
        (lambda: RocksState("a", count_attempts="never"), "count_attempts"),  # type: ignore[arg-type]
        (lambda: RocksState("a", durability="never"), "durability"),  # type: ignore[arg-type]
        (lambda: RocksState("a", stay_buffer=0), "stay_buffer"),
        (lambda: RocksState("a", salvage="yes"), "salvage"),  # type: ignore[arg-type]
    ],
)
def test_the_error_names_an_invalid_state_option(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make()


async def test_a_plain_path_as_state_is_refused(transport: MemoryTransport) -> None:
    client = Client("pulsar://nowhere:6650", transport=transport)
    refused: Awaitable[Consumer] = client.subscribe(TOPIC, "s", state="path")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"RocksState\(path\)"):
        await refused
    await client.close()
