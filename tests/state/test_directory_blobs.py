"""`DirectoryBlobs`: files are complete or absent, damage is detected, and there is one owner."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pulsar_encore.errors import (
    ConfigurationError,
    StateDamagedError,
    StateFormatError,
    StateInUseError,
    StoreError,
)
from pulsar_encore.state import BlobStore, DirectoryBlobs, MemoryBlobs
from pulsar_encore.state.rocks import RocksBlobs

SDK = str(Path(__file__).parents[2] / "sdk")


@pytest.fixture(params=["memory", "directory", "rocks"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], BlobStore]:
    """Return a function that reopens the store after it was closed."""
    memory = MemoryBlobs()

    def make() -> BlobStore:
        store: BlobStore = memory
        if request.param != "memory":
            store = (RocksBlobs if request.param == "rocks" else DirectoryBlobs)(tmp_path / "d")
        store.open()
        return store

    return make


def write(store: BlobStore, generation: int, *segments: bytes, meta: bytes = b"m") -> None:
    writer = store.create(generation)
    for segment in segments:
        writer.append(segment)
    writer.commit(meta, sync=True)


def test_a_committed_blob_survives_a_restart(reopen: Callable[[], BlobStore]) -> None:
    store = reopen()
    write(store, 3, b"one", b"", b"three" * 1000, meta=b"about it")
    write(store, 1, b"x")
    store.write_manifest(b"first", sync=True)
    store.write_manifest(b"second", sync=False)
    store.append(7, b"ab", sync=True)
    store.append(7, b"", sync=True)
    store.append(7, b"cd", sync=False)
    store.append(8, b"e", sync=False)
    store.close()
    store = reopen()
    assert store.generations() == [1, 3] and store.journals() == [7, 8]
    assert [store.segment(3, number) for number in range(3)] == [b"one", b"", b"three" * 1000]
    assert store.meta(3) == b"about it" and store.size(3) > 5000
    assert store.read_manifest() == b"second"
    assert store.read_journal(7) == b"abcd"
    store.delete(3)
    store.delete(3)
    store.delete_journal(7)
    store.delete_journal(7)
    assert store.generations() == [1] and store.journals() == [8]
    with pytest.raises(StateDamagedError):
        store.meta(3)
    with pytest.raises(StateDamagedError):
        store.segment(1, 1)
    with pytest.raises(StoreError):
        store.read_journal(7)
    store.close()


def test_an_uncommitted_blob_does_not_exist(reopen: Callable[[], BlobStore]) -> None:
    store = reopen()
    assert store.read_manifest() is None
    writer = store.create(1)
    writer.append(b"half")
    assert store.generations() == []
    writer.abort()
    left = store.create(2)
    left.append(b"half")
    store.close()
    store = reopen()
    assert store.generations() == []
    store.close()
    left.abort()


def test_a_blob_may_be_written_again(reopen: Callable[[], BlobStore]) -> None:
    store = reopen()
    write(store, 1, b"one", b"two")
    assert store.segment(1, 1) == b"two"
    write(store, 1, b"other")
    assert store.segment(1, 0) == b"other"
    store.close()


@pytest.fixture
def store(tmp_path: Path) -> DirectoryBlobs:
    store = DirectoryBlobs(tmp_path)
    store.open()
    write(store, 1, b"segment 0", b"segment 1" * 100, meta=b"meta")
    store.close()
    store.open()
    return store


def test_any_changed_byte_is_detected(store: DirectoryBlobs, tmp_path: Path) -> None:
    path = tmp_path / "blob-1"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        store.close()
        store.open()
        with pytest.raises((StateDamagedError, StateFormatError), match="blob"):
            for number in range(2):
                store.segment(1, number)
            store.meta(1)
    store.close()


def test_a_truncated_file_is_detected(store: DirectoryBlobs, tmp_path: Path) -> None:
    path = tmp_path / "blob-1"
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        store.close()
        store.open()
        with pytest.raises((StateDamagedError, StateFormatError)):
            store.meta(1)
    store.close()


def test_the_error_names_an_unsupported_version(store: DirectoryBlobs, tmp_path: Path) -> None:
    path = tmp_path / "blob-1"
    path.write_bytes(b"PEBLOB\x09\x00" + path.read_bytes()[8:])
    with pytest.raises(StateFormatError, match="version 9"):
        store.meta(1)
    store.close()


def test_a_second_opening_in_this_process_raises(tmp_path: Path) -> None:
    first, second = DirectoryBlobs(tmp_path), DirectoryBlobs(tmp_path)
    first.open()
    for _ in range(2):  # a failed open must not release the first one's lock
        with pytest.raises(StateInUseError, match=f"this process, {os.getpid()}"):
            second.open()
    with pytest.raises(StateInUseError):
        first.open()
    first.close()
    first.close()
    second.open()
    with pytest.raises(StoreError, match="not open"):
        first.write_manifest(b"", sync=False)
    second.close()


OWNER = """
import sys, time
from pulsar_encore.state import DirectoryBlobs
store = DirectoryBlobs(sys.argv[1])
store.open()
print("mine", flush=True)
time.sleep(60)
"""


def test_a_second_process_gets_an_error_with_the_owner_until_it_is_killed(
    tmp_path: Path,
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SDK},
    )
    try:
        assert owner.stdout is not None and owner.stdout.readline() == "mine\n"
        with pytest.raises(StateInUseError, match=re.escape(f"process {owner.pid} on ")):
            DirectoryBlobs(tmp_path).open()
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
    store = DirectoryBlobs(tmp_path)
    store.open()
    store.close()


def test_a_write_to_a_full_disk_raises_and_leaves_no_partial_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryBlobs(tmp_path)
    store.open()
    store.append(1, b"whole", sync=False)
    store.write_manifest(b"old", sync=True)
    real = os.write

    def half(file: int, data: bytes) -> int:
        written = real(file, data[: len(data) // 2])
        monkeypatch.setattr(os, "write", full)
        return written

    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    writes: list[Callable[[], None]] = [
        lambda: store.append(1, b"too much", sync=False),
        lambda: store.write_manifest(b"new one", sync=True),
        lambda: write(store, 5, b"segment"),
    ]
    for write_it in writes:
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(StoreError, match="No space left on device"):
            write_it()
    monkeypatch.setattr(os, "write", real)
    assert store.read_journal(1) == b"whole"
    assert store.read_manifest() == b"old"
    assert store.generations() == []
    assert not [name for name in os.listdir(tmp_path) if "unfinished" in name]
    store.append(1, b", more", sync=False)
    assert store.read_journal(1) == b"whole, more"
    store.close()


def test_a_directory_opens_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryBlobs(tmp_path)
    store.open()
    write(store, 1, b"segment")
    store.close()

    def full(file: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        store.open()
        assert store.segment(1, 0) == b"segment"
        with pytest.raises(StateInUseError):
            DirectoryBlobs(tmp_path).open()
        store.close()
    other = DirectoryBlobs(tmp_path)
    other.open()
    other.close()


def test_a_failed_open_leaks_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(file: int, operation: int) -> None:
        raise OSError(5, "Input/output error")

    store = DirectoryBlobs(tmp_path)
    os.close(free := os.dup(0))
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", fails)
        with pytest.raises(StoreError, match="Input/output error"):
            store.open()
    os.close(still := os.dup(0))
    assert still <= free  # less if a file of an earlier test was closed meanwhile
    store.open()
    store.close()


def test_a_partial_record_is_cut_off_before_the_next_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryBlobs(tmp_path)
    store.open()
    store.append(1, b"whole", sync=False)

    def not_synced(file: int) -> None:
        raise OSError(5, "Input/output error")

    def not_cut(file: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", not_cut)
        with monkeypatch.context() as first:
            first.setattr(os, "fsync", not_synced)
            with pytest.raises(StoreError):
                store.append(1, b", lost", sync=True)
        with pytest.raises(StoreError):
            store.append(1, b", behind it", sync=True)
    store.append(1, b", more", sync=True)
    assert store.read_journal(1) == b"whole, more"
    store.close()


def test_the_directory_sync_of_a_new_journal_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryBlobs(tmp_path)
    store.open()
    synced: list[bool] = []
    fsync = os.fsync

    def once(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            synced.append(len(synced) > 0)
            if not synced[-1]:
                raise OSError(5, "Input/output error")
        fsync(file)

    monkeypatch.setattr(os, "fsync", once)
    with pytest.raises(StoreError):
        store.append(1, b"one", sync=True)
    store.append(1, b"one", sync=True)
    assert synced == [False, True] and store.read_journal(1) == b"one"
    store.close()


def test_a_reopened_store_reads_the_blobs_of_another_owner(
    store: DirectoryBlobs, tmp_path: Path
) -> None:
    assert store.segment(1, 0) == b"segment 0"
    store.close()
    other = DirectoryBlobs(tmp_path)
    other.open()
    write(other, 1, b"something", b"else")
    other.close()
    store.open()
    assert store.segment(1, 1) == b"else"
    store.close()


def test_a_slow_blob_read_does_not_block_journal_writes(
    store: DirectoryBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    pread = os.pread
    reads, resume = threading.Event(), threading.Event()

    def slow(file: int, size: int, offset: int) -> bytes:
        reads.set()
        assert resume.wait(10)
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", slow)
    with ThreadPoolExecutor(1) as pool:
        segment = pool.submit(store.segment, 1, 0)
        assert reads.wait(10)
        try:
            with ThreadPoolExecutor(1) as writing:
                for journal in (1, 2):
                    writing.submit(store.append, journal, b"x", sync=True).result(5)
                writing.submit(store.delete_journal, 1).result(5)
                assert not segment.done()
        finally:
            resume.set()
        assert segment.result(10) == b"segment 0"
    store.close()


@pytest.mark.parametrize("path", ["", None, 7, "a\0b"])
def test_a_value_that_is_not_a_path_raises(path: Any) -> None:
    with pytest.raises(ConfigurationError, match="path"):
        DirectoryBlobs(path)


def test_a_path_that_is_not_a_directory_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="name a directory"):
            DirectoryBlobs(path).open()
