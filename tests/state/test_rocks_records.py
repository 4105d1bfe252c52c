"""`AttemptRecords`: which attempts are counted, and which changes are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocks_kit import after_kill, opened, topic_store_of

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.state.rocks import AttemptRecords, DeliveredRecord, RocksStore
from pulsar_encore.state.rocks import entry_record as steps
from pulsar_encore.state.rocks.entry_record import EntryRecord, from_bytes, to_bytes
from pulsar_encore.state.rocks.entry_set import EntrySet
from tests.harness.recalled_attempts import recall

ALL = (1 << 1000) - 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(path: Path) -> Iterator[RocksStore]:
    store = opened(path)
    yield store
    store.close()


def before(store: RocksStore) -> AttemptRecords:
    return topic_store_of(store).records


def lazy(store: RocksStore) -> AttemptRecords:
    return topic_store_of(store, count_attempts="lazy").records


def test_an_attempt_that_killed_the_process_is_counted(store: RocksStore, path: Path) -> None:
    records = before(store)
    records.record_deliveries([DeliveredRecord(1, 1), DeliveredRecord(1, 2, attempt=3)], 1000)
    with after_kill(path) as topic_store:
        one, three = recall(topic_store.records, 1, 1), recall(topic_store.records, 1, 2)
        assert one is not None and three is not None
        assert (one.attempts, one.held, one.first_ms, one.due_ms) == (1, True, 1000, None)
        assert three.attempts == 3
        assert recall(topic_store.records, 1, 3) is None
        topic_store.records.record_deliveries([DeliveredRecord(1, 1, attempt=2)], 2000)
        again = recall(topic_store.records, 1, 1)
        taken_over = topic_store.records.recall_entry(1, 1)
        untouched = topic_store.records.recall_entry(1, 2)
        assert again is not None and taken_over is not None and untouched is not None
        assert (again.attempts, again.first_ms) == (2, 1000)
        assert taken_over.epoch > untouched.epoch, "the delivery belongs to the new owner"


def test_a_nack_writes_due_time_and_count_at_once(store: RocksStore, path: Path) -> None:
    records = before(store)
    records.record_deliveries([DeliveredRecord(1, 1)], 1000)
    writes = store.statistics().writes
    records.record_nack((1, 1, -1), 61_000, 1, 1000, bits=9)
    assert store.statistics().writes == writes + 1
    with after_kill(path) as topic_store:
        found = recall(topic_store.records, 1, 1)
        assert found is not None and found.due_ms is not None
        assert 61_000 <= found.due_ms < 61_000 + 512
        assert (found.attempts, found.held) == (1, False)


def test_an_invalid_nack_changes_nothing(store: RocksStore) -> None:
    records = before(store)
    with pytest.raises(ConfigurationError):
        records.record_nack((1, 1, -1), -1, 1, 1000)
    assert recall(records, 1, 1) is None


def test_a_count_never_falls(store: RocksStore) -> None:
    records = before(store)
    records.record_deliveries([DeliveredRecord(1, 1, attempt=5)], 0)
    records.record_deliveries([DeliveredRecord(1, 1, attempt=2)], 0)
    records.record_nack((1, 1, -1), 100, 1, 0)
    found = recall(records, 1, 1)
    assert found is not None and found.attempts == 5


def test_a_batch_of_a_thousand_is_one_small_record(store: RocksStore, path: Path) -> None:
    records = before(store)
    start = store.statistics()
    records.record_deliveries([DeliveredRecord(1, 1, 1000, ALL)], 1_800_000_000_000)
    now = store.statistics()
    assert (now.writes - start.writes, now.operations - start.operations) == (1, 1)
    record = records.recall_entry(1, 1)
    assert record is not None and len(to_bytes(record)) < 32
    records.record_nack((1, 1, 700), 5000, 1, 1_800_000_000_000)
    with after_kill(path) as topic_store:
        waiting, killer = (
            recall(topic_store.records, 1, 1, 700),
            recall(topic_store.records, 1, 1, 3),
        )
        assert waiting is not None and killer is not None
        assert (waiting.attempts, waiting.held, waiting.due_ms) == (1, False, 5000)
        assert (killer.attempts, killer.held, killer.due_ms) == (1, True, None)


def test_only_delivered_messages_of_a_batch_are_counted(store: RocksStore) -> None:
    records = before(store)
    records.record_deliveries([DeliveredRecord(1, 1, 100, 0b111)], 0)
    records.record_deliveries([DeliveredRecord(1, 1, 100, 0b001, attempt=2)], 0)
    counts = [found.attempts for i in range(5) if (found := recall(records, 1, 1, i))]
    assert counts == [2, 1, 1, 0, 0]


def test_a_batch_is_forgotten_with_its_last_message(store: RocksStore, path: Path) -> None:
    records = before(store)
    records.record_deliveries([DeliveredRecord(1, 1, 3, 0b111)], 0)
    records.record_ack(1, 1, 0b101)
    found = recall(records, 1, 1, 2)
    assert found is not None and found.settled and found.attempts == 0
    records.flush_all()
    with after_kill(path) as topic_store:
        kept = recall(topic_store.records, 1, 1, 1)
        done = recall(topic_store.records, 1, 1, 0)
        assert kept is not None and (kept.attempts, kept.settled) == (1, False)
        assert done is not None and done.settled
    records.record_ack(1, 1, 0b010)
    assert recall(records, 1, 1, 1) is None
    store.flush()
    with after_kill(path) as topic_store:
        assert len(topic_store.records) == 0


def test_a_fast_ack_writes_nothing(store: RocksStore) -> None:
    records = lazy(store)
    writes = store.statistics().writes
    for entry in range(500):
        now = entry * 20
        records.record_deliveries([DeliveredRecord(1, entry)], now)
        records.flush(now)
        if entry >= 100:
            records.record_ack(1, entry - 100)  # acked after 2 s
    assert store.statistics().writes == writes
    assert records.buffered == 100


def test_flush_writes_the_oldest_records_first(store: RocksStore, path: Path) -> None:
    records = lazy(store)
    for entry in range(5):
        records.record_deliveries([DeliveredRecord(1, entry)], entry * 1000)
    assert records.flush(9_999) == 0
    assert records.flush(11_500, limit=1) == 1
    assert records.flush(11_500) == 1
    with after_kill(path) as topic_store:
        assert [recall(topic_store.records, 1, e) is not None for e in range(5)] == [
            True,
            True,
            False,
            False,
            False,
        ]


def test_a_clock_set_back_does_not_delay_flush(store: RocksStore) -> None:
    records = lazy(store)
    records.record_deliveries([DeliveredRecord(1, 1)], 5_000_000)
    assert records.flush(1000) == 1


def test_the_buffer_is_bounded(store: RocksStore) -> None:
    records = topic_store_of(store, count_attempts="lazy", max_buffered=10).records
    for entry in range(25):
        records.record_deliveries([DeliveredRecord(1, entry)], 0)
    assert records.buffered == 10
    assert len(records) == 25
    records._check()


def test_a_new_entry_does_not_read_the_disk(
    store: RocksStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = before(store)
    records.record_deliveries([DeliveredRecord(1, entry) for entry in range(0, 100, 2)], 0)
    database = store.batched_writes().database
    monkeypatch.setattr(database, "get", lambda *_: pytest.fail("looked at the disk"))
    assert all(recall(records, 1, entry) is None for entry in range(1, 100, 2))
    assert recall(records, 2, 0) is None


def test_a_cumulative_ack_forgets_the_entries_it_covers(store: RocksStore, path: Path) -> None:
    records = lazy(store)
    for ledger in (1, 2, 3):
        records.record_deliveries(
            [DeliveredRecord(ledger, entry) for entry in range(10)], ledger * 10_000
        )
        records.flush(20_000)
    assert records.buffered == 20
    records.record_ack_through(2, 4)
    assert len(records) == 15
    assert recall(records, 2, 4) is None and recall(records, 2, 5) is not None
    records.flush_all()
    with after_kill(path) as topic_store:
        assert len(topic_store.records) == 15
        assert recall(topic_store.records, 1, 9) is None


def test_a_cumulative_ack_works_at_the_largest_id(store: RocksStore) -> None:
    records = before(store)
    last = 2**63 - 1
    records.record_deliveries(
        [DeliveredRecord(last, last), DeliveredRecord(last, 0), DeliveredRecord(0, last)], 0
    )
    records.record_ack_through(last, last - 1)
    assert len(records) == 1
    records.record_ack_through(last, last)
    assert len(records) == 0


def test_a_released_attempt_is_not_unfinished(store: RocksStore, path: Path) -> None:
    records = before(store)
    records.record_deliveries([DeliveredRecord(1, 1)], 0)
    records.end_attempts(1, 1, 1, 0)
    records.flush_all()
    with after_kill(path) as topic_store:
        found = recall(topic_store.records, 1, 1)
        assert found is not None and (found.attempts, found.held) == (1, False)


def test_a_seek_removes_all_records(store: RocksStore, path: Path) -> None:
    records = before(store)
    records.record_deliveries([DeliveredRecord(1, entry) for entry in range(5)], 0)
    records.clear()
    assert len(records) == 0
    with after_kill(path) as topic_store:
        assert len(topic_store.records) == 0


def test_the_next_consumer_of_a_process_has_the_records_of_the_last_one(store: RocksStore) -> None:
    topic_store = topic_store_of(store, count_attempts="lazy")
    topic_store.records.record_deliveries([DeliveredRecord(1, 1)], 0)
    first = topic_store.records.recall_entry(1, 1)
    topic_store.close()
    records = topic_store_of(store).records
    found = recall(records, 1, 1)
    assert found is not None and found.held and found.attempts == 1
    records.record_deliveries([DeliveredRecord(1, 2)], 0)
    second = records.recall_entry(1, 2)
    assert first is not None and second is not None
    assert first.epoch < second.epoch, "each owner of a topic has an epoch of its own"


@pytest.mark.parametrize(
    "options",
    [{"count_attempts": "never"}, {"stay_buffer_ms": -1}, {"max_buffered": 0}],
    ids=str,
)
def test_options_out_of_range_raise(store: RocksStore, options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        topic_store_of(store, **options)


masks = st.integers(0, 2**70 - 1) | st.integers(0, 70).map(lambda n: (1 << n) - 1)


@given(
    size=st.integers(1, 70),
    calls=st.lists(st.tuples(st.integers(0, 3), masks, st.integers(1, 5)), max_size=12),
    epoch=st.integers(0, 2**32),
)
def test_records_agree_with_a_model_of_lists(
    size: int, calls: list[tuple[int, int, int]], epoch: int
) -> None:
    record = steps.new_record(size, 7, epoch)
    counts, held, done = [0] * size, [False] * size, [False] * size
    for what, mask, attempts in calls:
        mask &= (1 << size) - 1
        if what == 0:
            record = steps.with_delivery(record, mask, attempts, epoch)
        elif what == 1:
            record = steps.with_attempt_ended(record, mask, attempts)
        elif what == 2:
            record = steps.with_settled(record, mask)
        else:
            record = steps.with_fewer_attempts(record, mask, attempts - 1)
        for i in range(size):
            if not mask >> i & 1:
                continue
            if what == 0:  # settled messages, too: their ack was lost
                counts[i], held[i], done[i] = max(counts[i], attempts), True, False
            elif what == 1 and not done[i]:
                counts[i], held[i] = max(counts[i], attempts), False
            elif what == 2:
                counts[i], held[i], done[i] = 0, False, True
            elif what == 3:
                counts[i], held[i] = min(counts[i], attempts - 1), False
    assert [record.attempts_of(i) for i in range(size)] == counts
    assert [bool(record.held >> i & 1) for i in range(size)] == held
    assert [bool(record.settled >> i & 1) for i in range(size)] == done
    assert record.is_settled == all(done)
    assert from_bytes(to_bytes(record)) == record


@given(data=st.binary(max_size=40) | st.binary(max_size=40).map(b"\x01".__add__))
def test_bytes_that_are_not_a_record_raise(data: bytes) -> None:
    try:
        found = from_bytes(data)
    except ValueError:
        return
    assert isinstance(found, EntryRecord)


def test_a_scattered_mask_has_a_short_encoding() -> None:
    record = steps.with_delivery(steps.new_record(1000, 0, 0), int("10" * 500, 2), 1, 0)
    assert len(to_bytes(record)) < 170


@given(
    keys=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 9) | st.just(2**63 - 1))),
    through=st.tuples(st.integers(0, 4), st.integers(0, 9) | st.just(2**63 - 1)),
)
def test_take_through_removes_an_entry_and_all_before_it(
    keys: set[tuple[int, int]], through: tuple[int, int]
) -> None:
    entries = EntrySet()
    for key in keys:
        entries.add(key)
    assert set(entries.take_through(*through)) == {key for key in keys if key <= through}
    assert set(entries) == {key for key in keys if key > through}
    assert all((key in entries) == (key > through) for key in keys)
