"""The transaction coordinators of a cluster, and the requests that they serve (PIP-31)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import count
from typing import Any, Final

from google.protobuf.message import Message

from ....errors import (
    EncoreError,
    InvalidTxnStatusError,
    NotAllowedError,
    PulsarException,
    TopicNotFound,
    TransactionCoordinatorNotFoundError,
    TransactionNotEnabledError,
    TransactionNotFound,
    TransportError,
    TransportTimeout,
)
from ....values.transaction_id import TxnId
from ....wire import pulsar_pb2 as pb
from ..connection.cluster_service import ClusterService
from ..connection.reconnect_backoff import LONGEST_WAITED_FOR_S, ReconnectBackoff
from ..lookup.lookup import Lookup
from .coordinator import ASSIGN_TOPIC, Coordinator, CoordinatorRefusal

_STATUS: Final = re.compile(r"but it is in (\w+)")
_DISABLED: Final = (
    "the broker has no transactions: set transactionCoordinatorEnabled=true in broker.conf or "
    "standalone.conf, and restart it"
)
_NOT_INITIALIZED: Final = (
    "the cluster has no transaction coordinators, although its brokers have transactions: run "
    "bin/pulsar initialize-transaction-coordinator-metadata, once for each cluster"
)


class EndAnswer(Enum):
    """A coordinator's answer to a commit or an abort."""

    DONE = "done"
    """The transaction has ended as asked, and its effect is visible."""

    OTHER_WAY = "other way"
    """The transaction is ending, or has ended, the other way (InvalidTxnStatus)."""

    NOT_FOUND = "not found"
    """The transaction had ended before, timed out, never existed, or belongs to another role."""

    NOT_FOUND_ON_RETRY = "not found on retry"
    """As `NOT_FOUND`, but an earlier request may have ended it: its answer was lost."""


