"""The batches in the journal of a transactional Spark sink. Pure. Needs PySpark to be imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..deadletters import printable
from ..spark.sink.commit_journal import BatchKey, Begun, Journal, Prepared, Probe, Record
from .value_text import iso_time, json_text, time_text

_MAX_IDS = 10  # listed for each batch


class BatchState(StrEnum):
    """How far the driver is with a batch."""

    BEGUN = "begun"
    """Tasks write, or have failed. The driver has not stored that all have written."""

    PREPARED = "prepared"
    """All tasks have written, and the driver commits their transactions, also after a restart."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    """Nothing of it is visible, so the driver writes it again."""


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """A batch of a query.

    Attributes:
        open: (id, deadline in ms since the epoch) of transactions that may be open.
    """

    key: BatchKey
    state: BatchState
    open: tuple[tuple[str, int], ...]


def journal_batches(records: Iterable[Record], now_ms: int) -> tuple[JournalBatch, ...]:
    """Return the batches of a journal, in the order in which they were begun."""
    stored = [each for each in records if not isinstance(each, Probe)]
    journal = Journal(stored)
    unsettled = {each.key: each for each in journal.unsettled()}
    prepared = {each.key for each in stored if isinstance(each, Prepared)}
    in_prepared = {task.txn for each in stored if isinstance(each, Prepared) for task in each.tasks}
    found = []
    for key in dict.fromkeys(each.key for each in stored):
        begun = [
            (each.txn, each.deadline_ms)
            for each in stored
            if isinstance(each, Begun) and each.key == key and each.txn not in in_prepared
        ]
        if journal.is_committed(key):
            state = BatchState.COMMITTED
        elif key in unsettled:
            state = BatchState.PREPARED
            begun = [(task.txn, task.deadline_ms) for task in unsettled[key].tasks]
        else:
            state = BatchState.ABORTED if key in prepared else BatchState.BEGUN
        # Attempts of a batch may share a transaction.
        in_time = tuple(each for each in dict.fromkeys(begun) if each[1] > now_ms)
        found.append(JournalBatch(key, state, in_time))
    return tuple(found)


def journal_json(batches: Sequence[JournalBatch]) -> str:
    return json_text(
        [
            {
                "query": each.key.query,
                "batch": each.key.batch,
                "state": each.state.value,
                "open": [
                    {"id": txn, "until": iso_time(deadline_ms)} for txn, deadline_ms in each.open
                ],
            }
            for each in batches
        ]
    )


def journal_text(batches: Sequence[JournalBatch]) -> str:
    lines = []
    for each in batches:
        query = printable(f"{each.key.query}", 100)
        lines.append(f"{query}  batch {each.key.batch}  {each.state.value}: {_sentence(each)}")
    return "".join(f"{line}\n" for line in lines)


def _sentence(batch: JournalBatch) -> str:
    ids = ", ".join(printable(f"{txn}", 50) for txn, _ in batch.open[:_MAX_IDS])
    if len(batch.open) > _MAX_IDS:
        ids += f" and {len(batch.open) - _MAX_IDS} others"
    until = time_text(min((deadline for _, deadline in batch.open), default=0))
    if batch.state is BatchState.PREPARED:
        if not ids:
            return "its transactions have timed out. The driver finds out at its next start how"
        return (
            f"the driver commits {ids}, also after a restart, which must be before {until}. Do not "
            "abort them"
        )
    if batch.state is BatchState.COMMITTED:
        text = "its rows are visible"
        return f"{text}; {ids} of attempts that failed may be open until {until}" if ids else text
    text = {
        BatchState.BEGUN: "its tasks have not all written yet",
        BatchState.ABORTED: "nothing of it is visible, and the driver writes it again",
    }[batch.state]
    if not ids:
        return f"{text}; none of its transactions is open"
    return f"{text}; {ids} may be open, the first until {until}. If the driver is dead, abort them"
