"""`DirectoryBlobs`: blobs, journals and the manifest as files of one directory.

A blob or manifest is written under another name, synced and renamed, so it exists completely or not
at all. Each segment has a CRC-32, which is checked at every read. Only the holder of the lock on
the file `owner` writes here (see `DirectoryLock`).
"""

from __future__ import annotations

import os
import re
import socket
import struct
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from ...errors import (
    ConfigurationError,
    ForkedError,
    NotSupportedError,
    StateDamagedError,
    StateFormatError,
    StateInUseError,
    StoreError,
)
from ..directory_advice import advised
from ..directory_lock import DirectoryLock
from ..little_endian import from_bytes, to_bytes

_MAGIC: Final = b"PEBLOB"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<6sH")
# Number of segments, bytes of the meta, CRC of the meta, CRC of the index. A CRC of these four
# follows.
_FOOTER: Final = struct.Struct("<IIII")
_FOOTER_SIZE: Final = _FOOTER.size + 4
_BLOB: Final = re.compile(r"blob-(\d{1,19})\Z")
_JOURNAL: Final = re.compile(r"journal-(\d{1,19})\Z")
_UNFINISHED: Final = ".unfinished"
_MAX_OPEN_FILES: Final = 16


@dataclass(frozen=True, slots=True)
class _Table:
    """Offsets and checksums of the segments of a blob."""

    ends: array[int]
    sums: array[int]
    meta_size: int
    meta_sum: int
    size: int


