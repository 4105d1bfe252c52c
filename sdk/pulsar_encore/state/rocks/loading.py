"""What a store finds on disk when it is opened, in one pass over each family.

Owns `load`, and what of it nothing is to be expected of. A key or value that makes no sense is
counted and stays where it is, and nothing else suffers for it. Refuses to open or write anything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pulsar_encore.core.time_bucket import TimeBucketIndex
from pulsar_encore.errors import ConfigurationError, StateFormatError

from .database import Database, UnknownContentError
from .entry_record import times_of
from .entry_set import EntrySet
from .index import place
from .keys import (
    EPOCH_KEY,
    FORMAT,
    FORMAT_KEY,
    OPENINGS_KEY,
    SOURCE_PREFIX,
    read_due_key,
    read_entry_key,
    read_number,
    read_openings,
    read_source_key,
)
from .writes import DUE, META, STATE

logger: logging.Logger = logging.getLogger(__name__)

# What nothing was heard of for so long was acked elsewhere, or its topic is gone.
STALE_MS: Final = 30 * 24 * 3600 * 1000
# How far apart the owners are that are remembered, to tell how old an epoch is.
_APART_MS: Final = 24 * 3600 * 1000
# At most so many keys are removed in one opening: 0.3 s or so.
MOST_REMOVED: Final = 100_000

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
        openings: (epoch, when, in ms) of owners, the earliest first, at least a day apart.
        doubled: Keys of `due` of what is there with an earlier time; to be removed.
        overdue: Keys of `due` of what was due so long ago that it comes no more; to be removed.
        stale: Keys of records that nothing is to be expected of; to be removed.
        empty: Sources of which there is nothing then; to be removed with these.
        unreadable: Keys and values that make no sense.
    """

    is_new: bool = True
    epoch: int = 0
    numbers: dict[SourceName, int] = field(default_factory=dict)
    sources: dict[int, Found] = field(default_factory=dict)
    openings: list[tuple[int, int]] = field(default_factory=list)
    doubled: list[bytes] = field(default_factory=list)
    overdue: list[bytes] = field(default_factory=list)
    stale: list[bytes] = field(default_factory=list)
    empty: list[SourceName] = field(default_factory=list)
    unreadable: int = 0

    @property
    def full(self) -> bool:
        """No more is removed this time."""
        return len(self.overdue) + len(self.stale) >= MOST_REMOVED

    def opened(self, epoch: int, wall_now_ms: int) -> list[tuple[int, int]]:
        """`openings` with one more, and without those that say nothing more of what is stale."""
        kept = [each for each in self.openings if each[1] <= wall_now_ms]  # or the clock was wrong
        if not kept or kept[-1][1] <= wall_now_ms - _APART_MS:
            kept.append((epoch, wall_now_ms))
        old = sum(opened_ms <= wall_now_ms - STALE_MS for _, opened_ms in kept)
        return kept[max(old - 1, 0) :]


def load(database: Database, wall_now_ms: int, *, tidies: bool = True) -> Loaded:
    """Read what there is; a million keys take 2 s or so.

    Args:
        database: Where.
        wall_now_ms: The time, in ms since the epoch; tells what is stale.
        tidies: What nothing is to be expected of is left out, and named to be removed.

    Raises:
        StateFormatError: A newer version wrote it, or something else did.
        StateDamagedError: A file is damaged.
        StoreError: It cannot be read.
    """
    loaded = Loaded()
    _load_meta(database, loaded)
    before_ms = wall_now_ms - STALE_MS if tidies else -1
    for data, _ in database.scan(DUE):
        try:
            due_ms, source, key = read_due_key(data)
            found = loaded.sources[source]
            if due_ms < before_ms and not loaded.full:
                loaded.overdue.append(data)
            elif not place(found.waiting, key, due_ms):
                loaded.doubled.append(data)
        except (ValueError, KeyError, ConfigurationError) as error:
            _unreadable(loaded, data, error)
    old_epoch = max((each for each, at_ms in loaded.openings if at_ms <= before_ms), default=0)
    for data, value in database.scan(STATE):
        try:
            source, ledger, entry = read_entry_key(data)
            found = loaded.sources[source]
            if (
                _is_stale(value, before_ms, old_epoch)
                and not loaded.full
                and not found.waiting.keys_of_entry(ledger, entry)
            ):
                loaded.stale.append(data)
            else:
                found.entries.add((ledger, entry))
        except (ValueError, KeyError) as error:
            _unreadable(loaded, data, error)
    if tidies:
        for name, number in list(loaded.numbers.items()):
            found = loaded.sources[number]
            if not found.entries and not len(found.waiting):
                loaded.empty.append(name)
                del loaded.numbers[name], loaded.sources[number]
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


def _is_stale(record: bytes, before_ms: int, old_epoch: int) -> bool:
    """Who handed it over last had ended by then, as that epoch had begun; that it began by then
    alone says little, as what is poison may be at work for months."""
    try:
        first_ms, epoch = times_of(record)
    except ValueError:
        return False  # it is named, and left alone, when it is asked for
    return first_ms < before_ms and epoch < old_epoch


def _load_meta(database: Database, loaded: Loaded) -> None:
    loaded.is_new = not check_format(database)
    epoch = database.get(META, EPOCH_KEY)
    if epoch is not None:
        try:
            loaded.epoch = read_number(epoch)
        except ValueError as error:
            _unreadable(loaded, EPOCH_KEY, error)
    opened = database.get(META, OPENINGS_KEY)
    if opened is not None:
        try:
            loaded.openings = read_openings(opened)
        except ValueError as error:
            _unreadable(loaded, OPENINGS_KEY, error)
    for number, name in read_sources(database):
        loaded.numbers[name] = number
        loaded.sources[number] = Found()


def _unreadable(loaded: Loaded, data: bytes, error: Exception) -> None:
    loaded.unreadable += 1
    if loaded.unreadable <= 10:
        logger.error("a key of the state makes no sense and is left alone: %s: %s", data, error)