class Coordinators:
    """Begins and ends the transactions of one client on one event loop.

    New transactions use the coordinators in turn. Later requests of a transaction go to the
    coordinator that its id names. Nothing connects before the first call.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._pool = lookup.pool
        #: The ids of one cluster mean other transactions in another.
        self.service: ClusterService = lookup.pool.service
        self._coordinators: dict[int, Coordinator] = {}
        self._number = 0  # of coordinators
        self._turns = count(lookup.pool.rng.randrange(1 << 16))

    async def begin(self, timeout_ms: int) -> tuple[TxnId, float]:
        """Begin a transaction (NEW_TXN). Return its id, and the loop time of the request in s.

        If an answer is lost, the transaction that the coordinator began stays open until its
        timeout, and a second one begins. The first call also looks up the number of coordinators,
        which has a limit of its own.

        Args:
            timeout_ms: After this time the coordinator aborts the transaction.

        Raises:
            TransactionNotEnabledError: if the broker has no transactions.
            TransportTimeout: if there is no answer within the operation timeout.
        """
        if not self._number:
            await self._count()
        coordinator = self._of(next(self._turns) % self._number)
        asked_s = 0.0

        def command(request_id: int) -> pb.CommandNewTxn:
            nonlocal asked_s
            asked_s = self._pool.loop.time()  # each request begins another transaction
            return pb.CommandNewTxn(
                request_id=request_id,
                txn_ttl_seconds=timeout_ms,  # in ms despite its name, as in Java
                tc_id=coordinator.number,
            )

        try:
            answer = await self._ask(coordinator, command, "begin a transaction")
        except TransportTimeout as error:
            if isinstance(error.__cause__, TransportError) and not isinstance(
                error.__cause__, TransportTimeout
            ):
                raise  # the coordinator was not reached
            # A coordinator at its limit does not answer at all.
            raise TransportTimeout(
                f"{error}; perhaps the broker's limit of open transactions is reached "
                "(maxActiveTransactionsPerCoordinator)"
            ) from error
        return TxnId(answer.txnid_most_bits, answer.txnid_least_bits), asked_s

    async def add_partitions(self, txn: TxnId, topics: Iterable[str]) -> None:
        """Register topics or partitions before the first message to each (ADD_PARTITION_TO_TXN).

        Args:
            topics: Full names of persistent topics. The coordinator accepts any text, and can then
                never end the transaction.
        """
        names = list(topics)
        await self._ask(
            await self._known(txn),
            lambda request_id: pb.CommandAddPartitionToTxn(
                request_id=request_id,
                txnid_most_bits=txn.most,
                txnid_least_bits=txn.least,
                partitions=names,
            ),
            f"register {', '.join(names)} in transaction {txn}",
        )

    async def add_subscriptions(self, txn: TxnId, pairs: Iterable[tuple[str, str]]) -> None:
        """Register pairs of topic and subscription before the first ack of each
        (ADD_SUBSCRIPTION_TO_TXN). Names are as for `add_partitions`."""
        subscriptions = [pb.Subscription(topic=topic, subscription=name) for topic, name in pairs]
        await self._ask(
            await self._known(txn),
            lambda request_id: pb.CommandAddSubscriptionToTxn(
                request_id=request_id,
                txnid_most_bits=txn.most,
                txnid_least_bits=txn.least,
                subscription=subscriptions,
            ),
            f"register {', '.join(each.topic for each in subscriptions)} in transaction {txn}",
        )

    async def end(self, txn: TxnId, action: pb.TxnAction.ValueType, deadline: float) -> EndAnswer:
        """Commit or abort a transaction (END_TXN).

        Args:
            deadline: On the clock of the event loop, in s. The coordinator may need longer than
                usual if a broker of one of the topics is away. If the coordinator of the id is
                unknown, their number is looked up first, which has a limit of its own.

        Raises:
            PulsarException: if there was no answer before the deadline. The request may still have
                an effect.
        """
        coordinator = await self._known(txn)
        try:
            await coordinator.request(
                lambda request_id: pb.CommandEndTxn(
                    request_id=request_id,
                    txnid_most_bits=txn.most,
                    txnid_least_bits=txn.least,
                    txn_action=action,
                ),
                f"{pb.TxnAction.Name(action).lower()} transaction {txn}",
                deadline,
            )
        except CoordinatorRefusal as refusal:
            if isinstance(refusal.error, TransactionNotFound):
                return EndAnswer.NOT_FOUND_ON_RETRY if refusal.resent else EndAnswer.NOT_FOUND
            if isinstance(refusal.error, InvalidTxnStatusError):
                return answer_of_status(str(refusal.error), action)
            raise _explained(refusal.error) from refusal
        return EndAnswer.DONE

    def reached_s(self, txn: TxnId) -> float:
        """Return when the coordinator of a transaction was loaded or has answered last: loop time
        in s, or minus infinity."""
        coordinator = self._coordinators.get(txn.most)
        return -math.inf if coordinator is None else coordinator.reached_s

    async def _ask(
        self, coordinator: Coordinator, make: Callable[[int], Message], purpose: str
    ) -> Any:
        deadline = self._pool.loop.time() + self._pool.settings.operation_timeout_s
        try:
            return await coordinator.request(make, purpose, deadline)
        except CoordinatorRefusal as refusal:
            raise _explained(refusal.error) from refusal

    async def _known(self, txn: TxnId) -> Coordinator:
        if txn.most not in self._coordinators and txn.most >= self._number:
            await self._count()  # their number can grow
            if txn.most >= self._number:
                raise TransactionNotFound(
                    f"transaction {txn}: the cluster has {self._number} coordinators, numbered "
                    f"from 0, and none is {txn.most}. The id belongs to another cluster, or is "
                    "wrong"
                )
        return self._of(txn.most)

    def _of(self, number: int) -> Coordinator:
        coordinator = self._coordinators.get(number)
        if coordinator is None:
            coordinator = Coordinator(self._lookup, self.service, number)
            self._coordinators[number] = coordinator
        return coordinator

    async def _count(self) -> None:
        """Ask for the number of coordinators.

        It is the number of partitions of a system topic. A broker without transactions has no such
        topic, and neither has a new cluster until its first broker has started completely.
        """
        loop, settings = self._pool.loop, self._pool.settings
        deadline = loop.time() + settings.operation_timeout_s
        delays = ReconnectBackoff(settings.backoff_s, settings.max_backoff_s, self._pool.rng)
        while True:
            self._pool.check_cluster(self.service)
            self._number = await self._partitions()
            if self._number:
                return
            await self._check_enabled()
            delay = min(delays.next(), LONGEST_WAITED_FOR_S)
            if loop.time() + delay >= deadline:
                raise TransactionNotEnabledError(_NOT_INITIALIZED)
            await self._pool.rest(delay)

    async def _partitions(self) -> int:
        try:
            return await self._lookup.partitions(ASSIGN_TOPIC, create=False)
        except TopicNotFound:
            return 0

    async def _check_enabled(self) -> None:
        """Raise `TransactionNotEnabledError` if a broker says that it has no transactions."""
        try:
            session = await self._lookup.any_broker(f"{ASSIGN_TOPIC}-partition-0")
            await session.request(
                lambda request_id: pb.CommandTcClientConnectRequest(request_id=request_id, tc_id=0),
                "ask for transactions",
                self._pool.settings.operation_timeout_s,
            )
        except NotAllowedError as error:
            raise _explained(error) from error
        except (TopicNotFound, TransactionCoordinatorNotFoundError):
            pass  # it has transactions, and not yet a coordinator
        except PulsarException as error:
            if not error.retryable:
                raise


def answer_of_status(text: str, action: pb.TxnAction.ValueType) -> EndAnswer:
    """Return the meaning of InvalidTxnStatus, which names the status of the transaction.

    A request that was sent again while the first one was under way gets it too, such as "Expect Txn
    `(0,48)` to be in COMMITTING status but it is in COMMITTED status".
    """
    found = _STATUS.search(text)
    own = "COMMIT" if action == pb.TxnAction.COMMIT else "ABORT"
    if found is not None and found[1].startswith(own):
        return EndAnswer.DONE
    return EndAnswer.OTHER_WAY


def _explained(error: PulsarException) -> EncoreError:
    if isinstance(error, NotAllowedError):
        return TransactionNotEnabledError(f"{_DISABLED} ({error})")
    return error
