"""Whether a disk takes what opening a database writes, asked before anything is closed for it.

Owns `check_free_space`. Refuses to make room.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from pulsar_encore.errors import StoreError

_MIN_BYTES: Final = 2**20  # names, options, an empty log
_CHUNK_BYTES: Final = 2**18


def check_free_space(path: Path) -> None:
    """The disk takes what comes of opening a database: its logs become tables.

    Args:
        path: Of the database.

    Raises:
        StoreError: It does not.
    """
    needed = 0
    try:
        needed = _MIN_BYTES + sum(log.stat().st_size for log in path.glob("*.log"))
        data = os.urandom(_CHUNK_BYTES)  # which no disk makes smaller
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:
            for _ in range(-(-needed // _CHUNK_BYTES)):
                if file.write(data) != _CHUNK_BYTES:
                    raise OSError("the disk is full")
    except OSError as error:
        raise StoreError(
            f"the state in {path} cannot be written, and there is no room to open it anew, which "
            f"takes {needed} bytes: {error}"
        ) from error
