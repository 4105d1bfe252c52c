"""The directory: whose it is, what damage and a full disk do, and what can be seen from outside."""

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
from rocks_kit import TOPIC, after_kill, keys_of, killed, nack, opened, source_of

from harness.rocks_kill import kill_again_and_again
from pulsar_encore.errors import (
    ClosedError,
    ConfigurationError,
    ForkedError,
    StateDamagedError,
    StateFormatError,
    StateInUseError,
    StoreError,
)
from pulsar_encore.state.rocks import DeliveredRecord, RocksStore, StateReader, TopicStore
from pulsar_encore.state.rocks.database import Database
from pulsar_encore.state.rocks.store_keys import FORMAT_KEY, entry_key, number
from pulsar_encore.state.rocks.write_batch import DUE, META, STATE, WriteBatch

ALL = 2**62


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state"


def filled(path: Path, entries: int = 50) -> None:
    """A directory that was closed in order."""
    store = opened(path)
    source = source_of(store)
    source.records.started([DeliveredRecord(1, entry) for entry in range(entries)], 0)
    for entry in range(entries):
        nack(source, (1, entry, -1), 1000 + entry)
    store.close()


def python(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Another process; what it prints is read to know that it is there."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


OWNER = """
import sys, time
from pulsar_encore.state.rocks import RocksStore
store = RocksStore(sys.argv[1], wall_now_ms=1_800_000_000_000)
store.source("t", "s").records.waits((1, 1, -1), 5, 0, 0)
print(flush=True)
time.sleep(60)
"""


# Whose it is


def test_a_second_process_is_refused_and_told_by_whom(path: Path) -> None:
    with python(OWNER, path) as owner:
        assert owner.stdout is not None and owner.stdout.readline()
        try:
            with pytest.raises(StateInUseError) as caught:
                opened(path)
            text = str(caught.value)
            assert f"process {owner.pid} on " in text and "2027-01-15T08:00:00" in text
            with StateReader(path) as reader:  # looking is allowed
                assert list(reader.waiting()) == [(5, 0, (1, 1, -1))]
        finally:
            owner.kill()
    start = time.perf_counter()
    store = opened(path)
    assert time.perf_counter() - start < 2
    assert keys_of(store.source("t", "s")) == [(1, 1, -1)]
    store.close()


def test_opening_and_closing_in_order_says_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for durability in ("kill", "power"):
        store = opened(path, durability=durability)
        nack(source_of(store), (1, 1, -1), 5)
        store.close()
        with StateReader(path) as reader:
            assert len(list(reader.waiting())) == 1
    assert caplog.text == ""


def test_a_process_opens_it_once_for_all_its_consumers(path: Path) -> None:
    one, other = opened(path), opened(path)
    nack(source_of(one), (1, 1, -1), 5)
    one.close()
    one.close()
    assert source_of(other, "persistent://public/default/u").number == 1
    assert other.statistics().waiting == 1
    other.close()
    with pytest.raises(ClosedError):
        other.statistics()
    opened(path).close()


def test_consumers_of_one_subscription_share_its_state(path: Path) -> None:
    store, other = opened(path), opened(path)
    source = source_of(store)
    assert source_of(other) is source
    assert store.source(TOPIC, "s", "another owner") is not source
    nack(source, (1, 1, -1), 5)
    source.close()
    assert (1, 1, -1) in keys_of(source)  # the other one has it still
    source.close()
    assert source_of(store) is not source
    store.close()
    other.close()
    source.close()  # too late to do anything


def test_another_thread_is_refused(path: Path) -> None:
    store = opened(path)
    source_of(store)
    with ThreadPoolExecutor(1) as thread:
        refused = thread.submit(source_of, store).exception()
    assert isinstance(refused, StateInUseError) and "another thread" in str(refused)
    store.close()


def test_a_thread_that_said_so_has_it_until_it_closes_it(path: Path) -> None:
    """Before it has a source: a topic may be quiet for long."""
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
            source_of(other)
    other.close()


def test_a_subscription_that_was_deleted_is_forgotten(path: Path) -> None:
    store = opened(path)
    for topic in (TOPIC, f"{TOPIC}-partition-1", "persistent://public/default/u"):
        source = source_of(store, topic)
        source.records.waits((1, 1, -1), 50, 1, 0)
        if topic != TOPIC:
            source.close()
    store.forget("s", lambda topic: topic.startswith(TOPIC))
    store.forget("another", lambda topic: True)
    assert (store.statistics().waiting, store.statistics().entries) == (1, 1)
    store.close()
    store = opened(path)
    assert (store.statistics().waiting, store.statistics().entries) == (1, 1)
    store.close()


HOUR = 3600 * 1000
DAY = 24 * HOUR


def known_at(path: Path, now: int, entries: range = range(1, 5)) -> list[int]:
    """Of which entries anything is known when it is opened."""
    store = opened(path, now=now)
    records = source_of(store).records
    known = [entry for entry in entries if records.recall(1, entry) is not None]
    store.close()
    return known


def test_what_is_known_of_messages_that_never_came_again_is_let_go(path: Path) -> None:
    store = opened(path)
    records = source_of(store).records
    records.started([DeliveredRecord(1, 1), DeliveredRecord(1, 2)], 0)
    records.waits((1, 3, -1), 90 * DAY, 1, 0)
    records.started([DeliveredRecord(1, 4)], 20 * DAY)
    store.close()
    for day in range(21, 52):  # that owner ended at some time before the 21st
        assert known_at(path, day * DAY) == [1, 2, 3, 4]
    assert known_at(path, 52 * DAY) == [3]
    assert known_at(path, 0) == [3]


def test_a_message_that_is_worked_on_for_months_keeps_its_count(path: Path) -> None:
    """In one process after the other, which end while they have it, or about to have it."""
    now = 1_700_000_000_000
    for day in range(1, 30):
        store = opened(path, now=now)
        source = source_of(store)
        known = source.records.recall(1, 1)
        assert (known.attempts if known is not None else 0) == day - 1
        source.records.started([DeliveredRecord(1, 1, attempt=day)], now)
        if day % 2:
            source.records.waits((1, 1, -1), now + DAY, day, now)
            source.records.passed([(1, 1, -1)])  # it came
        now += DAY if day < 10 else 10 * DAY
        store.close()


def test_what_came_after_a_wait_of_months_keeps_its_count(path: Path) -> None:
    store = opened(path)
    source_of(store).records.waits((1, 1, -1), 60 * DAY, 7, 0)
    store.close()
    store = opened(path, now=DAY)
    source = source_of(store)
    source.records.flush(61 * DAY)
    assert source.records.recall(1, 1) is not None
    source.records.passed([(1, 1, -1)])  # it is here, and not handed over yet
    store.flush()
    left = killed(path)
    store.close()
    assert known_at(left, 61 * DAY) == [1]


def test_what_waited_for_topics_that_are_gone_is_let_go(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_encore.state.rocks.store_loader.MOST_REMOVED", 1_000)
    store = opened(path)
    gone = source_of(store)
    for entry in range(1_500):
        gone.records.waits((1, entry, -1), DAY, 1, 0)
    for each in range(50):
        daily = source_of(store, f"persistent://public/default/daily-{each}")
        daily.records.waits((9, each, -1), DAY, 1, 0)
    late = source_of(store, "persistent://public/default/late")
    late.records.waits((3, 3, -1), 100 * DAY, 1, 0)
    store.close()

    def left(now: int, **options: Any) -> tuple[int, int, int]:
        store = opened(path, now=now, **options)
        told = store.statistics()
        store.close()
        return told.sources, told.waiting, told.entries

    assert left(31 * DAY) == (52, 1551, 1551)
    assert left(62 * DAY, tidies=False) == (52, 1551, 1551)
    assert left(62 * DAY) == (52, 1551, 1551)  # so far one opening says that it is so late
    assert left(63 * DAY) == (52, 551, 551)  # so many at once
    assert left(63 * DAY) == (1, 1, 1)
    store = opened(path, now=63 * DAY)
    again = source_of(store)
    assert again.records.waiting == 0 and not again.records
    again.records.waits((1, 1, -1), 90 * DAY, 1, 62 * DAY)
    store.close()
    assert left(63 * DAY) == (2, 2, 2)
    assert left(140 * DAY) == (2, 2, 2)
    assert left(141 * DAY) == (0, 0, 0)


@pytest.mark.parametrize("ahead", [2 * HOUR, 40 * DAY, 400 * DAY])
def test_a_clock_that_is_ahead_at_some_openings_gives_nothing_up(path: Path, ahead: int) -> None:
    """Also if the process is started several times before the clock is right again."""
    now = 1_700_000_000_000
    store = opened(path, now=now)
    records = source_of(store).records
    records.waits((1, 1, -1), now + HOUR, 3, now)
    records.started([DeliveredRecord(1, 2, attempt=3)], now)
    store.close()
    for _ in range(3):
        assert known_at(path, now + ahead) == [1, 2]
    store = opened(path, now=now)
    for entry in (1, 2):
        found = source_of(store).records.recall(1, entry)
        assert found is not None and found.attempts == 3
        assert found.due_ms == (now + HOUR if entry == 1 else None)
    store.close()


def test_options_that_do_not_fit_are_refused(path: Path) -> None:
    store = opened(path)
    with pytest.raises(ConfigurationError, match="durability"):
        opened(path, durability="power")
    with pytest.raises(ConfigurationError, match="durability"):
        opened(path, durability="never")
    with pytest.raises(ConfigurationError, match="NUL"):
        store.source("a\0b", "s")
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_process_is_refused(path: Path) -> None:
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


def test_without_the_package_it_says_what_to_install(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ConfigurationError, match=re.escape("pulsar-encore[state]")):
        opened(path)


def test_nobody_else_loads_the_package() -> None:
    code = "import sys, pulsar_encore, pulsar_encore.state.rocks; print('rocksdict' in sys.modules)"
    assert python(code).communicate()[0] == b"False\n"


@pytest.mark.skipif(sys.platform == "win32", reason="how POSIX refuses")
@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), OSError(30, "Read-only file system")]
)
def test_what_may_not_be_written_is_not_in_use(
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


def test_where_no_directory_can_be_the_text_says_what_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="name a directory"):
            opened(path)


