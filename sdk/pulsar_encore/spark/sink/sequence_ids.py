"""The numbers by which a broker knows rows that it has: the same in each attempt at a task.

Owns `SequenceIds`. A broker that deduplicates drops what is not above the highest number it has of
a producer, whatever it holds. So the number of a row says which rows its task has: where another
attempt has others (files cut by another number of cores, a row that was mended), the broker's
highest number tells, and the rows go by a name of their own: twice, and never not at all.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple, Protocol

from ...errors import ConfigurationError

_ROW_BITS: Final = 29
_DIGEST_BITS: Final = 18  # another task's rows are taken for the same once in 262,144 times
_BATCH_BITS: Final = 16  # of the batch's number; the rest is in the name
_SHIFT: Final = _ROW_BITS + _DIGEST_BITS
_MARK: Final = (1 << _ROW_BITS) - 1


class SinkTask(Protocol):
    """What Spark tells a task of itself; `pyspark.TaskContext` is one."""

    def partitionId(self) -> int: ...
    def getLocalProperty(self, key: str) -> str | None: ...


class SequenceIds(NamedTuple):
    """How the rows of a task are numbered.

    Attributes:
        producer_name: Of the task's producers; the brokers remember numbers by it.
        batch_id: Of the micro-batch.
        digest: Of all rows of the task, some 64 bits; see `holding`.
    """

    producer_name: str
    batch_id: int
    digest: int = 0

    def ids(self, first: int, count: int) -> range:
        """Sequence ids of rows.

        Args:
            first: Number of the first in the task, from 0.
            count: So many.

        Raises:
            ConfigurationError: There are more rows than numbers.
        """
        if first + count > _MARK:
            raise ConfigurationError(
                f"deduplication=task-sequence has {_MARK:,} numbers for the rows of a task, and "
                "this one has more: give the micro-batch more tasks"
            )
        start = self._head << _ROW_BITS | first
        return range(start, start + count)

    def follows(self, highest: int) -> bool:
        """Whether rows of these numbers may be told from what a broker has by their numbers alone.

        Args:
            highest: The highest number that it has of the producer; -1 for none.
        """
        if highest < 0:
            return True
        batch = self._head >> _DIGEST_BITS
        same = highest >> _ROW_BITS == self._head and highest != self.mark
        return highest >> _SHIFT < batch or same

    @property
    def mark(self) -> int:
        """Above all rows' numbers: in an attempt a row failed, and some behind it may be stored."""
        return self._head << _ROW_BITS | _MARK

    def apart(self) -> SequenceIds:
        """The same by a name that no broker knows."""
        return self._replace(producer_name=f"{self.producer_name}-{uuid.uuid4().hex[:12]}")

    @property
    def _head(self) -> int:
        """Batch and digest."""
        batch = self.batch_id & (1 << _BATCH_BITS) - 1
        return batch << _DIGEST_BITS | self.digest & (1 << _DIGEST_BITS) - 1


def numbering_of(task: SinkTask | None, producer_name: str) -> SequenceIds:
    """The numbering of a task, without a digest of its rows.

    Args:
        task: That runs here; None outside of one.
        producer_name: As the option has it.

    Raises:
        ConfigurationError: It is no task of a stream, whose batches have numbers.
    """
    query = batch = None
    if task is not None:
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
    if task is None or not query or not batch:
        raise ConfigurationError(
            "deduplication=task-sequence needs a streaming query, whose micro-batches are numbered"
        )
    name = f"{producer_name}-{query}-{task.partitionId()}"
    if turns := int(batch) >> _BATCH_BITS:
        name += f"-{turns}"
    return SequenceIds(name, int(batch))
