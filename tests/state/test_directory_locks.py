"""A state directory has one owner, whatever the owner does and under any name of the directory."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_encore.errors import ForkedError, StateInUseError, StoreError
from pulsar_encore.state import DirectoryBlobs
from pulsar_encore.state.rocks import RocksBlobs, RocksStore, StateReader

SDK = str(Path(__file__).parents[2] / "sdk")
KINDS = pytest.mark.parametrize("kind", ["RocksStore", "RocksBlobs", "DirectoryBlobs"])
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="flock")

OPEN = """
import sys
from pulsar_encore.errors import StateInUseError
from pulsar_encore.state import DirectoryBlobs
from pulsar_encore.state.rocks import RocksBlobs, RocksStore
try:
    if sys.argv[1] == "RocksStore":
        RocksStore(sys.argv[2], wall_now_ms=0)
    else:
        (RocksBlobs if sys.argv[1] == "RocksBlobs" else DirectoryBlobs)(sys.argv[2]).open()
except StateInUseError as error:
    print("refused", error)
else:
    print("opened")
"""


def take(kind: str, path: Path) -> RocksStore | RocksBlobs | DirectoryBlobs:
    if kind == "RocksStore":
        store = RocksStore(path, wall_now_ms=0)
        store.topic_store("t", "s").records.record_nack((1, 1, -1), 5, 1, 0)
        return store
    blobs = (RocksBlobs if kind == "RocksBlobs" else DirectoryBlobs)(path)
    blobs.open()
    blobs.append(1, b"journal", sync=True)
    return blobs


def other_process(kind: str, path: Path, directory: Path | None = None) -> str:
    """Open the directory in another process. Return "opened", or the error."""
    environment = {**os.environ, "PYTHONPATH": SDK}
    command = [sys.executable, "-c", OPEN, kind, str(path)]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, cwd=directory
    ).stdout


@KINDS
def test_an_owner_that_copies_its_directory_keeps_the_lock(tmp_path: Path, kind: str) -> None:
    path, copy = tmp_path / "d", tmp_path / "copy"
    owner = take(kind, path)
    shutil.copytree(path, copy)
    text = other_process(kind, path)
    assert text.startswith("refused") and f"process {os.getpid()} on " in text.replace(
        f"this process, {os.getpid()}", f"process {os.getpid()} on "
    )
    assert other_process(kind, copy) == "opened\n"  # a backup restored to another path
    owner.close()
    assert other_process(kind, path) == "opened\n"


def bound(path: Path, name: Path) -> None:
    name.mkdir()
    made = subprocess.run(["mount", "--bind", str(path), str(name)], capture_output=True)
    if made.returncode:
        pytest.skip("a bind mount needs the right to mount")


def hard_linked(path: Path, name: Path) -> None:
    shutil.copytree(path, name, copy_function=os.link)


@KINDS
@pytest.mark.parametrize("how", ["link", "linked parent", "dots", "relative", "hard links", "bind"])
def test_a_directory_under_another_name_is_the_same(tmp_path: Path, kind: str, how: str) -> None:
    path, name = tmp_path / "a" / "d", tmp_path / "other"
    path.mkdir(parents=True)
    owner = take(kind, path)
    if how == "link":
        name.symlink_to(path)
    elif how == "linked parent":
        name.symlink_to(path.parent)
        name = name / "d"
    elif how == "dots":
        name = path / ".." / "d"
    elif how == "relative":
        name = Path("d")
    elif how == "hard links":
        hard_linked(path, name)
    else:
        bound(path, name)
    try:
        text = other_process(kind, name, path.parent)
        assert text.startswith("refused") and str(os.getpid()) in text
        if how == "relative":
            return
        if kind == "RocksStore" and how != "hard links":  # shared, as under its first name
            second = RocksStore(name, wall_now_ms=0)
            assert not second.is_sole_user
            second.close()
        else:
            with pytest.raises(StateInUseError, match=str(os.getpid())):
                take(kind, name)
        if kind == "RocksStore":
            with StateReader(name) as reader:  # reading needs no lock
                assert len(list(reader.topics())) == 1
    finally:
        if how == "bind":
            subprocess.run(["umount", "--lazy", str(name)], check=True)
        owner.close()


@KINDS
def test_a_forked_child_neither_keeps_the_lock_nor_writes(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "d"
    owner = take(kind, path)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go[1])  # otherwise the child would wait forever if the parent failed
        outcome = 1
        try:
            if isinstance(owner, RocksStore):
                owner.close()  # does nothing in the child
                outcome = 0
            else:
                try:
                    owner.append(1, b"more", sync=False)
                except ForkedError:
                    outcome = 0
            os.write(ready[1], b"x")
            os.read(go[0], 1)
        finally:
            os._exit(outcome)
    try:
        os.read(ready[0], 1)
        assert other_process(kind, path).startswith("refused")
        owner.close()
        assert other_process(kind, path) == "opened\n"  # although the child is alive
    finally:
        owner.close()
        for each in (*ready, *go):
            os.close(each)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@KINDS
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_the_error_names_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, number: int
) -> None:
    def fails(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", fails)
        with pytest.raises(
            StoreError, match=r"no file locks, name a directory on a local"
        ) as caught:
            take(kind, tmp_path / "d")
    assert not isinstance(caught.value, StateInUseError)
    assert re.search(re.escape(str(tmp_path / "d")), str(caught.value))
    take(kind, tmp_path / "d").close()
