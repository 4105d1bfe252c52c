"""`Database`: a thin layer over RocksDB, and the only module that imports `rocksdict`.

rocksdict raises plain `Exception`s; they become errors of this package by their text. `keys()` of
rocksdict just ends at corruption, so `scan` checks the status. `close` drops every iterator and
handle, because each would keep RocksDB's lock.

In rocksdict 0.3.29, `write` holds the GIL for its whole duration, including an fsync (measured).
Writes therefore never sync. `flush` and `flush_wal` release the GIL.
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
# After a kill, a log of this size is replayed in less than a second.
_MAX_LOG_BYTES: Final = 32 * 2**20
# High enough that a compaction on one busy core finishes before writers are slowed or stopped.
_SLOWDOWN_TRIGGER: Final = 40
_STOP_TRIGGER: Final = 80
NOTHING_DELETED: Final = (
    "Nothing was deleted. The broker redelivers every unacked message, with lower counts: "
    "RocksState(path, salvage=True) keeps the records that can be read, and an empty directory "
    "starts from nothing"
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


# The process that first used RocksDB. In a forked child, a flush would wait for ever for threads
# that exist only in this process.
_first_pid: Final[list[int]] = []


def library() -> Any:
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
    """Nothing shows that this is a state directory; perhaps that part of it is corrupted."""


def repair(path: Path) -> None:
    rocks = library()
    options = rocks.Options(raw_mode=True)
    options.create_if_missing(True)
    try:
        rocks.Rdict.repair(str(path), options)
    except Exception as error:
        raise _to_store_error(error, path) from error


def is_unfinished(path: Path) -> bool:
    """Return whether a process was killed while it made the database in `path`.

    RocksDB creates the column families of a new database one after the other, with an fsync each,
    and writes its options last. `Database` can open one that lacks families for writing only. A
    database that another program has finished is not taken for one of these.
    """
    rocks = library()
    try:
        if any(path.glob("OPTIONS-*")) or any(path.glob("*.sst")):
            return False
        if any(log.stat().st_size for log in path.glob("*.log")):
            return False
        with linked_copy(path) as opened_at:
            options = _tracking_options(rocks, path)
            if not set(rocks.Rdict.list_cf(str(opened_at), options)) <= {"default", *FAMILIES}:
                return False
            access = rocks.AccessType.read_only(False)
            database = rocks.Rdict(str(opened_at), options, {}, access)
    except Exception as error:
        logger.debug("%s cannot be read: %s", path, error)
        return False
    try:
        return bool(database.latest_sequence_number() == 0)
    finally:
        database.close()


class Database:
    """RocksDB in one directory.

    Args:
        read_only: Open without a lock and without writing there, even while an owner uses the
            database. Sees the data of that moment.
        salvage: Open even if the end of the log is corrupted.
        logs: If False, open the tables only; needs `read_only`.
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
        # There is only one writing thread.
        options.set_allow_concurrent_memtable_write(False)
        options.set_compression_type(rocks.DBCompressionType.lz4())
        blocks = rocks.BlockBasedOptions()
        blocks.set_block_cache(rocks.Cache(_CACHE_BYTES))
        if family == FAMILIES[STATE]:
            blocks.set_bloom_filter(10, False)
        options.set_block_based_table_factory(blocks)
        return options

    def write(self, writes: WriteBatch) -> None:
        """Write a batch to the log, all or nothing, without an fsync.

        If this raises StoreError, the batch may have been written.
        """
        # A traceback keeps this frame alive, and a RocksDB batch in a local variable here would
        # keep the lock. So `_batch` builds it.
        try:
            due, records, meta = writes.points
            if len(records) == 1 and not (due or meta or any(writes.ranges)):
                # The most common write. A batch with one operation takes 1.5 times as long.
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
        try:
            value: bytes | None = self._families[family].get(key)
        except Exception as error:
            raise self._store_error(error) from error
        return value

    def scan(
        self, family: int, start: bytes = b"", stop: bytes = b"", *, backwards: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys and values from `start` up to `stop`. Close it to end early."""
        options = self._rocks.ReadOptions()
        options.set_readahead_size(_READ_AHEAD_BYTES)
        if stop:  # no lower bound: rocksdict 0.3.29 takes it for an upper one
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
            rows.status()  # raises if corruption ended the scan
        except Exception as error:
            raise self._store_error(error) from error
        finally:
            rows = None  # a traceback keeps this frame alive, and the iterator the lock

    @property
    def sequence(self) -> int:
        """The number of writes since the directory was created."""
        if self._db is None:
            raise StoreError(f"the state in {self.path} is closed")
        return int(self._db.latest_sequence_number())

    def sync(self) -> None:
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise self._store_error(error) from error

    def flush(self) -> None:
        """Write everything to tables, so that the next open replays no log."""
        try:
            for family in self._families:
                family.flush(True)
        except Exception as error:
            raise self._store_error(error) from error

    @property
    def writable(self) -> bool:
        return self._db is not None and not self.read_only

    def _store_error(self, error: Exception) -> Exception:
        return _to_store_error(error, self.path, self._opened_at)

    def close(self, *, failed: bool = False) -> None:
        """Close the database and release its lock. The log keeps all writes.

        Pass `failed` after a failed write: on a full disk, RocksDB checks for space every second,
        and closing would wait for that.
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
        except Exception as error:  # repeats the error of an earlier write
            if not failed:
                logger.error("closing the state in %s: %s", self.path, error)
        self._db = None


def _tracking_options(rocks: Any, path: Path) -> Any:
    """Return options with which RocksDB notices a missing or shortened log before the last one.

    rocksdict 0.3.29 has no setter, but reads the option from a file. RocksDB 9.8.4 crashes if a
    database written with the option is opened without it.
    """
    failure: OSError | None = None
    for where in (None, MEMORY, path.parent):  # any of these disks may be full
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
    if "Corruption:" in text or "No such file" in text:  # a file that another one refers to
        return StateDamagedError(f"the state in {path} is damaged ({text}). {NOTHING_DELETED}")
    if text.startswith("Invalid argument"):
        return UnknownContentError(f"{path} is no state directory of this package ({text})")
    return StoreError(f"the state in {path}: {advised(text)}")
