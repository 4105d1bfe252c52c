"""Any file of a state directory is cut, emptied, removed or changed: all ids survive, or an error.

Only the end of the newest log or journal may be missing without an error, because a crash leaves
the same. The earlier ids survive then.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rocks_kit import killed

from pulsar_encore.errors import StateDamagedError, StoreError
from pulsar_encore.state import DirectoryBlobs, SpillingIndex
from pulsar_encore.state.rocks import RocksBlobs, RocksStore
from tests.harness.recalled_attempts import recall

ENTRIES = 600
NOT_STATE = ("LOG", "LOCK", "IDENTITY", "OPTIONS", "rocksdict")


class Engine:
    """An index on disk, with either kind of store."""

    def __init__(self, kind: str, path: Path) -> None:
        self.blobs = self.store = None
        if kind == "RocksStore":
            self.store = RocksStore(path, wall_now_ms=0)
            self.records = self.store.topic_store("t", "s").records
            return
        self.blobs = (RocksBlobs if kind == "RocksBlobs" else DirectoryBlobs)(path)
        self.spilling = SpillingIndex(self.blobs, min_index_count_per_bucket=150)

    def add(self, entry: int) -> None:
        if self.store is not None:
            self.records.record_nack((1, entry, -1), 1000 + entry, 1, 0)
        else:
            self.spilling.add((1, entry, -1), 1000 + entry, 0)

    def entries(self) -> list[int]:
        if self.store is None:
            return sorted(entry for _, entry, _ in self.spilling.pop_due(10**9))
        known = ((entry, recall(self.records, 1, entry)) for entry in range(ENTRIES))
        return [entry for entry, each in known if each is not None and each.due_ms == 1000 + entry]

    def flush_tables(self) -> None:
        """Make RocksDB write tables, and its MANIFEST with them."""
        if self.store is not None:
            self.store.batched_writes().database.flush()
        elif isinstance(self.blobs, RocksBlobs):
            self.blobs._db.flush()

    def close(self) -> None:
        (self.store or self.spilling).close()


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """Yield a directory in memory: each case opens several, and would sync them on a disk."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as made:
        yield Path(made)


def filled(kind: str, how: str, path: Path) -> Path:
    """Make a directory that had two owners. Return its path after the second one ended."""
    engine = Engine(kind, path)
    for entry in range(ENTRIES // 2):
        engine.add(entry)
    engine.close()
    engine = Engine(kind, path)
    for entry in range(ENTRIES // 2, ENTRIES):
        engine.add(entry)
        if how == "killed with new tables" and entry % 100 == 50:
            engine.flush_tables()
    left = killed(path) if how != "closed" else path
    engine.close()
    return left


def flip(share: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        if data:
            data[int(len(data) * share)] ^= 0x40
        path.write_bytes(data)

    return damage


def cut(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut to 50%": cut(0.5),
    "cut to 90%": cut(0.9),
    "emptied": cut(0),
    "removed": Path.unlink,
    "changed at 10%": flip(0.1),
    "changed at 50%": flip(0.5),
}
ALL = list(range(ENTRIES))


def found(kind: str, whole: Path, name: Path, damage: Callable[[Path], None]) -> object:
    """Return the entries that survived the damage, or the error."""
    path = whole.with_name("damaged")
    shutil.copytree(whole, path)
    try:
        damage(path / name)
        engine = Engine(kind, path)
        try:
            return engine.entries()
        finally:
            engine.close()
    except StoreError as error:
        return error
    finally:
        shutil.rmtree(path)


@pytest.mark.parametrize("how", ["closed", "killed", "killed with new tables"])
@pytest.mark.parametrize("kind", ["RocksStore", "RocksBlobs", "DirectoryBlobs"])
def test_any_corrupted_file_is_an_error_or_no_loss(memory: Path, kind: str, how: str) -> None:
    whole = filled(kind, how, memory / f"{kind} {how}")
    names = [each.relative_to(whole) for each in whole.rglob("*") if each.is_file()]
    names = [each for each in names if not each.name.startswith(NOT_STATE)]
    growing = [each for each in names if each.suffix == ".log" or "journal" in each.name]
    newest = max(growing, default=None)
    for name in names:
        for what, damage in DAMAGES.items():
            result = found(kind, whole, name, damage)
            if isinstance(result, list) and name == newest:
                assert result == ALL[: len(result)], (name, what)
            elif isinstance(result, list):
                assert len(result) == ENTRIES, (name, what)
            else:
                assert isinstance(result, StoreError), (name, what)


@pytest.mark.parametrize("kind", ["RocksStore", "RocksBlobs"])
@pytest.mark.parametrize("how", ["closed", "killed with new tables"])
def test_a_manifest_that_lost_its_end_is_an_error_or_no_loss(
    memory: Path, kind: str, how: str
) -> None:
    whole = filled(kind, how, memory / f"manifest {kind} {how}")
    (manifest,) = (whole / "db").glob("MANIFEST*")
    size = manifest.stat().st_size
    errors = 0
    for left in range(7, size, size // 25):
        result = found(
            kind, whole, manifest.relative_to(whole), lambda path, n=left: os.truncate(path, n)
        )
        if isinstance(result, list):
            assert len(result) == ENTRIES, (left, size)
        else:
            assert isinstance(result, StateDamagedError), (left, size, result)
            assert "Nothing was deleted" in str(result)
            errors += 1
    assert errors > 10
