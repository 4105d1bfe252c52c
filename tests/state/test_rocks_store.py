"""`RocksStore`: its owner, corrupted files, full disks, and readers."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from rocks_kit import (
    TOPIC,
    after_kill,
    keys_of,
    killed,
    nack,
    open_directories,
    opened,
    opened_for_topic,
    topic_store_of,
)

from pulsar_encore.errors import (
    ClosedError,
    ConfigurationError,
    ForkedError,
    StateDamagedError,
    StateFormatError,
    StateInUseError,
    StoreError,
)
from pulsar_encore.state.rocks import (
    DeliveredRecord,
    RocksStore,
    StateReader,
    TopicStore,
    rocks_store,
)
from pulsar_encore.state.rocks.database import Database
from pulsar_encore.state.rocks.store_keys import FORMAT_KEY, entry_key, number_bytes
from pulsar_encore.state.rocks.write_batch import DUE, META, STATE, WriteBatch
from tests.harness.recalled_attempts import recall
from tests.harness.rocks_kill import kill_again_and_again

ALL = 2**62


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def filled(path: Path, entries: int = 50) -> None:
    """Make a directory that was closed in order."""
    store, topic_store = opened_for_topic(path)
    topic_store.records.record_deliveries(
        [DeliveredRecord(1, entry) for entry in range(entries)], 0
    )
    for entry in range(entries):
        nack(topic_store, (1, entry, -1), 1000 + entry)
    store.close()


def python(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start another process. Reading its output waits until it is ready."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


OWNER = """
import sys, time
from pulsar_encore.state.rocks import RocksStore
store = RocksStore(sys.argv[1], wall_now_ms=1_800_000_000_000)
store.topic_store("t", "s").records.record_nack((1, 1, -1), 5, 0, 0)
print(flush=True)
time.sleep(60)
"""


# Ownership


def test_a_second_process_gets_an_error_that_names_the_owner(path: Path) -> None:
    with python(OWNER, path) as owner:
        assert owner.stdout is not None and owner.stdout.readline()
        try:
            with pytest.raises(StateInUseError) as caught:
                opened(path)
            text = str(caught.value)
            assert f"process {owner.pid} on " in text and "2027-01-15T08:00:00" in text
            with StateReader(path) as reader:  # reading is allowed
                assert list(reader.waiting()) == [(5, 0, (1, 1, -1))]
        finally:
            owner.kill()
    start = time.perf_counter()
    store = opened(path)
    assert time.perf_counter() - start < 2
    assert keys_of(store.topic_store("t", "s")) == [(1, 1, -1)]
    store.close()


def test_an_orderly_open_and_close_logs_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for durability in ("kill", "power"):
        store = opened(path, durability=durability)
        nack(topic_store_of(store), (1, 1, -1), 5)
        store.close()
        with StateReader(path) as reader:
            assert len(list(reader.waiting())) == 1
    assert caplog.text == ""


def test_a_process_opens_a_directory_once_for_all_consumers(path: Path) -> None:
    one, other = opened(path), opened(path)
    nack(topic_store_of(one), (1, 1, -1), 5)
    one.close()
    one.close()
    assert topic_store_of(other, "persistent://public/default/u").number == 1
    assert other.statistics().waiting == 1
    other.close()
    with pytest.raises(ClosedError):
        other.statistics()
    opened(path).close()


def test_consumers_of_one_subscription_share_its_state(path: Path) -> None:
    store, other = opened(path), opened(path)
    topic_store = topic_store_of(store)
    assert topic_store_of(other) is topic_store
    assert store.topic_store(TOPIC, "s", "another owner") is not topic_store
    nack(topic_store, (1, 1, -1), 5)
    topic_store.close()
    assert (1, 1, -1) in keys_of(topic_store)  # the other consumer still has it
    topic_store.close()
    assert topic_store_of(store) is not topic_store
    store.close()
    other.close()
    topic_store.close()  # does nothing: the store is closed


def test_another_thread_gets_an_error(path: Path) -> None:
    store = opened(path)
    topic_store_of(store)
    with ThreadPoolExecutor(1) as thread:
        refused = thread.submit(topic_store_of, store).exception()
    assert isinstance(refused, StateInUseError) and "another thread" in str(refused)
    store.close()


def test_a_claim_holds_until_close(path: Path) -> None:
    """A claim works before the store has a topic, because a topic may be quiet for long."""
    store, other = opened(path), opened(path)
    store.claim()
    store.claim()
    with ThreadPoolExecutor(1) as thread:
        for _ in range(2):
            refused = thread.submit(other.claim).exception()
            assert isinstance(refused, StateInUseError) and "another thread" in str(refused)
        store.close()
        thread.submit(other.claim).result()
        with pytest.raises(StateInUseError):
            topic_store_of(other)
    other.close()


def test_a_deleted_subscription_is_forgotten(path: Path) -> None:
    store = opened(path)
    for topic in (TOPIC, f"{TOPIC}-partition-1", "persistent://public/default/u"):
        topic_store = topic_store_of(store, topic)
        topic_store.records.record_nack((1, 1, -1), 50, 1, 0)
        if topic != TOPIC:
            topic_store.close()
    store.forget("s", lambda topic: topic.startswith(TOPIC))
    store.forget("another", lambda topic: True)
    assert (store.statistics().waiting, store.statistics().entries) == (1, 1)
    store.close()
    store = opened(path)
    assert (store.statistics().waiting, store.statistics().entries) == (1, 1)
    store.close()


HOUR = 3600 * 1000
DAY = 24 * HOUR


def entries_known_at(path: Path, now: int, entries: range = range(1, 5)) -> list[int]:
    """Return the entries that have a record when the directory is opened."""
    store = opened(path, now=now)
    records = topic_store_of(store).records
    known = [entry for entry in entries if recall(records, 1, entry) is not None]
    store.close()
    return known


def test_records_of_messages_that_never_come_are_removed(path: Path) -> None:
    store = opened(path)
    records = topic_store_of(store).records
    records.record_deliveries([DeliveredRecord(1, 1), DeliveredRecord(1, 2)], 0)
    records.record_nack((1, 3, -1), 90 * DAY, 1, 0)
    records.record_deliveries([DeliveredRecord(1, 4)], 20 * DAY)
    store.close()
    for day in range(21, 52):  # its owner ended before day 21
        assert entries_known_at(path, day * DAY) == [1, 2, 3, 4]
    assert entries_known_at(path, 52 * DAY) == [3]
    assert entries_known_at(path, 0) == [3]


def test_a_message_redelivered_for_months_keeps_its_count(path: Path) -> None:
    """Several processes in a row end while they hold the message, or are about to get it."""
    now = 1_700_000_000_000
    for day in range(1, 30):
        store, topic_store = opened_for_topic(path, now=now)
        known = recall(topic_store.records, 1, 1)
        assert (known.attempts if known is not None else 0) == day - 1
        topic_store.records.record_deliveries([DeliveredRecord(1, 1, attempt=day)], now)
        if day % 2:
            topic_store.records.record_nack((1, 1, -1), now + DAY, day, now)
            topic_store.records.record_due([(1, 1, -1)])  # redelivered
        now += DAY if day < 10 else 10 * DAY
        store.close()


def test_a_message_that_waited_for_months_keeps_its_count(path: Path) -> None:
    store = opened(path)
    topic_store_of(store).records.record_nack((1, 1, -1), 60 * DAY, 7, 0)
    store.close()
    store, topic_store = opened_for_topic(path, now=DAY)
    topic_store.records.flush(61 * DAY)
    assert recall(topic_store.records, 1, 1) is not None
    topic_store.records.record_due([(1, 1, -1)])  # queued, and not delivered yet
    store.flush()
    left = killed(path)
    store.close()
    assert entries_known_at(left, 61 * DAY) == [1]


def test_due_times_of_deleted_topics_are_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_encore.state.rocks.store_loader.MAX_REMOVED", 1_000)
    store = opened(path)
    deleted_topic = topic_store_of(store)
    for entry in range(1_500):
        deleted_topic.records.record_nack((1, entry, -1), DAY, 1, 0)
    for each in range(50):
        daily = topic_store_of(store, f"persistent://public/default/daily-{each}")
        daily.records.record_nack((9, each, -1), DAY, 1, 0)
    late = topic_store_of(store, "persistent://public/default/late")
    late.records.record_nack((3, 3, -1), 100 * DAY, 1, 0)
    store.close()

    def left(now: int, **options: Any) -> tuple[int, int, int]:
        store = opened(path, now=now, **options)
        statistics = store.statistics()
        store.close()
        return statistics.topics, statistics.waiting, statistics.entries

    assert left(31 * DAY) == (52, 1551, 1551)
    assert left(62 * DAY, remove_stale=False) == (52, 1551, 1551)
    assert left(62 * DAY) == (52, 1551, 1551)  # only one opening shows this time so far
    assert left(63 * DAY) == (52, 551, 551)  # the limit of one opening
    assert left(63 * DAY) == (1, 1, 1)
    store = opened(path, now=63 * DAY)
    again = topic_store_of(store)
    assert again.records.waiting == 0 and not again.records
    again.records.record_nack((1, 1, -1), 90 * DAY, 1, 62 * DAY)
    store.close()
    assert left(63 * DAY) == (2, 2, 2)
    assert left(140 * DAY) == (2, 2, 2)
    assert left(141 * DAY) == (0, 0, 0)


@pytest.mark.parametrize("ahead", [2 * HOUR, 40 * DAY, 400 * DAY])
def test_a_clock_ahead_at_some_openings_removes_no_record(path: Path, ahead: int) -> None:
    """The process may even be started several times before the clock is right again."""
    now = 1_700_000_000_000
    store = opened(path, now=now)
    records = topic_store_of(store).records
    records.record_nack((1, 1, -1), now + HOUR, 3, now)
    records.record_deliveries([DeliveredRecord(1, 2, attempt=3)], now)
    store.close()
    for _ in range(3):
        assert entries_known_at(path, now + ahead) == [1, 2]
    store = opened(path, now=now)
    for entry in (1, 2):
        found = recall(topic_store_of(store).records, 1, entry)
        assert found is not None and found.attempts == 3
        assert found.due_ms == (now + HOUR if entry == 1 else None)
    store.close()


def test_conflicting_options_raise(path: Path) -> None:
    store = opened(path)
    with pytest.raises(ConfigurationError, match="durability"):
        opened(path, durability="power")
    with pytest.raises(ConfigurationError, match="durability"):
        opened(path, durability="never")
    with pytest.raises(ConfigurationError, match="NUL"):
        store.topic_store("a\0b", "s")
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_gets_an_error(path: Path) -> None:
    store = opened(path)
    pid = os.fork()
    if pid == 0:
        outcome = 0
        for call, error in (
            (store.statistics, ForkedError),
            (lambda: opened(path), StateInUseError),
            (lambda: opened(path.with_name("another")), ForkedError),
        ):
            try:
                call()
            except Exception as raised:
                outcome += isinstance(raised, error)
        os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    store.close()


def test_a_missing_package_is_named_in_the_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ConfigurationError, match=re.escape("pulsar-encore[state]")):
        opened(path)


def test_no_other_module_imports_the_package() -> None:
    code = "import sys, pulsar_encore, pulsar_encore.state.rocks; print('rocksdict' in sys.modules)"
    assert python(code).communicate()[0] == b"False\n"


@pytest.mark.skipif(sys.platform == "win32", reason="how POSIX refuses")
@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), OSError(30, "Read-only file system")]
)
def test_a_directory_without_write_permission_is_not_reported_as_in_use(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    filled(path)
    system = os.open

    def refuses(name: Any, *arguments: Any, **options: Any) -> int:
        if str(name).endswith("LOCK"):
            raise error
        return system(name, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuses)
        with pytest.raises(StoreError, match=r"must be allowed to write .* read-only") as caught:
            opened(path)
    assert not isinstance(caught.value, StateInUseError) and str(error) in str(caught.value)
    opened(path).close()


def test_the_error_gives_advice_if_no_directory_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="name a directory"):
            opened(path)


# Content


def test_a_directory_with_other_files_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("dear")
    with pytest.raises(StateFormatError, match=r"diary\.txt"):
        opened(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["diary.txt"]


@pytest.mark.parametrize(
    ("value", "match"), [(number_bytes(99), "format 99"), (b"?", "cannot be decoded")]
)
def test_an_unknown_format_raises(path: Path, value: bytes, match: str) -> None:
    filled(path)
    database = Database(path / "db")
    writes = WriteBatch()
    writes.put(META, FORMAT_KEY, value)
    database.write(writes)
    database.close()
    for call in (opened, StateReader):
        with pytest.raises(StateFormatError, match=match):
            call(path)


def test_a_database_of_another_program_raises(path: Path) -> None:
    path.mkdir()
    database = Database(path / "db")
    writes = WriteBatch()
    writes.put(STATE, b"x", b"y")
    database.write(writes)
    database.close()
    with pytest.raises(StateFormatError, match="format"):
        opened(path)


def test_an_unreadable_record_does_not_affect_others(path: Path) -> None:
    filled(path)
    database = Database(path / "db")
    writes = WriteBatch()
    for family, key, value in (
        (STATE, entry_key(77, 1, 1), b""),  # no topic has this number
        (STATE, b"short", b""),
        (STATE, entry_key(0, 1, 3), b"\xff\xff"),
    ):
        writes.put(family, key, value)
    database.write(writes)
    database.close()
    store, topic_store = opened_for_topic(path)
    assert store.statistics().unreadable == 2
    assert recall(topic_store.records, 1, 3) is None
    assert len(keys_of(topic_store)) == 49
    found = recall(topic_store.records, 1, 4)
    assert found is not None and found.attempts == 1
    assert store.statistics().unreadable == 4  # one of the records is read twice
    topic_store.records.record_deliveries(
        [DeliveredRecord(1, 3, attempt=9), DeliveredRecord(1, 60)], 0
    )
    found = recall(topic_store.records, 1, 3)
    assert found is not None and found.attempts == 9
    store.close()


# Corruption


def cut(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 20] = bytes(each ^ 0xFF for each in data[middle : middle + 20])
    path.write_bytes(data)


def largest(path: Path, pattern: str) -> Path:
    return max((path / "db").glob(pattern), key=lambda each: each.stat().st_size)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a table is cut": lambda path: cut(largest(path, "*.sst"), 0.5),
    "a table is deleted": lambda path: largest(path, "*.sst").unlink(),
    "a table is changed": lambda path: flip(largest(path, "*.sst")),
    "the manifest is cut": lambda path: cut(largest(path, "MANIFEST*"), 0.5),
    "the manifest is changed": lambda path: flip(largest(path, "MANIFEST*")),
    "the manifest is deleted": lambda path: largest(path, "MANIFEST*").unlink(),
    "CURRENT is deleted": lambda path: (path / "db" / "CURRENT").unlink(),
    "CURRENT has junk": lambda path: (path / "db" / "CURRENT").write_text("junk\n"),
    "the database is deleted": lambda path: shutil.rmtree(path / "db"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_corruption_is_an_error_and_not_a_silent_loss(path: Path, damage: str) -> None:
    filled(path, 3000)
    DAMAGE[damage](path)
    for _ in range(2):  # a failed open must not make it worse
        with pytest.raises(StoreError) as caught:
            opened(path)
        assert "salvage" in str(caught.value)
    store, topic_store = opened_for_topic(path, salvage=True)
    nack(topic_store, (9, 9, -1), 5)
    assert keys_of(topic_store)[0] == (9, 9, -1)
    store.close()
    store = opened(path)
    assert keys_of(topic_store_of(store))[0] == (9, 9, -1)
    store.close()


def test_a_changed_log_is_an_error_and_earlier_records_can_be_salvaged(path: Path) -> None:
    store, topic_store = opened_for_topic(path)
    for entry in range(1000):
        nack(topic_store, (1, entry, -1), 1000 + entry)
    copy = killed(path)
    store.close()
    flip(largest(copy, "*.log"))
    with pytest.raises(StateDamagedError, match="Nothing was deleted"):
        opened(copy)
    store = opened(copy, salvage=True)
    keys = keys_of(topic_store_of(store))
    assert 300 < len(keys) < 700
    assert keys == [(1, entry, -1) for entry in range(len(keys))]
    assert [each.name for each in copy.iterdir() if "damaged" in each.name] == ["db.damaged-1"]
    store.close()


ONLY_NAMES = [
    "the manifest is cut",
    "the manifest is changed",
    "the manifest is deleted",
    "CURRENT is deleted",
    "CURRENT has junk",
]


@pytest.mark.parametrize("damage", ONLY_NAMES)
def test_all_records_can_be_salvaged_if_only_the_manifest_is_corrupted(
    path: Path, damage: str
) -> None:
    filled(path, 3000)
    DAMAGE[damage](path)
    store, topic_store = opened_for_topic(path, salvage=True)
    assert [entry for _, entry, _ in keys_of(topic_store)] == list(range(3000))
    assert all(recall(topic_store.records, 1, entry) is not None for entry in range(0, 3000, 100))
    store.close()
    assert {each.name for each in path.iterdir()} == {
        "db",
        "db.damaged-1",
        "owner.json",
        "owner.lock",
        "sources",
    }


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98])
def test_a_cut_manifest_is_an_error_and_can_be_salvaged(path: Path, share: float) -> None:
    filled(path)
    cut(largest(path, "MANIFEST*"), share)
    if share < 0.98:  # the last line of the MANIFEST names no table
        with pytest.raises(StateDamagedError, match="salvage"):
            opened(path)
    store = opened(path, salvage=True)
    assert len(keys_of(topic_store_of(store))) == 50
    store.close()


@pytest.mark.parametrize("damage", ["cut", "deleted"])
def test_any_corrupted_table_is_an_error_and_can_be_salvaged(path: Path, damage: str) -> None:
    """This includes the table of the names, which are also in a file beside the database."""
    filled(path)
    found = []
    for table in [*sorted((path / "db").glob("*.sst")), None]:
        copy = killed(path)
        if table is None:  # a directory from before the copy of the names existed
            table = max((path / "db").glob("*.sst"))
            (copy / "sources").unlink()
        victim = copy / "db" / table.name
        victim.unlink() if damage == "deleted" else cut(victim, 0.5)
        with pytest.raises(StateDamagedError, match="salvage"):
            opened(copy)
        store, topic_store = opened_for_topic(copy, salvage=True)
        found.append(len(keys_of(topic_store)) + len(topic_store.records))
        nack(topic_store, (9, 9, -1), 5)
        store.close()
        store = opened(copy)
        assert (9, 9, -1) in keys_of(topic_store_of(store))
        store.close()
    assert sorted(found) == [0, 0, 100]


@pytest.mark.parametrize("damage", ["deleted", "empty"])
def test_a_lost_log_is_an_error_and_the_tables_can_be_salvaged(path: Path, damage: str) -> None:
    filled(path)
    store = opened(path)
    nack(topic_store_of(store), (2, 1, -1), 5000)
    copy = killed(path)
    store.close()
    for log in (copy / "db").glob("*.log"):
        log.unlink() if damage == "deleted" else cut(log, 0)
    with pytest.raises(StateDamagedError, match="are lost"):
        opened(copy)
    store = opened(copy, salvage=True)
    assert [key[0] for key in keys_of(topic_store_of(store))] == 50 * [1]
    store.close()


def test_a_live_owner_is_reported_before_corruption(path: Path) -> None:
    """Files of a live owner come and go, so a second opener may miss one."""
    filled(path)
    with python(OWNER, path) as owner:
        assert owner.stdout is not None and owner.stdout.readline()
        try:
            DAMAGE["a table is deleted"](path)
            for salvage in (False, True):
                with pytest.raises(StateInUseError, match=f"process {owner.pid} on "):
                    opened(path, salvage=salvage)
            assert {each.name for each in path.iterdir()} == {
                "db",
                "owner.json",
                "owner.lock",
                "sources",
            }
        finally:
            owner.kill()
    with pytest.raises(StateDamagedError):
        opened(path)


def test_a_failed_or_killed_salvage_can_be_repeated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path, 3000)
    DAMAGE["CURRENT is deleted"](path)
    write, writes = Database.write, 0

    def full(database: Database, batch: WriteBatch) -> None:
        nonlocal writes
        writes += 1
        if writes == 2:
            raise StoreError("no space left")
        write(database, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", full)
        with pytest.raises(StoreError, match="no space left"):
            opened(path, salvage=True)
    with pytest.raises(StateDamagedError):
        opened(path)
    rename = Path.rename

    def killed_then(old_path: Path, target: Path) -> Path:
        if old_path.name == "db.salvaged":
            raise KeyboardInterrupt
        return rename(old_path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed_then)
        with pytest.raises(KeyboardInterrupt):
            opened(path, salvage=True)
    left = {"db.damaged-1", "db.salvaged", "owner.json", "owner.lock", "sources"}
    assert {each.name for each in path.iterdir()} == left
    without = killed(path)
    (without / "owner.json").unlink()
    for each in (path, without):
        with pytest.raises(StateDamagedError, match="salvage"):
            opened(each)
        store = opened(each, salvage=True)
        assert len(keys_of(topic_store_of(store))) == 3000
        store.close()


def test_both_ends_of_a_corrupted_table_can_be_salvaged(path: Path) -> None:
    filled(path, 20_000)
    flip(largest(path, "*.sst"))
    store, topic_store = opened_for_topic(path, salvage=True)
    entries = [entry for _, entry, _ in keys_of(topic_store)]
    assert 7_500 < len(entries) < 20_000
    assert entries[0] == 0 and entries[-1] == 19_999
    store.close()


def test_a_cut_log_loses_only_its_end(path: Path) -> None:
    """A loss of power cuts the log, as documented for `durability="kill"`."""
    store, topic_store = opened_for_topic(path)
    for entry in range(1000):
        nack(topic_store, (1, entry, -1), 1000 + entry)
    copy = killed(path)
    store.close()
    cut(largest(copy, "*.log"), 0.5)
    store = opened(copy)
    keys = keys_of(topic_store_of(store))
    assert keys == [(1, entry, -1) for entry in range(len(keys))] and len(keys) > 300
    store.close()


# Failed writes


@contextmanager
def full_disk(store: RocksStore) -> Iterator[None]:
    def fails(writes: WriteBatch) -> None:
        raise StoreError("No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.batched_writes().database, "write", fails)
        yield


def test_failed_writes_stay_in_memory(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, topic_store = opened_for_topic(path)
    for entry in range(20):
        nack(topic_store, (1, entry, -1), 100)
    with full_disk(store):
        nack(topic_store, (1, 0, -1), 700)
        nack(topic_store, (1, 20, -1), 200)
        topic_store.records.cancel_due_times((1, entry, -1) for entry in range(1, 20))
        with pytest.raises(StoreError, match="in memory only"):
            topic_store.records.record_deliveries([DeliveredRecord(1, 1, attempt=3)], 0)
        found = recall(topic_store.records, 1, 1)
        assert found is not None and found.attempts == 3
        assert isinstance(store.failure, StoreError)
        assert store.statistics().unwritten > 0 and store.statistics().failures == 4
        assert len(caplog.records) == 1  # not for each
        with after_kill(path) as old:
            assert old.records.waiting == 20
    topic_store.records.record_deliveries(
        [DeliveredRecord(1, 2)], 0
    )  # any write retries the others
    assert store.failure is None and store.statistics().unwritten == 0
    with after_kill(path) as new:
        assert sorted(keys_of(new)) == [(1, 0, -1), (1, 20, -1)]
        kept = recall(new.records, 1, 1)
        assert kept is not None and kept.attempts == 3
    store.close()


def test_lost_changes_stay_reported_after_the_disk_recovers(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pulsar_encore.state.rocks.write_journal._MAX_UNWRITTEN", 10)
    store, topic_store = opened_for_topic(path)
    with full_disk(store):
        for entry in range(15):
            nack(topic_store, (1, entry, -1), 100)
    assert store.flush()
    assert store.statistics().lost == 5 and "5 changes" in str(store.failure)
    assert caplog.text.count("state is lost") == 1
    store.close()


def test_close_reports_changes_that_are_lost(path: Path) -> None:
    store, topic_store = opened_for_topic(path)
    with full_disk(store):
        nack(topic_store, (1, 1, -1), 100)
        with pytest.raises(StoreError, match=r"1 changes .* are lost"):
            store.close()
    opened(path).close()


def test_close_writes_all_failed_changes_if_the_disk_has_space(path: Path) -> None:
    store, topic_store = opened_for_topic(path)
    with full_disk(store):
        for entry in range(2_500):
            nack(topic_store, (1, entry, -1), 100)
    store.close()
    store = opened(path)
    assert topic_store_of(store).records.waiting == 2_500
    store.close()


def test_a_disk_that_has_space_again_needs_no_reopen(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, topic_store = opened_for_topic(path)
    with full_disk(store):
        for entry in range(2_500):
            nack(topic_store, (1, entry, -1), 100)
        assert not store.flush() and store.last_write_failed
    assert not store.flush() and not store.last_write_failed  # a call retries only so many
    with monkeypatch.context() as patch:
        patch.setattr("pulsar_encore.state.rocks.database.library", None)
        assert store.reopen()
    assert store.failure is None
    with after_kill(path) as found:
        assert found.records.waiting == 2_500
    store.close()


def test_a_failing_write_does_not_slow_down_with_the_backlog(path: Path) -> None:
    store, topic_store = opened_for_topic(path)
    with full_disk(store):
        with store.batched_writes():
            for entry in range(100_000):
                nack(topic_store, (1, entry, -1), 100 + entry % 10_000)
        begun = time.process_time()
        for entry in range(200):
            nack(topic_store, (2, entry, -1), 100)
        assert time.process_time() - begun < 0.2  # 2.7 ms each with a scan of all of them
        begun = time.process_time()
        topic_store.records.clear()
        assert time.process_time() - begun < 2  # about a minute with such a scan of 10,000 ranges
        nack(topic_store, (3, 1, -1), 100)
    assert store.reopen()
    with after_kill(path) as found:
        assert keys_of(found) == [(3, 1, -1)]
    store.close()


FULL = """
import resource, sys
from pulsar_encore.errors import StoreError
from pulsar_encore.state.rocks import DeliveredRecord, RocksStore
store = RocksStore(sys.argv[1], wall_now_ms=0)
topic_store = store.topic_store(sys.argv[2], "s")
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most))
entry = 0
while store.failure is None:
    topic_store.records.record_nack((1, entry, -1), 100 + entry, 0, 0)
    entry += 1
