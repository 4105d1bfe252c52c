"""Whose a state directory is: a small file beside the database, for whoever is refused.

Owns `Owner` and its file. The lock is RocksDB's, which the system takes back from a process that
dies; the file only says who, and how far the directory had got, so that lost files are noticed.
Refuses to decide.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_FILE: Final = "owner.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """
    Attributes:
        pid: Of the process.
        host: Its name.
        since_ms: When it opened the directory, ms since the epoch.
        epoch: Its number; each owner has a higher one than the one before.
        sequence: Writes that were surely on disk when this was written.
        closed: It closed the directory in order.
    """

    pid: int
    host: str
    since_ms: int
    epoch: int
    sequence: int
    closed: bool = False

    @classmethod
    def here(cls, since_ms: int, epoch: int, sequence: int) -> Owner:
        """This process."""
        return cls(
            pid=os.getpid(),
            host=socket.gethostname(),
            since_ms=since_ms,
            epoch=epoch,
            sequence=sequence,
        )

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"process {self.pid} on {self.host}, since {since} (epoch {self.epoch})"


def read_owner(folder: Path) -> Owner | None:
    """Who has, or had, the directory; None when that cannot be told."""
    try:
        return Owner(**json.loads((folder / _FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_owner(folder: Path, owner: Owner) -> None:
    """
    Raises:
        OSError: The file cannot be written.
    """
    new = folder / f"{_FILE}.new"
    new.write_text(json.dumps(asdict(owner)), encoding="utf-8")
    new.replace(folder / _FILE)
