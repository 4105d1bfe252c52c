"""Upgrade of a directory of format 1: its due times move into the records, even with kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rocks_kit import (
    TOPIC,
    keys_of,
    killed,
    open_directories,
    opened,
    opened_for_topic,
    topic_store_of,
    waiting,
)

from pulsar_encore.core.message_key import MessageKey
from pulsar_encore.errors import StateFormatError
from pulsar_encore.state.rocks import StateReader
from pulsar_encore.state.rocks import store_loader as loading_module
from pulsar_encore.state.rocks.database import Database
from pulsar_encore.state.rocks.store_keys import (
    EPOCH_KEY,
    FORMAT_KEY,
    OPENINGS_KEY,
    due_key,
    entry_key,
    number_bytes,
    openings_bytes,
    read_number,
    source_key,
)
from pulsar_encore.state.rocks.write_batch import DUE, META, STATE, WriteBatch
from tests.harness.recalled_attempts import recall

NOW = 1_700_000_000_000
HOUR = 3_600_000


def varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*data, value))


def old_record(size: int, attempts: int, mask_runs: list[int], *, held: bool = False) -> bytes:
    """Encode a record of format 1, with attempts for some messages."""
    numbers = [size, NOW, 1, 1, attempts, *mask_runs]
    return bytes((0x11 if held else 0x01,)) + b"".join(map(varint, numbers))


ALONE = [2, 0, 1]  # one run, nothing before it, one message
FIRST_THREE = [2, 0, 3]

DUES: list[tuple[int, MessageKey]] = [
    (NOW + HOUR, (1, 1, -1)),  # with a record
    (NOW + 2 * HOUR, (1, 2, -1)),  # without one
    (NOW + 3 * HOUR, (1, 3, 1)),  # of a batch with a record
    (NOW + 4 * HOUR, (1, 3, 2)),
    (NOW + 5 * HOUR, (1, 4, 5)),  # of a batch without one
    (NOW + 6 * HOUR, (1, 1, -1)),  # a second due time, without effect: the earlier one counts
]
WAITING = DUES[:5]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Make a directory as the previous version wrote it."""
    path = tmp_path / "state"
    path.mkdir()
    database = Database(path / "db")
    writes = WriteBatch()
    writes.put(META, FORMAT_KEY, number_bytes(1))
    writes.put(META, EPOCH_KEY, number_bytes(1))
    writes.put(META, OPENINGS_KEY, openings_bytes([(1, NOW)]))
    writes.put(META, source_key(TOPIC, "s", ""), number_bytes(0))
    writes.put(STATE, entry_key(0, 1, 1), old_record(1, 3, ALONE))
    writes.put(STATE, entry_key(0, 1, 3), old_record(10, 2, FIRST_THREE, held=True))
    writes.put(STATE, entry_key(0, 1, 9), old_record(1, 7, ALONE, held=True))
    for due_ms, key in DUES:
        writes.put(DUE, due_key(due_ms, 0, key), b"")
    database.write(writes)
    database.close()
    return path


def check(path: Path) -> None:
    """Check that everything is there, in the present format."""
    store, topic_store = opened_for_topic(path, now=NOW)
    assert waiting(topic_store) == WAITING
    assert store.statistics().waiting == 4 and store.statistics().unreadable == 0
    found = {entry: recall(topic_store.records, 1, entry) for entry in (1, 2, 9)}
    counts = {entry: each.attempts for entry, each in found.items() if each is not None}
    assert counts == {1: 3, 2: 0, 9: 7}
    batch = topic_store.records.recall_entry(1, 3)
    assert batch is not None and batch.size == 10 and batch.attempts_of(1) == 2
    # The record matches any message, and takes its fingerprint with the next write.
    assert topic_store.records.compare(1, 1, 1 << 24 | 1)
    assert topic_store.records.matched == 0
    topic_store.records.record_nack((1, 1, -1), NOW + HOUR, 4, NOW, fingerprint=1 << 24 | 1)
    store.close()
    store = opened(path, now=NOW)
    records = topic_store_of(store).records
    assert not records.compare(1, 1, 2 << 24 | 1) and records.mismatched == 1
    assert recall(records, 1, 1) is None
    store.close()
    database = Database(path / "db", read_only=True)
    data = database.get(META, FORMAT_KEY)
    assert data is not None and read_number(data) == 2
    assert list(database.scan(DUE)) == []
    database.close()


def test_an_upgrade_keeps_all_records_and_due_times(path: Path) -> None:
    check(path)


def test_a_reader_does_not_upgrade(path: Path) -> None:
    with StateReader(path) as reader:
        assert [(due_ms, key) for due_ms, _, key in reader.waiting()] == DUES
        assert len(list(reader.records())) == 3 and reader.unreadable == 0


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("after", range(8))
def test_an_upgrade_killed_between_two_writes_continues(
    path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(loading_module, "_CHUNK_ROWS", 1)
    write, writes = Database.write, 0
    left: list[Path] = []

    def counted(database: Database, batch: WriteBatch) -> None:
        nonlocal writes
        if writes == after:
            left.append(killed(path))
            raise KilledError
        writes += 1
        write(database, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", counted)
        with pytest.raises(KilledError):
            opened(path, now=NOW)
    (copy,) = left
    with StateReader(copy) as reader:
        assert sorted({key for _, _, key in reader.waiting()}) == sorted(key for _, key in WAITING)
    check(copy)


def test_an_upgrade_keeps_unreadable_rows(path: Path) -> None:
    database = Database(path / "db")
    writes = WriteBatch()
    writes.put(DUE, b"short", b"")
    writes.put(STATE, entry_key(0, 1, 1), b"\x0f no record")
    database.write(writes)
    database.close()
    store = opened(path, now=NOW)
    assert keys_of(topic_store_of(store)) == [key for _, key in WAITING if key[1] != 1]
    store.close()
    database = Database(path / "db", read_only=True)
    assert len(list(database.scan(DUE))) == 3
    database.close()


def test_the_previous_version_rejects_the_new_format(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(path, now=NOW).close()
    monkeypatch.setattr(loading_module, "FORMATS", (1,))
    monkeypatch.setattr(loading_module, "FORMAT", 1)
    with pytest.raises(StateFormatError, match="format 2"):
        opened(path, now=NOW)


@pytest.fixture(autouse=True)
def none_left_open() -> Iterator[None]:
    yield
    assert not [path for path in open_directories() if "pytest" in str(path)]
