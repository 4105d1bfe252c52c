"""`BlobStore`: the storage that a spilling index needs.

A store keeps three kinds of data. A *blob* is written once, segment by segment, and named by a
generation number. A *journal* grows at its end. The one *manifest* is replaced as a whole. The
store does not interpret the bytes: it returns them unchanged or raises. It has one owner at a time.
"""

from __future__ import annotations

from typing import Protocol


class BlobWriter(Protocol):
    """A blob that is being written. Readers see it after `commit`."""

    def append(self, segment: bytes) -> None:
        """Add a segment. Segments are numbered from 0.

        Raises:
            StoreError: if the segment cannot be written. Only `abort` is allowed then.
        """
        ...

    def commit(self, meta: bytes, *, sync: bool) -> None:
        """Make the blob visible, with all segments at once.

        Args:
            meta: Bytes that `BlobStore.meta` returns.
            sync: Return only when the blob would survive a loss of power.

        Raises:
            StoreError: if the blob cannot be written or synced. If only the sync failed, the blob
                may be visible. A visible blob is always complete, even after `abort`.
        """
        ...

    def abort(self) -> None:
        """Discard the blob. Does nothing after `commit`, and never raises."""
        ...


class BlobStore(Protocol):
    """Blobs, journals and a manifest.

    Reads may come from any thread. At most one thread at a time writes blobs, and at most one,
    possibly another, writes journals.
    """

    def open(self) -> None:
        """Take ownership of the store. Called first, and again after `close`.

        Raises:
            StateInUseError: if the store has an owner that is alive. The text names it.
            StoreError: if the store cannot be opened.
        """
        ...

    def create(self, generation: int) -> BlobWriter:
        """Begin a blob. `commit` replaces an older blob of the same generation.

        Raises:
            StoreError: if the blob cannot be begun.
        """
        ...

    def meta(self, generation: int) -> bytes:
        """Return the bytes that a blob was committed with.

        Raises:
            StateDamagedError: if the blob is missing or corrupted.
            StateFormatError: if another version wrote it.
            StoreError: if it cannot be read.
        """
        ...

    def segment(self, generation: int, number: int) -> bytes:
        """Return one segment of a blob; raises as `meta` does."""
        ...

    def size(self, generation: int) -> int:
        """Return the size of a blob in bytes; raises as `meta` does."""
        ...

    def delete(self, generation: int) -> None:
        """Remove a blob. Does nothing if the blob is missing.

        Raises:
            StoreError: if the blob cannot be removed.
        """
        ...

    def generations(self) -> list[int]:
        """Return the generations of all visible blobs, ascending. Also removes uncommitted blobs.

        Raises:
            StoreError: if the blobs cannot be listed.
        """
        ...

    def read_manifest(self) -> bytes | None:
        """Return the manifest, or None if none was ever written.

        Raises:
            StoreError: if the manifest cannot be read.
        """
        ...

    def write_manifest(self, data: bytes, *, sync: bool) -> None:
        """Replace the manifest. A reader later sees the old one or the new one, never a mixture.

        Raises:
            StoreError: if the manifest cannot be written, in which case the old one stays, or
                cannot be synced, in which case it may be the new one.
        """
        ...

    def append(self, journal: int, data: bytes, *, sync: bool) -> None:
        """Append bytes to a journal, all of them or none. The journal is created if it is missing.

        Args:
            journal: The number of the journal.
            data: The bytes. If empty, only sync earlier appends, and do nothing if the journal is
                missing.
            sync: Return only when the whole journal would survive a loss of power.

        Raises:
            StoreError: if the bytes cannot be written.
        """
        ...

    def read_journal(self, journal: int) -> bytes:
        """Return all bytes of a journal. After a crash its last bytes may be missing.

        Raises:
            StoreError: if the journal cannot be read.
        """
        ...

    def delete_journal(self, journal: int) -> None:
        """Remove a journal. Does nothing if the journal is missing.

        Raises:
            StoreError: if the journal cannot be removed.
        """
        ...

    def journals(self) -> list[int]:
        """Return the numbers of all journals, ascending.

        Raises:
            StoreError: if the journals cannot be listed.
        """
        ...

    def close(self) -> None:
        """Release the store for another owner. A second call does nothing."""
        ...
