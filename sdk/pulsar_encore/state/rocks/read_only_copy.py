"""A place to read a database from without changing anything where it is.

Owns `linked_copy`. Opening writes `rocksdict-config.json` (rocksdict 0.3.29), also to read: whoever
may only read was refused, and on a full disk it could not even be read. So it is opened in a directory
that only points to its files, and whose own file of that name is nowhere. Refuses to open anything.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

CONFIG: Final = "rocksdict-config.json"
MEMORY: Final = "/dev/shm"


@contextmanager
def linked_copy(path: Path, *, logs: bool = True) -> Iterator[Path]:
    """A directory with everything that is in another; that other one where there can be none.

    What is opened there stays open when it is gone, as RocksDB opens all files at once.

    Args:
        path: The directory of a database.
        logs: If False, the other directory has no logs, only the tables.
    """
    links = _make_links(path, logs)
    try:
        yield path if links is None else links
    finally:
        if links is not None:
            shutil.rmtree(links, ignore_errors=True)


def _make_links(path: Path, logs: bool) -> Path | None:
    if sys.platform == "win32":  # which lets few make links
        return None
    for where in (None, MEMORY):  # the latter when what is full is the disk of the former
        folder = None
        with suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="pulsar-encore-", dir=where))
            for each in path.resolve().iterdir():
                if each.name not in (CONFIG, "LOCK", "LOG") and (logs or each.suffix != ".log"):
                    (folder / each.name).symlink_to(each)
            (folder / CONFIG).symlink_to(os.devnull)
            return folder
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return None
