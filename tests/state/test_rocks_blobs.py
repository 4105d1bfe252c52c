"""Blobs in RocksDB: a spilling index on them, kills, and directories with other files."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulsar_encore.errors import ClosedError, StateFormatError, StateInUseError, StoreError
from pulsar_encore.state import SpillingIndex
from pulsar_encore.state.rocks import RocksBlobs, RocksStore
from pulsar_encore.state.rocks.database import Database
from pulsar_encore.state.rocks.write_batch import WriteBatch


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Make fsyncs or writes fail, or report a failure after a successful write."""
    write = Database.write

    def sync_fails(database: Database) -> None:
        raise StoreError("Input/output error")

    def write_fails(database: Database, writes: WriteBatch) -> None:
        if what == "false failure":
            write(database, writes)
        raise StoreError("Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        if what == "sync":
            patch.setattr(Database, "sync", sync_fails)
        else:
            patch.setattr(Database, "write", write_fails)
        yield


FAILURES = pytest.mark.parametrize("what", ["sync", "write", "false failure"])


@FAILURES
@pytest.mark.parametrize("fresh", [True, False])
def test_data_appended_again_after_a_failure_is_stored_once(
    tmp_path: Path, what: str, fresh: bool
) -> None:
    blobs = RocksBlobs(tmp_path / "b")
    blobs.open()
    if not fresh:
        blobs.append(1, b"first ", sync=True)
    with failing(what):
        for _ in range(2):
            with pytest.raises(StoreError):
                blobs.append(1, b"second ", sync=True)
    blobs.append(1, b"second third", sync=True)
    blobs.append(1, b" fourth", sync=True)
    assert blobs.read_journal(1) == (b"" if fresh else b"first ") + b"second third fourth"
    blobs.close()


@FAILURES
def test_a_commit_that_fails_leaves_the_old_blob_or_the_new_one(tmp_path: Path, what: str) -> None:
    blobs = RocksBlobs(tmp_path / "b")
    blobs.open()
    for text in (b"old", b"new"):
        writer = blobs.create(7)
        writer.append(text)
        if text == b"new":
            with failing(what), pytest.raises(StoreError):
                writer.commit(text, sync=True)
            writer.abort()
        else:
            writer.commit(text, sync=True)
    assert blobs.generations() == [7]
    assert blobs.meta(7) == blobs.segment(7, 0) == (b"old" if what == "write" else b"new")
    blobs.close()


def test_an_index_survives_a_restart_after_a_failed_journal_sync(
    tmp_path: Path,
) -> None:
    now = 0.0
    index = SpillingIndex(RocksBlobs(tmp_path / "b"), fsync="always", retry_s=1, clock=lambda: now)
    with failing("sync"):
        index.add((1, 1, -1), 1000, 0)
    now = 2.0
    index.add((1, 2, -1), 1000, 0)
    index.close()
    index = SpillingIndex(RocksBlobs(tmp_path / "b"))
    assert list(index.pop_due(1000)) == [(1, 1, -1), (1, 2, -1)]
    index.close()


@pytest.mark.parametrize("journal", [True, False])
def test_a_spilling_index_continues_after_a_restart(tmp_path: Path, journal: bool) -> None:
    rng = random.Random(5)
    dues = {(1, entry, -1): rng.randrange(100_000) for entry in range(5_000)}
    index = SpillingIndex(RocksBlobs(tmp_path / "b"), journal=journal)
    for key, due in dues.items():
        index.add(key, due, 0)
        index.maintain()
    taken = list(index.pop_due(20_000))
    index.close()
    index = SpillingIndex(RocksBlobs(tmp_path / "b"), journal=journal)
    again = list(index.pop_due(20_000))  # keys that were not done are due
    assert sorted(again) == sorted(taken) == sorted(k for k, due in dues.items() if due <= 20_000)
    rest = list(index.pop_due(100_000))
    assert sorted([*again, *rest]) == sorted(dues)
    index._check()
    index.close()


def test_a_kill_at_any_moment_loses_no_key(tmp_path: Path) -> None:
    index = SpillingIndex(RocksBlobs(tmp_path / "b"), journal=True)
    for entry in range(3_000):
        index.add((1, entry, -1), 1_000 + entry, 0)
        index.maintain()
        if entry % 500 != 499:
            continue
        left = tmp_path / f"killed-{entry}"
        shutil.copytree(tmp_path / "b", left)
        found = SpillingIndex(RocksBlobs(left), journal=True)
        assert list(found.pop_due(10_000)) == [(1, each, -1) for each in range(entry + 1)]
        found.close()
    index.close()


def test_a_second_owner_gets_an_error_that_names_the_first(tmp_path: Path) -> None:
    first, second = RocksBlobs(tmp_path / "b"), RocksBlobs(tmp_path / "b")
    first.open()
    with pytest.raises(StateInUseError, match=re.escape(f"process {os.getpid()} on ")):
        second.open()
    with pytest.raises(StateInUseError):
        first.open()
    first.close()
    first.close()
    second.open()
    with pytest.raises(ClosedError):
        first.write_manifest(b"", sync=False)
    second.close()


def test_a_directory_with_other_files_raises(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"beach")
    with pytest.raises(StateFormatError, match="something else"):
        RocksBlobs(tmp_path).open()
    state = tmp_path / "state"
    RocksStore(state, wall_now_ms=0).close()
    with pytest.raises(StateFormatError, match="something else"):
        RocksBlobs(state).open()
    blobs = RocksBlobs(tmp_path / "b")
    blobs.open()
    blobs.write_manifest(b"m", sync=True)
    blobs.close()
    with pytest.raises(StateFormatError):
        RocksStore(tmp_path / "b", wall_now_ms=0)