# What is in it


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("dear")
    with pytest.raises(StateFormatError, match=r"diary\.txt"):
        opened(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["diary.txt"]


@pytest.mark.parametrize(("value", "match"), [(number(99), "format 99"), (b"?", "no sense")])
def test_another_format_is_refused(path: Path, value: bytes, match: str) -> None:
    filled(path)
    database = Database(path / "db")
    writes = WriteBatch()
    writes.put(META, FORMAT_KEY, value)
    database.write(writes)
    database.close()
    for call in (opened, StateReader):
        with pytest.raises(StateFormatError, match=match):
            call(path)


def test_somebody_elses_database_is_refused(path: Path) -> None:
    path.mkdir()
    database = Database(path / "db")
    writes = WriteBatch()
    writes.put(STATE, b"x", b"y")
    database.write(writes)
    database.close()
    with pytest.raises(StateFormatError, match="format"):
        opened(path)


def test_what_makes_no_sense_harms_nothing_else(path: Path) -> None:
    filled(path)
    database = Database(path / "db")
    writes = WriteBatch()
    for family, key, value in (
        (STATE, entry_key(77, 1, 1), b""),  # of no source
        (STATE, b"short", b""),
        (STATE, entry_key(0, 1, 3), b"\xff\xff"),
    ):
        writes.put(family, key, value)
    database.write(writes)
    database.close()
    store = opened(path)
    source = source_of(store)
    assert store.statistics().unreadable == 2
    assert source.records.recall(1, 3) is None
    assert len(keys_of(source)) == 49
    found = source.records.recall(1, 4)
    assert found is not None and found.attempts == 1
    assert store.statistics().unreadable == 4  # that record is asked for twice
    source.records.started([DeliveredRecord(1, 3, attempt=9), DeliveredRecord(1, 60)], 0)
    found = source.records.recall(1, 3)
    assert found is not None and found.attempts == 9
    store.close()


# Damage


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
    "a table is gone": lambda path: largest(path, "*.sst").unlink(),
    "a table is changed": lambda path: flip(largest(path, "*.sst")),
    "the manifest is cut": lambda path: cut(largest(path, "MANIFEST*"), 0.5),
    "the manifest is changed": lambda path: flip(largest(path, "MANIFEST*")),
    "the manifest is gone": lambda path: largest(path, "MANIFEST*").unlink(),
    "what is current is gone": lambda path: (path / "db" / "CURRENT").unlink(),
    "what is current is junk": lambda path: (path / "db" / "CURRENT").write_text("junk\n"),
    "the database is gone": lambda path: shutil.rmtree(path / "db"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_an_error_and_not_a_loss(path: Path, damage: str) -> None:
    filled(path, 3000)
    DAMAGE[damage](path)
    for _ in range(2):  # and nothing is made worse by trying
        with pytest.raises(StoreError) as caught:
            opened(path)
        assert "salvage" in str(caught.value)
    store = opened(path, salvage=True)
    source = source_of(store)
    nack(source, (9, 9, -1), 5)
    assert keys_of(source)[0] == (9, 9, -1)
    store.close()
    store = opened(path)
    assert keys_of(source_of(store))[0] == (9, 9, -1)
    store.close()


def test_a_log_that_is_changed_is_an_error_and_what_was_before_can_be_had(path: Path) -> None:
    store = opened(path)
    source = source_of(store)
    for entry in range(1000):
        nack(source, (1, entry, -1), 1000 + entry)
    copy = killed(path)
    store.close()
    flip(largest(copy, "*.log"))
    with pytest.raises(StateDamagedError, match="Nothing was deleted"):
        opened(copy)
    store = opened(copy, salvage=True)
    keys = keys_of(source_of(store))
    assert 300 < len(keys) < 700
    assert keys == [(1, entry, -1) for entry in range(len(keys))]
    assert [each.name for each in copy.iterdir() if "damaged" in each.name] == ["db.damaged-1"]
    store.close()


ONLY_NAMES = [
    "the manifest is cut",
    "the manifest is changed",
    "the manifest is gone",
    "what is current is gone",
    "what is current is junk",
]


@pytest.mark.parametrize("damage", ONLY_NAMES)
def test_all_can_be_had_when_only_what_names_the_tables_is_damaged(path: Path, damage: str) -> None:
    filled(path, 3000)
    DAMAGE[damage](path)
    store = opened(path, salvage=True)
    source = source_of(store)
    assert [entry for _, entry, _ in keys_of(source)] == list(range(3000))
    assert all(source.records.recall(1, entry) is not None for entry in range(0, 3000, 100))
    store.close()
    assert {each.name for each in path.iterdir()} == {
        "db",
        "db.damaged-1",
        "owner.json",
        "owner.lock",
        "sources",
    }


@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98])
def test_a_manifest_is_cut_anywhere(path: Path, share: float) -> None:
    filled(path)
    cut(largest(path, "MANIFEST*"), share)
    if share < 0.98:  # its last line names no table
        with pytest.raises(StateDamagedError, match="salvage"):
            opened(path)
    store = opened(path, salvage=True)
    assert len(keys_of(source_of(store))) == 50
    store.close()


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_any_table_is_damaged(path: Path, damage: str) -> None:
    """Also that of the names, of which a copy is beside the database."""
    filled(path)
    found = []
    for table in [*sorted((path / "db").glob("*.sst")), None]:
        copy = killed(path)
        if table is None:  # a directory of before there was a copy
            table = max((path / "db").glob("*.sst"))
            (copy / "sources").unlink()
        victim = copy / "db" / table.name
        victim.unlink() if damage == "gone" else cut(victim, 0.5)
        with pytest.raises(StateDamagedError, match="salvage"):
            opened(copy)
        store = opened(copy, salvage=True)
        source = source_of(store)
        found.append(len(keys_of(source)) + len(source.records))
        nack(source, (9, 9, -1), 5)
        store.close()
        store = opened(copy)
        assert (9, 9, -1) in keys_of(source_of(store))
        store.close()
    assert sorted(found) == [0, 0, 100]


