"""The file that names the owner of a state directory, for the error of a second one.

Its count of writes reveals lost files.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pulsar_encore.errors import StateInUseError, StoreError

from ..directory_advice import advised

_FILE: Final = "owner.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """The process that has, or had, a state directory open.

    Attributes:
        since_ms: In ms since the epoch.
        epoch: Higher than that of every owner before.
        sequence: Writes that were certainly on disk when this was written.
        closed: True if the owner closed the directory in order.
    """

    pid: int
    host: str
    since_ms: int
    epoch: int
    sequence: int
    closed: bool = False

    @classmethod
    def here(cls, since_ms: int, epoch: int, sequence: int) -> Owner:
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


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold RocksDB's own lock, the only one that versions before `DirectoryLock` take.

    Use it only for a database that this process has not opened: closing a file drops all POSIX
    locks of the process on that file.
    """
    try:
        if not database.exists():
            file = None
        else:
            file = os.open(database / "LOCK", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if sys.platform == "win32" and isinstance(error, PermissionError):
            raise _in_use_error(database) from error  # Windows: another process has it open
        raise _not_writable_error(database, error) from error
    if file is None:
        yield
        return
    try:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:  # POSIX allows both
                raise _in_use_error(database) from error
            except OSError as error:
                raise _not_writable_error(database, error) from error
        yield
    finally:
        os.close(file)


def _in_use_error(database: Path) -> StateInUseError:
    return StateInUseError(f"the state in {database} is open already")


def _not_writable_error(database: Path, error: OSError) -> StoreError:
    return StoreError(f"the state in {database} cannot be opened: {advised(error)}")


def read_owner(folder: Path) -> Owner | None:
    try:
        return Owner(**json.loads((folder / _FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def write_owner(folder: Path, owner: Owner) -> None:
    new = folder / f"{_FILE}.new"
    new.write_text(json.dumps(asdict(owner)), encoding="utf-8")
    new.replace(folder / _FILE)
