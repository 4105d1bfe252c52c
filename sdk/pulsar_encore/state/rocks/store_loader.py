"""Read a state directory when it is opened, in one pass over each family.

`load` writes nothing. Keys and values that cannot be decoded are counted and left in place.
"""

from __future__ import annotations

import logging
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Final

from pulsar_encore.errors import StateFormatError

from . import entry_record
from .database import Database, UnknownContentError
from .entry_record import WITH_DUES, EntryRecord, is_stale
from .entry_set import EntrySet
from .store_keys import (
    EPOCH_KEY,
    FORMAT,
    FORMAT_KEY,
    FORMATS,
    OPENINGS_KEY,
    SOURCE_PREFIX,
    entry_key,
    number_bytes,
    read_due_key,
    read_entry_key,
    read_number,
    read_openings,
    read_source_key,
)
from .write_batch import DUE, META, STATE, WriteBatch

logger: logging.Logger = logging.getLogger(__name__)

# A message that did not come for so long was acked by another consumer, or its topic is deleted.
STALE_MS: Final = 30 * 24 * 3600 * 1000
# Openings that are remembered, to know how old an epoch is, are at least so far apart.
_OPENING_INTERVAL_MS: Final = 24 * 3600 * 1000
# Stale keys removed in one opening; takes about 0.3 s.
MAX_REMOVED: Final = 100_000
_CHUNK_ROWS: Final = 4096
_KEY_BYTES: Final = 20  # size of a record's key
_PREFIX_BYTES: Final = 12  # its part for topic and ledger

Row = tuple[bytes, bytes]

StoredTopic = tuple[str, str, str]
"""Topic or partition, subscription, and a consumer's name or ""."""


@dataclass(slots=True)
class FoundRows:
    """Entries of one topic that have records, and those with a message that waits."""

    entries: EntrySet = field(default_factory=EntrySet)
    waiting: EntrySet = field(default_factory=EntrySet)


@dataclass(slots=True)
class LoadedStore:
    """Contents of a state directory when it is opened.

    Attributes:
        openings: (epoch, time in ms) of owners, the earliest first, at least a day apart.
        stale: Keys of stale records, to be deleted.
        empty: Topics without other records, to be deleted in the same write.
    """

    is_new: bool = True
    epoch: int = 0
    numbers: dict[StoredTopic, int] = field(default_factory=dict)
    topics: dict[int, FoundRows] = field(default_factory=dict)
    openings: list[tuple[int, int]] = field(default_factory=list)
    stale: list[bytes] = field(default_factory=list)
    empty: list[StoredTopic] = field(default_factory=list)
    unreadable: int = 0

    def confirmed_ms(self, wall_now_ms: int) -> int:
        """Return the latest time that two openings, a day or more apart, agree has passed.

        A clock that is ahead at one opening therefore makes no record stale. The next opening with
        a correct clock removes that time.
        """
        before = (
            at_ms for _, at_ms in self.openings if at_ms <= wall_now_ms - _OPENING_INTERVAL_MS
        )
        return max(before, default=0)

    def openings_with(self, epoch: int, wall_now_ms: int) -> list[tuple[int, int]]:
        """Return `openings` with this one, without those in the future or no longer needed."""
        kept = [each for each in self.openings if each[1] <= wall_now_ms]  # else a clock was wrong
        if not kept or kept[-1][1] <= wall_now_ms - _OPENING_INTERVAL_MS:
            kept.append((epoch, wall_now_ms))
        old_ms = self.confirmed_ms(wall_now_ms) - STALE_MS
        old = sum(opened_ms <= old_ms for _, opened_ms in kept)
        return kept[max(old - 1, 0) :]


def load(database: Database, wall_now_ms: int, *, remove_stale: bool = True) -> LoadedStore:
    """Read a store. Takes about 1 s for each million records.

    With `remove_stale`, leave out stale records and empty topics, and list them for deletion.
    """
    loaded = LoadedStore()
    _load_meta(database, loaded)
    before_ms = loaded.confirmed_ms(wall_now_ms) - STALE_MS if remove_stale else -1
    old_epoch = max((each for each, at_ms in loaded.openings if at_ms <= before_ms), default=0)
    rows = database.scan(STATE)
    while chunk := list(islice(rows, _CHUNK_ROWS)):
        if before_ms > 0 and len(loaded.stale) < MAX_REMOVED:
            stale = [key for key, value in chunk if is_stale(value, before_ms, old_epoch)]
            if stale:
                stale = stale[: MAX_REMOVED - len(loaded.stale)]
                loaded.stale += stale
                removed = set(stale)
                chunk = [row for row in chunk if row[0] not in removed]
        start = 0
        while start < len(chunk):  # by topic and ledger; most chunks have one of each
            prefix = chunk[start][0][:_PREFIX_BYTES]
            stop = len(chunk)
            if not chunk[-1][0].startswith(prefix):
                stop = bisect_right(chunk, (prefix + b"\xff" * _KEY_BYTES,), start)
            _load_rows(loaded, chunk[start:stop])
            start = stop
    if remove_stale:
        for name, at in list(loaded.numbers.items()):
            if not loaded.topics[at].entries:
                loaded.empty.append(name)
                del loaded.numbers[name], loaded.topics[at]
    return loaded


