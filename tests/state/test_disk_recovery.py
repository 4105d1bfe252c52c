"""Full disks and failed fsyncs: everything is on disk once the disk accepts writes again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rocks_kit import after_kill, opened, topic_store_of
from spilling_kit import UnsyncedBlobs

from pulsar_encore.errors import StoreError
from pulsar_encore.state import DirectoryBlobs, SpillingIndex
from pulsar_encore.state.rocks import RocksBlobs
from pulsar_encore.state.rocks.database import Database
from tests.harness.recalled_attempts import recall

FULL = """
import os, resource, signal, sys
from pulsar_encore.state import DirectoryBlobs, SpillingIndex
from pulsar_encore.state.rocks import RocksBlobs
kind, path, head, fsync, end = sys.argv[1:]
now = 0.0
blobs = (RocksBlobs if kind == "RocksBlobs" else DirectoryBlobs)(path)
index = SpillingIndex(
    blobs, min_index_count_per_bucket=int(head), retry_s=1, fsync=fsync, clock=lambda: now
)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
for entry in range(2000):
    if entry == 500:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    if entry % 100 == 0:
        now += 2
        index.maintain()
    index.add((1, entry, -1), 1000 + entry, 0)
assert index.statistics().journal_failed
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
if end == "flush":
    index.flush()
elif end == "close":
    index.close()
else:  # nothing more is written
    for _ in range(5):
        now += 2
        index.maintain()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of the size of files")
@pytest.mark.parametrize("end", ["flush", "close", "maintain"])
@pytest.mark.parametrize(("head", "fsync"), [(50_000, "none"), (100, "interval"), (100, "always")])
@pytest.mark.parametrize("kind", ["RocksBlobs", "DirectoryBlobs"])
def test_a_spilling_index_writes_again_after_a_full_disk(
    tmp_path: Path, kind: str, head: int, fsync: str, end: str
) -> None:
    child = subprocess.run(
        [sys.executable, "-c", FULL, kind, str(tmp_path / "d"), str(head), fsync, end],
        capture_output=True,
        text=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    index = SpillingIndex((RocksBlobs if kind == "RocksBlobs" else DirectoryBlobs)(tmp_path / "d"))
    assert len(index.pop_due(10_000)) == 2000
    index.close()


def fsync_fails(count: int) -> Callable[[Database], None]:
    """Return a `Database.sync` that, like RocksDB's, fails after one failure until a reopen."""
    sync = Database.sync
    failed: list[Database] = []

    def fails(database: Database) -> None:
        if len(failed) < count and database not in failed:
            failed.append(database)
        if database in failed:
            raise StoreError("Input/output error")
        sync(database)

    return fails


def fsync_fails_until(
    allowed: threading.Event, failed: list[Database]
) -> Callable[[Database], None]:
    """Return an fsync that fails until `allowed` is set, and always for a database that failed."""
    sync = Database.sync

    def fails(database: Database) -> None:
        if not allowed.is_set() and database not in failed:
            failed.append(database)
        if database in failed:
            raise StoreError("Input/output error")
        sync(database)

    return fails


@pytest.mark.parametrize("times", [1, 3])
async def test_a_failed_fsync_is_retried_until_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The retry needs no other write, and the failure is reported meanwhile."""
    monkeypatch.setattr("pulsar_encore.state.rocks.fsync_thread._PAUSE_S", 0.01)
    store = opened(tmp_path / "s", durability="power")
    topic_store_of(store).records.record_nack((1, 1, -1), 100, 1, 0)
    await store.synced()
    allowed, failed = threading.Event(), list[Database]()
    monkeypatch.setattr(Database, "sync", fsync_fails_until(allowed, failed))
    topic_store_of(store).records.record_nack((1, 2, -1), 100, 1, 0)
    with pytest.raises(StoreError, match="Input/output"):
        await store.synced()
    assert "Input/output" in str(store.failure)
    async with asyncio.timeout(20):
        while len(failed) < times:
            await asyncio.sleep(0.01)
        allowed.set()
        while store.failure is not None:
            await asyncio.sleep(0.01)
        await store.synced()
    assert store.statistics().syncs >= times + 2
    with after_kill(tmp_path / "s") as found:
        assert all(recall(found.records, 1, entry) for entry in (1, 2))
    store.close()


def test_a_store_that_is_closed_after_a_failed_fsync_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an event loop, only `close` can reopen the database."""
    store = opened(tmp_path / "s", durability="power")
    records = topic_store_of(store).records
    with monkeypatch.context() as patch:
        patch.setattr(Database, "sync", fsync_fails(1))
        syncer = store._opened.syncer
        assert syncer is not None
        records.record_nack((1, 2, -1), 100, 1, 0)
        with pytest.raises(StoreError):
            syncer.next_sync().result(20)
        assert store.failure is not None
        assert store.reopen()
        syncer.next_sync().result(20)
        assert store.failure is None
    with monkeypatch.context() as patch:
        patch.setattr(Database, "sync", fsync_fails(1))
        records.record_nack((1, 3, -1), 100, 1, 0)
        with pytest.raises(StoreError):
            syncer.next_sync().result(20)
        store.close()
    store = opened(tmp_path / "s")
    assert all(recall(topic_store_of(store).records, 1, entry) for entry in (2, 3))
    store.close()


class LostPages(UnsyncedBlobs):
    """A failed fsync: the kernel drops the pages, so the next fsync succeeds wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.lost: dict[int, int] = {}

    def append(self, journal: int, data: bytes, *, sync: bool) -> None:
        if not sync or data:
            super().append(journal, data, sync=sync)
        elif self.fails:
            self.fails = False
            self.lost[journal] = self.synced.get(journal, 0)
            raise StoreError("Input/output error")
        elif journal not in self.lost:
            super().append(journal, data, sync=sync)


@pytest.mark.parametrize("flushes", [True, False])
def test_a_successful_fsync_after_a_failed_one_is_not_trusted(flushes: bool) -> None:
    now = 0.0
    store = LostPages()
    index = SpillingIndex(store, fsync="interval", retry_s=1, clock=lambda: now)
    index.add((1, 1, -1), 1000, 0)
    index.add((1, 2, -1), 1000, 0)
    store.fails = True
    for _ in range(10):
        now += 2
        index.maintain()
    assert index.statistics().journal_failed == 1
    if flushes:
        index.flush()
    found = SpillingIndex(store.without_power())
    assert sorted(found.pop_due(1000)) == [(1, 1, -1), (1, 2, -1)]
    found.close()
    index.close()
