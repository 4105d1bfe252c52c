"""The journal of transactional writes: its records, and the decisions that follow from them.

Each attempt at a task writes its rows in a transaction of its own. The driver commits the
transactions of a batch by their ids, in two phases: it stores `Prepared` with all ids, and then it
commits each id. So a driver that starts again finds in the journal which batch it has to finish.

With a shared transaction the driver begins one for the batch, and all attempts send in it. Rows of
a failed attempt cannot be taken out of it. The order of the journal decides who may send: each
attempt stores `Begun` and reads the journal up to that record before it sends, and the driver
stores `Closed` before it decides. So the driver knows every attempt that may have sent rows.

This module reads no clock and does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from ...errors import ConfigurationError

DRIVER: Final = -1
"""The partition of the driver's own `Begun`, which keeps the place of the batch in the journal."""

_VERSION: Final = 1
# The clocks of workers and of the driver may differ by this. To abort an ended transaction does no
# harm.
_CLOCK_SKEW_MS: Final = 60_000


class BatchKey(NamedTuple):
    """A micro-batch of a query. A batch write has a query id of its own, and the batch id 0."""

    query: str
    batch: int

    def __str__(self) -> str:
        return f"batch {self.batch} of the query {self.query}"


class SharedTransaction(NamedTuple):
    """The transaction of a whole batch, which the driver began. Tasks get it from the driver.

    Attributes:
        txn: The text form of the transaction's id.
        deadline_ms: The cluster aborts the transaction at this time, in ms since the epoch.
        start: The last record of the journal before the batch.
        place: (ledger, entry) of that record.
    """

    txn: str
    deadline_ms: int
    start: Begun | Probe
    place: tuple[int, int]


class TaskTransaction(NamedTuple):
    """The finished transaction of one attempt at a task.

    Attributes:
        partition: The number of the task in its batch.
        txn: The text form of the transaction's id.
        deadline_ms: The cluster aborts the transaction at this time, in ms since the epoch.
        marker: (ledger, entry) of the transaction's row in the marker topic.
    """

    partition: int
    txn: str
    deadline_ms: int
    marker: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt began a transaction, or joined the shared one, before its first row.

    Attributes:
        partition: The number of the task, or `DRIVER`.
        attempt: With a shared transaction, a name that no other attempt has.
    """

    key: BatchKey
    partition: int
    txn: str
    deadline_ms: int
    attempt: str = ""


@dataclass(frozen=True, slots=True)
class Closed:
    """No attempt that is stored behind this may send in the shared transaction."""

    key: BatchKey
    txn: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """All tasks have written. From here on the transactions are committed, whatever happens."""

    key: BatchKey
    tasks: tuple[TaskTransaction, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """A prepared batch has ended: committed as a whole, or nothing of it is visible."""

    key: BatchKey
    committed: bool


@dataclass(frozen=True, slots=True)
class Marker:
    """The row of an attempt in the marker topic, which its transaction makes visible."""

    key: BatchKey
    partition: int
    txn: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A message without meaning. Its reader has read everything that was stored before it."""

    token: str


Record: TypeAlias = Begun | Closed | Prepared | Settled | Marker | Probe

_NAMES: Final[dict[type[Record], str]] = {
    Begun: "begun",
    Closed: "closed",
    Prepared: "prepared",
    Settled: "settled",
    Marker: "marker",
    Probe: "probe",
}


def encode(record: Record) -> bytes:
    """Return a record as the payload of a message."""
    fields: dict[str, Any] = {"v": _VERSION, "kind": _NAMES[type(record)]}
    if isinstance(record, Probe):
        fields["token"] = record.token
    else:
        fields |= {"query": record.key.query, "batch": record.key.batch}
    if isinstance(record, Begun | Marker):
        fields |= {"partition": record.partition, "txn": record.txn}
    if isinstance(record, Begun):
        fields["deadline"] = record.deadline_ms
        if record.attempt:
            fields["attempt"] = record.attempt
    elif isinstance(record, Closed):
        fields["txn"] = record.txn
    elif isinstance(record, Prepared):
        fields["tasks"] = record.tasks
    elif isinstance(record, Settled):
        fields["committed"] = record.committed
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(payload: bytes, topic: str) -> Record:
    """Return the record in a message of `topic`.

    Raises:
        ConfigurationError: if the message is not a record.
    """
    try:
        fields = json.loads(payload)
        if fields["v"] != _VERSION:
            raise ValueError(fields["v"])
        return _record_of(fields)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            f"{topic} has a message that is no record of this sink: {payload[:80]!r}. Name other "
            "topics with journalTopic and markerTopic"
        ) from error


def _record_of(fields: dict[str, Any]) -> Record:
    kind = fields["kind"]
    if kind == "probe":
        return Probe(fields["token"])
    key = BatchKey(fields["query"], fields["batch"])
    if kind == "begun":
        attempt = fields.get("attempt", "")
        return Begun(key, fields["partition"], fields["txn"], fields["deadline"], attempt)
    if kind == "closed":
        return Closed(key, fields["txn"])
    if kind == "marker":
        return Marker(key, fields["partition"], fields["txn"])
    if kind == "settled":
        return Settled(key, fields["committed"])
    if kind == "prepared":
        tasks = (
            TaskTransaction(partition, txn, deadline_ms, (ledger, entry))
            for partition, txn, deadline_ms, (ledger, entry) in fields["tasks"]
        )
        return Prepared(key, tuple(tasks))
    raise ValueError(kind)