for _ in range(100):
    topic_store.records.record_nack((1, entry, -1), 100 + entry, 0, 0)
    entry += 1
try:
    topic_store.records.record_deliveries([DeliveredRecord(2, 1)], 0)
except StoreError:
    entry += 1_000_000
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
print(entry, store.reopen(), store.statistics().unwritten, flush=True)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_reopen_recovers_from_a_full_disk(path: Path) -> None:
    with python(FULL, path, TOPIC) as child:
        out, error = child.communicate()
    assert child.returncode == -signal.SIGKILL, error.decode()
    entries, mended, unwritten = out.split()
    assert (mended, unwritten) == (b"True", b"0")
    store, topic_store = opened_for_topic(path)
    assert topic_store.records.waiting == int(entries) - 1_000_000 > 1000
    found = recall(topic_store.records, 2, 1)
    assert found is not None and found.attempts == 1
    store.close()


def test_a_failed_reopen_can_be_retried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, topic_store = opened_for_topic(path)
    with full_disk(store):
        nack(topic_store, (1, 1, -1), 100)
        with monkeypatch.context() as patch:
            patch.setattr("pulsar_encore.state.rocks.database.library", None)
            with pytest.raises(TypeError):
                store.reopen()
        nack(topic_store, (1, 2, -1), 100)
        assert recall(topic_store.records, 1, 1) is not None
    assert store.reopen()
    with after_kill(path) as found:
        assert found.records.waiting == 2
    store.close()


