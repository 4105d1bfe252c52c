"""Sequence ids by which a broker recognizes stored rows: the same in each attempt at a task.

A broker with deduplication drops every message that is not above the producer's highest sequence
id, whatever the message contains. An id therefore contains a digest of all rows of the task. If
another attempt has other rows (files split for another number of cores, a corrected row), the
broker's highest id shows that. The rows are then sent under a new producer name: some are stored
twice, but none is lost.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple, Protocol

from ...errors import ConfigurationError

_ROW_BITS: Final = 29
# The rows of two attempts have the same digest by chance once in 262,144 times.
_DIGEST_BITS: Final = 18
_BATCH_BITS: Final = 16  # of the batch id; the rest is in the producer name
_SHIFT: Final = _ROW_BITS + _DIGEST_BITS
_MARK: Final = (1 << _ROW_BITS) - 1


class SinkTask(Protocol):
    """The methods of `pyspark.TaskContext` that identify a task."""

    def partitionId(self) -> int: ...
    def getLocalProperty(self, key: str) -> str | None: ...


class SequenceIds(NamedTuple):
    """The numbering of the rows of a task; `digest` is of all rows, from `RowSpool`."""

    producer_name: str
    batch_id: int
    digest: int = 0

    def ids(self, first: int, count: int) -> range:
        """Return the ids of `count` rows from index `first`."""
        if first + count > _MARK:
            raise ConfigurationError(
                f"deduplication=task-sequence has {_MARK:,} numbers for the rows of a task, and "
                "this one has more: give the micro-batch more tasks"
            )
        start = self._prefix << _ROW_BITS | first
        return range(start, start + count)

    def follows(self, highest: int) -> bool:
        """True if the ids alone tell which of these rows the broker has.

        `highest` is the broker's highest id of the producer, or -1.
        """
        if highest < 0:
            return True
        batch = self._prefix >> _DIGEST_BITS
        same = highest >> _ROW_BITS == self._prefix and highest != self.mark
        return highest >> _SHIFT < batch or same

    @property
    def mark(self) -> int:
        """An id above all rows: a row failed in an attempt, and later rows may be stored."""
        return self._prefix << _ROW_BITS | _MARK

    def apart(self) -> SequenceIds:
        """Return the same numbering with a new producer name."""
        return self._replace(producer_name=f"{self.producer_name}-{uuid.uuid4().hex[:12]}")

    @property
    def _prefix(self) -> int:
        batch = self.batch_id & (1 << _BATCH_BITS) - 1
        return batch << _DIGEST_BITS | self.digest & (1 << _DIGEST_BITS) - 1


def numbering_of(task: SinkTask | None, producer_name: str) -> SequenceIds:
    """Return the numbering of a task in a streaming query, without a digest of its rows."""
    query = batch = None
    if task is not None:
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
    if task is None or not query or not batch:
        raise ConfigurationError(
            "deduplication=task-sequence needs a streaming query, whose micro-batches are numbered"
        )
    name = f"{producer_name}-{query}-{task.partitionId()}"
    if overflow := int(batch) >> _BATCH_BITS:
        name += f"-{overflow}"
    return SequenceIds(name, int(batch))