class Journal:
    """The records of a journal topic, in the order in which they were stored."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records: list[Record] = []
        self._prepared: dict[BatchKey, tuple[int, Prepared]] = {}
        self._settled: dict[Prepared, bool] = {}
        self._prepared_ids: set[str] = set()
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Add a record that was stored behind the others."""
        if isinstance(record, Prepared):
            # A producer that lost its connection may have stored the same record twice.
            if record not in self._settled:
                self._prepared[record.key] = len(self._records), record
            self._prepared_ids.update(each.txn for each in record.tasks)
        elif isinstance(record, Settled) and record.key in self._prepared:
            self._settled[self._prepared[record.key][1]] = record.committed
        self._records.append(record)

    @property
    def stored(self) -> Sequence[Record]:
        return self._records

    @property
    def is_empty(self) -> bool:
        return all(isinstance(each, Probe) for each in self._records)

    def prepared(self, key: BatchKey) -> Prepared | None:
        """Return the record of a prepared batch, except if nothing of the batch is visible."""
        found = self._prepared.get(key)
        return None if found is None or self._settled.get(found[1]) is False else found[1]

    def has_prepared(self, txn: str) -> bool:
        """True if a batch was prepared with this transaction."""
        return txn in self._prepared_ids

    def is_committed(self, key: BatchKey) -> bool:
        found = self._prepared.get(key)
        return found is not None and self._settled.get(found[1], False)

    def unsettled(self) -> list[Prepared]:
        """Return the prepared batches with an unknown outcome, oldest first."""
        found = sorted(self._prepared.values(), key=lambda each: each[0])
        return [prepared for _, prepared in found if prepared not in self._settled]

    def last_committed(self) -> BatchKey | None:
        """Return the committed batch that was prepared last."""
        found = [
            (at, key)
            for key, (at, prepared) in self._prepared.items()
            if self._settled.get(prepared)
        ]
        return max(found)[1] if found else None

    def newest_query(self) -> str | None:
        """Return the query of the newest record that names one."""
        for record in reversed(self._records):
            if not isinstance(record, Probe):
                return record.key.query
        return None

    def left_open(self, key: BatchKey, now_ms: int) -> list[Begun]:
        """Return the begun transactions of a batch and of older batches that were not prepared.

        Their attempts have failed, were killed, or lost to another attempt. Transactions that have
        timed out are left out: in a new cluster their ids would belong to other transactions.
        """
        return [
            each
            for each in self._records
            if isinstance(each, Begun)
            and each.key.query == key.query
            and each.key.batch <= key.batch
            and self._may_be_open(each, now_ms)
        ]

    def foreign(self, query: str, now_ms: int) -> str | None:
        """Return another query with a transaction that may be open, or None."""
        for each in self._records:
            if (
                isinstance(each, Begun)
                and each.key.query != query
                and self._may_be_open(each, now_ms)
            ):
                return each.key.query
        return None

    def _may_be_open(self, begun: Begun, now_ms: int) -> bool:
        in_time = begun.deadline_ms + _CLOCK_SKEW_MS > now_ms
        return in_time and begun.txn not in self._prepared_ids

    def first_needed(self, ended: Container[str], now_ms: int) -> int:
        """Return the index of the first record that a later read needs.

        It needs the newest prepared batch, batches that are not settled and not over, and
        transactions that may be open.

        Args:
            ended: Ids of transactions that have ended.
        """
        indexes = [
            at
            for at, prepared in self._prepared.values()
            if prepared not in self._settled
            and not is_late(prepared.tasks, now_ms, margin_ms=-_CLOCK_SKEW_MS)
        ]
        if self._prepared:
            indexes.append(max(at for at, _ in self._prepared.values()))
        indexes += [
            at
            for at, each in enumerate(self._records)
            if isinstance(each, Begun) and self._may_be_open(each, now_ms) and each.txn not in ended
        ]
        return min(indexes, default=len(self._records))


class Step(Enum):
    """The next action of a driver on the hidden transactions of a prepared batch."""

    COMMIT_IN_TURN = "commit the first, then the others"
    """None is visible. If the first has timed out, nothing is committed, and all are aborted."""

    COMMIT = "commit"
    """Some are visible, so the others have to be."""

    ABORT = "abort"
    """None is visible, and at least one has timed out."""

    NOTHING = "nothing"


class Outcome(Enum):
    """The end of a prepared batch."""

    COMMITTED = "committed"
    NONE = "none"
    PARTIAL = "partial"


def first_of(tasks: Sequence[TaskTransaction]) -> TaskTransaction:
    """Return the transaction that is committed before all others of its batch.

    No other transaction of the batch can hide its marker, because its marker is the first. So if
    that marker is not visible, nothing of the batch is.
    """
    return min(tasks, key=lambda each: each.marker)