@pytest.mark.parametrize("damage", ["gone", "empty"])
def test_a_log_that_is_lost_is_an_error_and_what_is_in_tables_can_be_had(
    path: Path, damage: str
) -> None:
    filled(path)
    store = opened(path)
    nack(source_of(store), (2, 1, -1), 5000)
    copy = killed(path)
    store.close()
    for log in (copy / "db").glob("*.log"):
        log.unlink() if damage == "gone" else cut(log, 0)
    with pytest.raises(StateDamagedError, match="are lost"):
        opened(copy)
    store = opened(copy, salvage=True)
    assert [key[0] for key in keys_of(source_of(store))] == 50 * [1]
    store.close()


def test_damage_beside_an_owner_is_its_own_matter(path: Path) -> None:
    """Its files come and go: who looks meanwhile may miss one."""
    filled(path)
    with python(OWNER, path) as owner:
        assert owner.stdout is not None and owner.stdout.readline()
        try:
            DAMAGE["a table is gone"](path)
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


def test_salvaging_that_fails_or_is_killed_is_done_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path, 3000)
    DAMAGE["what is current is gone"](path)
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

    def killed_then(source: Path, target: Path) -> Path:
        if source.name == "db.salvaged":
            raise KeyboardInterrupt
        return rename(source, target)

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
        assert len(keys_of(source_of(store))) == 3000
        store.close()