def test_a_closed_database_raises_for_reads_and_close(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path)
    database = store.batched_writes().database
    database.close()
    with pytest.raises(StoreError, match=re.escape(str(path))):
        next(database.scan(DUE))
    with pytest.raises(StoreError, match="closed"):
        store.close()


def test_close_reports_a_failed_reopen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    with full_disk(store):
        nack(topic_store_of(store), (1, 1, -1), 100)
        with monkeypatch.context() as patch:
            patch.setattr("pulsar_encore.state.rocks.database.library", None)
            with pytest.raises(TypeError):
                store.reopen()
        with pytest.raises(StoreError, match="was closed, but"):
            store.close()
    opened(path).close()


NO_ROOM = """
import resource, sys
from pulsar_encore.errors import StoreError
from pulsar_encore.state.rocks import DeliveredRecord, RocksStore
store = RocksStore(sys.argv[1], wall_now_ms=0)
topic_store = store.topic_store(sys.argv[2], "s")
for entry in range(1000):
    topic_store.records.record_deliveries([DeliveredRecord(1, entry, 10, 0b11, 5)], 0)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1, most))
failed = 0
for call in (
    lambda: topic_store.records.record_deliveries([DeliveredRecord(1, 8, 10, 1, 6)], 0),
    store.reopen,
    lambda: topic_store.records.record_deliveries([DeliveredRecord(1, 7, 10, 1, 6)], 0),
):
    try:
        call()
    except StoreError:
        failed += 1
counts = [topic_store.records.recall_entry(1, 9).attempts_of(index) for index in (0, 1)]
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
print(failed, store.reopen(), *counts, flush=True)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_reopen_does_not_close_a_database_on_a_full_disk(path: Path) -> None:
    with python(NO_ROOM, path, TOPIC) as child:
        out, error = child.communicate()
    assert child.returncode == -signal.SIGKILL, error.decode()
    assert out.split() == [b"3", b"True", b"5", b"5"]
    store = opened(path)
    counts = [counts_of(topic_store_of(store), entry) for entry in (7, 8, 9)]
    assert counts == [[6, 5], [6, 5], [5, 5]]
    store.close()


def counts_of(topic_store: TopicStore, entry: int) -> list[int]:
    record = topic_store.records.recall_entry(1, entry)
    assert record is not None
    return [record.attempts_of(0), record.attempts_of(1)]


def test_a_database_that_cannot_be_reopened_is_readable_and_locked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, topic_store = opened_for_topic(path)
    topic_store.records.record_deliveries(
        [DeliveredRecord(1, entry, 2, 0b11, 5) for entry in range(1000)], 0
    )
    begin = Database.__init__

    def to_read_only(database: Database, path: Path, **options: Any) -> None:
        if not options.get("read_only"):
            raise StoreError("too many open files")
        begin(database, path, **options)

    with full_disk(store), monkeypatch.context() as patch:
        nack(topic_store, (1, 1, -1), 100)
        patch.setattr(Database, "__init__", to_read_only)
        for _ in range(2):
            with pytest.raises(StoreError, match="too many open"):
                store.reopen()
            assert counts_of(topic_store, 7) == [5, 5]
            with python(OWNER, path) as other:
                assert b"StateInUseError" in other.communicate()[1]
        assert "too many open" in str(store.failure)
    topic_store.records.record_deliveries(
        [DeliveredRecord(1, 7, 2, 0b1, 6)], 0
    ) if store.reopen() else None
    assert store.failure is None and counts_of(topic_store, 7) == [6, 5]
    with after_kill(path) as found:
        assert counts_of(found, 7) == [6, 5] and found.records.waiting == 1
    store.close()


@contextmanager
def unreadable(text: str = "Input/output error") -> Iterator[None]:
    def fails(database: Database, family: int, key: bytes) -> bytes | None:
        raise StoreError(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "get", fails)
        yield


@pytest.mark.parametrize("count_attempts", ["before", "lazy"])
def test_a_record_that_cannot_be_read_is_not_overwritten(path: Path, count_attempts: str) -> None:
    store = opened(path)
    topic_store_of(store).records.record_deliveries(
        [DeliveredRecord(1, entry, 3, 0b111, 5) for entry in range(8)], 1000
    )
    store.close()
    store = opened(path)
    topic_store = topic_store_of(store, count_attempts=count_attempts)
    records = topic_store.records
    with unreadable():
        for entry in range(7):
            assert recall(records, 1, entry) is None
            with (
                pytest.raises(StoreError, match="in memory only")
                if (count_attempts == "before")
                else nullcontext()
            ):
                records.record_deliveries([DeliveredRecord(1, entry, 3, 0b1, 1)], 50_000)
        assert "Input/output" in str(store.failure)
        records.record_nack((1, 1, 1), 70_000, 7, 50_000, size=3)
        records.record_ack(1, 2, 0b10)
        records.record_ack(1, 3)
        records.record_ack(1, 4, 0b111)
        records.flush(90_000)
        assert records.buffered > 0
    records.flush(91_000)
    assert store.failure is None and records.buffered == 0
    for known in (topic_store, None):
        with nullcontext(known) if known is not None else after_kill(path) as found:
            assert counts_of(found, 0) == counts_of(found, 5) == counts_of(found, 7) == [5, 5]
            assert counts_of(found, 1) == [5, 7]
            assert counts_of(found, 2) == [5, 0]
            assert recall(found.records, 1, 3) is None and recall(found.records, 1, 4) is None
    records._check()
    store.close()


def test_a_record_unreadable_until_close_keeps_its_count(path: Path) -> None:
    filled(path, 3)
    store, topic_store = opened_for_topic(path)
    with unreadable():
        with pytest.raises(StoreError):
            topic_store.records.record_deliveries([DeliveredRecord(1, 1, attempt=7)], 0)
        topic_store.close()
        assert store.statistics().lost == 1
    store.close()
    store = opened(path)
    assert counts_of(topic_store_of(store), 1)[0] == 1
    store.close()


# Loss of power


async def test_one_fsync_covers_several_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = Database.sync

    def counted(database: Database) -> None:
        synced.append(database.sequence)
        sync(database)

    monkeypatch.setattr(Database, "sync", counted)
    store = await RocksStore.open(path, wall_now_ms=0, durability="power")
    topic_store = topic_store_of(store)
    for entry in range(300):
        nack(topic_store, (1, entry, -1), 100)
    at = store.batched_writes().database.sequence
    await store.synced()
    assert synced[-1] >= at
    await store.synced()  # no new writes
    assert len(synced) < 100
    await store.aclose()


async def test_a_failed_fsync_is_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pulsar_encore.state.rocks.fsync_thread._PAUSE_S", 0.01)
    store, topic_store = opened_for_topic(path, durability="power")
    await store.synced()

    def fails(database: Database) -> None:
        raise StoreError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "sync", fails)
        nack(topic_store, (1, 1, -1), 100)
        for _ in range(3):
            with pytest.raises(StoreError, match="Input"):
                await asyncio.wait_for(store.synced(), 10)
            assert "Input" in str(store.failure)
        assert caplog.text.count("may not survive a loss of power") == 1  # not for each
    await asyncio.wait_for(store.synced(), 10)
    assert store.failure is None and "survives a loss of power again" in caplog.text
    await store.aclose()


@pytest.mark.parametrize("good", [True, False])
async def test_close_ends_pending_waits_for_an_fsync(
    path: Path, monkeypatch: pytest.MonkeyPatch, good: bool
) -> None:
    """This includes a write that came during the failing fsync."""
    monkeypatch.setattr("pulsar_encore.state.rocks.fsync_thread._PAUSE_S", 3600)
    began, resume = threading.Event(), threading.Event()

    def fails(database: Database) -> None:
        began.set()
        resume.wait(10)
        raise StoreError("Input/output error")

    store, topic_store = opened_for_topic(path, durability="power")
    await store.synced()
    with monkeypatch.context() as patch:
        patch.setattr(Database, "sync", fails)
        nack(topic_store, (1, 1, -1), 100)
        first = asyncio.ensure_future(store.synced())
        assert await asyncio.to_thread(began.wait, 10)
        nack(topic_store, (1, 2, -1), 100)
        second = asyncio.ensure_future(store.synced())
        await asyncio.sleep(0)
        resume.set()
        with pytest.raises(StoreError, match="Input"):
            await asyncio.wait_for(first, 10)
        if not good:
            await store.aclose()
    await store.aclose()
    with nullcontext() if good else pytest.raises(StoreError, match="Input"):
        await asyncio.wait_for(second, 10)


async def test_synced_raises_after_a_failed_reopen(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path, durability="power")
    with full_disk(store), monkeypatch.context() as patch:
        nack(topic_store_of(store), (1, 1, -1), 100)
        patch.setattr("pulsar_encore.state.rocks.database.library", None)
        with pytest.raises(TypeError):
            store.reopen()
        with pytest.raises(StoreError, match="No space"):
            await asyncio.wait_for(store.synced(), 10)
    assert store.reopen()
    await asyncio.wait_for(store.synced(), 10)
    store.close()


async def test_synced_does_not_wait_with_durability_kill(path: Path) -> None:
    store = opened(path)
    await store.synced()
    store.close()


# Readers


def test_a_reader_sees_a_directory_in_use(path: Path) -> None:
    store = opened(path, now=1_800_000_000_000)
    topic_store, other = (
        topic_store_of(store),
        topic_store_of(store, "persistent://public/default/u"),
    )
    topic_store.records.record_deliveries(
        [DeliveredRecord(1, 1, 10, 0b11), DeliveredRecord(2, 1)], 7
    )
    topic_store.records.record_nack((2, 1, -1), 500, 1, 7)
    other.records.record_nack((3, 1, -1), 400, 2, 7)
    with StateReader(path) as reader:
        assert [each[1:] for each in reader.topics()] == [
            (TOPIC, "s", ""),
            ("persistent://public/default/u", "s", ""),
        ]
        assert list(reader.waiting()) == [(400, 1, (3, 1, -1)), (500, 0, (2, 1, -1))]
        assert [each[:3] for each in reader.records()] == [(0, 1, 1), (0, 2, 1), (1, 3, 1)]
        (found,) = reader.records(1)
        assert found.record.attempts_of(0) == 2
        assert reader.owner is not None and reader.owner.pid == os.getpid()
        assert not reader.owner.closed and reader.unreadable == 0
    store.close()
    with StateReader(path) as reader:
        assert reader.owner is not None and reader.owner.closed
        assert len(list(reader.waiting())) == 2


def test_a_reader_changes_no_file(path: Path) -> None:
    filled(path)
    files = {
        each: (each.stat().st_size, each.stat().st_mtime_ns) for each in sorted(path.rglob("*"))
    }
    for each in files:
        each.chmod(0o555 if each.is_dir() else 0o444)
    try:
        with StateReader(path) as reader:
            assert len(list(reader.waiting())) == 50
    finally:
        for each in files:
            each.chmod(0o755 if each.is_dir() else 0o644)
    assert files == {
        each: (each.stat().st_size, each.stat().st_mtime_ns) for each in sorted(path.rglob("*"))
    }


def test_a_reader_creates_no_directory(path: Path) -> None:
    with pytest.raises(StateFormatError, match="no state"):
        StateReader(path)
    assert not path.exists()


# A kill


def test_kills_lose_no_confirmed_write(path: Path) -> None:
    seed = 5
    known, wrong = kill_again_and_again(path, 3, seed)
    assert not wrong, f"seed {seed}: {wrong[:5]}"
    assert known.found > 1000


@pytest.fixture(autouse=True)
def none_left_open() -> Iterator[None]:
    yield
    left = [path for path in open_directories() if "pytest" in str(path)]
    for path in left:
        core = rocks_store._slots.pop(path).core
        assert core is not None
        core.close()
    assert not left


async def test_a_cancelled_close_still_closes_the_directory(tmp_path: Path) -> None:
    """Its thread may not have begun, because all threads of the executor are busy."""
    proceed = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    blocked = asyncio.ensure_future(asyncio.to_thread(proceed.wait, 10))
    store = RocksStore(tmp_path / "state", wall_now_ms=0)
    closing = asyncio.ensure_future(store.aclose())
    await asyncio.sleep(0.05)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    proceed.set()
    await blocked
    await asyncio.to_thread(time.sleep, 0)  # after the close, in the only thread
    assert open_directories() == []
