"""`WriteJournal`: orders the writes of a store, and keeps those that failed.

Deletes of settled messages wait for another write: a lost delete may cause a redelivery request for
an acked message, which the broker ignores. Failed writes stay in memory, visible to readers, and
are retried with later writes: a few at first, and more once the disk takes them, so that no write
slows down as they accumulate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pulsar_encore.errors import StoreError

from .database import Database
from .write_batch import Span, WriteBatch

logger: logging.Logger = logging.getLogger(__name__)

# Deferred deletes that are written without another reason; they take 3 ms.
_MAX_DEFERRED: Final = 1_000
# Failed operations that are kept, about 100 MB. Further ones are lost, and counted.
_MAX_UNWRITTEN: Final = 200_000
_RETRY_SIZE: Final = 1_000  # failed operations retried with each write, so that none takes long
_PROBE_SIZE: Final = 16  # retried first, so that a write costs little while the disk fails


class WriteJournal:
    """The writes of one store. As a context manager it makes one write of all changes inside.

    Attributes:
        failure: The reason why something is not written, or None.
        last_write_failed: While it is False, `flush` retries more failed writes.
    """

    def __init__(self, database: Database) -> None:
        self.database: Database = database
        self.on_write: Callable[[], None] | None = None
        self._depth = 0
        self._current = WriteBatch()
        self._deferred = WriteBatch()
        self._unwritten = WriteBatch()
        self.failure: StoreError | None = None
        self.last_write_failed: bool = False
        self.writes: int = 0
        self.operations: int = 0
        self.failures: int = 0
        self.lost: int = 0

    def put(self, family: int, key: bytes, value: bytes) -> None:
        self._current.points[family][key] = value

    def write(self, family: int, key: bytes, value: bytes) -> None:
        points = self._current.points[family]
        points[key] = value
        if self._depth:
            return
        if len(self._current) > 1 or self._deferred or self.failure is not None:
            self.flush()
        elif self._write(self._current, 1):
            points.clear()  # a new `WriteBatch` would add 10 % to the time of a nack
        else:
            self._unwritten, self._current = self._current, WriteBatch()
            self._drop_excess()

    def delete(self, family: int, key: bytes) -> None:
        self._current.points[family][key] = None

    def delete_range(self, family: int, start: bytes, stop: bytes) -> None:
        self._current.delete_range(family, start, stop)

    def delete_later(self, family: int, key: bytes) -> None:
        self._current.points[family].pop(key, None)
        self._deferred.points[family][key] = None

    def delete_range_later(self, family: int, span: Span) -> None:
        self._current.drop_points(family, (span,))
        self._deferred.delete_range(family, *span)

    def get(self, family: int, key: bytes) -> bytes | None:
        for each in (self._current, self._deferred, self._unwritten):
            found, value = each.find(family, key)
            if found:
                return value
        return self.database.get(family, key)

    def __enter__(self) -> WriteJournal:
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        # Commit even after an error: changes made before it are already in memory.
        self._depth -= 1
        self.commit()

    def commit(self) -> bool:
        """Write current and deferred changes. Inside a `with` block, only its end writes.

        Returns False if something is unwritten.
        """
        if self._depth:
            return True
        if self._current:
            return self.flush()
        if len(self._deferred) >= _MAX_DEFERRED:
            return self.flush()
        return self.failure is None

    def flush(self) -> bool:
        """Write everything, and some of the failed writes. Returns as `commit` does."""
        writes = self._deferred
        if writes:
            writes.merge(self._current)
            self._deferred = WriteBatch()
        else:
            writes = self._current
        self._current = WriteBatch()
        if self.failure is not None:
            self._unwritten.merge(writes)
            self._drop_excess()
            return self._retry()
        if not writes or self._write(writes):
            return True
        self._unwritten = writes
        self._drop_excess()
        return False

    def flush_all(self) -> bool:
        while not self.flush() and not self.last_write_failed:
            pass
        return self.failure is None

    def _retry(self) -> bool:
        for count in (_PROBE_SIZE, _RETRY_SIZE):
            part = self._unwritten.first(count)
            if not self._write(part):
                return False
            self._unwritten.remove(part)
            if not self._unwritten:
                logger.warning("the state in %s is written again", self.database.path)
                self.failure = None
                return True
        return False

    def _write(self, writes: WriteBatch, operations: int | None = None) -> bool:
        try:
            self.database.write(writes)
        except StoreError as error:
            self.failures += 1
            self.last_write_failed = True
            if self.failure is None:
                logger.error("state is kept in memory, because it cannot be written: %s", error)
            if self.failure is None or self.database.writable:  # else keep the original reason
                self.failure = error
            return False
        self.last_write_failed = False
        self.writes += 1
        self.operations += len(writes) if operations is None else operations
        if self.on_write is not None:
            self.on_write()
        return True

    def _drop_excess(self) -> None:
        excess = len(self._unwritten) - _MAX_UNWRITTEN
        if excess > 0:
            if not self.lost:
                logger.error("state is lost: more changes failed than are kept in memory")
            self.lost += self._unwritten.drop_newest(excess)

    @property
    def has_deferred_deletes(self) -> bool:
        return len(self._deferred) > 0

    @property
    def unwritten(self) -> int:
        return len(self._unwritten)

    @property
    def waiting(self) -> int:
        return len(self._current) + len(self._deferred) + len(self._unwritten)
