"""The open transactions of a cluster, from the answers of their coordinators (PIP-31)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..values.transaction_id import TxnId
from .answer_fields import number, position


@dataclass(frozen=True, slots=True)
class ProducedTopic:
    """A topic or partition that is registered in a transaction.

    Attributes:
        first: (ledger, entry) of its first message of the transaction. Until the transaction ends,
            readers see nothing from there on. None if the topic has no message of it.
    """

    topic: str
    first: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class AckedSubscription:
    """A subscription that is registered in a transaction.

    Attributes:
        cumulative: The position of the cumulative ack, as the broker writes it; None without a
            cumulative ack.
    """

    topic: str
    subscription: str
    cumulative: str | None


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """A transaction that its coordinator knows. It forgets a transaction when it has ended.

    Attributes:
        status: "OPEN", "COMMITTING" or "ABORTING"; for a moment also "COMMITTED" or "ABORTED".
        begun_ms: When it began, in ms since the epoch, by the clock of the broker.
        timeout_ms: Its longest life in ms. Then the coordinator aborts it.
        owner: The role that began it; None without authentication.
    """

    id: TxnId
    status: str
    begun_ms: int
    timeout_ms: int
    owner: str | None
    topics: tuple[ProducedTopic, ...]
    subscriptions: tuple[AckedSubscription, ...]

    @property
    def deadline_ms(self) -> int:
        """When the coordinator aborts it, in ms since the epoch."""
        return self.begun_ms + self.timeout_ms


@dataclass(frozen=True, slots=True)
class CoordinatorStats:
    """The state of one coordinator.

    Attributes:
        last: The counter in the id of its newest transaction; -1 before its first one.
        ended: Transactions up to this counter have ended (the low-water mark); -1 if none has.
        open: The number of its open transactions.
    """

    state: str
    last: int
    ended: int
    open: int


def transaction_metadata(answer: Mapping[str, Any]) -> TransactionMetadata:
    """Parse the answer about one transaction.

    Raises:
        KeyError, ValueError: if it has no id.
    """
    owner = answer.get("owner")
    return TransactionMetadata(
        id=TxnId.parse(str(answer["txnId"])),
        status=str(answer.get("status")),
        begun_ms=number(answer, "openTimestamp"),
        timeout_ms=number(answer, "timeoutAt"),  # a duration, in spite of its name
        owner=owner if isinstance(owner, str) and owner else None,
        topics=tuple(
            ProducedTopic(topic, position(each.get("startPosition")))
            for topic, each in _by_name(answer.get("producedPartitions"))
        ),
        subscriptions=tuple(
            AckedSubscription(topic, name, _text(each.get("cumulativeAckPosition")))
            for topic, by_name in _by_name(answer.get("ackedPartitions"))
            for name, each in _by_name(by_name)
        ),
    )


def transaction_list(answer: Mapping[str, Any]) -> tuple[TransactionMetadata, ...]:
    """Parse an answer with transactions by their ids. The oldest comes first."""
    found = map(transaction_metadata, answer.values())
    return tuple(sorted(found, key=lambda each: (each.begun_ms, each.id)))


def coordinator_numbers(answer: object) -> tuple[int, ...]:
    """Parse the list of coordinators.

    Raises:
        TypeError, KeyError, ValueError: if it is no list of coordinators.
    """
    if not isinstance(answer, list):
        raise TypeError("coordinators")
    return tuple(sorted(int(each["id"]) for each in answer))


def coordinator_stats(answer: Mapping[str, Any]) -> CoordinatorStats:
    return CoordinatorStats(
        state=str(answer.get("state")),
        last=number(answer, "leastSigBits", -1),
        ended=number(answer, "lowWaterMark", -1),
        open=number(answer, "ongoingTxnSize"),
    )


def _by_name(value: object) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the names and values of an object. A value of another type counts as empty."""
    if not isinstance(value, Mapping):
        return []
    return [
        (f"{name}", each if isinstance(each, Mapping) else {})
        for name, each in sorted(value.items())
    ]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
