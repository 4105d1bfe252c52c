"""What to do with a damaged directory when its owner asked for it: keep what can be read.

Owns `salvage`. The damaged database is put aside, never changed and never deleted, and what can be
read of it from either end of each family goes into a new one. Where it does not open, or opens with
less than there was, RocksDB repairs a copy, out of the tables and logs themselves. Refuses to
decide that something is damaged.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pulsar_encore.errors import StateDamagedError, StateFormatError, StoreError

from .database import Database, repair
from .loading import check_format
from .writes import FAMILIES, Writes

logger: logging.Logger = logging.getLogger(__name__)

_CHUNK: Final = 1_000


def salvage(path: Path, sequence: int) -> None:
    """Put the database of a directory aside, and a new one in its place with what can be read.

    Killed or failed, it can be done again: until the new one is whole nothing is changed.

    Args:
        path: Of the database.
        sequence: Writes that it had, as far as that is known.

    Raises:
        StoreError: The new one cannot be written.
    """
    new = salvaged(path)
    if not path.exists() and new.exists():  # killed between the last two steps
        new.rename(path)
        return
    try:
        kept = _keep(path, new, sequence)
        aside = _aside(path)
        if path.exists():
            path.rename(aside)
        new.rename(path)
    except OSError as error:
        raise StoreError(f"what is damaged in {path} cannot be salvaged: {error}") from error
    logger.warning(
        "the state in %s was damaged: %d waiting messages and %d records could be read and are in "
        "use, the rest is lost; the damaged files are in %s",
        path,
        *kept[:2],
        aside,
    )


def salvaged(path: Path) -> Path:
    """Where the new one is until it is in its place."""
    return path.with_name(f"{path.name}.salvaged")


def _aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside


def _keep(path: Path, new: Path, sequence: int) -> list[int]:
    """Make the new one; how much of each family there is in it."""
    shutil.rmtree(new, ignore_errors=True)
    database = Database(new)
    kept = [0] * len(FAMILIES)
    try:
        with _readable(path, sequence) as damaged:
            if damaged is not None:
                kept = [_copy(damaged, database, family) for family in range(len(FAMILIES))]
        if not _says_format(database) and any(kept):
            logger.error("whose state it was that is in %s cannot be read", path)
            for family in range(len(FAMILIES)):
                writes = Writes()
                writes.delete_range(family, b"", b"\xff" * 64)
                database.write(writes)
            kept = [0] * len(FAMILIES)
        database.flush()
    finally:
        database.close()
    return kept


@contextmanager
def _readable(path: Path, sequence: int) -> Iterator[Database | None]:
    """What is damaged, as it is or repaired in a copy; None when nothing of it can be read."""
    if not path.exists():
        logger.error("nothing can be read of the damaged state in %s: it is gone", path)
        yield None
        return
    try:
        damaged = Database(path, read_only=True, salvage=True)
    except StoreError as error:
        logger.error("%s", error)
    else:
        try:
            if damaged.sequence >= sequence and _says_format(damaged):
                yield damaged
                return
        finally:
            damaged.close()
    copy = path.with_name(f"{path.name}.repaired")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    try:
        try:
            repair(copy)
            damaged = Database(copy, salvage=True)  # makes a family of which nothing is left
        except (StateDamagedError, StateFormatError) as error:
            logger.error("nothing can be read of the damaged state in %s: %s", path, error)
            yield None
            return
        try:
            yield damaged
        finally:
            damaged.close()
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _says_format(database: Database) -> bool:
    with suppress(StoreError):
        return check_format(database)
    return False


def _copy(damaged: Database, database: Database, family: int) -> int:
    """What comes before the first damage and after the last."""
    damages: list[StoreError] = []

    def readable(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from rows
        except StoreError as error:
            logger.error("%s", error)
            damages.append(error)

    count = 0
    last = b""
    for backwards in (False, True):
        start = last + b"\0" if last else b""
        writes = Writes()
        for key, value in readable(damaged.scan(family, start, backwards=backwards)):
            writes.put(family, key, value)
            count += 1
            last = last if backwards else key
            if len(writes) >= _CHUNK:
                database.write(writes)
                writes = Writes()
        database.write(writes)
        if not damages:
            break
    return count
