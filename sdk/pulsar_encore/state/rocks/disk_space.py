"""Check for free disk space before a database is closed to be opened again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from pulsar_encore.errors import StoreError

_MIN_BYTES: Final = 2**20  # names, options, an empty log
_CHUNK_BYTES: Final = 2**18


def check_free_space(path: Path) -> None:
    """Raise StoreError if the disk has no space for the tables that RocksDB makes of its logs."""
    needed = 0
    try:
        needed = _MIN_BYTES + sum(log.stat().st_size for log in path.glob("*.log"))
        data = os.urandom(_CHUNK_BYTES)  # random, so that no file system compresses it
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:
            for _ in range(-(-needed // _CHUNK_BYTES)):
                if file.write(data) != _CHUNK_BYTES:
                    raise OSError("the disk is full")
    except OSError as error:
        raise StoreError(
            f"the state in {path} cannot be written, and there is no space to reopen it, which "
            f"takes {needed} bytes: {error}"
        ) from error
