"""A transaction coordinator: open transactions, and what each has registered (PIP-31).

As on Pulsar, a transaction that has ended is forgotten, and nothing is checked when a message or an
ack arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from .refusal import Refusal

TransactionId: TypeAlias = tuple[int, int]
"""Most and least significant bits: the number of the coordinator, and a counter."""

#: Full name of the topic that has one partition for each coordinator.
ASSIGN_TOPIC = "persistent://pulsar/system/transaction_coordinator_assign"


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """A transaction, its topics, and its subscriptions as pairs of topic and name."""

    id: TransactionId
    topics: set[str] = field(default_factory=set)
    subscriptions: set[tuple[str, str]] = field(default_factory=set)


class TransactionCoordinator:
    """The only coordinator of a broker. Its number is 0.

    Attributes:
        loaded: False refuses every request, as while a coordinator moves to another broker. Open
            transactions stay, and time out when a client has connected to it again.
    """

    def __init__(self) -> None:
        self.loaded: bool = True
        self._open: dict[TransactionId, OpenTransaction] = {}
        self._next = 0

    def check_loaded(self) -> None:
        """Refuse a request if the coordinator is not loaded (TransactionCoordinatorNotFound)."""
        if not self.loaded:
            raise Refusal(
                "TransactionCoordinatorNotFound", "transaction coordinator 0 is not loaded"
            )

    def begin(self) -> TransactionId:
        txn = (0, self._next)
        self._next += 1
        self._open[txn] = OpenTransaction(txn)
        return txn

    def is_open(self, txn: TransactionId) -> bool:
        return txn in self._open

    def find(self, txn: TransactionId) -> OpenTransaction:
        """Return an open transaction.

        Raises:
            Refusal: TransactionNotFound.
        """
        found = self._open.get(txn)
        if found is None:
            raise Refusal("TransactionNotFound", f"transaction {txn} has ended, or never began")
        return found

    def end(self, txn: TransactionId) -> OpenTransaction:
        """Forget a transaction, and return it."""
        found = self.find(txn)
        del self._open[txn]
        return found

    @property
    def low_water(self) -> int:
        """The highest counter up to which all transactions have ended; -1 before the first."""
        return min((least for _, least in self._open), default=self._next) - 1
