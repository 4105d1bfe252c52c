"""The thin shell around RocksDB: opening, one write for a transition, reading, and what fails.

Owns `Database`, the only place that imports `rocksdict`. What that raises, an `Exception` with a
text, becomes an error by name. Invariants: a scan that RocksDB ends for damage is an error and not
a shorter scan (`keys()` of rocksdict just ends); nothing of RocksDB's outlives `close`, because an
iterator or a handle would keep the lock. Refuses to know what keys mean.

Of rocksdict 0.3.29: `write` keeps the interpreter's lock for as long as it takes, an fsync with it
(measured), so a write never asks for one; `flush` and `flush_wal` release it.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pulsar_encore.errors import (
    ConfigurationError,
    ForkedError,
    StateDamagedError,
    StateFormatError,
    StateInUseError,
    StoreError,
)

from ..directory_advice import advised
from .read_only_copy import CONFIG, MEMORY, linked_copy
from .write_batch import FAMILIES, STATE, WriteBatch

logger: logging.Logger = logging.getLogger(__name__)

_MEMTABLE_BYTES: Final = 8 * 2**20
_MAX_MEMTABLES: Final = 4
_CACHE_BYTES: Final = 8 * 2**20
_READ_AHEAD_BYTES: Final = 2**20
# Enough memory tables a log that it is replayed in less than a second after a kill.
_MAX_LOG_BYTES: Final = 32 * 2**20
# Writers are slowed down and stopped so late that a compaction on one busy core is done before.
_SLOWDOWN_TRIGGER: Final = 40
_STOP_TRIGGER: Final = 80
NOTHING_DELETED: Final = (
    "Nothing was deleted. Whatever is not acked comes again from the broker, with lower counts: "
    "RocksState(path, salvage=True) goes on with what can be read, and an empty directory begins "
    "anew"
)
_RAW_MODE_CONFIG: Final = '{"raw_mode":true,"prefix_extractors":{}}'
_TRACKING_OPTIONS: Final = """[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1
[DBOptions]
  track_and_verify_wals_in_manifest=true
[CFOptions "default"]
[TableOptions/BlockBasedTable "default"]
"""


#: The process whose database was the first: RocksDB's threads are there, and none in its children,
#: where a flush would wait for them for ever.
_first_pid: Final[list[int]] = []


def library() -> Any:
    """The package `rocksdict`, about to be used.

    Raises:
        ConfigurationError: It is not installed.
        ForkedError: A parent of this process has used it.
    """
    try:
        found = import_module("rocksdict")
    except ImportError as error:
        raise ConfigurationError(
            "state on disk needs the package rocksdict: pip install 'pulsar-encore[state]'"
        ) from error
    if not _first_pid:
        _first_pid.append(os.getpid())
    elif _first_pid[0] != os.getpid():
        raise ForkedError(
            f"the process that this one was forked from ({_first_pid[0]}) has used a state on "
            "disk, and RocksDB's threads stayed there: start processes that use one with "
            'multiprocessing.get_context("spawn") or "forkserver", or before the first is used'
        )
    return found


class UnknownContentError(StateFormatError):
    """Nothing says that it is a state directory; which one that was may be damaged."""


def repair(path: Path) -> None:
    """Have RocksDB make a database anew in place, out of whatever tables and logs are there.

    Raises:
        StoreError: It cannot.
    """
    rocks = library()
    options = rocks.Options(raw_mode=True)
    options.create_if_missing(True)
    try:
        rocks.Rdict.repair(str(path), options)
    except Exception as error:
        raise _to_store_error(error, path) from error


class Database:
    """RocksDB in one directory.

    Args:
        path: The directory; made when it is not there, unless `read_only`.
        read_only: Without a lock, beside an owner if there is one; sees what was written when it
            was opened, and writes nothing there, so that it need not be allowed to.
        salvage: Open although the end of the log is damaged, with what was written before that.
        logs: If False, open with the tables only; for `read_only`.

    Raises:
        StateInUseError: Another process, or this one, has it open.
        ForkedError: A parent of this process has used one.
        StateDamagedError: Files are lost or damaged.
        UnknownContentError: It is no such directory.
        StoreError: The system does not let it be opened.
    """

    def __init__(
        self, path: Path, *, read_only: bool = False, salvage: bool = False, logs: bool = True
    ) -> None:
        self.path: Path = path
        self.read_only: bool = read_only
        self._opened_at = path
        self._rocks = rocks = library()
        recovery = rocks.DBRecoveryMode
        kind = recovery.point_in_time if salvage else recovery.tolerate_corrupted_tail_records
        families = {name: self._options(name) for name in FAMILIES}
        options = self._options("", tracks_logs=read_only or not salvage)
        options.set_wal_recovery_mode(kind())
        access = rocks.AccessType.read_only(False) if read_only else rocks.AccessType.read_write()
        try:
            if read_only and not (path / "CURRENT").exists():
                raise StateFormatError(f"there is no state in {path}")
        except OSError as error:
            raise StoreError(f"the state in {path} cannot be read: {error}") from error
        with linked_copy(path, logs=logs) if read_only else nullcontext(path) as self._opened_at:
            try:
                self._db: Any = rocks.Rdict(str(self._opened_at), options, families, access)
            except Exception as error:
                raise self._store_error(error) from error
        self._families: list[Any] = [self._db.get_column_family(name) for name in FAMILIES]
        self._handles: list[Any] = [self._db.get_column_family_handle(name) for name in FAMILIES]

    def _options(self, family: str, *, tracks_logs: bool = False) -> Any:
        rocks = self._rocks
        options = (
            _tracking_options(rocks, self.path) if tracks_logs else rocks.Options(raw_mode=True)
        )
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_write_buffer_size(_MEMTABLE_BYTES)
        options.set_max_write_buffer_number(_MAX_MEMTABLES)
        options.set_max_total_wal_size(_MAX_LOG_BYTES)
        options.set_level_zero_slowdown_writes_trigger(_SLOWDOWN_TRIGGER)
        options.set_level_zero_stop_writes_trigger(_STOP_TRIGGER)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(2**20)
        # One thread writes.
        options.set_allow_concurrent_memtable_write(False)
        options.set_compression_type(rocks.DBCompressionType.lz4())
        blocks = rocks.BlockBasedOptions()
        blocks.set_block_cache(rocks.Cache(_CACHE_BYTES))
        if family == FAMILIES[STATE]:
            blocks.set_bloom_filter(10, False)
        options.set_block_based_table_factory(blocks)
        return options

    def write(self, writes: WriteBatch) -> None:
        """All or nothing, into the log; not yet on the platters (see `sync`).

        Raises:
            StoreError: It is not written, or it is not known whether it is.
        """
        # Made elsewhere: an error keeps this frame, and whatever it names would keep the lock.
        try:
            due, records, meta = writes.points
            if len(records) == 1 and not (due or meta or any(writes.ranges)):
                # As nearly always; a batch of one takes half as long again.
                ((key, value),) = records.items()
                if value is not None:
                    self._families[STATE].put(key, value)
                    return
            self._db.write(self._batch(writes))
        except Exception as error:
            raise self._store_error(error) from error

    def _batch(self, writes: WriteBatch) -> Any:
        batch = self._rocks.WriteBatch(raw_mode=True)
        for family, ranges in enumerate(writes.ranges):
            for start, stop in ranges.items():
                batch.delete_range(start, stop, self._handles[family])
        for handle, points in zip(self._handles, writes.points, strict=True):
            for key, value in points.items():
                if value is None:
                    batch.delete(key, handle)
                else:
                    batch.put(key, value, handle)
        return batch

    def get(self, family: int, key: bytes) -> bytes | None:
        """The value of a key.

        Raises:
            StateDamagedError: The bytes where it is are damaged.
            StoreError: It cannot be read.
        """
        try:
            value: bytes | None = self._families[family].get(key)
        except Exception as error:
            raise self._store_error(error) from error
        return value

    def scan(
        self, family: int, start: bytes = b"", stop: bytes = b"", *, backwards: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start` up to `stop`, in order; close it if it is not read to the
        end.

        Raises:
            StateDamagedError: What comes next is damaged.
            StoreError: It cannot be read.
        """
        options = self._rocks.ReadOptions()
        options.set_readahead_size(_READ_AHEAD_BYTES)
        if stop:  # rocksdict 0.3.29 takes a lower bound for an upper one
            options.set_iterate_upper_bound(stop)
        rows: Any = None
        try:
            rows = self._families[family].iter(options)
            if backwards:
                rows.seek_to_last()
            else:
                rows.seek(start)
            while rows.valid():
                key = rows.key()
                if key < start:
                    break
                yield key, rows.value()
                if backwards:
                    rows.prev()
                else:
                    rows.next()
            rows.status()  # it ends for damage as it does at the end
        except Exception as error:
            raise self._store_error(error) from error
        finally:
            rows = None  # an error keeps this frame, and with it the lock

    @property
    def sequence(self) -> int:
        """Writes so far, over all lives of the directory.

        Raises:
            StoreError: It is closed.
        """
        if self._db is None:
            raise StoreError(f"the state in {self.path} is closed")
        return int(self._db.latest_sequence_number())

    def sync(self) -> None:
        """What was written is on the platters. Other threads run meanwhile, and may write.

        Raises:
            StoreError: It is not.
        """
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise self._store_error(error) from error

    def flush(self) -> None:
        """Have all in tables, so that no log is replayed next time. Takes a while, for which other
        threads run.

        Raises:
            StoreError: It failed; the log has it all.
        """
        try:
            for family in self._families:
                family.flush(True)
        except Exception as error:
            raise self._store_error(error) from error

    @property
    def writable(self) -> bool:
        """It is open, and not for reading only."""
        return self._db is not None and not self.read_only

    def _store_error(self, error: Exception) -> Exception:
        return _to_store_error(error, self.path, self._opened_at)

    def close(self, *, failed: bool = False) -> None:
        """Give the lock back. What was written is in the log.

        Args:
            failed: Writes failed. After a full disk RocksDB looks for room each second, and closing
                would wait for that.
        """
        if failed and self._db is not None:
            with suppress(Exception):
                self._db.cancel_all_background(False)
        self._families.clear()
        self._handles.clear()
        if self._db is None:
            return
        try:
            self._db.close()
        except Exception as error:  # of a write that failed before, and whoever made it was told
            if not failed:
                logger.error("closing the state in %s: %s", self.path, error)
        self._db = None


def _tracking_options(rocks: Any, path: Path) -> Any:
    """Options with which RocksDB notices that a log other than the last is missing or cut.

    rocksdict 0.3.29 has no setter for that option, but reads it from a file of options. RocksDB
    9.8.4 crashes if a database that was written with the option is read without it.
    """
    failure: OSError | None = None
    for where in (None, MEMORY, path.parent):  # the disk of temporary files may be full
        try:
            with tempfile.TemporaryDirectory(dir=where) as made:
                (Path(made) / "OPTIONS-000001").write_text(_TRACKING_OPTIONS, encoding="ascii")
                (Path(made) / CONFIG).write_text(_RAW_MODE_CONFIG, encoding="ascii")
                options, _ = rocks.Options.load_latest(made)
                return options
        except OSError as error:
            failure = failure or error
    raise StoreError(f"the state in {path} needs a temporary directory to be opened: {failure}")


def _to_store_error(error: Exception, path: Path, opened_at: Path | None = None) -> Exception:
    text = str(error)
    if opened_at is not None:
        text = text.replace(str(opened_at), str(path))
    if "lock hold by current process" in text or "While lock file" in text:
        return StateInUseError(f"the state in {path} is open already")
    if "Corruption:" in text or "No such file" in text:  # a file that others name is gone
        return StateDamagedError(f"the state in {path} is damaged ({text}). {NOTHING_DELETED}")
    if text.startswith("Invalid argument"):
        return UnknownContentError(f"{path} is no state directory of this package ({text})")
    return StoreError(f"the state in {path}: {advised(text)}")