def next_step(prepared: Prepared, visible: Container[str], now_ms: int) -> Step:
    """Decide about a prepared batch.

    Args:
        visible: Ids of the transactions with a visible marker.
    """
    unseen = [each for each in prepared.tasks if each.txn not in visible]
    if not unseen:
        return Step.NOTHING
    if len(unseen) < len(prepared.tasks):
        return Step.COMMIT
    if is_late(prepared.tasks, now_ms, margin_ms=0):
        return Step.ABORT
    return Step.COMMIT_IN_TURN


def outcome_of(prepared: Prepared, visible: Container[str]) -> Outcome:
    """Return the outcome of a batch after all its transactions have ended."""
    seen = sum(each.txn in visible for each in prepared.tasks)
    if seen == len(prepared.tasks):
        return Outcome.COMMITTED
    return Outcome.PARTIAL if seen else Outcome.NONE


def is_late(tasks: Iterable[TaskTransaction], now_ms: int, *, margin_ms: int) -> bool:
    """True if a transaction ends by its timeout within `margin_ms`."""
    return any(each.deadline_ms - margin_ms <= now_ms for each in tasks)


def lost_text(prepared: Prepared, visible: Container[str]) -> str:
    """Return the text of the error of a batch that is visible in part."""
    lost = sorted(each for each in prepared.tasks if each.txn not in visible)
    names = ", ".join(f"{each.partition} (transaction {each.txn})" for each in lost)
    return (
        f"{prepared.key}: {len(prepared.tasks) - len(lost)} of its {len(prepared.tasks)} tasks are "
        f"committed, and the rows of these tasks are lost: {names}. Their transactions ended "
        "before they could be committed, by their timeout (transactionTimeout) or by their ids"
    )


# Shared transactions


class Entry(Enum):
    """Whether an attempt may send in the shared transaction, after it has stored `Begun`."""

    ALLOWED = "allowed"
    TAKEN = "taken"
    """Another attempt at the task has stored `Begun` before, and may have sent rows."""

    CLOSED = "closed"
    """The driver no longer waits for attempts, or the begin of the batch is gone."""


def entry_of(records: Sequence[Record], start: Record, begun: Begun) -> Entry:
    """Decide about an attempt.

    Args:
        records: The journal from the driver's record before the batch on, up to `begun`.
        start: That record of the driver. If it was deleted, `Closed` may have been deleted, too.
    """
    if not records or records[0] != start or begun not in records:
        return Entry.CLOSED
    before = records[: records.index(begun)]
    if any(isinstance(each, Closed) and each.txn == begun.txn for each in before):
        return Entry.CLOSED
    holder = _holders(before, begun.txn).get(begun.partition)
    return Entry.ALLOWED if holder is None else Entry.TAKEN


def _holders(records: Iterable[Record], txn: str) -> dict[int, str]:
    """Return the attempt that `entry_of` allows, for each task. Only these may have sent rows."""
    found: dict[int, str] = {}
    for each in records:
        if isinstance(each, Closed) and each.txn == txn:
            break
        if isinstance(each, Begun) and each.txn == txn and each.partition != DRIVER:
            found.setdefault(each.partition, each.attempt)
    return found


def spoiled(records: Iterable[Record], txn: str, attempts: Mapping[int, str]) -> list[int]:
    """Return the tasks for which the shared transaction must not be committed.

    The rows of an attempt that failed, was killed, or still runs may be in it.

    Args:
        records: The journal up to `Closed`.
        attempts: By task, the attempt whose rows Spark accepted. Tasks without rows are left out.
    """
    holders = _holders(records, txn)
    tasks = holders.keys() | attempts.keys()
    return sorted(each for each in tasks if holders.get(each) != attempts.get(each))


def shared_task(tasks: Sequence[TaskTransaction]) -> TaskTransaction:
    """Return the entry of `Prepared` for all tasks of a shared transaction.

    All of their markers become visible together, so the last one stands for all of them.
    """
    return max(tasks, key=lambda each: each.marker)


def spoiled_text(key: BatchKey, txn: str, tasks: Sequence[int]) -> str:
    """Return the text of the error of a batch that cannot be committed."""
    names = ", ".join(map(str, tasks))
    return (
        f"{key}: nothing of it is visible, because attempts at these tasks have sent rows into the "
        f"shared transaction {txn} and did not end well: {names}. Let the batch run again"
    )


def refusal_text(begun: Begun, entry: Entry) -> str:
    """Return the text of the error of an attempt that may not send."""
    if entry is Entry.CLOSED:
        return (
            f"{begun.key}: this attempt at task {begun.partition} sends nothing, because the "
            f"driver has closed the shared transaction {begun.txn}"
        )
    return (
        f"{begun.key}: another attempt at task {begun.partition} may have sent rows into the "
        f"shared transaction {begun.txn}, and its rows cannot be taken out alone. So the whole "
        "batch fails, and has to run again. Spark's log has the error of the first attempt; "
        "spark.speculation must be off with transactional=batch"
    )
