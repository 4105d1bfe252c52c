"""The directory that a consumer spills to: one for each owner, removed with it or when it died."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pulsar_encore.errors import StoreError
from pulsar_encore.state import MemoryBlobs, SpillingIndex
from pulsar_encore.state.blobs.transient import TransientBlobs, TransientDirectory

MAKES = """
import sys
from pathlib import Path
from pulsar_encore.state.blobs.transient import TransientDirectory
made = TransientDirectory.make(Path(sys.argv[1]))
(made.path / "blob").write_text("something")
print(made.path, flush=True)
sys.stdin.read()
"""


def left(path: Path) -> list[Path]:
    return sorted(path.glob("spilled-*"))


def test_the_directory_of_a_killed_process_is_removed_by_the_next_and_no_other(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", MAKES, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        mine, second = TransientDirectory.make(tmp_path), TransientDirectory.make(tmp_path)
        assert left(tmp_path) == sorted([theirs, mine.path, second.path]), "all are alive"
        other.kill()
    mine.remove()
    mine.remove()
    third = TransientDirectory.make(tmp_path)
    assert left(tmp_path) == sorted([second.path, third.path])
    second.remove()
    third.remove()
    assert not left(tmp_path)


def test_what_is_not_of_this_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine").write_text("kept")
    TransientDirectory.make(tmp_path).remove()
    assert (tmp_path / "notes" / "mine").read_text() == "kept"


def test_a_directory_without_an_owner_is_removed(tmp_path: Path) -> None:
    """Its maker died between two system calls."""
    (tmp_path / "spilled-abc").mkdir()
    TransientDirectory.make(tmp_path).remove()
    assert not left(tmp_path)


def test_a_file_in_the_place_of_the_directory_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="name a directory"):
        TransientDirectory.make(tmp_path / "file")


def test_a_transient_index_writes_snapshots_only_and_nothing_at_its_close(tmp_path: Path) -> None:
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


def test_a_take_reads_a_few_segments_and_the_next_call_goes_on() -> None:
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
    came: list[int] = []
    calls = empty = 0
    while (head := index.next_due()) is not None:
        before = blobs.reads
        batch = list(index.pop_due(head, 25))
        assert blobs.reads - before <= 10, "the loop waits for more"
        came += sorted(entry for _, entry, _ in batch)
        calls += 1
        empty += not batch
        assert calls < 100
    assert came == list(range(400))
    assert empty, "the first calls only read"
    for entry in numbers:
        index.add((2, entry, -1), 2000, 0)
    while index.maintain():
        pass
    assert len(index.pop_due(2000)) == 400, "without a limit all of it comes"
    index.close()


def test_a_segment_that_cannot_be_read_in_advance_is_not_read_again_and_again() -> None:
    """Else `maintain` would never say that there is nothing to do."""

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
        assert blobs.reads <= 4, "once for each snapshot that is due first"
        assert index.statistics().operations["load"].failed == blobs.reads
        blobs.broken = False
        assert len(index.pop_due(1000)) == 250
        index.close()
