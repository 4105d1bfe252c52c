"""Helpers for tests of the spilling index: stores with writes that fail or kill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from typing import Any

from pulsar_encore.core.due_index import MessageKey
from pulsar_encore.errors import StateDamagedError, StoreError
from pulsar_encore.state import MemoryBlobs, SpillingIndex
from pulsar_encore.state.blobs.blob_store import BlobWriter


class Crash(BaseException):
    """The process dies. Not an `Exception`, so that no handler catches it."""


def segments_of(blobs: MemoryBlobs, generation: int) -> list[bytes]:
    """Return the segments of a blob. A store that counts its reads does not count these."""
    segments: list[bytes] = []
    with suppress(StateDamagedError):
        while True:
            segments.append(MemoryBlobs.segment(blobs, generation, len(segments)))
    return segments


def write_blob(blobs: MemoryBlobs, generation: int, segments: Iterable[bytes], meta: bytes) -> None:
    """Write a blob. A store with faults neither counts nor fails these writes."""
    writer = MemoryBlobs.create(blobs, generation)
    for segment in segments:
        writer.append(segment)
    writer.commit(meta, sync=True)


def damage_segment(blobs: MemoryBlobs, generation: int, number: int) -> None:
    segments = segments_of(blobs, generation)
    segments[number] = b"damaged"
    write_blob(blobs, generation, segments, blobs.meta(generation))


def copied_without_journals(blobs: MemoryBlobs) -> MemoryBlobs:
    copy = MemoryBlobs()
    for generation in blobs.generations():
        write_blob(copy, generation, segments_of(blobs, generation), blobs.meta(generation))
    manifest = blobs.read_manifest()
    if manifest is not None:
        copy.write_manifest(manifest, sync=True)
    return copy


class FaultyBlobs(MemoryBlobs):
    """A store that counts its writes, and fails some of them.

    Args:
        judge: Called with the number of each write, from 0. It raises, or returns the share of the
            write (0 to 1) that takes place before `Crash`, or None for a normal write.
    """

    def __init__(self, judge: Callable[[int], float | None] = lambda number: None) -> None:
        super().__init__()
        self.judge = judge
        self.writes = 0
        self.deleted: list[int] = []
        self.reads = 0

    def fork(self) -> MemoryBlobs:
        """Return a copy of the stored data, without faults."""
        other = copied_without_journals(self)
        for number in self.journals():
            other.append(number, self.read_journal(number), sync=True)
        return other

    @contextmanager
    def write(self) -> Iterator[float]:
        """Do one write: yield the share that takes place, then raise `Crash` if it is partial."""
        number = self.writes
        self.writes += 1
        share = self.judge(number)
        yield 1 if share is None else share
        if share is not None:
            raise Crash

    def create(self, generation: int) -> BlobWriter:  # type: ignore[override]
        return _Writer(self, super().create(generation))

    def segment(self, generation: int, number: int) -> bytes:
        self.reads += 1
        return super().segment(generation, number)

    def write_manifest(self, data: bytes, *, sync: bool) -> None:
        with self.write() as share:
            if share == 1:
                super().write_manifest(data, sync=sync)

    def append(self, journal: int, data: bytes, *, sync: bool) -> None:
        with self.write() as share:
            super().append(journal, data[: int(share * len(data))], sync=sync)

    def delete(self, generation: int) -> None:
        self.deleted.append(generation)
        with self.write() as share:
            if share == 1:
                super().delete(generation)

    def delete_journal(self, journal: int) -> None:
        with self.write() as share:
            if share == 1:
                super().delete_journal(journal)


class UnsyncedBlobs(MemoryBlobs):
    """A store that remembers which data was synced.

    Attributes:
        meanwhile: Called after a sync of a journal has begun. Its writes are not synced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.synced: dict[int, int] = {}
        self.safe = MemoryBlobs()
        self.meanwhile: Callable[[], None] = lambda: None

    def without_power(self) -> MemoryBlobs:
        """Return the data that survives a loss of power."""
        other = copied_without_journals(self.safe)
        for number in self.journals():
            data = self.read_journal(number)[: self.synced.get(number, 0)]
            other._journals[number] = bytearray(data)  # an empty journal too
        return other

    def create(self, generation: int) -> BlobWriter:  # type: ignore[override]
        return _SyncedWriter(self, generation, super().create(generation))

    def write_manifest(self, data: bytes, *, sync: bool) -> None:
        super().write_manifest(data, sync=sync)
        if sync:
            self.safe.write_manifest(data, sync=sync)

    def append(self, journal: int, data: bytes, *, sync: bool) -> None:
        super().append(journal, data, sync=sync)
        if sync and journal in self._journals:
            size = len(self._journals[journal])
            if not data:
                self.meanwhile()
            self.synced[journal] = max(size, self.synced.get(journal, 0))


class _SyncedWriter:
    def __init__(self, store: UnsyncedBlobs, generation: int, inner: BlobWriter) -> None:
        self._store = store
        self._generation = generation
        self._inner = inner
        self.append = inner.append
        self.abort = inner.abort

    def commit(self, meta: bytes, *, sync: bool) -> None:
        self._inner.commit(meta, sync=sync)
        if sync:
            segments = segments_of(self._store, self._generation)
            write_blob(self._store.safe, self._generation, segments, meta)


class _Writer:
    def __init__(self, store: FaultyBlobs, inner: BlobWriter) -> None:
        self._store = store
        self._inner = inner

    def append(self, segment: bytes) -> None:
        with self._store.write():
            self._inner.append(segment)

    def commit(self, meta: bytes, *, sync: bool) -> None:
        with self._store.write() as share:
            if share == 1:
                self._inner.commit(meta, sync=sync)

    def abort(self) -> None:
        self._inner.abort()


class DeferredExecutor(Executor):
    """An executor that runs its work only when `run` is called."""

    def __init__(self) -> None:
        self._asked: list[tuple[Future[Any], Callable[[], Any]]] = []
        self._over = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        if self._over:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        self._asked.append((future, lambda: fn(*args, **options)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._over = True
        if cancel_futures:
            for future, _ in self._asked:
                future.cancel()

    def run(self) -> None:
        """Run the work that was submitted so far."""
        asked, self._asked = self._asked, []
        for future, call in asked:
            future.set_result(call())


def full_disk(after: int, until: int) -> Callable[[int], float | None]:
    """Return a judge that fails writes for lack of space, from one number up to another."""

    def judge(number: int) -> None:
        if after <= number < until:
            raise StoreError("could not write: No space left on device")

    return judge


def drained(index: SpillingIndex, now_ms: int = 2**62) -> list[MessageKey]:
    """Take all keys and mark them as done."""
    found: list[MessageKey] = []
    while batch := index.pop_due(now_ms, 1000):
        found += batch
        index.done(batch)
    return found
