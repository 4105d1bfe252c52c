"""Salvage a corrupted state directory: keep every record that can be read.

The corrupted database is renamed, never changed. A new one gets its readable rows, from both ends
of each family, because a scan stops at the first corrupted table. RocksDB then repairs a copy
without the corrupted tables, and the new database gets the remaining rows from that copy.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from pulsar_encore.errors import StateDamagedError, StateFormatError, StoreError

from .database import Database, repair
from .entry_record import from_bytes
from .owner_file import Owner
from .store_keys import (
    EPOCH_KEY,
    FORMAT,
    FORMAT_KEY,
    number_bytes,
    read_due_key,
    read_entry_key,
    read_number,
    source_key,
)
from .store_loader import StoredTopic, read_sources
from .stored_names import read_names
from .write_batch import DUE, FAMILIES, META, STATE, WriteBatch

logger: logging.Logger = logging.getLogger(__name__)

_CHUNK: Final = 1_000
_TABLE: Final = re.compile(r"\d{6,}\.sst")


def salvage(path: Path, before: Owner | None) -> None:
    """Replace a corrupted database by a new one with its readable rows.

    Changes nothing until the new database is complete, so it can be repeated after a failure or a
    kill.
    """
    new = salvaged_path(path)
    if not path.exists() and new.exists():  # killed between the two renames below
        new.rename(path)
        return
    try:
        kept = _build_new(path, new, before)
        aside_path = _aside_path(path)
        if path.exists():
            path.rename(aside_path)
        new.rename(path)
    except OSError as error:
        raise StoreError(f"the damaged state in {path} cannot be salvaged: {error}") from error
    logger.warning(
        "the state in %s was damaged: %d records could be read and are in use, the rest is lost; "
        "the damaged files are in %s",
        path,
        kept,
        aside_path,
    )


def salvaged_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.salvaged")


def _aside_path(path: Path) -> Path:
    number = 1
    while (aside_path := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside_path


def _build_new(path: Path, new: Path, before: Owner | None) -> int:
    shutil.rmtree(new, ignore_errors=True)
    database = Database(new)
    try:
        failures = _copy_original(path, database, 0 if before is None else before.sequence)
        excluded: set[str] = set()
        while failures:
            tables = {table for damage in failures for table in _TABLE.findall(str(damage))}
            if excluded and tables <= excluded:
                break
            excluded |= tables or {""}
            failures = _copy_repaired(path, database, excluded)
        _name_sources(database, read_names(path.parent), 0 if before is None else before.epoch)
        database.flush()
        return sum(1 for family in (DUE, STATE) for _ in database.scan(family))
    finally:
        database.close()


def _copy_original(path: Path, database: Database, sequence: int) -> list[StoreError]:
    try:
        damaged = Database(path, read_only=True, salvage=True)
    except StoreError as error:
        logger.error("%s", error)
        return [error]
    try:
        if damaged.sequence < sequence:
            return [StateDamagedError(f"of {sequence} writes there are {damaged.sequence}")]
        return _copy(damaged, database)
    finally:
        damaged.close()


def _copy_repaired(path: Path, database: Database, excluded: Iterable[str]) -> list[StoreError]:
    if not path.exists():
        logger.error("nothing can be read of the damaged state in %s: it is gone", path)
        return []
    copy = path.with_name(f"{path.name}.repaired")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns(*excluded))
    try:
        repair(copy)
        repaired = Database(copy, salvage=True)  # creates column families that were lost
        try:
            return _copy(repaired, database)
        finally:
            repaired.close()
    except (StateDamagedError, StateFormatError) as error:
        logger.error("nothing can be read of the damaged state in %s: %s", path, error)
        return []
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _copy(damaged: Database, database: Database) -> list[StoreError]:
    """Copy missing rows before the first and after the last failure in each family."""
    failures: list[StoreError] = []

    def readable(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from rows
        except StoreError as error:
            logger.error("%s", error)
            failures.append(error)

    for family in range(len(FAMILIES)):
        last = b""
        for backwards in (False, True):
            before = len(failures)
            start = last + b"\0" if last else b""
            writes = WriteBatch()
            for key, value in readable(damaged.scan(family, start, backwards=backwards)):
                if database.get(family, key) is None:
                    writes.put(family, key, value)
                last = last if backwards else key
                if len(writes) >= _CHUNK:
                    database.write(writes)
                    writes = WriteBatch()
            database.write(writes)
            if len(failures) == before:
                break
    return failures


def _name_sources(database: Database, names: Mapping[int, StoredTopic], epoch: int) -> None:
    """Restore missing rows of `meta`, and delete records of topics without a name.

    A new topic would get such a number, and with it the records.
    """
    writes = WriteBatch()
    if database.get(META, FORMAT_KEY) is None:
        writes.put(META, FORMAT_KEY, number_bytes(FORMAT))
    known = dict(read_sources(database))
    for at, name in names.items():
        if at not in known and name not in known.values():
            known[at] = name
            writes.put(META, source_key(*name), number_bytes(at))
    with suppress(ValueError):
        epoch = max(epoch, read_number(database.get(META, EPOCH_KEY) or b""))
    lost = 0
    for family in (DUE, STATE):
        for key, value in database.scan(family):
            with suppress(ValueError):
                at = read_due_key(key)[1] if family == DUE else read_entry_key(key)[0]
                if at not in known:
                    lost += 1
                    writes.delete(family, key)
                elif family == STATE:
                    epoch = max(epoch, from_bytes(value).epoch)
            if len(writes) >= _CHUNK:
                database.write(writes)
                writes = WriteBatch()
    if lost:
        logger.error(
            "the topics of %d keys in %s are unknown, and the keys are deleted", lost, database.path
        )
    writes.put(META, EPOCH_KEY, number_bytes(epoch))
    database.write(writes)
