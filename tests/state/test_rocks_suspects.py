"""Records that differ from the message with their id, before and after a message has matched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rocks_kit import after_kill, opened, topic_store_of

from pulsar_encore.errors import StoreError
from pulsar_encore.state.rocks import MAX_DIFFERENT, AttemptRecords, DeliveredRecord, RocksStore
from pulsar_encore.state.rocks.database import Database
from tests.harness.recalled_attempts import recall

OLD, NEW, NEWEST = 7 << 24 | 1, 9 << 24 | 5, 11 << 24 | 3
HOUR = 3_600_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a directory in which entries 0 to 9 wait for an hour, after 5 attempts each."""
    path = tmp_path / "state"
    store = opened(path)
    records = topic_store_of(store).records
    for entry in range(10):
        records.record_nack((1, entry, -1), HOUR, 5, 0, fingerprint=OLD)
    store.close()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[RocksStore]:
    store = opened(path)
    yield store
    store.close()


def on_disk(path: Path) -> dict[int, tuple[int, int, int | None]]:
    """Return fingerprint, attempts and due time by entry, as the next owner sees them."""
    with after_kill(path) as topic_store:
        found = {}
        for entry in range(10):
            record = topic_store.records.recall_entry(1, entry)
            if record is not None:
                found[entry] = (record.fingerprint, record.attempts_of(-1), record.due_of(-1))
        return found


KEPT = dict.fromkeys(range(10), (OLD, 5, HOUR))


def delivered(records: AttemptRecords, entry: int, attempt: int = 1) -> None:
    records.record_deliveries([DeliveredRecord(1, entry, attempt=attempt, fingerprint=NEW)], 1)


@pytest.mark.parametrize("count_attempts", ["before", "lazy"])
def test_a_suspect_record_is_not_used_and_not_changed(
    store: RocksStore, path: Path, count_attempts: str
) -> None:
    records = topic_store_of(store, count_attempts=count_attempts).records
    for entry in range(6):
        assert not records.compare(1, entry, NEW)
        assert recall(records, 1, entry) is None
        delivered(records, entry)
    assert records.mismatched == 6 and records.matched == 0
    records.record_nack((1, 1, -1), 5000, 1, 1, fingerprint=NEW)
    records.record_lease((1, 2, -1), 5000, 1, 1, fingerprint=NEW)
    records.record_nack((1, 3, -1), 5000, 1, 1, fingerprint=NEW)
    records.record_due([(1, 3, -1)])
    records.record_ack(1, 4)
    records.end_attempts(1, 5, 1, 1)
    records.flush(HOUR // 2)
    store.flush()
    assert on_disk(path) == KEPT
    found = {entry: recall(records, 1, entry) for entry in range(6)}
    counts = {entry: (each.attempts, each.due_ms) for entry, each in found.items() if each}
    assert counts == {0: (1, None), 1: (1, 5000), 2: (1, 5000), 3: (1, None), 5: (1, None)}
    assert records.buffered == 0 and records.unmerged == 0
    assert store.failure is None
    records._check()


def test_a_match_deletes_suspect_records_that_are_as_new(store: RocksStore, path: Path) -> None:
    records = topic_store_of(store).records
    for entry in range(3):
        assert not records.compare(1, entry, NEW)
        delivered(records, entry)
    records.record_ack(1, 1)
    records.record_nack((1, 2, -1), 5000, 1, 1, fingerprint=NEW)
    assert on_disk(path) == KEPT
    assert records.compare(1, 9, OLD)
    expected = {**KEPT, 0: (NEW, 1, None), 2: (NEW, 1, 5000)}
    del expected[1]
    assert on_disk(path) == expected
    records._check()
    # After the match, a record that differs is deleted at once.
    assert not records.compare(1, 5, NEW)
    store.flush()
    del expected[5]
    assert on_disk(path) == expected


def test_a_match_with_a_record_of_this_owner_keeps_records_suspect(
    store: RocksStore, path: Path
) -> None:
    records = topic_store_of(store).records
    delivered(records, 20)  # an id without a record
    assert records.compare(1, 20, NEW)
    assert not records.compare(1, 0, NEW)
    delivered(records, 0)
    assert records.compare(1, 0, NEW)
    store.flush()
    assert on_disk(path) == KEPT


def test_a_match_with_a_newer_record_keeps_records_suspect(path: Path) -> None:
    """An owner that was connected to the wrong cluster wrote the newer record."""
    store = opened(path)
    delivered(topic_store_of(store).records, 20)
    store.close()
    store = opened(path)
    records = topic_store_of(store).records
    assert records.compare(1, 20, NEW) and records.matched == 1
    assert not records.compare(1, 0, NEW)
    assert records.is_trusted((1, 1)) is False
    store.flush()
    assert on_disk(path) == KEPT
    store.close()
    # At the right cluster, that record is deleted.
    store = opened(path)
    records = topic_store_of(store).records
    assert not records.compare(1, 20, OLD)
    assert records.has_record((1, 20))
    assert records.compare(1, 0, OLD)
    assert not records.has_record((1, 20))
    store.close()


def test_a_record_without_a_fingerprint_gets_that_of_the_message(path: Path) -> None:
    """Records of format 1, and of messages that are nacked by id, have no fingerprint."""
    store = opened(path)
    records = topic_store_of(store).records
    records.record_nack((1, 20, -1), HOUR, 3, 0)
    assert records.compare(1, 20, OLD) and records.matched == 0
    store.close()
    store = opened(path)
    records = topic_store_of(store).records
    found = recall(records, 1, 20)
    assert found is not None and (found.attempts, found.due_ms) == (3, HOUR)
    assert not records.compare(1, 20, NEW)
    store.close()


def test_fresh_drops_suspect_records_without_a_match(store: RocksStore, path: Path) -> None:
    records = topic_store_of(store).records
    assert not records.compare(1, 0, NEW)
    delivered(records, 0)
    records.drop_mismatched()
    assert not records.compare(1, 1, NEW)
    store.flush()
    expected = {**KEPT, 0: (NEW, 1, None)}
    del expected[1]
    assert on_disk(path) == expected


def test_the_next_owner_of_the_process_has_suspect_records_again(store: RocksStore) -> None:
    topic_store = topic_store_of(store)
    for entry in range(5):
        assert not topic_store.records.compare(1, entry, NEW)
        delivered(topic_store.records, entry)
    assert topic_store.records.waiting == 5
    topic_store.close()
    topic_store = topic_store_of(store)
    assert topic_store.records.waiting == 10
    assert all(topic_store.records.compare(1, entry, OLD) for entry in range(10))
    found = recall(topic_store.records, 1, 0)
    assert found is not None and (found.attempts, found.due_ms) == (5, HOUR)
    topic_store.records._check()
    assert store.statistics().lost == 0


@pytest.mark.parametrize("count_attempts", ["before", "lazy"])
def test_a_cumulative_ack_keeps_suspect_records(
    store: RocksStore, path: Path, count_attempts: str
) -> None:
    records = topic_store_of(store, count_attempts=count_attempts).records
    assert not records.compare(1, 3, NEW)
    delivered(records, 3)
    delivered(records, 20)
    records.record_ack_through(1, 9)
    store.flush()
    assert on_disk(path).keys() == KEPT.keys()
    assert on_disk(path)[3] == KEPT[3]
    assert recall(records, 1, 3) is None
    records.clear()
    assert not on_disk(path)


def test_a_hundred_suspect_records_show_another_cluster(tmp_path: Path) -> None:
    store = opened(tmp_path / "state")
    records = topic_store_of(store).records
    for entry in range(2 * MAX_DIFFERENT):
        records.record_nack((1, entry, -1), HOUR, 1, 0, fingerprint=OLD)
    store.close()
    store = opened(tmp_path / "state")
    records = topic_store_of(store).records
    for entry in range(MAX_DIFFERENT):
        assert not records.foreign
        records.compare(1, entry, NEW)
        records.record_ack(1, entry)
    assert records.foreign
    store.close()
    store = opened(tmp_path / "state")
    assert topic_store_of(store).records.waiting == 2 * MAX_DIFFERENT
    store.close()


@contextmanager
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fail(*_: object) -> bytes:
        raise StoreError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "get", fail)
        yield


