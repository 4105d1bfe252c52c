"""`MemoryBlobs`: a store in memory, for tests and experiments."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import StateDamagedError


@dataclass(slots=True)
class _Blob:
    segments: list[bytes] = field(default_factory=list)
    meta: bytes = b""


class MemoryBlobs:
    """A `BlobStore` in memory. It can be closed and opened again.

    Methods raise `StateDamagedError` for a blob, a segment or a journal that is missing.

    Example:
        Try out a due index without a disk::

            index = SpillingIndex(MemoryBlobs())
    """

    def __init__(self) -> None:
        self._blobs: dict[int, _Blob] = {}
        self._journals: dict[int, bytearray] = {}
        self._manifest: bytes | None = None

    def open(self) -> None:
        """Do nothing: the owner of the object owns the store."""

    def create(self, generation: int) -> _Writer:
        """Begin a blob."""
        return _Writer(self._blobs, generation)

    def meta(self, generation: int) -> bytes:
        """Return the bytes that a blob was committed with."""
        return self._find(generation).meta

    def segment(self, generation: int, number: int) -> bytes:
        """Return one segment of a blob."""
        segments = self._find(generation).segments
        if not 0 <= number < len(segments):
            raise StateDamagedError(f"blob {generation} has no segment {number}")
        return segments[number]

    def size(self, generation: int) -> int:
        """Return the size of a blob in bytes."""
        blob = self._find(generation)
        return sum(map(len, blob.segments)) + len(blob.meta)

    def delete(self, generation: int) -> None:
        """Remove a blob, if it exists."""
        self._blobs.pop(generation, None)

    def generations(self) -> list[int]:
        """Return the generations of all blobs, ascending."""
        return sorted(self._blobs)

    def read_manifest(self) -> bytes | None:
        """Return the manifest, or None if none was ever written."""
        return self._manifest

    def write_manifest(self, data: bytes, *, sync: bool) -> None:
        """Replace the manifest."""
        self._manifest = data

    def append(self, journal: int, data: bytes, *, sync: bool) -> None:
        """Append bytes to a journal."""
        if data:
            self._journals.setdefault(journal, bytearray()).extend(data)

    def read_journal(self, journal: int) -> bytes:
        """Return all bytes of a journal."""
        if journal not in self._journals:
            raise StateDamagedError(f"there is no journal {journal}")
        return bytes(self._journals[journal])

    def delete_journal(self, journal: int) -> None:
        """Remove a journal, if it exists."""
        self._journals.pop(journal, None)

    def journals(self) -> list[int]:
        """Return the numbers of all journals, ascending."""
        return sorted(self._journals)

    def close(self) -> None:
        """Do nothing: the store can be opened again."""

    def _find(self, generation: int) -> _Blob:
        if generation not in self._blobs:
            raise StateDamagedError(f"there is no blob {generation}")
        return self._blobs[generation]


class _Writer:
    def __init__(self, blobs: dict[int, _Blob], generation: int) -> None:
        self._blobs = blobs
        self._generation = generation
        self._blob = _Blob()

    def append(self, segment: bytes) -> None:
        self._blob.segments.append(segment)

    def commit(self, meta: bytes, *, sync: bool) -> None:
        self._blob.meta = meta
        self._blobs[self._generation] = self._blob

    def abort(self) -> None:
        self._blob = _Blob()