def test_both_ends_of_a_changed_table_can_be_had(path: Path) -> None:
    filled(path, 20_000)
    flip(largest(path, "*.sst"))
    store = opened(path, salvage=True)
    source = source_of(store)
    entries = [entry for _, entry, _ in keys_of(source)]
    assert 7_500 < len(entries) < 20_000
    assert entries[0] == 0 and entries[-1] == 19_999
    store.close()


def test_a_log_that_is_cut_loses_what_was_cut(path: Path) -> None:
    """As a machine that loses power does; documented for `durability="kill"`."""
    store = opened(path)
    source = source_of(store)
    for entry in range(1000):
        nack(source, (1, entry, -1), 1000 + entry)
    copy = killed(path)
    store.close()
    cut(largest(copy, "*.log"), 0.5)
    store = opened(copy)
    keys = keys_of(source_of(store))
    assert keys == [(1, entry, -1) for entry in range(len(keys))] and len(keys) > 300
    store.close()


# Writes that fail


@contextmanager
def full_disk(store: RocksStore) -> Iterator[None]:
    def fails(writes: WriteBatch) -> None:
        raise StoreError("No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.one_batch().database, "write", fails)
        yield


def test_what_cannot_be_written_stays_in_memory(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(path)
    source = source_of(store)
    for entry in range(20):
        nack(source, (1, entry, -1), 100)
    with full_disk(store):
        nack(source, (1, 0, -1), 700)
        nack(source, (1, 20, -1), 200)
        source.records.ends_waiting((1, entry, -1) for entry in range(1, 20))
        with pytest.raises(StoreError, match="in memory only"):
            source.records.started([DeliveredRecord(1, 1, attempt=3)], 0)
        found = source.records.recall(1, 1)
        assert found is not None and found.attempts == 3
        assert isinstance(store.trouble, StoreError)
        assert store.statistics().unwritten > 0 and store.statistics().failures == 4
        assert len(caplog.records) == 1  # not for each
        with after_kill(path) as old:
            assert old.records.waiting == 20
    source.records.started([DeliveredRecord(1, 2)], 0)  # any write brings the rest along
    assert store.trouble is None and store.statistics().unwritten == 0
    with after_kill(path) as new:
        assert sorted(keys_of(new)) == [(1, 0, -1), (1, 20, -1)]
        kept = new.records.recall(1, 1)
        assert kept is not None and kept.attempts == 3
    store.close()


def test_what_is_too_much_to_keep_is_told_also_when_the_disk_takes_more(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pulsar_encore.state.rocks.write_journal._MOST_UNWRITTEN", 10)
    store = opened(path)
    source = source_of(store)
    with full_disk(store):
        for entry in range(15):
            nack(source, (1, entry, -1), 100)
    assert store.flush()
    assert store.statistics().lost == 5 and "5 changes" in str(store.trouble)
    assert caplog.text.count("state is lost") == 1
    store.close()


def test_what_is_lost_with_the_end_is_told(path: Path) -> None:
    store = opened(path)
    source = source_of(store)
    with full_disk(store):
        nack(source, (1, 1, -1), 100)
        with pytest.raises(StoreError, match=r"1 changes .* are lost"):
            store.close()
    opened(path).close()


def test_what_failed_is_all_written_with_the_end_when_there_is_room_again(path: Path) -> None:
    store = opened(path)
    source = source_of(store)
    with full_disk(store):
        for entry in range(2_500):
            nack(source, (1, entry, -1), 100)
    store.close()
    store = opened(path)
    assert source_of(store).records.waiting == 2_500
    store.close()


def test_a_disk_that_has_room_again_is_not_opened_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path)
    source = source_of(store)
    with full_disk(store):
        for entry in range(2_500):
            nack(source, (1, entry, -1), 100)
        assert not store.flush() and store.refuses
    assert not store.flush() and not store.refuses  # so much at once and no more
    with monkeypatch.context() as patch:
        patch.setattr("pulsar_encore.state.rocks.database.library", None)
        assert store.mend()
    assert store.trouble is None
    with after_kill(path) as found:
        assert found.records.waiting == 2_500
    store.close()


def test_a_write_that_fails_costs_no_more_when_much_has_failed(path: Path) -> None:
    store = opened(path)
    source = source_of(store)
    with full_disk(store):
        with store.one_batch():
            for entry in range(100_000):
                nack(source, (1, entry, -1), 100 + entry % 10_000)
        begun = time.process_time()
        for entry in range(200):
            nack(source, (2, entry, -1), 100)
        assert time.process_time() - begun < 0.2  # 2.7 ms each when all of it was looked through
        begun = time.process_time()
        source.records.clear()
        assert time.process_time() - begun < 2  # 10,000 ranges: a minute or so, likewise
        nack(source, (3, 1, -1), 100)
    assert store.mend()
    with after_kill(path) as found:
        assert keys_of(found) == [(3, 1, -1)]
    store.close()


FULL = """
import resource, sys
from pulsar_encore.errors import StoreError
from pulsar_encore.state.rocks import HandedOver, RocksStore
store = RocksStore(sys.argv[1], wall_now_ms=0)
source = store.source(sys.argv[2], "s")
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most))
entry = 0
while store.trouble is None:
    source.records.waits((1, entry, -1), 100 + entry, 0, 0)
    entry += 1
for _ in range(100):
    source.records.waits((1, entry, -1), 100 + entry, 0, 0)
    entry += 1
try:
    source.records.started([HandedOver(2, 1)], 0)
except StoreError:
    entry += 1_000_000
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
print(entry, store.mend(), store.statistics().unwritten, flush=True)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_disk_that_was_full_is_mended(path: Path) -> None:
    with python(FULL, path, TOPIC) as child:
        out, error = child.communicate()
    assert child.returncode == -signal.SIGKILL, error.decode()
    entries, mended, unwritten = out.split()
    assert (mended, unwritten) == (b"True", b"0")
    store = opened(path)
    source = source_of(store)
    assert source.records.waiting == int(entries) - 1_000_000 > 1000
    found = source.records.recall(2, 1)
    assert found is not None and found.attempts == 1
    store.close()


def test_a_mend_that_fails_can_be_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(path)
    source = source_of(store)
    with full_disk(store):
        nack(source, (1, 1, -1), 100)
        with monkeypatch.context() as patch:
            patch.setattr("pulsar_encore.state.rocks.database.library", None)
            with pytest.raises(TypeError):
                store.mend()
        nack(source, (1, 2, -1), 100)
        assert source.records.recall(1, 1) is not None
    assert store.mend()
    with after_kill(path) as found:
        assert found.records.waiting == 2
    store.close()


def test_a_store_that_could_not_be_mended_says_so_to_who_reads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path)
    database = store.one_batch().database
    database.close()
    with pytest.raises(StoreError, match=re.escape(str(path))):
        next(database.scan(DUE))
    with pytest.raises(StoreError, match="closed"):
        store.close()


def test_what_was_not_mended_is_told_at_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path)
    with full_disk(store):
        nack(source_of(store), (1, 1, -1), 100)
        with monkeypatch.context() as patch:
            patch.setattr("pulsar_encore.state.rocks.database.library", None)
            with pytest.raises(TypeError):
                store.mend()
        with pytest.raises(StoreError, match="was closed, but"):
            store.close()
    opened(path).close()


NO_ROOM = """
import resource, sys
from pulsar_encore.errors import StoreError
from pulsar_encore.state.rocks import HandedOver, RocksStore
store = RocksStore(sys.argv[1], wall_now_ms=0)
source = store.source(sys.argv[2], "s")
for entry in range(1000):
    source.records.started([HandedOver(1, entry, 10, 0b11, 5)], 0)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1, most))
