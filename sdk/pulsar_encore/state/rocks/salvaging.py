"""What to do with a damaged directory when its owner asked for it: keep what can be read.

Owns `salvage`. The damaged database is put aside, never changed and never deleted, and what can be
read of it from either end of each family goes into a new one. Refuses to decide that something is
damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pulsar_encore.errors import StateFormatError, StoreError

from .database import Database
from .writes import FAMILIES, Writes

logger: logging.Logger = logging.getLogger(__name__)

_CHUNK: Final = 1_000


def salvage(path: Path) -> Path:
    """Put the database of a directory aside, and a new one in its place with what can be read.

    Returns:
        Where the damaged one is.

    Raises:
        StoreError: The new one cannot be written.
    """
    aside = path
    number = 0
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    if aside != path:
        path.rename(aside)
    database = Database(path)
    kept = [0] * len(FAMILIES)
    try:
        if aside == path:
            raise StateFormatError("it is gone")
        damaged = Database(aside, read_only=True, salvage=True)
    except (StoreError, StateFormatError) as error:
        logger.error("nothing can be read of the damaged state in %s: %s", aside, error)
    else:
        for family in range(len(FAMILIES)):
            kept[family] = _copy(damaged, database, family)
        damaged.close()
    database.flush()
    database.close()
    logger.warning(
        "the state in %s was damaged: %d waiting messages and %d records could be read and are in "
        "use, the rest is lost; the damaged files are in %s",
        path,
        *kept[:2],
        aside,
    )
    return aside


def _copy(damaged: Database, database: Database, family: int) -> int:
    """What comes before the first damage and after the last."""
    count = 0
    last = b""
    for backwards in (False, True):
        rows: Iterable[tuple[bytes, bytes]] = damaged.scan(
            family, last + b"\0" if last else b"", backwards=backwards
        )
        writes = Writes()
        whole = True
        try:
            for key, value in rows:
                writes.put(family, key, value)
                count += 1
                last = last if backwards else key
                if len(writes) >= _CHUNK:
                    database.write(writes)
                    writes = Writes()
        except StoreError as error:
            whole = False
            logger.error("%s", error)
        database.write(writes)
        if whole:
            break
    return count