class DirectoryBlobs:
    """A `BlobStore` in a directory. Its methods raise as those of `BlobStore` do.

    Args:
        path: The directory. `open` creates it if it is missing, and leaves unknown files alone.

    Raises:
        ConfigurationError: if `path` is not a path.

    Example:
        Keep a due index that survives the process::

            index = SpillingIndex(DirectoryBlobs("/var/lib/orders/due"))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        given: object = path
        if not isinstance(given, (str, os.PathLike)) or not str(given) or "\0" in str(given):
            raise ConfigurationError(
                f"DirectoryBlobs needs the path of a directory, without NUL, got {path!r}"
            )
        self._path = Path(path)
        self._pid = os.getpid()
        self._tables: dict[int, _Table] = {}
        self._files: OrderedDict[int, int] = OrderedDict()  # open blobs, least recently used first
        self._journal: tuple[int, int, int] | None = None  # number, file, bytes of complete records
        # Journals that end in a partial record, and the offset of that record.
        self._torn: dict[int, int] = {}
        self._blob_lock = Lock()  # protects open blobs: several threads read them
        # Protects the journal. A lock of its own, so that appends never wait for reads of blobs.
        self._journal_lock = Lock()
        self._lock: DirectoryLock | None = None

    def __repr__(self) -> str:
        return f"DirectoryBlobs({str(self._path)!r})"

    # The owner

    def open(self) -> None:
        """Take ownership of the directory.

        Raises:
            StateInUseError: if another process, or this one, has the directory open. The text names
                it.
            StoreError: if the directory cannot be opened.
            NotSupportedError: if the system has no `os.pread`.
        """
        self._pid = os.getpid()
        with self._store_errors("open"):
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock = self._acquire_lock()

    def _acquire_lock(self) -> DirectoryLock:
        path = self._path / "owner"
        if not hasattr(os, "pread"):
            raise NotSupportedError("DirectoryBlobs is not supported on this system: no os.pread")
        identity = f"process {self._pid} on {socket.gethostname()}"
        try:
            lock = DirectoryLock(path)
        except StateInUseError as error:
            owner = ""
            with suppress(OSError):
                owner = path.read_text(encoding="utf-8", errors="replace")[:400].strip()
            if owner == identity:
                raise StateInUseError(
                    f"{self._path} is in use by this process, {self._pid}; close that store first"
                ) from error
            raise StateInUseError(
                f"{self._path} is in use by {owner or 'another process'}; end that, or use "
                "another directory"
            ) from error
        with suppress(
            OSError
        ):  # a full disk can still be read; only the owner's name is missing then
            os.ftruncate(lock.file, 0)
            os.pwrite(lock.file, f"{identity}\n".encode(), 0)
        return lock

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"{self._path} was opened by the parent of this process")
        if self._lock is None:
            raise StoreError(f"{self._path} is not open")

    def close(self) -> None:
        """Release the directory. A second call does nothing."""
        if self._lock is None or os.getpid() != self._pid:
            return
        with self._blob_lock, self._journal_lock:
            for file in self._files.values():
                os.close(file)
            self._files.clear()
            self._tables.clear()  # the next owner may write other blobs with the same names
            self._close_journal()
            self._torn.clear()
            self._lock.release()
            self._lock = None

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    # Blobs

    def create(self, generation: int) -> _Writer:
        """Begin a blob."""
        self._check_open()
        with self._blob_lock:
            self._close_blob(generation)
        with self._store_errors("write"):
            return _Writer(self._path, f"blob-{generation}")

    def meta(self, generation: int) -> bytes:
        """Return the bytes that a blob was committed with."""
        index = self._table(generation)
        start = index.ends[-1] if index.ends else _HEADER.size
        return self._read(generation, start, index.meta_size, index.meta_sum, "meta")

    def segment(self, generation: int, number: int) -> bytes:
        """Return one segment of a blob."""
        index = self._table(generation)
        if not 0 <= number < len(index.ends):
            raise StateDamagedError(f"blob {generation} of {self._path} has no segment {number}")
        start = index.ends[number - 1] if number else _HEADER.size
        size = index.ends[number] - start
        return self._read(generation, start, size, index.sums[number], f"segment {number}")

    def size(self, generation: int) -> int:
        """Return the size of a blob in bytes."""
        return self._table(generation).size

    def delete(self, generation: int) -> None:
        """Remove a blob, if it exists."""
        self._check_open()
        with self._blob_lock:
            self._close_blob(generation)
        self._unlink(f"blob-{generation}")

    def _close_blob(self, generation: int) -> None:
        self._tables.pop(generation, None)
        file = self._files.pop(generation, None)
        if file is not None:
            os.close(file)

    def generations(self) -> list[int]:
        """Return the generations of all blobs, ascending, and remove unfinished files."""
        return self._list_numbers(_BLOB)

    def _table(self, generation: int) -> _Table:
        with self._blob_lock:
            index = self._tables.get(generation)
            if index is None:
                index = self._tables[generation] = self._read_table(generation)
            return index

    def _read_table(self, generation: int) -> _Table:
        name = f"blob {generation} of {self._path}"
        with self._store_errors("read"):
            file = self._open(generation)
            size = os.fstat(file).st_size
            magic, version = _HEADER.unpack(
                os.pread(file, _HEADER.size, 0).ljust(_HEADER.size, b"\0")
            )
            if magic != _MAGIC:
                raise StateFormatError(f"{name} is not a blob")
            if version != _VERSION:
                raise StateFormatError(f"{name} has version {version}, this reads {_VERSION}")
            footer = os.pread(file, _FOOTER_SIZE, max(size - _FOOTER_SIZE, 0))
            if len(footer) < _FOOTER_SIZE or zlib.crc32(footer[:-4]) != int.from_bytes(
                footer[-4:], "little"
            ):
                raise StateDamagedError(f"{name} is not whole: its last bytes are not its end")
            count, meta_size, meta_sum, index_sum = _FOOTER.unpack_from(footer)
            start = size - _FOOTER_SIZE - 8 * count
            data = os.pread(file, 8 * count, max(start, 0))
        if len(data) != 8 * count or zlib.crc32(data) != index_sum:
            raise StateDamagedError(f"{name}: the index of its segments is corrupted")
        ends, sums = array("Q"), from_bytes("I", data[4 * count :])
        end = _HEADER.size
        for each in from_bytes("I", data[: 4 * count]):
            end += each
            ends.append(end)
        if end + meta_size != start:
            raise StateDamagedError(f"{name} is not as long as its index says")
        return _Table(ends, sums, meta_size, meta_sum, size)

    def _open(self, generation: int) -> int:
        file = self._files.get(generation)
        if file is not None:
            self._files.move_to_end(generation)
            return file
        self._check_open()
        try:
            file = os.open(self._path / f"blob-{generation}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise StateDamagedError(f"blob {generation} is not in {self._path}") from error
        self._files[generation] = file
        while len(self._files) > _MAX_OPEN_FILES:
            os.close(self._files.popitem(last=False)[1])
        return file

    def _read(self, generation: int, start: int, size: int, expected: int, what: str) -> bytes:
        with self._store_errors("read"), self._blob_lock:
            data = os.pread(self._open(generation), size, start)
        if len(data) != size or zlib.crc32(data) != expected:
            raise StateDamagedError(f"{what} of blob {generation} of {self._path} is corrupted")
        return data

    # The manifest

    def read_manifest(self) -> bytes | None:
        """Return the manifest, or None if none was ever written."""
        self._check_open()
        with self._store_errors("read"), suppress(FileNotFoundError):
            return (self._path / "manifest").read_bytes()
        return None

    def write_manifest(self, data: bytes, *, sync: bool) -> None:
        """Replace the manifest."""
        self._check_open()
        with self._store_errors("write"), closing(_Unfinished(self._path, "manifest")) as file:
            file.write(data)
            file.finish(sync=sync)

    # Journals

    def append(self, journal: int, data: bytes, *, sync: bool) -> None:
        """Append bytes to a journal, all of them or none."""
        try:
            if not data:
                self._sync_journal(journal)
                return
            if self._journal is None or self._journal[0] != journal:
                self._open_journal(journal)
            assert self._journal is not None
            _, file, size = self._journal
            if os.getpid() != self._pid:
                self._check_open()
            if self._torn:
                self._truncate_journal()
            try:
                written = os.write(file, data)
                if written != len(data):
                    written += _write_all(file, memoryview(data)[written:])
                if sync:
                    os.fsync(file)
            except OSError:
                self._torn[journal] = size
                with suppress(OSError):
                    self._truncate_journal()
                raise
            self._journal = (journal, file, size + written)
        except OSError as error:
            raise self._store_error("write", error) from error

    def _sync_journal(self, journal: int) -> None:
        self._check_open()
        try:
            file = os.open(self._path / f"journal-{journal}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # a snapshot has replaced the journal
            return
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def _open_journal(self, journal: int) -> None:
        self._check_open()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with self._journal_lock:
            self._close_journal()
            file = os.open(self._path / f"journal-{journal}", flags, 0o644)
            try:
                size = self._torn.get(journal, os.fstat(file).st_size)
                _sync_directory(self._path)
            except BaseException:  # otherwise the next try would not sync the directory
                os.close(file)
                raise
            self._journal = (journal, file, size)

    def _close_journal(self) -> None:
        if self._journal is not None:
            if self._torn:
                with suppress(OSError):
                    self._truncate_journal()
            os.close(self._journal[1])
            self._journal = None

    def _truncate_journal(self) -> None:
        """Cut off a partly written record. Records appended after it could not be read."""
        if self._journal is not None and self._journal[0] in self._torn:
            number, file, size = self._journal
            os.ftruncate(file, size)
            del self._torn[number]

    def read_journal(self, journal: int) -> bytes:
        """Return all bytes of a journal."""
        self._check_open()
        with self._store_errors("read"):
            return (self._path / f"journal-{journal}").read_bytes()

    def delete_journal(self, journal: int) -> None:
        """Remove a journal, if it exists."""
        self._check_open()
        with self._journal_lock:
            if self._journal is not None and self._journal[0] == journal:
                self._close_journal()
            self._torn.pop(journal, None)
        self._unlink(f"journal-{journal}")

    def journals(self) -> list[int]:
        """Return the numbers of all journals, ascending."""
        return self._list_numbers(_JOURNAL)

    # Files

    def _list_numbers(self, pattern: re.Pattern[str]) -> list[int]:
        self._check_open()
        with self._store_errors("read"):
            names = os.listdir(self._path)
            for name in names:
                if name.endswith(_UNFINISHED):
                    (self._path / name).unlink(missing_ok=True)
        return sorted(int(found[1]) for name in names if (found := pattern.match(name)))

    def _unlink(self, name: str) -> None:
        with self._store_errors("remove from"):
            (self._path / name).unlink(missing_ok=True)

    @contextmanager
    def _store_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._store_error(what, error) from error

    def _store_error(self, what: str, error: OSError) -> StoreError:
        return StoreError(f"could not {what} {self._path}: {advised(error)}")


class _Unfinished:
    """A file that has a temporary name until it is complete."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._final = directory / name
        self._path = directory / (name + _UNFINISHED)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o644)

    def write(self, data: bytes) -> None:
        _write_all(self._file, memoryview(data))

    def finish(self, *, sync: bool) -> None:
        if sync:
            os.fsync(self._file)
        os.rename(self._path, self._final)
        self._path = self._final
        if sync:
            _sync_directory(self._directory)

    def close(self) -> None:
        if self._file < 0:
            return
        with suppress(OSError):
            os.close(self._file)
        self._file = -1
        if self._path != self._final:
            with suppress(OSError):
                self._path.unlink()


