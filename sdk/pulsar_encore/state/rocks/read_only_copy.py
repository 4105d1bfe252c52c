"""Read a database without changing anything in its directory.

rocksdict 0.3.29 writes `rocksdict-config.json` even when it opens a database for reading, which
fails without write permission and on a full disk. In a directory of links to the files of the
database, that file is therefore a link to the null device.
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
    """Yield a directory of links to the files of a database, or its own if links cannot be made.

    RocksDB opens all files at once, so a database stays open after the links are removed.
    """
    links = _make_links(path, logs)
    try:
        yield path if links is None else links
    finally:
        if links is not None:
            shutil.rmtree(links, ignore_errors=True)


def _make_links(path: Path, logs: bool) -> Path | None:
    if sys.platform == "win32":  # few users may create symbolic links
        return None
    for where in (None, MEMORY):  # in memory if the disk of temporary files is full
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
