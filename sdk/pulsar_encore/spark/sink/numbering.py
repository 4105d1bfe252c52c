"""The numbers by which a broker knows rows that it has: the same in each attempt at a task.

Owns `Numbering`. A row is known by its place in its task, so numbering is safe only where each
attempt has the same rows in the same order: in a plan without shuffles, from a source that cuts a
batch into the same tasks again (the pulsar source does; files are cut by the number of cores).
Elsewhere another row may get the number of one that is stored, and be dropped.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ...errors import ConfigurationError

_ROWS = 1 << 32


class Task(Protocol):
    """What Spark tells a task of itself; `pyspark.TaskContext` is one."""

    def partitionId(self) -> int: ...
    def getLocalProperty(self, key: str) -> str | None: ...


class Numbering(NamedTuple):
    """How the rows of a task are numbered.

    Attributes:
        producer_name: Of the task's producers; the brokers remember numbers by it.
        batch_id: Of the micro-batch.
    """

    producer_name: str
    batch_id: int

    def ids(self, first: int, count: int) -> range:
        """Sequence ids of rows.

        Args:
            first: Number of the first in the task, from 0.
            count: So many.

        Raises:
            ConfigurationError: There are more rows than numbers.
        """
        if first + count > _ROWS:
            raise ConfigurationError(
                "deduplication=task-sequence has 2**32 numbers for the rows of a task, and this "
                "one has more: give the micro-batch more tasks"
            )
        start = (self.batch_id << 32) + first
        return range(start, start + count)


def numbering_of(task: Task | None, producer_name: str) -> Numbering:
    """The numbering of a task.

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
    return Numbering(f"{producer_name}-{query}-{task.partitionId()}", int(batch))
