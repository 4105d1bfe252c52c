"""Evacuation moves waiting messages of a host to the retry letter topic and never loses one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest
from evacuation_kit import (
    HOUR,
    RETRY,
    TOPIC,
    OldHost,
    now_s,
    numbers_of,
    put_numbers,
    receive_all,
    take_over,
)

from pulsar_encore import (
    Client,
    ConfigurationError,
    ConsumerType,
    StateFormatError,
    StateInUseError,
)
from pulsar_encore.core.fingerprint import NO_FINGERPRINT
from pulsar_encore.evacuation import EvacuationReport, evacuate, evacuation_plan
from pulsar_encore.state.rocks import RocksStore, StateReader, TopicStore
from pulsar_encore.testing import MemoryTransport

BATCHES = pytest.mark.parametrize("batch", [1, 10])


def waiting_in(path: Path) -> int:
    with StateReader(path) as state:
        return sum(1 for _ in state.waiting())


@contextmanager
def opened(path: Path, topic: str = TOPIC) -> Iterator[TopicStore]:
    store = RocksStore(path, wall_now_ms=0)
    topic_store = store.topic_store(topic, "billing")
    yield topic_store
    topic_store.close()
    store.close()


@BATCHES
async def test_another_host_gets_the_messages_at_their_due_times_with_their_counts(
    transport: MemoryTransport, client: Client, host: OldHost, batch: int
) -> None:
    put_numbers(transport, 50, batch)
    which = {3, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 49}
    begun = await host.leave_waiting(50, which)
    report = await evacuate(client, host.path)
    assert (report.waiting, report.moved, report.gone, report.refused) == (12, 12, 0, 0)
    assert report.targets == {RETRY: 12}
    assert waiting_in(host.path) == 0
    consumer = await take_over(client)
    got = []
    for _ in which:
        got.append(await consumer.receive(timeout=2 * HOUR))
        assert begun + HOUR <= now_s() <= begun + HOUR * 1.04
    assert numbers_of(got) == sorted(which)
    assert {each.redelivery_count() for each in got} == {1}
    assert {each.properties()["colour"] for each in got} == {"red"}
    assert await receive_all(consumer, 10 * HOUR) == []


async def test_the_plan_lists_the_target_topics(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    put_numbers(transport, 5)
    await host.leave_waiting(5, {1, 2})
    await host.leave_waiting(0, set(), topic="refunds")
    [plan] = evacuation_plan(host.path, topic="orders")
    assert (plan.topic, plan.subscription, plan.waiting) == (TOPIC, "billing", 2)
    assert plan.retry_topic == RETRY
    assert plan.earliest_ms is not None and plan.latest_ms is not None
    assert plan.earliest_ms <= plan.latest_ms
    assert [each.retry_topic for each in evacuation_plan(host.path, retry_topic="late")] == [
        "persistent://public/default/late"
    ] * len(evacuation_plan(host.path))
    assert waiting_in(host.path) == 2


async def test_only_selected_messages_are_moved(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    put_numbers(transport, 3)
    put_numbers(transport, 3, topic="persistent://public/default/refunds")
    await host.leave_waiting(3, {0, 1, 2})
    await host.leave_waiting(3, {0}, topic="refunds")
    report = await evacuate(client, host.path, topic="refunds", retry_topic="late")
    assert report.targets == {"persistent://public/default/late": 1}
    assert waiting_in(host.path) == 3
    with pytest.raises(ConfigurationError, match=r"nothing of the topic .*/returns'; it has .*ref"):
        await evacuate(client, host.path, topic="returns")
    with pytest.raises(ConfigurationError, match="subscription 'audit'; it has billing"):
        await evacuate(client, host.path, subscription="audit")


async def test_a_letter_returns_to_its_retry_letter_topic(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    """It waited there for one more hour, after a failed attempt."""
    put_numbers(transport, 1)
    consumer = await host.start(retry_enable=True)
    await consumer.reconsume_later(await consumer.receive(), delay=0)
    message = await consumer.receive(timeout=100)
    await consumer.negative_acknowledge(message, delay=HOUR)
    origin = message.properties()
    await consumer.close()
    report = await evacuate(client, host.path)
    assert report.targets == {RETRY: 1}
    consumer = await take_over(client)
    message = await consumer.receive(timeout=2 * HOUR)
    assert message.redelivery_count() == 1
    assert message.properties()["RECONSUMETIMES"] == "1"
    for name in ("REAL_TOPIC", "ORIGIN_MESSAGE_ID"):
        assert message.properties()[name] == origin[name]
    assert await receive_all(consumer, 10 * HOUR) == []


async def test_messages_missing_on_their_topic_are_reported_and_their_records_released(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    put_numbers(transport, 3)
    await host.leave_waiting(3, {0, 2})
    with opened(host.path) as topic_store:
        topic_store.records.record_nack((77, 5, -1), 10**15, 3, 0)
        topic_store.records.record_nack((77, 5, -1), 10**15, 3, 0)
        topic_store.records.record_nack((77, 6, 4), 10**15, 3, 0, size=5)
    report = await evacuate(client, host.path)
    assert (report.waiting, report.moved, report.gone, report.refused) == (4, 2, 2, 0)
    assert [each.message_id for each in report.missing] == ["77:5:-1", "77:6:-1:4"]
    assert waiting_in(host.path) == 0


async def test_records_of_a_missing_topic_stay_until_forgetting_is_allowed(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    with opened(host.path, topic="persistent://public/default/gone-partition-3") as topic_store:
        topic_store.records.record_nack((7, 5, -1), 10**15, 3, 0)
    report = await evacuate(client, host.path)
    assert (report.waiting, report.gone, report.refused) == (1, 0, 1)
    assert "--forget-missing" in report.refusals[0].reason
    assert waiting_in(host.path) == 1
    report = await evacuate(client, host.path, forget_missing=True)
    assert (report.waiting, report.gone) == (1, 1)
    assert report.missing[0].reason == "the cluster has none of the waiting messages of its topic"
    assert waiting_in(host.path) == 0


@pytest.mark.parametrize("fingerprint", [7, NO_FINGERPRINT])
async def test_records_of_an_empty_topic_stay_until_forgetting_is_allowed(
    transport: MemoryTransport, client: Client, host: OldHost, fingerprint: int
) -> None:
    topic = "persistent://public/default/empty"
    put_numbers(transport, 1, topic=topic)
    with opened(host.path, topic=topic) as topic_store:
        for entry in range(5):
            topic_store.records.record_nack((777, entry, -1), 10**15, 3, 0, fingerprint=fingerprint)
    report = await evacuate(client, host.path)
    assert (report.waiting, report.gone, report.refused) == (5, 0, 5)
    assert waiting_in(host.path) == 5
    report = await evacuate(client, host.path, forget_missing=True)
    assert (report.gone, report.refused, waiting_in(host.path)) == (5, 0, 0)


@pytest.mark.parametrize("deleted", [True, False])
async def test_many_records_are_released_in_small_steps(
    transport: MemoryTransport, client: Client, host: OldHost, deleted: bool
) -> None:
    topic = "persistent://public/default/gone"
    if not deleted:
        put_numbers(transport, 1, topic=topic)
    with opened(host.path, topic=topic) as topic_store:
        for entry in range(3_000):
            topic_store.records.record_nack((7, entry, -1), 10**15, 3, 0)
    seen, most = 0, 0

    def counted(report: EvacuationReport) -> None:
        nonlocal seen, most
        seen += 1
        most = max(most, seen)

    async def iterations() -> None:
        nonlocal seen
        while True:
            seen = 0
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(iterations())
    report = await evacuate(client, host.path, forget_missing=True, on_progress=counted)
    counting.cancel()
    assert (report.waiting, report.gone, waiting_in(host.path)) == (3_000, 3_000, 0)
    assert 0 < most <= 200


async def test_a_distant_message_is_read_without_the_messages_between(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    put_numbers(transport, 3_000)
    which = {0, 1, 700, 2_999}
    await host.leave_waiting(3_000, which)
    report = await evacuate(client, host.path)
    assert report.moved == 4
    assert numbers_of(await receive_all(await take_over(client), 2 * HOUR)) == sorted(which)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
async def test_the_error_for_a_subscription_of_another_type_names_it(
    transport: MemoryTransport, client: Client, host: OldHost, kind: ConsumerType
) -> None:
    put_numbers(transport, 3)
    await host.leave_waiting(3, {1}, consumer_type=kind)
    other = await take_over(client, consumer_type=kind)
    report = await evacuate(client, host.path)
    assert (report.moved, report.refused) == (0, 1)
    [reason] = report.reasons
    assert "'billing'" in reason and "is in use" in reason
    assert waiting_in(host.path) == 1
    await other.close()
    assert (await evacuate(client, host.path)).moved == 1


async def test_a_host_that_was_off_for_months_is_evacuated_with_its_counts(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    put_numbers(transport, 3)
    await host.leave_waiting(3, {1})
    await asyncio.sleep(60 * 24 * HOUR)
    report = await evacuate(client, host.path)
    assert (report.waiting, report.moved) == (1, 1)
    consumer = await take_over(client)
    again = await consumer.receive(timeout=10)
    assert (again.data(), again.redelivery_count()) == (b"1", 1)
    await consumer.close()


async def test_a_directory_with_a_live_owner_is_refused(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    put_numbers(transport, 3)
    # virtual time passes quickly while threads check
    await host.leave_waiting(3, {1}, delay=1_000 * HOUR)
    consumer = await host.start()
    with pytest.raises(StateInUseError, match="consumers of this process"):
        await evacuate(client, host.path)
    await consumer.close()
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(host.path)], stdin=PIPE, stdout=PIPE
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        with pytest.raises(StateInUseError, match=f"process {owner.pid} on "):
            await evacuate(client, host.path)
        owner.kill()
    assert (await evacuate(client, host.path)).moved == 1


OWNER = """
import sys
from pulsar_encore.state.rocks import RocksStore
store = RocksStore(sys.argv[1], wall_now_ms=0)
print("open", flush=True)
sys.stdin.read()
"""


async def test_a_missing_state_directory_is_not_created(client: Client, tmp_path: Path) -> None:
    with pytest.raises(StateFormatError, match="no state"):
        await evacuate(client, tmp_path / "elsewhere")
    assert list(tmp_path.iterdir()) == []


async def test_a_consumer_of_the_same_subscription_continues_during_the_evacuation(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    """It got the waiting messages when the old host stopped.

    They are processed twice, and none is lost.
    """
    put_numbers(transport, 20)
    await host.leave_waiting(20, {4, 5})
    other = await take_over(client)
    report = await evacuate(client, host.path)
    assert (report.moved, report.refused) == (2, 0)
    got = await receive_all(other, 2 * HOUR)
    assert numbers_of(got) == [4, 4, 5, 5]


@pytest.mark.parametrize("before", [1, 300])
@pytest.mark.parametrize("behind", [0, 3])
async def test_a_chunked_message_is_reported_and_stays(
    transport: MemoryTransport, client: Client, host: OldHost, before: int, behind: int
) -> None:
    """A consumer that did not receive the chunks cannot ack them, so each copy would be a
    duplicate.
    """
    put_numbers(transport, before)
    transport.put_chunked(TOPIC, b"1" * 100, 5)
    for each in range(behind):
        transport.put(TOPIC, b"%d" % (before + each))
    which = {0, before + behind - 1, int(b"1" * 100)}
    await host.leave_waiting(before + 1 + behind, which)
    report = await evacuate(client, host.path)
    assert (report.waiting, report.gone, report.refused, report.left) == (len(which), 0, 1, 1)
    [reason] = report.reasons
    assert reason.startswith("it is a chunked message")
    assert waiting_in(host.path) == 1
    numbers = numbers_of(await receive_all(await take_over(client), 2 * HOUR))
    assert numbers == sorted(which)


async def test_a_consumer_that_starts_reading_letters_later_gets_them(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    """This also holds from the topic's end: the subscription existed before the first letter."""
    put_numbers(transport, 3)
    await host.leave_waiting(3, {0, 2})
    await evacuate(client, host.path)
    consumer = await client.subscribe(TOPIC, "billing", ConsumerType.Shared, retry_enable=True)
    assert numbers_of(await receive_all(consumer, 2 * HOUR)) == [0, 2]