class _Writer:
    def __init__(self, directory: Path, name: str) -> None:
        self._name = f"{name} of {directory}"
        self._file = _Unfinished(directory, name)
        self._sizes = array("I")
        self._sums = array("I")
        self._write(_HEADER.pack(_MAGIC, _VERSION))

    def append(self, segment: bytes) -> None:
        self._write(segment)
        self._sizes.append(len(segment))
        self._sums.append(zlib.crc32(segment))

    def commit(self, meta: bytes, *, sync: bool) -> None:
        index = to_bytes(self._sizes) + to_bytes(self._sums)
        footer = _FOOTER.pack(len(self._sizes), len(meta), zlib.crc32(meta), zlib.crc32(index))
        self._write(b"".join((meta, index, footer, zlib.crc32(footer).to_bytes(4, "little"))))
        try:
            self._file.finish(sync=sync)
        except OSError as error:
            raise self._store_error(error) from error
        finally:
            self._file.close()

    def abort(self) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            self._file.close()
            raise self._store_error(error) from error

    def _store_error(self, error: OSError) -> StoreError:
        return StoreError(f"could not write {self._name}: {error.strerror or error}")


def _write_all(file: int, data: memoryview) -> int:
    size = len(data)
    while data:
        data = data[os.write(file, data) :]
    return size


def _sync_directory(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
