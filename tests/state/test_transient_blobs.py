"""Transient directories: one for each owner, removed with the owner or after its death."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pulsar_encore.errors import StoreError
from pulsar_encore.state import MemoryBlobs, SpillingIndex, directory_lock
from pulsar_encore.state.blobs.transient_blobs import TransientBlobs, TransientDirectory

MAKES = """
import sys
from pathlib import Path
from pulsar_encore.state.blobs.transient_blobs import TransientDirectory
made = TransientDirectory.make(Path(sys.argv[1]))
(made.path / "blob").write_text("something")
print(made.path, flush=True)
sys.stdin.read()
"""


def left(path: Path) -> list[Path]:
    return sorted(path.glob("spilled-*"))


def test_the_next_process_removes_only_the_directory_of_a_killed_one(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", MAKES, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        mine, second = TransientDirectory.make(tmp_path), TransientDirectory.make(tmp_path)
        assert left(tmp_path) == sorted([theirs, mine.path, second.path]), "all owners are alive"
        other.kill()
    mine.remove()
    mine.remove()
    third = TransientDirectory.make(tmp_path)
    assert left(tmp_path) == sorted([second.path, third.path])
    second.remove()
    third.remove()
    assert not left(tmp_path)


def test_other_files_in_the_shared_directory_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine").write_text("kept")
    TransientDirectory.make(tmp_path).remove()
    assert (tmp_path / "notes" / "mine").read_text() == "kept"


def test_a_directory_without_an_owner_is_removed(tmp_path: Path) -> None:
    """Its owner died between two system calls."""
    (tmp_path / "spilled-abc").mkdir()
    TransientDirectory.make(tmp_path).remove()
    assert not left(tmp_path)


def test_a_file_in_the_place_of_the_directory_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="name a directory"):
        TransientDirectory.make(tmp_path / "file")


def test_a_transient_index_writes_only_snapshots_and_nothing_at_close(tmp_path: Path) -> None:
    path = tmp_path / "blobs"
    index = SpillingIndex(
        TransientBlobs(path), min_index_count_per_bucket=50, max_num_buckets=2, transient=True
    )
    for entry in range(49):
        index.add((1, entry, -1), entry, 0)
    assert not path.exists()
    for entry in range(49, 400):
        index.add((1, entry, -1), entry, 0)
    while index.maintain():
        pass
    names = {each.name.split("-")[0] for each in path.iterdir()}
    assert names == {"blob", "owner"}
    index._check()
    assert list(index.pop_due(199)) == [(1, entry, -1) for entry in range(200)]
    before = sorted(each.name for each in path.iterdir())
    index.close()
    assert sorted(each.name for each in path.iterdir()) == before
    assert len(index) == 200


def test_a_pop_reads_a_few_segments_and_the_next_call_continues() -> None:
    """Ids of one due time are in 40 snapshots, and the lowest of them come first."""

    class Counting(MemoryBlobs):
        reads = 0

        def segment(self, generation: int, number: int) -> bytes:
            self.reads += 1
            return super().segment(generation, number)

    blobs = Counting()
    index = SpillingIndex(blobs, min_index_count_per_bucket=10, transient=True, on_work=bool)
    numbers = [entry * 7 % 400 for entry in range(400)]
    for entry in numbers:
        index.add((1, entry, -1), 1000, 0)
    while index.maintain():
        pass
    popped: list[int] = []
    calls = empty = 0
    while (head := index.next_due()) is not None:
        before = blobs.reads
        batch = list(index.pop_due(head, 25))
        assert blobs.reads - before <= 10, "too many reads in one call"
        popped += sorted(entry for _, entry, _ in batch)
        calls += 1
        empty += not batch
        assert calls < 100
    assert popped == list(range(400))
    assert empty, "the first calls must only read"
    for entry in numbers:
        index.add((2, entry, -1), 2000, 0)
    while index.maintain():
        pass
    assert len(index.pop_due(2000)) == 400, "without a limit, all due keys are taken"
    index.close()


def test_a_failed_prefetch_is_not_repeated() -> None:
    """Otherwise `maintain` would never return False."""

    class Unreadable(MemoryBlobs):
        reads = 0
        broken = True

        def segment(self, generation: int, number: int) -> bytes:
            self.reads += 1
            if self.broken:
                raise StoreError("could not read: Input/output error")
            return super().segment(generation, number)

    blobs = Unreadable()
    with ThreadPoolExecutor(1) as executor:
        index = SpillingIndex(
            blobs, min_index_count_per_bucket=100, transient=True, executor=executor
        )
        for entry in range(250):
            index.add((1, entry, -1), 1000, 0)
        for _ in range(10_000):
            if not index.maintain():
                break
            time.sleep(0.001)
        else:
            raise AssertionError(f"never idle, after {blobs.reads} reads")
        assert blobs.reads <= 4, "one read for each snapshot that is due first"
        assert index.statistics().operations["load"].failed == blobs.reads
        blobs.broken = False
        assert len(index.pop_due(1000)) == 250
        index.close()


def test_a_forked_child_does_not_keep_the_directory_of_its_dead_parent(tmp_path: Path) -> None:
    read, write = os.pipe()
    running, begins = os.pipe()
    owner = os.fork()
    if owner == 0:
        TransientDirectory.make(tmp_path)
        if os.fork() == 0:  # the child lives until this test closes the pipe
            os.close(write)
            os.write(begins, b"x")
            os.read(read, 1)
        os._exit(0)
    os.close(read)
    os.waitpid(owner, 0)
    # The child has the lock until the system runs it and it closes its copy of the lock file, which
    # can be after the end of the owner.
    assert os.read(running, 1)
    os.close(running)
    os.close(begins)
    assert len(left(tmp_path)) == 1
    made = TransientDirectory.make(tmp_path)
    try:
        assert left(tmp_path) == [made.path]
    finally:
        os.close(write)
    made.remove()


def test_a_forked_child_does_not_remove_the_directory(tmp_path: Path) -> None:
    made = TransientDirectory.make(tmp_path)
    child = os.fork()
    if child == 0:
        made.remove()
        os._exit(0)
    os.waitpid(child, 0)
    assert left(tmp_path) == [made.path]
    TransientDirectory.make(tmp_path).remove()
    assert left(tmp_path) == [made.path], "the directory must stay locked"
    made.remove()


@pytest.mark.parametrize("when", ["before it is opened", "before it is locked", "always"])
def test_a_new_directory_removed_by_another_process_is_made_again(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []

    def remove(path: Path) -> None:
        if not removed or when == "always":
            removed.append(path)
            shutil.rmtree(path)

    mkdtemp, lock = tempfile.mkdtemp, directory_lock._lock

    def made(**options: Any) -> str:
        path = mkdtemp(**options)
        if when != "before it is locked":
            remove(Path(path))
        return path

    def locked(file: int) -> None:
        if when == "before it is locked":
            remove(next(tmp_path.glob("spilled-*")))
        lock(file)

    monkeypatch.setattr(tempfile, "mkdtemp", made)
    monkeypatch.setattr(directory_lock, "_lock", locked)
    if when == "always":
        with pytest.raises(StoreError, match="a directory of its own for `nack_index`"):
            TransientDirectory.make(tmp_path)
    else:
        found = TransientDirectory.make(tmp_path)
        assert len(removed) == 1
        assert left(tmp_path) == [found.path]
        found.remove()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_path_where_no_directory_can_be_made_is_an_error_with_advice() -> None:
    with pytest.raises(StoreError, match="name another one"):
        TransientDirectory.make(Path("/proc/encore"))
