"""`BlobStore`: what a due index that spills asks of a disk.

Three kinds of things are kept: *blobs*, which are written once, segment by segment, and named by a
generation; *journals*, which grow at their end; and one *manifest*, which is replaced as a whole.
A store gives back what it was given, or raises; what the bytes mean is not its business. It has
one owner at a time.
"""

from __future__ import annotations

from typing import Protocol


class BlobWriter(Protocol):
    """A blob that is being written; it is there for readers once it is committed."""

    def append(self, segment: bytes) -> None:
        """Add a segment. Segments are numbered from 0.

        Raises:
            StoreError: It could not be written; `abort` is what is left to do.
        """
        ...

    def commit(self, meta: bytes, *, sync: bool) -> None:
        """Make the blob visible, all of it at once, with what is to be known of it.

        Args:
            meta: What `BlobStore.meta` gives back.
            sync: Return when it would survive a loss of power.

        Raises:
            StoreError: It could not be written, and is not visible; or not be synced, and then it
                may be. Visible it is whole, also after `abort`.
        """
        ...

    def abort(self) -> None:
        """Forget it; after `commit`, nothing. Never raises."""
        ...


class BlobStore(Protocol):
    """Blobs, journals and a manifest.

    Calls come from any thread, those that write from one at a time; of journals that may be
    another thread than the one that writes blobs.
    """

    def open(self) -> None:
        """Take the store, before anything else and again after `close`.

        Raises:
            StateInUseError: Somebody has it; the message names the owner. One that died has not.
            StoreError: It could not be opened.
        """
        ...

    def create(self, generation: int) -> BlobWriter:
        """Begin a blob. What was left of one of the same generation is replaced at `commit`.

        Raises:
            StoreError: It could not be begun.
        """
        ...

    def meta(self, generation: int) -> bytes:
        """What a blob was committed with.

        Raises:
            StateDamagedError: It is not there, or not what was written.
            StateFormatError: It was written by another version.
            StoreError: It could not be read.
        """
        ...

    def segment(self, generation: int, number: int) -> bytes:
        """One segment of a blob; raises as `meta` does."""
        ...

    def size(self, generation: int) -> int:
        """Bytes that a blob takes; raises as `meta` does."""
        ...

    def delete(self, generation: int) -> None:
        """Remove a blob; one that is not there is nothing.

        Raises:
            StoreError: It could not be removed.
        """
        ...

    def generations(self) -> list[int]:
        """Every blob that is visible, in rising order; also drops what was never committed.

        Raises:
            StoreError: They could not be listed.
        """
        ...

    def read_manifest(self) -> bytes | None:
        """The manifest as it was last written, or None when there never was one.

        Raises:
            StoreError: It could not be read.
        """
        ...

    def write_manifest(self, data: bytes, *, sync: bool) -> None:
        """Replace the manifest: afterwards it is the old one or the new one, never a mixture.

        Raises:
            StoreError: It could not be written, and the old one is in place; or not be synced, and
                then it may be the new one.
        """
        ...

    def append(self, journal: int, data: bytes, *, sync: bool) -> None:
        """Add bytes to the end of a journal, all of them or none; makes it when it is not there.

        Args:
            journal: Its number.
            data: May be empty, to `sync` what was appended before; then a journal that is not
                there, or not any more, is nothing.
            sync: Return when all of the journal would survive a loss of power.

        Raises:
            StoreError: They could not be written.
        """
        ...

    def read_journal(self, journal: int) -> bytes:
        """All bytes of a journal; after a crash the last of them may be missing.

        Raises:
            StoreError: It could not be read.
        """
        ...

    def delete_journal(self, journal: int) -> None:
        """Remove a journal; one that is not there is nothing.

        Raises:
            StoreError: It could not be removed.
        """
        ...

    def journals(self) -> list[int]:
        """The number of every journal, rising.

        Raises:
            StoreError: They could not be listed.
        """
        ...

    def close(self) -> None:
        """Give it free for another owner. Again is nothing."""
        ...