def _load_rows(loaded: LoadedStore, rows: Sequence[Row]) -> None:
    """Add the records of one ledger, in order.

    All ids are added at once: one by one takes twice as long as reading them.
    """
    try:
        topic_number, ledger, _ = read_entry_key(rows[0][0])
        found = loaded.topics[topic_number]
        if len(rows) > 1:
            read_entry_key(rows[-1][0])
        if any(len(key) != _KEY_BYTES for key, _ in rows):
            raise ValueError(f"a key of another length among {len(rows)}")
    except (ValueError, KeyError) as error:
        if len(rows) == 1:
            _count_unreadable(loaded, rows[0][0], error)
        else:
            for row in rows:
                _load_rows(loaded, (row,))
        return
    entries = array("Q", b"".join([key[_PREFIX_BYTES:] for key, _ in rows]))
    if sys.byteorder == "little":
        entries.byteswap()
    found.entries.fill(ledger, entries)
    waiting = [value >= WITH_DUES for _, value in rows]
    if not all(waiting):
        entries = array("Q", compress(entries, waiting))
    if entries:
        found.waiting.fill(ledger, entries)


def upgrade(database: Database) -> None:
    """Convert a directory of format 1: move the due times into the records.

    The format number is written last, so a killed upgrade continues later. A directory of format 2
    can have separate due times after a salvage.
    """
    if not check_format(database):
        return
    rows = database.scan(DUE)
    while chunk := list(islice(rows, _CHUNK_ROWS)):
        records: dict[bytes, EntryRecord] = {}
        writes = WriteBatch()
        for data, _ in chunk:
            try:
                due_ms, topic_number, (ledger, entry, index) = read_due_key(data)
                key = entry_key(topic_number, ledger, entry)
                record = records.get(key)
                if record is None:
                    value = database.get(STATE, key)
                    if value is not None:
                        record = entry_record.from_bytes(value)
            except ValueError as error:
                logger.error("a due time cannot be decoded and is kept: %s: %s", data, error)
                continue
            records[key] = _with_due(record, due_ms, index)
            writes.delete(DUE, data)
        for key, record in records.items():
            writes.put(STATE, key, entry_record.to_bytes(record))
        database.write(writes)
    if database.get(META, FORMAT_KEY) != number_bytes(FORMAT):
        writes = WriteBatch()
        writes.put(META, FORMAT_KEY, number_bytes(FORMAT))
        database.write(writes)


def _with_due(record: EntryRecord | None, due_ms: int, index: int) -> EntryRecord:
    # A batch needs a size of 2 or more: size 1 means that the message is the whole entry.
    size = 1 if index < 0 else max(index + 1, 2)
    if record is None:
        record = entry_record.new_record(size, due_ms, 0)
    elif record.size < size:
        record = record._replace(size=size)
    mask = 1 << index if index >= 0 else (1 << record.size) - 1
    for _, known in record.dues:
        mask &= ~known
    return entry_record.with_due(record, mask, due_ms) if mask else record


def read_sources(database: Database) -> Iterator[tuple[int, StoredTopic]]:
    for data, value in database.scan(META, SOURCE_PREFIX, SOURCE_PREFIX + b"\xff"):
        try:
            yield read_number(value), read_source_key(data)
        except ValueError as error:
            logger.error("in %s: %s", database.path, error)


def check_format(database: Database) -> bool:
    """Return False if nothing was ever written to the database; raise if it has another format."""
    data = database.get(META, FORMAT_KEY)
    if data is None:
        for family in (META, DUE, STATE):
            rows = database.scan(family)
            if next(rows, None) is not None:
                rows.close()  # type: ignore[attr-defined]
                # Rows in `meta` without our format belong to another program. If `meta` is empty,
                # it may be corrupted.
                kind = StateFormatError if family == META else UnknownContentError
                raise kind(f"the data in {database.path} does not say its format")
        return False
    try:
        found = read_number(data)
    except ValueError as error:
        raise StateFormatError(
            f"the format of {database.path} cannot be decoded: {error}"
        ) from error
    if found not in FORMATS:
        raise StateFormatError(
            f"the state in {database.path} has format {found}; this version of pulsar-encore knows "
            f"1 to {FORMAT}: use the version that wrote it, or another directory"
        )
    return True


def _load_meta(database: Database, loaded: LoadedStore) -> None:
    loaded.is_new = not check_format(database)
    epoch = database.get(META, EPOCH_KEY)
    if epoch is not None:
        try:
            loaded.epoch = read_number(epoch)
        except ValueError as error:
            _count_unreadable(loaded, EPOCH_KEY, error)
    opened = database.get(META, OPENINGS_KEY)
    if opened is not None:
        try:
            loaded.openings = read_openings(opened)
        except ValueError as error:
            _count_unreadable(loaded, OPENINGS_KEY, error)
    for at, name in read_sources(database):
        loaded.numbers[name] = at
        loaded.topics[at] = FoundRows()


def _count_unreadable(loaded: LoadedStore, data: bytes, error: Exception) -> None:
    loaded.unreadable += 1
    if loaded.unreadable <= 10:
        logger.error("a key of the state cannot be decoded and is kept: %s: %s", data, error)
