"""Opening and closing a directory: slowly, beside others, and after a kill while it was made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
import rocksdict
from rocks_kit import nack, open_directories, opened, opened_for_topic, topic_store_of, waiting

from pulsar_encore.errors import StateDamagedError, StateFormatError, StoreError
from pulsar_encore.state.rocks import DeliveredRecord, RocksStore
from pulsar_encore.state.rocks import rocks_store as stores
from pulsar_encore.state.rocks.database import Database
from pulsar_encore.state.rocks.state_reader import StateReader

LONG_S = 10  # a deadlock is a failure, not a hang


class Gate:
    """Stops threads until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._passes = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self._passes.wait(LONG_S)

    def open(self) -> None:
        self._passes.set()


@contextmanager
def thread(does: Callable[[], object]) -> Iterator[None]:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            does()
        except BaseException as error:
            failed.append(error)

    running = threading.Thread(target=run)
    running.start()
    try:
        yield
    finally:
        running.join(LONG_S)
    assert not running.is_alive() and not failed, failed


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Make the directory "slow" take long to open."""
    gate, begin = Gate(), stores._open_database

    def begins(path: Path, *rest: Any) -> object:
        if path.name == "slow":
            gate()
        return begin(path, *rest)

    monkeypatch.setattr(stores, "_open_database", begins)
    yield gate
    gate.open()


def test_a_slow_open_does_not_block_other_directories(tmp_path: Path, slow: Gate) -> None:
    made: list[RocksStore] = []
    with thread(lambda: made.append(opened(tmp_path / "slow"))):
        assert slow.reached.wait(LONG_S)
        with thread(lambda: made.append(opened(tmp_path / "other"))):
            pass
        (other,) = made
        other.claim()
        with thread(other.close):
            pass
        slow.open()
    made[1].close()
    assert not open_directories()


def test_two_concurrent_opens_share_the_directory(tmp_path: Path, slow: Gate) -> None:
    made: list[RocksStore] = []

    def begin() -> None:
        made.append(opened(tmp_path / "slow"))

    with thread(begin):
        assert slow.reached.wait(LONG_S)
        with thread(begin):
            slow.open()
    one, other = made
    assert one._core is other._core and not one.is_sole_user
    one.close()
    assert other.is_sole_user
    other.close()
    assert not open_directories()


def test_a_directory_can_be_opened_after_a_failed_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(stores, "_open_database", lambda *_: (_ for _ in ()).throw(StoreError("no")))
        with pytest.raises(StoreError):
            opened(tmp_path / "state")
    assert not open_directories()
    opened(tmp_path / "state").close()


def test_a_slow_close_blocks_only_the_next_open_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, flush = Gate(), Database.flush

    def flushes(database: Database) -> None:
        if database.path.parent.name == "slow":
            gate()
        flush(database)

    monkeypatch.setattr(Database, "flush", flushes)
    slow, other = opened(tmp_path / "slow"), opened(tmp_path / "other")
    again: list[RocksStore] = []
    with thread(slow.close):
        assert gate.reached.wait(LONG_S)
        other.claim()
        other.close()
        with thread(lambda: again.append(opened(tmp_path / "slow"))):
            gate.open()
    again[0].close()
    assert not open_directories()


async def test_the_loop_runs_while_a_directory_opens(tmp_path: Path, slow: Gate) -> None:
    opening = asyncio.ensure_future(RocksStore.open(tmp_path / "slow", wall_now_ms=0))
    other = await RocksStore.open(tmp_path / "other", wall_now_ms=0)
    other.claim()
    await other.aclose()
    assert not opening.done()
    slow.open()
    await (await opening).aclose()


def test_reopen_does_not_wait_for_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, sync = Gate(), Database.sync
    with monkeypatch.context() as patch:
        store = opened(tmp_path / "state", durability="power")
        records = topic_store_of(store).records
        core: Any = store._core

        def syncs(database: Database) -> None:
            gate()
            sync(database)

        patch.setattr(Database, "sync", syncs)
        records.record_deliveries([DeliveredRecord(1, 1)], 0)
        assert gate.reached.wait(LONG_S)
        core.syncer.failure = StoreError("the fsync before failed")
        assert not store.reopen()
        gate.open()
        patch.setattr(Database, "sync", sync)
    core.syncer.next_sync().result(LONG_S)
    core.syncer.failure = StoreError("the fsync before failed")
    assert store.reopen()
    core.syncer.failure = None
    store.close()


@pytest.mark.parametrize("families", [[], ["due"], ["state", "meta"], ["due", "state", "meta"]])
def test_a_directory_whose_owner_was_killed_while_it_was_made_opens(
    tmp_path: Path, families: list[str]
) -> None:
    """RocksDB makes a new database in steps; a worker in a pod may be killed between any two."""
    make_database(tmp_path / "db", families).close()
    unfinish(tmp_path / "db")
    with pytest.raises(StateFormatError, match="there is no state"):
        StateReader(tmp_path)
    store, topic_store = opened_for_topic(tmp_path)
    nack(topic_store, (1, 2, -1), 500)
    store.close()
    store, topic_store = opened_for_topic(tmp_path)
    assert waiting(topic_store) == [(500, (1, 2, -1))]
    store.close()


@pytest.mark.parametrize(
    "how", ["it is finished", "a log", "a torn log", "a table", "an ingested table", "a family"]
)
def test_a_database_of_another_program_is_not_taken_for_an_unfinished_one(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "db"
    database = make_database(tmp_path / "made", ["other"] if how == "a family" else [])
    if how == "an ingested table":
        writer = rocksdict.SstFileWriter(rocksdict.Options(raw_mode=True))
        writer.open(str(tmp_path / "rows.sst"))
        writer[b"key"] = b"value"
        writer.finish()
        database.ingest_external_file([str(tmp_path / "rows.sst")])
    elif how not in ("it is finished", "a family"):
        database[b"key"] = b"value"
    if "log" in how:
        copytree(tmp_path / "made", path)  # as a kill leaves it; a close would write a table
        database.close()
    else:
        database.close()
        (tmp_path / "made").rename(path)
    for each in path.glob("*.log"):
        if how == "a torn log":
            each.write_bytes(each.read_bytes()[:9])
        assert bool(each.stat().st_size) is ("log" in how)
    if how != "it is finished":
        unfinish(path)
    before = contents(path)
    for use in (opened, StateReader, opened):
        with pytest.raises(StateFormatError, match="is no state directory"):
            use(tmp_path)
        assert contents(path) == before


def test_lost_column_families_of_a_state_with_an_owner_are_damage(tmp_path: Path) -> None:
    opened(tmp_path).close()
    rmtree(tmp_path / "db")
    make_database(tmp_path / "db", ["meta"]).close()
    unfinish(tmp_path / "db")
    with pytest.raises(StateDamagedError, match="is damaged"):
        opened(tmp_path)


def make_database(path: Path, families: list[str]) -> Any:
    path.mkdir(parents=True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    return rocksdict.Rdict(str(path), options, dict.fromkeys(families, options))


def unfinish(path: Path) -> None:
    """Remove what RocksDB writes last when it makes a database."""
    for each in path.glob("OPTIONS-*"):
        each.unlink()


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}
