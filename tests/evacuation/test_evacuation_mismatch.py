"""Evacuations with the wrong cluster ack, move and forget nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from evacuation_kit import HOUR, TOPIC, OldHost, put_numbers, receive_all, take_over

from pulsar_encore import Client, StateMismatchError
from pulsar_encore.evacuation import evacuate
from pulsar_encore.evacuation.entry_comparison import Comparison
from pulsar_encore.state.rocks import RocksStore, StateReader
from pulsar_encore.testing import MemoryTransport


def waiting_in(path: Path) -> int:
    with StateReader(path) as reader:
        return len(list(reader.waiting()))


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("count", [5, 150])
async def test_the_wrong_cluster_is_an_error_before_any_change(
    transport: MemoryTransport, client: Client, host: OldHost, batch: int, count: int
) -> None:
    put_numbers(transport, count, batch)
    await host.leave_waiting(count, set(range(count)))
    await asyncio.sleep(1)
    other = MemoryTransport()
    put_numbers(other, count, batch)
    async with Client("pulsar://other:6650", transport=other) as wrong:
        with pytest.raises(StateMismatchError, match="another cluster"):
            await evacuate(wrong, host.path)
        assert not other.recorded("ACK")
        assert waiting_in(host.path) == count
        consumer = await take_over(wrong)
        assert len(await receive_all(consumer)) == count
    # With the right cluster the evacuation continues normally.
    report = await evacuate(client, host.path)
    assert (report.moved, report.left) == (count, 0)


async def test_a_cluster_with_only_a_few_of_the_ids_is_an_error(
    transport: MemoryTransport, host: OldHost
) -> None:
    """All other ids are missing. This proves nothing, so their records are not released."""
    put_numbers(transport, 20)
    await host.leave_waiting(20, set(range(20)))
    await asyncio.sleep(1)
    other = MemoryTransport()
    put_numbers(other, 2)
    async with Client("pulsar://other:6650", transport=other) as wrong:
        with pytest.raises(StateMismatchError, match=r"compared messages \(2\) differ"):
            await evacuate(wrong, host.path)
    assert waiting_in(host.path) == 20


@pytest.mark.parametrize("other", [0, 3])
async def test_a_single_message_that_differs_stays_on_its_topic_and_its_record_is_released(
    transport: MemoryTransport, client: Client, host: OldHost, other: int
) -> None:
    put_numbers(transport, 8)
    await host.leave_waiting(8, set(range(8)))
    store = RocksStore(host.path, wall_now_ms=0)
    records = store.topic_store(TOPIC, "billing").records
    key, record = records.entries_waiting()[other]
    records._write(key, record._replace(fingerprint=1 << 24 | 1))
    store.close()
    report = await evacuate(client, host.path)
    assert (report.moved, report.gone, report.refused) == (7, 1, 0)
    (missing,) = report.missing
    assert "another message" in missing.reason and missing.message_id.startswith("1:")
    assert waiting_in(host.path) == 0
    consumer = await take_over(client)
    assert [int(each.data()) for each in await receive_all(consumer)] == [other]
    assert len(await receive_all(consumer, 2 * HOUR)) == 7


async def test_records_without_a_fingerprint_are_moved(
    transport: MemoryTransport, client: Client, host: OldHost
) -> None:
    """Records of format 1 have none, alone and beside other records."""
    put_numbers(transport, 8)
    await host.leave_waiting(8, set(range(8)))
    store = RocksStore(host.path, wall_now_ms=0)
    records = store.topic_store(TOPIC, "billing").records
    for key, record in records.entries_waiting()[::2]:
        records._write(key, record._replace(fingerprint=0))
    store.close()
    report = await evacuate(client, host.path)
    assert (report.moved, report.gone, report.refused) == (8, 0, 0)


def test_no_record_is_released_before_one_entry_matches() -> None:
    comparison = Comparison[int]("t", 4)
    assert comparison.note_missing(1, "gone", other=False) == []
    assert comparison.note_missing(2, "other", other=True) == []
    assert comparison.note_same() == [(1, "gone"), (2, "other")]
    assert comparison.note_missing(4, "other", other=True) == [(4, "other")]


def test_without_an_entry_to_compare_no_message_counts_as_deleted() -> None:
    comparison = Comparison[int]("t", 2)
    assert comparison.note_missing(1, "gone", other=False) == []
    assert comparison.note_missing(2, "gone", other=False) == []
    assert comparison.undecided() == [1, 2]
    assert comparison.note_same() == [(1, "gone"), (2, "gone")]
    assert comparison.undecided() == []


def test_a_hundred_mismatches_are_enough() -> None:
    comparison = Comparison[int]("t", 1000)
    for at in range(99):
        comparison.note_missing(at, "other", other=True)
    with pytest.raises(StateMismatchError):
        comparison.note_missing(99, "other", other=True)
