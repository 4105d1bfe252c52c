"""What a store finds on disk when it is opened, in one pass over each family.

Owns `load`. A key or value that makes no sense is counted and stays where it is, and nothing else
suffers for it. Refuses to open or write anything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pulsar_encore.core.time_bucket import TimeBucketIndex
from pulsar_encore.errors import ConfigurationError, StateFormatError

from .database import Database, UnknownContentError
from .entry_record import first_ms_of
from .entry_set import EntrySet
from .index import place
from .keys import (
    EPOCH_KEY,
    FORMAT,
    FORMAT_KEY,
    SOURCE_PREFIX,
    read_due_key,
    read_entry_key,
    read_number,
    read_source_key,
)
from .writes import DUE, META, STATE

logger: logging.Logger = logging.getLogger(__name__)

# What is known of an entry that began so long ago and does not wait: it was acked elsewhere, or its
# topic is gone.
STALE_MS: Final = 30 * 24 * 3600 * 1000

SourceName = tuple[str, str, str]
"""Topic (of the partition, if any), subscription, and a consumer's name or ""."""


@dataclass(slots=True)
class Found:
    """Of one source: what waits, and which entries have records."""

    waiting: TimeBucketIndex = field(default_factory=TimeBucketIndex)
    entries: EntrySet = field(default_factory=EntrySet)


@dataclass(slots=True)
class Loaded:
    """
    Attributes:
        is_new: Nothing was ever written to it.
        epoch: Of the last owner; 0 when there was none.
        numbers: Sources by name.
        sources: What there is of them, by number.
        doubled: Keys of `due` of what is there with an earlier time; to be removed.
        stale: Keys of records that nothing is to be expected of; to be removed.
        unreadable: Keys and values that make no sense.
    """

    is_new: bool = True
    epoch: int = 0
    numbers: dict[SourceName, int] = field(default_factory=dict)
    sources: dict[int, Found] = field(default_factory=dict)
    doubled: list[bytes] = field(default_factory=list)
    stale: list[bytes] = field(default_factory=list)
    unreadable: int = 0


def load(database: Database, wall_now_ms: int) -> Loaded:
    """Read what there is; a million keys take 2 s or so.

    Args:
        database: Where.
        wall_now_ms: The time, in ms since the epoch; tells what is stale.

    Raises:
        StateFormatError: A newer version wrote it, or something else did.
        StateDamagedError: A file is damaged.
        StoreError: It cannot be read.
    """
    loaded = Loaded()
    _load_meta(database, loaded)
    for data, _ in database.scan(DUE):
        try:
            due_ms, source, key = read_due_key(data)
            found = loaded.sources[source]
            if not place(found.waiting, key, due_ms):
                loaded.doubled.append(data)
        except (ValueError, KeyError, ConfigurationError) as error:
            _unreadable(loaded, data, error)
    for data, value in database.scan(STATE):
        try:
            source, ledger, entry = read_entry_key(data)
            found = loaded.sources[source]
            if _is_stale(value, wall_now_ms) and not found.waiting.keys_of_entry(ledger, entry):
                loaded.stale.append(data)
            else:
                found.entries.add((ledger, entry))
        except (ValueError, KeyError) as error:
            _unreadable(loaded, data, error)
    return loaded


def read_sources(database: Database) -> Iterator[tuple[int, SourceName]]:
    """Numbers and names of all sources; those that make no sense are left out.

    Raises:
        StoreError: It cannot be read.
    """
    for data, value in database.scan(META, SOURCE_PREFIX, SOURCE_PREFIX + b"\xff"):
        try:
            yield read_number(value), read_source_key(data)
        except ValueError as error:
            logger.error("in %s: %s", database.path, error)


def check_format(database: Database) -> bool:
    """Whether anything was ever written to it.

    Raises:
        UnknownContentError: There is nothing that says it.
        StateFormatError: A newer version wrote it, or something else did.
    """
    data = database.get(META, FORMAT_KEY)
    if data is None:
        for family in (META, DUE, STATE):
            rows = database.scan(family)
            if next(rows, None) is not None:
                rows.close()  # type: ignore[attr-defined]
                # What has names, and not ours, is something else; where they are gone, who knows.
                kind = StateFormatError if family == META else UnknownContentError
                raise kind(f"what is in {database.path} does not say its format")
        return False
    try:
        found = read_number(data)
    except ValueError as error:
        raise StateFormatError(f"the format of {database.path} makes no sense: {error}") from error
    if found != FORMAT:
        raise StateFormatError(
            f"the state in {database.path} has format {found}; this version of pulsar-encore knows "
            f"{FORMAT}: use the version that wrote it, or another directory"
        )
    return True


def _is_stale(record: bytes, wall_now_ms: int) -> bool:
    try:
        return first_ms_of(record) < wall_now_ms - STALE_MS
    except ValueError:
        return False  # it is named, and left alone, when it is asked for


def _load_meta(database: Database, loaded: Loaded) -> None:
    loaded.is_new = not check_format(database)
    epoch = database.get(META, EPOCH_KEY)
    if epoch is not None:
        try:
            loaded.epoch = read_number(epoch)
        except ValueError as error:
            _unreadable(loaded, EPOCH_KEY, error)
    for number, name in read_sources(database):
        loaded.numbers[name] = number
        loaded.sources[number] = Found()


def _unreadable(loaded: Loaded, data: bytes, error: Exception) -> None:
    loaded.unreadable += 1
    if loaded.unreadable <= 10:
        logger.error("a key of the state makes no sense and is left alone: %s: %s", data, error)
