"""The one way to the disk: transitions become writes, in order, and none is lost by failing.

Owns `WriteJournal`: what is to be written at once, what may be written later (its loss costs a
redelivery of what is acked, which a broker ignores), and what could not be written. What fails
stays in memory, is what readers see, and is tried again with the next write: a few of it, and more
once the disk takes them, so that no write costs the more the more waits. Invariant: newest first, a
key is looked for in what is to be written now, later, again, and then on the disk. Refuses to know
what keys mean, and the time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final

from pulsar_encore.errors import StoreError

from .database import Database
from .write_batch import Span, WriteBatch

logger: logging.Logger = logging.getLogger(__name__)

# What may wait for a write that is made for another reason: 1000 deletes take 3 ms.
_MAX_LATE: Final = 1_000
# What failed is kept up to here, 100 MB or so; what is beyond is counted.
_MAX_UNWRITTEN: Final = 200_000
_RETRY_SIZE: Final = 1_000  # of what failed with each write, so that none takes long
_PROBE_SIZE: Final = 16  # of it first, so that a disk that refuses costs a write little


class WriteJournal:
    """Writes of one store. As a context manager it makes one write of all that is done inside.

    Attributes:
        written: Called after each write, if anything is.
        trouble: Why something is not written, None when all is.
        refused: The last write failed; else each `flush` writes more of what failed before.
        writes: Writes made so far.
        operations: Puts and deletes in them.
        failures: Writes that failed.
        lost: Puts and deletes that failed and were too many to keep.
    """

    def __init__(self, database: Database) -> None:
        self.database: Database = database
        self.written: Callable[[], None] | None = None
        self._depth = 0
        self._now = WriteBatch()
        self._late = WriteBatch()
        self._unwritten = WriteBatch()
        self.trouble: StoreError | None = None
        self.refused: bool = False
        self.writes: int = 0
        self.operations: int = 0
        self.failures: int = 0
        self.lost: int = 0

    def put(self, family: int, key: bytes, value: bytes) -> None:
        """Write a key with the next `commit`."""
        self._now.points[family][key] = value

    def write(self, family: int, key: bytes, value: bytes) -> None:
        """Write a key, and commit."""
        points = self._now.points[family]
        points[key] = value
        if self._depth:
            return
        if len(self._now) > 1 or self._late or self.trouble is not None:
            self.flush()
        elif self._write(self._now, 1):
            points.clear()  # a new `WriteBatch` for each nack is a tenth of its time
        else:
            self._unwritten, self._now = self._now, WriteBatch()
            self._drop_excess()

    def delete(self, family: int, key: bytes) -> None:
        """Remove a key with the next `commit`."""
        self._now.points[family][key] = None

    def delete_range(self, family: int, start: bytes, stop: bytes) -> None:
        """Remove the keys from `start` up to `stop` with the next `commit`."""
        self._now.delete_range(family, start, stop)

    def delete_later(self, family: int, key: bytes) -> None:
        """Remove a key with whatever is written next, or when there is much of it."""
        self._now.points[family].pop(key, None)
        self._late.points[family][key] = None

    def delete_range_later(self, family: int, span: Span) -> None:
        """Remove keys with whatever is written next, or when there is much of it."""
        self._now.drop(family, (span,))
        self._late.delete_range(family, *span)

    def get(self, family: int, key: bytes) -> bytes | None:
        """The value of a key, as if everything were written.

        Raises:
            StoreError: It cannot be read.
        """
        for each in (self._now, self._late, self._unwritten):
            found, value = each.find(family, key)
            if found:
                return value
        return self.database.get(family, key)

    def __enter__(self) -> WriteJournal:
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an error too: what was done before it is done in memory.
        self._depth -= 1
        self.commit()

    def commit(self) -> bool:
        """Write what is to be written now, with what may come later; inside of `with`, at its end.

        Returns:
            False when something, perhaps of before, is not written; `trouble` says why.
        """
        if self._depth:
            return True
        if self._now:
            return self.flush()
        if len(self._late) >= _MAX_LATE:
            return self.flush()
        return self.trouble is None

    def flush(self) -> bool:
        """Write everything, and some of what failed before. Returns as `commit` does."""
        writes = self._late
        if writes:
            writes.merge(self._now)
            self._late = WriteBatch()
        else:
            writes = self._now
        self._now = WriteBatch()
        if self.trouble is not None:
            self._unwritten.merge(writes)
            self._drop_excess()
            return self._retry()
        if not writes or self._write(writes):
            return True
        self._unwritten = writes
        self._drop_excess()
        return False

    def flush_all(self) -> bool:
        """Write everything, unless the disk refuses: in writes that each take little. Returns as
        `commit` does."""
        while not self.flush() and not self.refused:
            pass
        return self.trouble is None

    def _retry(self) -> bool:
        for count in (_PROBE_SIZE, _RETRY_SIZE):
            part = self._unwritten.first(count)
            if not self._write(part):
                return False
            self._unwritten.forget(part)
            if not self._unwritten:
                logger.warning("the state in %s is written again", self.database.path)
                self.trouble = None
                return True
        return False

    def _write(self, writes: WriteBatch, operations: int | None = None) -> bool:
        try:
            self.database.write(writes)
        except StoreError as error:
            self.failures += 1
            self.refused = True
            if self.trouble is None:
                logger.error("state is kept in memory, because it cannot be written: %s", error)
            if self.trouble is None or self.database.writable:  # else why it is not says more
                self.trouble = error
            return False
        self.refused = False
        self.writes += 1
        self.operations += len(writes) if operations is None else operations
        if self.written is not None:
            self.written()
        return True

    def _drop_excess(self) -> None:
        excess = len(self._unwritten) - _MAX_UNWRITTEN
        if excess > 0:
            if not self.lost:
                logger.error("state is lost, as more cannot be written than is kept in memory")
            self.lost += self._unwritten.drop_newest(excess)

    @property
    def late(self) -> bool:
        """Something is removed in memory only, until there is another write or much of it."""
        return len(self._late) > 0

    @property
    def unwritten(self) -> int:
        """Puts and deletes that failed and will be tried again."""
        return len(self._unwritten)

    @property
    def waiting(self) -> int:
        """Puts and deletes that are in memory only."""
        return len(self._now) + len(self._late) + len(self._unwritten)