failed = 0
for call in (
    lambda: source.records.started([HandedOver(1, 8, 10, 1, 6)], 0),
    store.mend,
    lambda: source.records.started([HandedOver(1, 7, 10, 1, 6)], 0),
):
    try:
        call()
    except StoreError:
        failed += 1
counts = [source.records.recall(1, 9, index).attempts for index in (0, 1)]
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
print(failed, store.mend(), *counts, flush=True)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_disk_without_room_is_not_closed_to_be_mended(path: Path) -> None:
    with python(NO_ROOM, path, TOPIC) as child:
        out, error = child.communicate()
    assert child.returncode == -signal.SIGKILL, error.decode()
    assert out.split() == [b"3", b"True", b"5", b"5"]
    store = opened(path)
    counts = [counts_of(source_of(store), entry) for entry in (7, 8, 9)]
    assert counts == [[6, 5], [6, 5], [5, 5]]
    store.close()


def counts_of(source: TopicStore, entry: int) -> list[int]:
    record = source.records.recall_entry(1, entry)
    assert record is not None
    return [record.attempts_of(0), record.attempts_of(1)]


def test_what_cannot_be_opened_anew_can_be_read_and_is_nobody_elses(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path)
    source = source_of(store)
    source.records.started([DeliveredRecord(1, entry, 2, 0b11, 5) for entry in range(1000)], 0)
    begin = Database.__init__

    def to_read_only(database: Database, path: Path, **options: Any) -> None:
        if not options.get("read_only"):
            raise StoreError("too many open files")
        begin(database, path, **options)

    with full_disk(store), monkeypatch.context() as patch:
        nack(source, (1, 1, -1), 100)
        patch.setattr(Database, "__init__", to_read_only)
        for _ in range(2):
            with pytest.raises(StoreError, match="too many open"):
                store.mend()
            assert counts_of(source, 7) == [5, 5]
            with python(OWNER, path) as other:
                assert b"StateInUseError" in other.communicate()[1]
        assert "too many open" in str(store.trouble)
    source.records.started([DeliveredRecord(1, 7, 2, 0b1, 6)], 0) if store.mend() else None
    assert store.trouble is None and counts_of(source, 7) == [6, 5]
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
def test_what_cannot_be_read_for_a_while_is_not_written_over(
    path: Path, count_attempts: str
) -> None:
    store = opened(path)
    source_of(store).records.started(
        [DeliveredRecord(1, entry, 3, 0b111, 5) for entry in range(8)], 1000
    )
    store.close()
    store = opened(path)
    source = source_of(store, count_attempts=count_attempts)
    records = source.records
    with unreadable():
        for entry in range(7):
            assert records.recall(1, entry) is None
            with (
                pytest.raises(StoreError, match="in memory only")
                if (count_attempts == "before")
                else nullcontext()
            ):
                records.started([DeliveredRecord(1, entry, 3, 0b1, 1)], 50_000)
        assert "Input/output" in str(store.trouble)
        records.waits((1, 1, 1), 70_000, 7, 50_000, size=3)
        records.settled(1, 2, 0b10)
        records.settled(1, 3)
        records.settled(1, 4, 0b111)
        records.flush(90_000)
        assert records.buffered > 0
    records.flush(91_000)
    assert store.trouble is None and records.buffered == 0
    for known in (source, None):
        with nullcontext(known) if known is not None else after_kill(path) as found:
            assert counts_of(found, 0) == counts_of(found, 5) == counts_of(found, 7) == [5, 5]
            assert counts_of(found, 1) == [5, 7]
            assert counts_of(found, 2) == [5, 0]
            assert found.records.recall(1, 3) is None and found.records.recall(1, 4) is None
    records._check()
    store.close()


