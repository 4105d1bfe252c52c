"""`MemoryBlobs`: blobs that live as long as the object; for tests, and to try things out.

What was closed can be opened again, as a directory can. Invariant: what is visible is what was
committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import StateDamagedError


@dataclass(slots=True)
class _Blob:
    segments: list[bytes] = field(default_factory=list)
    meta: bytes = b""


class MemoryBlobs:
    """A `BlobStore` in memory."""

    def __init__(self) -> None:
        self._blobs: dict[int, _Blob] = {}
        self._journals: dict[int, bytearray] = {}
        self._manifest: bytes | None = None

    def open(self) -> None:
        """Nothing: whoever has the object may have it."""

    def create(self, generation: int) -> _Writer:
        """Begin a blob."""
        return _Writer(self._blobs, generation)

    def meta(self, generation: int) -> bytes:
        """What a blob was committed with.

        Raises:
            StateDamagedError: It is not there.
        """
        return self._find(generation).meta

    def segment(self, generation: int, number: int) -> bytes:
        """One segment of a blob.

        Raises:
            StateDamagedError: It is not there.
        """
        segments = self._find(generation).segments
        if not 0 <= number < len(segments):
            raise StateDamagedError(f"blob {generation} has no segment {number}")
        return segments[number]

    def size(self, generation: int) -> int:
        """Bytes that a blob takes.

        Raises:
            StateDamagedError: It is not there.
        """
        blob = self._find(generation)
        return sum(map(len, blob.segments)) + len(blob.meta)

    def delete(self, generation: int) -> None:
        """Remove a blob; one that is not there is nothing."""
        self._blobs.pop(generation, None)

    def generations(self) -> list[int]:
        """Every blob, in rising order."""
        return sorted(self._blobs)

    def read_manifest(self) -> bytes | None:
        """The manifest as it was last written."""
        return self._manifest

    def write_manifest(self, data: bytes, *, sync: bool) -> None:
        """Replace the manifest."""
        self._manifest = data

    def append(self, journal: int, data: bytes, *, sync: bool) -> None:
        """Add bytes to the end of a journal."""
        if data:
            self._journals.setdefault(journal, bytearray()).extend(data)

    def read_journal(self, journal: int) -> bytes:
        """All bytes of a journal.

        Raises:
            StateDamagedError: It is not there.
        """
        if journal not in self._journals:
            raise StateDamagedError(f"there is no journal {journal}")
        return bytes(self._journals[journal])

    def delete_journal(self, journal: int) -> None:
        """Remove a journal; one that is not there is nothing."""
        self._journals.pop(journal, None)

    def journals(self) -> list[int]:
        """The number of every journal, rising."""
        return sorted(self._journals)

    def close(self) -> None:
        """Nothing: it can be opened again."""

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
