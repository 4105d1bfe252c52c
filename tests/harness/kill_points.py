"""Kill a process at each call on files with which it opens, uses and closes a directory.

A child opens a directory, adds twenty messages and closes it. strace (Linux) kills it with SIGKILL
at one call of its main thread; the next child is killed at the next call. Each directory that is
left must open, and have every message that an earlier, complete child added.

    python -m tests.harness.kill_points [--kinds state DirectoryBlobs RocksBlobs] [--jobs 2]
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pulsar_encore.state import DirectoryBlobs, SpillingIndex
from pulsar_encore.state.rocks import RocksBlobs, RocksStore, TopicStore

# With "?", a call that a processor does not have is no error.
CALLS: Final = (
    "openat,close,write,pwrite64,fsync,fdatasync,ftruncate,?mkdir,mkdirat,?rename,renameat,"
    "renameat2,?unlink,unlinkat,?rmdir"
)
KINDS: Final = ("state", "DirectoryBlobs", "RocksBlobs")
COUNT: Final = 20
_CALL: Final = re.compile(r"(\w+)\(")


def add(kind: str, path: Path, first: int) -> None:
    """Add `COUNT` waiting messages to a directory, with entry ids from `first` on."""
    entries = range(first, first + COUNT)
    if kind == "state":
        store, topic_store = _open_state(path)
        for entry in entries:
            topic_store.records.record_nack((1, entry, -1), 1000 + entry, 0, 0, bits=0, size=1)
        store.close()
    else:
        with _open_index(kind, path) as index:
            for entry in entries:
                index.add((1, entry, -1), 1000 + entry, 0)


def found(kind: str, path: Path) -> set[int]:
    """Return the entry ids of the messages that wait in a directory."""
    if kind == "state":
        store, topic_store = _open_state(path)
        entries = {entry[1] for entry, _ in topic_store.records.entries_waiting()}
        store.close()
        return entries
    with _open_index(kind, path) as index:
        return {entry for _, entry, _ in index.pop_due(2**62)}


def _open_state(path: Path) -> tuple[RocksStore, TopicStore]:
    store = RocksStore(path, wall_now_ms=0)
    return store, store.topic_store("persistent://public/default/t", "s")


def _open_index(kind: str, path: Path) -> SpillingIndex:
    blobs = DirectoryBlobs(path) if kind == "DirectoryBlobs" else RocksBlobs(path)
    # So few keys in a snapshot that twenty messages are written to several, and merged.
    return SpillingIndex(
        blobs,
        min_index_count_per_bucket=5,
        max_indexes_per_bucket_snapshot_segment=3,
        max_num_buckets=2,
    )


def _child(kind: str, path: Path, first: int, *strace_options: str) -> int:
    own = [sys.executable, "-m", "tests.harness.kill_points", "--child", kind, str(path)]
    command = ["strace", "-f", "-e", f"trace={CALLS}", *strace_options, *own, str(first)]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode


def _points(kind: str, path: Path, first: int) -> Iterator[tuple[str, int]]:
    """Yield each call of a child's main thread from the first on the directory on.

    A call is its name, and how many calls with that name the thread has made with it.
    """
    trace = path.with_name("trace")
    if _child(kind, path, first, "-o", str(trace)):
        raise RuntimeError(f"a child that nothing killed failed with {kind}")
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    main_thread = lines[0].split()[0]
    counts: dict[str, int] = {}
    begun = False
    for line in lines:
        thread, _, rest = line.partition(" ")
        call = _CALL.match(rest.strip())
        if thread != main_thread or call is None:
            continue
        name = call[1]
        counts[name] = counts.get(name, 0) + 1
        begun = begun or str(path) in rest
        if begun:
            yield name, counts[name]


def kill_everywhere(kind: str, *, again: bool, jobs: int) -> tuple[int, list[str]]:
    """Return the number of children that were killed, and what was wrong afterwards.

    Args:
        again: The directory exists, with the messages of a child that ended.
    """
    first = COUNT if again else 0
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary).resolve()  # as in the trace
        base = made / "base"
        if again:
            add(kind, base, 0)

        def directory(name: str) -> Path:
            path = made / name / "directory"
            path.parent.mkdir()
            if again:
                shutil.copytree(base, path)
            return path

        def judge(point: tuple[str, int]) -> tuple[bool, str | None]:
            name, count = point
            path = directory(f"{name}-{count}")
            kill = f"inject={name}:signal=SIGKILL:when={count}"
            code = _child(kind, path, first, "-o", "/dev/null", "-e", kill)
            wrong = _compare(kind, path, range(first))
            if wrong is None and code not in (0, -signal.SIGKILL):
                wrong = f"it ended with {code}"
            return code != 0, None if wrong is None else f"{kind}, killed at {point}: {wrong}"

        points = list(_points(kind, directory("unharmed"), first))
        with ThreadPoolExecutor(jobs) as pool:
            judged = list(pool.map(judge, points))
    killed = sum(was_killed for was_killed, _ in judged)
    if not killed:
        raise RuntimeError(f"no child was killed with {kind}")
    return killed, [wrong for _, wrong in judged if wrong]


def _compare(kind: str, path: Path, needed: range) -> str | None:
    try:
        entries = found(kind, path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    lost = sorted(set(needed) - entries)
    strange = sorted(entries - set(range(needed.stop + COUNT)))
    return f"lost {lost}, never added {strange}" if lost or strange else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        kind, path, first = options.child
        add(kind, Path(path), int(first))
        return 0
    if shutil.which("strace") is None:
        parser.error("this needs strace: apt-get install strace")
    faults = 0
    for kind in options.kinds:
        for again in (False, True):
            killed, wrong = kill_everywhere(kind, again=again, jobs=options.jobs)
            print(f"{kind}, {'again' if again else 'new'}: {killed} killed, {len(wrong)} wrong")
            print(*wrong, sep="\n", end="\n" if wrong else "")
            faults += len(wrong)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
