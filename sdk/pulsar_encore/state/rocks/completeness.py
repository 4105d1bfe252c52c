"""Check that a database has every write of its last owner before it is opened for writing.

RocksDB opens without an error if the end of its MANIFEST or a whole log is missing. A crash can
leave the same files in some cases, but not in those that are detected here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Final

from pulsar_encore.errors import StateDamagedError

from .database import NOTHING_DELETED, Database, UnknownContentError, is_unfinished
from .owner_file import Owner
from .salvage import salvaged_path

# The first record of a log: CRC, size, type, and the sequence number of its batch.
_LOG_START: Final = Struct("<IHBQ")


def check_complete(
    path: Path, before: Owner | None, check_format: Callable[[Database], object]
) -> None:
    folder = path / "db"
    sequence = 0
    if salvaged_path(folder).exists() and not folder.exists():
        raise StateDamagedError(
            f"the state in {path} was damaged, and salvaging it was interrupted. {NOTHING_DELETED}"
        )
    if (folder / "CURRENT").exists():
        try:
            database = Database(folder, read_only=True)
            try:
                sequence = database.sequence
                check_format(database)
            finally:
                database.close()
        except UnknownContentError as error:
            if before is None:
                if is_unfinished(folder):  # nothing was ever written
                    return
                raise
            raise StateDamagedError(
                f"the state in {path}, that {before} had, is damaged ({error}). {NOTHING_DELETED}"
            ) from error
        _check_logs(folder, before)
    if before is not None and sequence < before.sequence:
        raise StateDamagedError(
            f"files of the state in {path} are lost: of {before.sequence} writes there are "
            f"{sequence}. {NOTHING_DELETED}"
        )


def _check_logs(folder: Path, before: Owner | None) -> None:
    """Check that the oldest log begins no later than the tables end.

    A MANIFEST that has lost its end does not name the newest tables. RocksDB has removed the logs
    with the writes of those tables, so the writes are missing.
    """
    logs = sorted(folder.glob("*.log"))
    if not logs and before is not None and not before.closed:  # RocksDB always keeps one log
        raise StateDamagedError(
            f"files of the state in {folder.parent} are lost: there is no log. {NOTHING_DELETED}"
        )
    first_records = map(_first_record, logs)
    first_record = next((each for each in first_records if len(each) == _LOG_START.size), None)
    if first_record is None:
        return
    try:
        tables = Database(folder, read_only=True, logs=False)
    except StateDamagedError:
        # The MANIFEST names a log, which exists, because the database has just opened with logs. So
        # do later logs, because RocksDB removes logs in order.
        return
    first, last = _LOG_START.unpack(first_record)[3], tables.sequence
    tables.close()
    if first > last + 1:
        raise StateDamagedError(
            f"files of the state in {folder.parent} are lost: its tables have writes up to {last}, "
            f"and its logs from {first} on. {NOTHING_DELETED}"
        )


def _first_record(log: Path) -> bytes:
    with log.open("rb") as file:
        return file.read(_LOG_START.size)
