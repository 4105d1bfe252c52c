"""`RocksBlobs`: a `BlobStore` in RocksDB, for a spilling index without many files.

The first byte of a key is its kind: ``b`` the meta of a blob, by generation; ``s`` segments, by
generation, attempt and number; ``j`` parts of journals; ``m`` the manifest. A blob exists once its
``b`` row does. That row names the attempt that wrote the segments, so a blob that is written again
is the old one or the new one. Checksums are RocksDB's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import Final

from pulsar_encore.errors import (
    ClosedError,
    ForkedError,
    StateDamagedError,
    StateFormatError,
    StateInUseError,
    StoreError,
)

from ..directory_advice import advised
from ..directory_lock import LOCK_FILE, DirectoryLock
from .completeness import check_complete
from .database import NOTHING_DELETED, Database, UnknownContentError
from .disk_space import check_free_space
from .owner_file import Owner, locked, read_owner, write_owner
from .store_keys import FORMAT_KEY
from .write_batch import META, WriteBatch

logger: logging.Logger = logging.getLogger(__name__)

_FORMAT: Final = b"pulsar-encore blobs 1"
_FORMAT_KEY: Final = b"f"
_MANIFEST: Final = b"m"
_BLOB: Final = Struct(">cQ")
_SEGMENT: Final = Struct(">cQII")
_JOURNAL_PART: Final = Struct(">cQQ")
_HEAD: Final = Struct(">IIQ")  # attempt, segments, bytes of them
_MAX_U64: Final = (1 << 64) - 1
_MAX_SEGMENT: Final = (1 << 32) - 1


class RocksBlobs:
    """A `BlobStore` in a directory of its own. Needs the extra `state`.

    Example:
        Keep a due index in RocksDB::

            index = SpillingIndex(RocksBlobs("/var/lib/orders/due"))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).resolve()
        self._database: Database | None = None
        self._owner: Owner | None = None
        self._lock: DirectoryLock | None = None
        self._pid = os.getpid()
        self._reopen_lock = threading.Lock()
        self._attempts: dict[int, int] = {}
        self._next_parts: dict[int, int] = {}

    def open(self) -> None:
        if self._database is not None:
            raise StateInUseError(f"the blobs in {self._path} are open already")
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            names = {each.name for each in self._path.iterdir()}
        except OSError as error:
            raise StoreError(f"the blobs in {self._path}: {error}") from error
        if names and not names & {"db", "owner.json", LOCK_FILE}:
            raise StateFormatError(f"{self._path} holds something else: name another directory")
        try:
            lock = DirectoryLock(self._path / LOCK_FILE)
            try:
                self._open_database()
            except BaseException:
                self._close_database()
                lock.release()
                raise
        except StateInUseError as error:
            owner = read_owner(self._path) or "another process"
            raise StateInUseError(f"the blobs in {self._path} belong to {owner}") from error
        except StateDamagedError as error:  # the text is for `RocksState`, which can be salvaged
            text = str(error).replace(NOTHING_DELETED, "Nothing was deleted. Restore a backup, ")
            raise StateDamagedError(f"{text}or use an empty directory") from error
        self._lock = lock

    def _close_database(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _open_database(self) -> None:
        before = read_owner(self._path)
        with locked(self._path / "db"):
            check_complete(self._path, before, _check_format)
        self._database = database = Database(self._path / "db")
        if not _check_format(database):
            self._put(_FORMAT_KEY, _FORMAT)
        self._attempts.clear()
        self._next_parts.clear()
        self._pid = os.getpid()
        epoch = 1 if before is None else before.epoch + 1
        database.sync()  # a loss of power must not leave fewer writes than the owner file says
        self._owner = Owner.here(int(time.time() * 1000), epoch, database.sequence)
        try:
            write_owner(self._path, self._owner)
        except OSError as error:
            raise StoreError(f"the blobs in {self._path}: {advised(error)}") from error

    def create(self, generation: int) -> _Writer:
        attempt = self._attempts.get(generation)
        if attempt is None:
            head = self._db.get(META, _BLOB.pack(b"b", generation))
            attempt = _HEAD.unpack_from(head)[0] if head is not None else 0
        self._attempts[generation] = attempt = attempt + 1 & _MAX_SEGMENT
        return _Writer(self, generation, attempt)

    def meta(self, generation: int) -> bytes:
        return self._head(generation)[_HEAD.size :]

    def segment(self, generation: int, number: int) -> bytes:
        attempt = _HEAD.unpack_from(self._head(generation))[0]
        data = None
        if 0 <= number <= _MAX_SEGMENT:
            data = self._db.get(META, _SEGMENT.pack(b"s", generation, attempt, number))
        if data is None:
            raise StateDamagedError(f"blob {generation} has no segment {number}")
        return data

    def size(self, generation: int) -> int:
        head = self._head(generation)
        return len(head) + int(_HEAD.unpack_from(head)[2])

    def delete(self, generation: int) -> None:
        writes = WriteBatch()
        writes.delete(META, _BLOB.pack(b"b", generation))
        writes.delete_range(META, *_segments(generation))
        self._write(writes)

    def generations(self) -> list[int]:
        heads = self._db.scan(META, b"b", b"c")
        attempts = {_BLOB.unpack(key)[1]: _HEAD.unpack_from(value)[0] for key, value in heads}
        orphans = WriteBatch()
        for key, _ in self._db.scan(META, b"s", b"t"):
            _, generation, attempt, _ = _SEGMENT.unpack(key)
            if attempts.get(generation) != attempt and generation not in self._attempts:
                orphans.delete(META, key)
        if len(orphans):
            self._write(orphans)
        return sorted(attempts)

    def read_manifest(self) -> bytes | None:
        return self._db.get(META, _MANIFEST)

    def write_manifest(self, data: bytes, *, sync: bool) -> None:
        self._put(_MANIFEST, data, sync=sync)

    def append(self, journal: int, data: bytes, *, sync: bool) -> None:
        if data:
            number = self._next_parts.get(journal)
            if number is None:
                number = self._next_parts[journal] = self._last_part(journal) + 1
            # A failed part may be on disk. The next one has the same number, and replaces it.
            self._put(_JOURNAL_PART.pack(b"j", journal, number), data, sync=sync)
            self._next_parts[journal] = number + 1
        elif sync:
            self._write(WriteBatch(), sync=True)

    def read_journal(self, journal: int) -> bytes:
        parts = list(self._db.scan(META, *_journal(journal)))
        if not parts:
            raise StateDamagedError(f"there is no journal {journal}")
        for number, (key, _) in enumerate(parts):
            if _JOURNAL_PART.unpack(key)[2] != number:
                raise StateDamagedError(f"piece {number} of journal {journal} is missing")
        return b"".join(data for _, data in parts)

    def delete_journal(self, journal: int) -> None:
        writes = WriteBatch()
        writes.delete_range(META, *_journal(journal))
        self._write(writes)
        self._next_parts.pop(journal, None)

    def journals(self) -> list[int]:
        return sorted({_JOURNAL_PART.unpack(key)[1] for key, _ in self._db.scan(META, b"j", b"k")})

    def close(self) -> None:
        if os.getpid() != self._pid:  # a child must not write to its parent's files
            return
        with self._reopen_lock:
            database, self._database = self._database, None
        if database is None:
            return
        try:
            if self._owner is not None:
                database.sync()  # before the owner file names the number of writes
                write_owner(
                    self._path, replace(self._owner, sequence=database.sequence, closed=True)
                )
        except OSError as error:
            raise StoreError(f"the blobs in {self._path} were closed, but: {error}") from error
        finally:
            database.close()
            if self._lock is not None:
                self._lock.release()

    @property
    def _db(self) -> Database:
        if self._database is None:
            raise ClosedError(f"the blobs in {self._path} are closed")
        if os.getpid() != self._pid:
            raise ForkedError(f"the parent of this process opened the blobs in {self._path}")
        return self._database

    def _head(self, generation: int) -> bytes:
        head = self._db.get(META, _BLOB.pack(b"b", generation))
        if head is None:
            raise StateDamagedError(f"there is no blob {generation}")
        return head

    def _put(self, key: bytes, value: bytes, *, sync: bool = False) -> None:
        writes = WriteBatch()
        writes.put(META, key, value)
        self._write(writes, sync=sync)

    def _write(self, writes: WriteBatch, *, sync: bool = False) -> None:
        database = self._db
        try:
            self._write_once(writes, sync)
        except StoreError:
            self._reopen(database)
            self._write_once(writes, sync)

    def _write_once(self, writes: WriteBatch, sync: bool) -> None:
        if writes:
            self._db.write(writes)
        if sync:
            self._db.sync()

    def _reopen(self, failed: Database) -> None:
        """Reopen the database: after a failed write or fsync, RocksDB accepts no more writes.

        This replaces the fsync, too: RocksDB replays its log into tables and syncs those. A second
        fsync of the log would prove nothing (see `fsync_thread`). The database can be read even if
        this fails.
        """
        folder = self._path / "db"
        with self._reopen_lock:
            if self._database is not failed:  # another thread was faster
                return
            check_free_space(folder)
            failed.close(failed=True)
            try:
                self._database = Database(folder)
            except StoreError:
                with suppress(StoreError):
                    self._database = Database(folder, read_only=True)
                raise
            logger.warning("the blobs in %s were reopened after a failed write", self._path)

    def _last_part(self, journal: int) -> int:
        last = -1
        for key, _ in self._db.scan(META, *_journal(journal)):
            last = _JOURNAL_PART.unpack(key)[2]
        return last

    # For writers

    def put_segment(self, generation: int, attempt: int, number: int, data: bytes) -> None:
        self._put(_SEGMENT.pack(b"s", generation, attempt, number), data)

    def commit_blob(
        self, generation: int, attempt: int, count: int, size: int, meta: bytes, sync: bool
    ) -> None:
        writes = WriteBatch()
        start, stop = _segments(generation)
        first, after = _segments_of_attempt(generation, attempt)
        writes.delete_range(META, start, first)
        writes.delete_range(META, after, stop)
        writes.put(META, _BLOB.pack(b"b", generation), _HEAD.pack(attempt, count, size) + meta)
        self._write(writes, sync=sync)

    def drop_attempt(self, generation: int, attempt: int) -> None:
        """Delete the segments of an attempt, unless it is committed.

        If `commit` failed in its fsync, the blob may be committed.
        """
        if self._database is None:
            return
        try:
            if _HEAD.unpack_from(self._head(generation))[0] == attempt:
                return
        except StateDamagedError:
            pass  # there is no committed blob
        except StoreError:
            return
        writes = WriteBatch()
        writes.delete_range(META, *_segments_of_attempt(generation, attempt))
        with suppress(StoreError):  # after a restart, `generations` removes the segments
            self._write(writes)


class _Writer:
    def __init__(self, blobs: RocksBlobs, generation: int, attempt: int) -> None:
        self._blobs = blobs
        self._generation = generation
        self._attempt = attempt
        self._count = 0
        self._size = 0
        self._ended = False

    def append(self, segment: bytes) -> None:
        self._blobs.put_segment(self._generation, self._attempt, self._count, segment)
        self._count += 1
        self._size += len(segment)

    def commit(self, meta: bytes, *, sync: bool) -> None:
        self._blobs.commit_blob(
            self._generation, self._attempt, self._count, self._size, meta, sync
        )
        self._ended = True

    def abort(self) -> None:
        if not self._ended:
            self._ended = True
            self._blobs.drop_attempt(self._generation, self._attempt)


def _check_format(database: Database) -> bool:
    """Return False if the database is empty, and raise if it has other data."""
    found = database.get(META, _FORMAT_KEY)
    if found is None:
        rows = database.scan(META)
        if next(rows, None) is not None:
            rows.close()  # type: ignore[attr-defined]
            other = database.get(META, FORMAT_KEY) is not None
            kind = StateFormatError if other else UnknownContentError
            raise kind(f"{database.path} holds something else than blobs")
    elif found != _FORMAT:
        raise StateFormatError(f"the blobs in {database.path} have another version: {found[:40]!r}")
    return found is not None


def _segments(generation: int) -> tuple[bytes, bytes]:
    return _BLOB.pack(b"s", generation), _BLOB.pack(b"s", generation) + b"\xff" * 9


def _segments_of_attempt(generation: int, attempt: int) -> tuple[bytes, bytes]:
    first = _SEGMENT.pack(b"s", generation, attempt, 0)
    return first, _SEGMENT.pack(b"s", generation, attempt, _MAX_SEGMENT) + b"\0"


def _journal(journal: int) -> tuple[bytes, bytes]:
    return _JOURNAL_PART.pack(b"j", journal, 0), _JOURNAL_PART.pack(b"j", journal, _MAX_U64) + b"\0"