def test_what_stays_unreadable_until_the_end_keeps_its_old_count(path: Path) -> None:
    filled(path, 3)
    store = opened(path)
    source = source_of(store)
    with unreadable():
        with pytest.raises(StoreError):
            source.records.started([DeliveredRecord(1, 1, attempt=7)], 0)
        source.close()
        assert store.statistics().lost == 1
    store.close()
    store = opened(path)
    assert counts_of(source_of(store), 1)[0] == 1
    store.close()


# The loss of power


async def test_what_is_synced_is_synced_in_groups(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = Database.sync

    def counted(database: Database) -> None:
        synced.append(database.sequence)
        sync(database)

    monkeypatch.setattr(Database, "sync", counted)
    store = await RocksStore.open(path, wall_now_ms=0, durability="power")
    source = source_of(store)
    for entry in range(300):
        nack(source, (1, entry, -1), 100)
    at = store.one_batch().database.sequence
    await store.synced()
    assert synced[-1] >= at
    await store.synced()  # nothing is new
    assert len(synced) < 100
    await store.aclose()


async def test_an_fsync_that_fails_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pulsar_encore.state.rocks.fsync_thread._PAUSE_S", 0.01)
    store = opened(path, durability="power")
    source = source_of(store)
    await store.synced()

    def fails(database: Database) -> None:
        raise StoreError("Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "sync", fails)
        nack(source, (1, 1, -1), 100)
        for _ in range(3):
            with pytest.raises(StoreError, match="Input"):
                await asyncio.wait_for(store.synced(), 10)
            assert "Input" in str(store.trouble)
        assert caplog.text.count("may not survive the loss of power") == 1  # not for each
    await asyncio.wait_for(store.synced(), 10)
    assert store.trouble is None and "survives the loss of power again" in caplog.text
    await store.aclose()


@pytest.mark.parametrize("good", [True, False])
async def test_who_waits_for_an_fsync_is_told_at_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch, good: bool
) -> None:
    """Also whose write came while the one was under way that failed."""
    monkeypatch.setattr("pulsar_encore.state.rocks.fsync_thread._PAUSE_S", 3600)
    began, goes_on = threading.Event(), threading.Event()

    def fails(database: Database) -> None:
        began.set()
        goes_on.wait(10)
        raise StoreError("Input/output error")

    store = opened(path, durability="power")
    source = source_of(store)
    await store.synced()
    with monkeypatch.context() as patch:
        patch.setattr(Database, "sync", fails)
        nack(source, (1, 1, -1), 100)
        first = asyncio.ensure_future(store.synced())
        assert await asyncio.to_thread(began.wait, 10)
        nack(source, (1, 2, -1), 100)
        second = asyncio.ensure_future(store.synced())
        await asyncio.sleep(0)
        goes_on.set()
        with pytest.raises(StoreError, match="Input"):
            await asyncio.wait_for(first, 10)
        if not good:
            await store.aclose()
    await store.aclose()
    with nullcontext() if good else pytest.raises(StoreError, match="Input"):
        await asyncio.wait_for(second, 10)


async def test_what_cannot_be_mended_is_not_said_to_be_synced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(path, durability="power")
    with full_disk(store), monkeypatch.context() as patch:
        nack(source_of(store), (1, 1, -1), 100)
        patch.setattr("pulsar_encore.state.rocks.database.library", None)
        with pytest.raises(TypeError):
            store.mend()
        with pytest.raises(StoreError, match="No space"):
            await asyncio.wait_for(store.synced(), 10)
    assert store.mend()
    await asyncio.wait_for(store.synced(), 10)
    store.close()


async def test_without_it_nothing_is_waited_for(path: Path) -> None:
    store = opened(path)
    await store.synced()
    store.close()


# From outside


def test_all_of_it_can_be_seen_while_it_is_in_use(path: Path) -> None:
    store = opened(path, now=1_800_000_000_000)
    source, other = source_of(store), source_of(store, "persistent://public/default/u")
    source.records.started([DeliveredRecord(1, 1, 10, 0b11), DeliveredRecord(2, 1)], 7)
    source.records.waits((2, 1, -1), 500, 1, 7)
    other.records.waits((3, 1, -1), 400, 2, 7)
    with StateReader(path) as reader:
        assert [each[1:] for each in reader.sources()] == [
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


def test_looking_writes_nothing_there(path: Path) -> None:
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


def test_looking_makes_nothing(path: Path) -> None:
    with pytest.raises(StateFormatError, match="no state"):
        StateReader(path)
    assert not path.exists()


# A kill


def test_nothing_told_is_lost_to_kills(path: Path) -> None:
    seed = 5
    known, wrong = kill_again_and_again(path, 3, seed)
    assert not wrong, f"seed {seed}: {wrong[:5]}"
    assert known.found > 1000


@pytest.fixture(autouse=True)
def none_left_open() -> Iterator[None]:
    yield
    stores: Any = sys.modules["pulsar_encore.state.rocks.rocks_store"]
    left = [slot for path, slot in stores._slots.items() if "pytest" in str(path)]
    for slot in left:
        slot.core.close()
        del stores._slots[slot.path]
    assert not left
