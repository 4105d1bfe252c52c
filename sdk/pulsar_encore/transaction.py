"""Transactions: the public `Transaction`, over a transaction of the transport."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Final, Self
from weakref import WeakMethod

from .errors import (
    ConfigurationError,
    EncoreError,
    TransactionAbortedError,
    TransactionStateError,
)
from .eventloop.affinity import LoopAffinity
from .transport.interface import TransportTransaction
from .values.transaction_id import TxnId
from .values.transaction_state import TxnState

#: How long the end of a block with an exception waits for the answer to the abort.
_CLOSE_S: Final = 10.0


class Transaction:
    """Sends and acks that take effect together, or never (PIP-31), of `Client.transaction`.

    Give it to `Producer.send` and `Consumer.acknowledge` as `txn`. It can include several topics,
    partitions and subscriptions. After an abort, the messages that were acked in it come again.
    Readers see none of them before the commit, and meanwhile also no plain message that is stored
    behind the first of them. So keep transactions short.

    Used with `async with`, it commits at the end of the block. If the block ends with an exception
    or is cancelled, it aborts. If its client was closed meanwhile, the end of the block raises
    `TransactionAbortedError`.

    A transaction belongs to the event loop that began it. A call from another loop raises
    `WrongLoopError`, a call in a forked child `ForkedError`.

    Example:
        ```python
        async with client.transaction(timeout=30) as txn:
            await orders.send(b"42", txn=txn)
            await invoices.send(b"42", txn=txn)
        ```
    """

    def __init__(
        self,
        transport_transaction: TransportTransaction,
        *,
        on_ended: Callable[[Transaction], None] | None = None,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._transport_transaction = transport_transaction
        self._on_ended = on_ended
        self._has_reported = False  # a caller of `commit` or `abort` has the outcome
        self._logger = logger_of(__name__)
        self.affinity: LoopAffinity = LoopAffinity("transaction")
        # For an end that nobody awaits. The reference is weak, because a timer holds the
        # transport's transaction.
        transport_transaction.when_ended(partial(_forget_ended, WeakMethod(self._forget)))

    def __repr__(self) -> str:
        return f"<Transaction {self.id}, {self.state.value}>"

    @property
    def id(self) -> TxnId:
        """The id, which `Client.commit_transaction` and `Client.abort_transaction` take.

        Its text form, such as ``(0,48)``, is read by `TxnId.parse`.
        """
        return self._transport_transaction.id

    @property
    def state(self) -> TxnState:
        """The state, as this client knows it."""
        return self._transport_transaction.state

    async def commit(self) -> None:
        """Wait for all sends and acks, then make them take effect (END_TXN).

        If a send or ack failed or was cancelled, the transaction is aborted instead. A cancelled
        call of `commit` does not stop it: call it again for the outcome.

        Raises:
            TransactionAbortedError: if it was aborted, by a failed send or ack, or its timeout.
            TransactionOutcomeUnknown: if an answer was lost, and it cannot be found out whether it
                was committed.
            TransactionStateError: if `abort` was called before, or a send failed and it was
                committed by its id.
        """
        await self._end(self._transport_transaction.commit)

    async def abort(self) -> None:
        """Make sure that none of its messages ever becomes visible (END_TXN).

        Messages that have not left fail with `TransactionAbortedError`. A cancelled call does not
        stop the abort. No effect on a transaction that was aborted.

        Raises:
            TransactionStateError: if it was committed, by this client or by its id, or a commit is
                under way.
            TransactionOutcomeUnknown: if another client ended it by its id, and this client cannot
                find out how.
            TransportError: if the coordinator did not answer. The client asks again in the
                background.
        """
        await self._end(self._transport_transaction.abort)

    async def _end(self, end: Callable[[], Awaitable[None]]) -> None:
        self.affinity.check()
        try:
            await end()
        except asyncio.CancelledError:
            raise  # it goes on
        except BaseException:
            self._has_reported = True
            self._forget_if_ending()
            raise
        self._has_reported = True
        self._forget()

    async def close(self) -> None:
        """Abort the transaction if it is open, and wait for its end, for at most 10 s.

        Never raises for its outcome. `Client.close` calls it.
        """
        self.affinity.check()
        try:
            async with asyncio.timeout(_CLOSE_S):
                if self.state is TxnState.OPEN:
                    await self._transport_transaction.abort()
                else:
                    await self._transport_transaction.ended()
        except TimeoutError:
            self._logger.warning("transaction %s: no answer to its end in %g s", self.id, _CLOSE_S)
        except EncoreError as error:
            if self.state is not TxnState.ABORTING:  # otherwise the transport has logged it
                self._logger.warning("abort of transaction %s: %s", self.id, error)
        finally:
            self._forget()

    def abandon(self) -> None:
        """Abort in the background if it is open; else the cluster aborts it at its timeout."""
        self._transport_transaction.abandon()
        self._forget()

    def _forget_if_ending(self) -> None:
        if self.state not in (TxnState.OPEN, TxnState.COMMITTING):
            self._forget()

    def _forget(self) -> None:
        on_ended, self._on_ended = self._on_ended, None
        if on_ended is not None:
            on_ended(self)

    async def __aenter__(self) -> Self:
        self.affinity.check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            await self.close()
        elif self._is_end_known():
            self._forget()
        else:
            try:
                await self.commit()
            except TransactionStateError as state_error:
                if self.state is TxnState.COMMITTED:
                    raise  # a send failed, and meanwhile it was committed by its id
                raise TransactionAbortedError(
                    f"transaction {self.id} was aborted before the end of its block, because its "
                    "client was closed",
                    txn_id=self.id,
                ) from state_error

    def _is_end_known(self) -> bool:
        """Return True if the block has ended the transaction, and has seen the outcome."""
        if self.state is TxnState.COMMITTED:
            return True
        is_open = self.state in (TxnState.OPEN, TxnState.COMMITTING)
        return self._has_reported and not is_open and not self._transport_transaction.timed_out


def _forget_ended(reference: WeakMethod[Callable[[], None]], _: bool) -> None:
    forget = reference()
    if forget is not None:
        forget()


def transport_transaction_of(txn: Transaction | None) -> TransportTransaction | None:
    """Return what a transport needs of the option `txn`."""
    return None if txn is None else need_transport_transaction(txn)


def need_transport_transaction(txn: Transaction) -> TransportTransaction:
    if not isinstance(txn, Transaction):
        raise ConfigurationError(
            f"txn must be a Transaction of Client.transaction, got {type(txn).__name__}"
        )
    txn.affinity.check()
    return txn._transport_transaction