@pytest.mark.parametrize("decided", ["no", "match", "fresh"])
def test_an_unread_record_is_not_merged_with_another_message(
    store: RocksStore, path: Path, decided: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its 5 attempts would dead-letter the new message without a delivery."""
    records = topic_store_of(store).records
    if decided == "match":
        assert records.compare(1, 9, OLD)
    elif decided == "fresh":
        records.drop_mismatched()
    with unreadable(monkeypatch):
        assert records.compare(1, 0, NEW)  # no record
        with pytest.raises(StoreError):
            delivered(records, 0)
    records.flush(2)
    assert records.mismatched == 1 and store.failure is None
    found = recall(records, 1, 0)
    assert found is not None and (found.attempts, found.due_ms) == (1, None)
    assert on_disk(path) == {**KEPT, 0: KEPT[0] if decided == "no" else (NEW, 1, None)}


def test_an_unread_record_keeps_the_fuller_fingerprint(
    store: RocksStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = topic_store_of(store).records
    bare = OLD >> 24 << 24  # a transport that does not provide the sequence id
    with unreadable(monkeypatch):
        assert records.compare(1, 0, bare)
        with pytest.raises(StoreError):
            records.record_deliveries([DeliveredRecord(1, 0, attempt=6, fingerprint=bare)], 1)
    records.flush(2)
    assert on_disk(path)[0][:2] == (OLD, 6)


def test_a_due_time_that_passed_does_not_come_back_while_the_disk_cannot_be_read(
    store: RocksStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = topic_store_of(store).records
    with unreadable(monkeypatch):
        recall(records, 1, 0)
        records.record_nack((1, 0, -1), 5000, 1, 1, fingerprint=OLD)
        records.record_due([(1, 0, -1)])
        records.flush(60_000)
        found = recall(records, 1, 0)
        assert found is not None and found.due_ms is None
