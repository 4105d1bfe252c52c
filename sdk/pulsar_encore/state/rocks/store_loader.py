"""What a store finds on disk when it is opened, in one pass over each family.

Owns `load`, which tells what nothing is to be expected of any more, and `upgrade`, which brings a
directory of format 1 to the present one. A key or value that makes no sense is counted and stays
where it is, and nothing else suffers for it. `load` opens and writes nothing.
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
    number,
    read_due_key,
    read_entry_key,
    read_number,
    read_openings,
    read_source_key,
)
from .write_batch import DUE, META, STATE, WriteBatch

logger: logging.Logger = logging.getLogger(__name__)

# What nothing was heard of for so long was acked elsewhere, or its topic is gone.
STALE_MS: Final = 30 * 24 * 3600 * 1000
# How far apart the owners are that are remembered, to tell how old an epoch is.
_OPENING_INTERVAL_MS: Final = 24 * 3600 * 1000
# At most so many keys are removed in one opening: 0.3 s or so.
MAX_REMOVED: Final = 100_000
_CHUNK_ROWS: Final = 4096  # rows at a time
_KEY_BYTES: Final = 20  # bytes of the key of a record
_PREFIX_BYTES: Final = 12  # of them, those that name the source and the ledger

Row = tuple[bytes, bytes]

StoredTopic = tuple[str, str, str]
"""Topic (of the partition, if any), subscription, and a consumer's name or ""."""


@dataclass(slots=True)
class FoundRows:
    """Of one source: which entries have records, and of which of them a message waits."""

    entries: EntrySet = field(default_factory=EntrySet)
    waiting: EntrySet = field(default_factory=EntrySet)


@dataclass(slots=True)
class LoadedStore:
    """Contents of a state directory when it is opened.

    Attributes:
        is_new: Nothing was ever written to it.
        epoch: Of the last owner; 0 when there was none.
        numbers: Sources by name.
        sources: What there is of them, by number.
        openings: (epoch, when, in ms) of owners, the earliest first, at least a day apart.
        stale: Keys of records that nothing is to be expected of; to be removed.
        empty: Sources of which there is nothing then; to be removed with these.
        unreadable: Keys and values that make no sense.
    """

    is_new: bool = True
    epoch: int = 0
    numbers: dict[StoredTopic, int] = field(default_factory=dict)
    sources: dict[int, FoundRows] = field(default_factory=dict)
    openings: list[tuple[int, int]] = field(default_factory=list)
    stale: list[bytes] = field(default_factory=list)
    empty: list[StoredTopic] = field(default_factory=list)
    unreadable: int = 0

    def sure_ms(self, wall_now_ms: int) -> int:
        """Return the latest time that two openings, a day or more apart, agree has come.

        A clock that is ahead at one opening therefore makes nothing stale: the next opening at
        which the clock is right removes that time from `openings`.
        """
        before = (
            at_ms for _, at_ms in self.openings if at_ms <= wall_now_ms - _OPENING_INTERVAL_MS
        )
        return max(before, default=0)

    def opened(self, epoch: int, wall_now_ms: int) -> list[tuple[int, int]]:
        """`openings` with one more, and without those that say nothing more of what is stale."""
        kept = [each for each in self.openings if each[1] <= wall_now_ms]  # or the clock was wrong
        if not kept or kept[-1][1] <= wall_now_ms - _OPENING_INTERVAL_MS:
            kept.append((epoch, wall_now_ms))
        old_ms = self.sure_ms(wall_now_ms) - STALE_MS
        old = sum(opened_ms <= old_ms for _, opened_ms in kept)
        return kept[max(old - 1, 0) :]


def load(database: Database, wall_now_ms: int, *, tidies: bool = True) -> LoadedStore:
    """Read what there is; a million records take 1 s or so.

    Args:
        database: Where.
        wall_now_ms: The time, in ms since the epoch; tells what is stale.
        tidies: What nothing is to be expected of is left out, and named to be removed.

    Raises:
        StateFormatError: A newer version wrote it, or something else did.
        StateDamagedError: A file is damaged.
        StoreError: It cannot be read.
    """
    loaded = LoadedStore()
    _load_meta(database, loaded)
    before_ms = loaded.sure_ms(wall_now_ms) - STALE_MS if tidies else -1
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
        while start < len(chunk):  # by source and ledger; most chunks have one
            prefix = chunk[start][0][:_PREFIX_BYTES]
            stop = len(chunk)
            if not chunk[-1][0].startswith(prefix):
                stop = bisect_right(chunk, (prefix + b"\xff" * _KEY_BYTES,), start)
            _load_rows(loaded, chunk[start:stop])
            start = stop
    if tidies:
        for name, at in list(loaded.numbers.items()):
            if not loaded.sources[at].entries:
                loaded.empty.append(name)
                del loaded.numbers[name], loaded.sources[at]
    return loaded


def _load_rows(loaded: LoadedStore, rows: Sequence[Row]) -> None:
    """Take note of records of one ledger, in order.

    Their ids go into the sets all at once: one by one they take twice as long as to be read.
    """
    try:
        source, ledger, _ = read_entry_key(rows[0][0])
        found = loaded.sources[source]
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
    """Bring a directory of format 1 to the present format: due times become part of the records.

    Each write leaves a directory that this function goes on with, should the process be killed.
    The number of the format comes last. Due times are also looked for in a directory of format 2,
    because a salvaged one may have some of before. Raises as `load`.
    """
    if not check_format(database):
        return
    rows = database.scan(DUE)
    while chunk := list(islice(rows, _CHUNK_ROWS)):
        records: dict[bytes, EntryRecord] = {}
        writes = WriteBatch()
        for data, _ in chunk:
            try:
                due_ms, source, (ledger, entry, index) = read_due_key(data)
                key = entry_key(source, ledger, entry)
                record = records.get(key)
                if record is None:
                    value = database.get(STATE, key)
                    if value is not None:
                        record = entry_record.from_bytes(value)
            except ValueError as error:
                logger.error("a due time makes no sense and is left alone: %s: %s", data, error)
                continue
            records[key] = _with_due(record, due_ms, index)
            writes.delete(DUE, data)
        for key, record in records.items():
            writes.put(STATE, key, entry_record.to_bytes(record))
        database.write(writes)
    if database.get(META, FORMAT_KEY) != number(FORMAT):
        writes = WriteBatch()
        writes.put(META, FORMAT_KEY, number(FORMAT))
        database.write(writes)


def _with_due(record: EntryRecord | None, due_ms: int, index: int) -> EntryRecord:
    """A record with the due time of a message as format 1 had it; an earlier one stays."""
    # Of a batch: a record of size 1 would say that the message is the whole entry.
    size = 1 if index < 0 else max(index + 1, 2)
    if record is None:
        record = entry_record.fresh(size, due_ms, 0)
    elif record.size < size:
        record = record._replace(size=size)
    mask = 1 << index if index >= 0 else (1 << record.size) - 1
    for _, known in record.dues:
        mask &= ~known
    return entry_record.waits(record, mask, due_ms) if mask else record


def read_sources(database: Database) -> Iterator[tuple[int, StoredTopic]]:
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
        loaded.sources[at] = FoundRows()


def _count_unreadable(loaded: LoadedStore, data: bytes, error: Exception) -> None:
    loaded.unreadable += 1
    if loaded.unreadable <= 10:
        logger.error("a key of the state makes no sense and is left alone: %s: %s", data, error)
