"""The transaction of one attempt at a task: from its first row to the commit message of the task.

Used on the client's event loop. The attempt never commits: the driver does, by the id.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import Final

from ...client import Client, transport_of
from ...consumer.forwarding.copy_options import Destination
from ...errors import EncoreError, TransactionStateError
from ...transport.interface import TransportTransaction
from ...values.message_id import MessageId
from ...values.outgoing_message import MessageTransaction, OutgoingMessage
from ...values.transaction_id import TxnId
from .commit_journal import (
    BatchKey,
    Begun,
    Entry,
    Marker,
    Record,
    SharedTransaction,
    TaskTransaction,
    encode,
    entry_of,
    refusal_text,
)
from .commit_topics import read_batch
from .producer_cache import ProducerKind, producers_of
from .sink_options import Publishing, TransactionOptions

log: Final = logging.getLogger("pulsar_encore.spark")

# Nothing is sent in the last second of a transaction.
_LEAST_LEFT_S: Final = 1.0


class AttemptTransaction:
    """An open transaction. `begin` makes it; afterwards call `finish` or `abort` once.

    Args:
        shared: The transaction of the whole batch, which is joined, or None.
    """

    def __init__(
        self,
        client: Client,
        options: TransactionOptions,
        publishing: Publishing,
        key: BatchKey,
        partition: int,
        shared: SharedTransaction | None,
    ) -> None:
        self._client = client
        self._transport = transport_of(client)
        self._producers = producers_of(client)
        self._options = options
        self._key = key
        self._partition = partition
        self._shared = shared
        self.name: str = "" if shared is None else uuid.uuid4().hex
        # Records are not encrypted, whatever the rows are: the driver has no private key.
        self._kind = ProducerKind(
            Publishing(
                max_pending=publishing.max_pending,
                send_timeout_ms=publishing.send_timeout_ms,
                name=publishing.name,
                producer=(("batching_enabled", False),),
            ),
            copies=False,
            avro=None,
        )
        self._txn: TransportTransaction | None = None
        self._deadline_ms = 0

    @property
    def txn(self) -> MessageTransaction:
        assert self._txn is not None  # begun
        return self._txn

    async def begin(self) -> None:
        """Begin the transaction, and store its id in the journal before any row is sent.

        After a crash of this process the driver finds the id there, and aborts the transaction.

        Raises:
            TransactionStateError: if this attempt may not send in the shared transaction.
        """
        if self._shared is not None:
            await self._join(self._shared)
            return
        self._deadline_ms = time.time_ns() // 1_000_000 + self._options.timeout_ms
        self._txn = await self._transport.begin_transaction(self._options.timeout_ms / 1000)
        begun = Begun(self._key, self._partition, str(self._txn.id), self._deadline_ms)
        try:
            await self._store(self._options.journal_topic, begun, None)
        except BaseException:
            self._txn.abandon()
            raise

    async def _join(self, shared: SharedTransaction) -> None:
        self._deadline_ms = shared.deadline_ms
        begun = Begun(self._key, self._partition, shared.txn, shared.deadline_ms, self.name)
        topic = self._options.journal_topic
        await self._store(topic, begun, None)
        records = await read_batch(self._client, topic, shared, begun)
        entry = entry_of(records, shared.start, begun)
        if entry is not Entry.ALLOWED:
            raise TransactionStateError(refusal_text(begun, entry))
        left_s = (shared.deadline_ms - time.time_ns() // 1_000_000) / 1000
        if left_s < _LEAST_LEFT_S:
            raise TransactionStateError(
                f"{begun.key}: the shared transaction {shared.txn} ends in {left_s:g} s by the "
                "clock of this worker: raise transactionTimeout, or set the clocks of the driver "
                "and the workers"
            )
        self._txn = await self._transport.join_transaction(TxnId.parse(shared.txn), left_s)

    async def finish(self) -> TaskTransaction:
        """Send the marker, and leave the transaction to the driver. All rows have receipts."""
        assert self._txn is not None  # begun
        marker = Marker(self._key, self._partition, str(self._txn.id))
        place = await self._store(self._options.marker_topic, marker, self._txn)
        self._txn.hand_over()
        where = place.ledger_id(), place.entry_id()
        return TaskTransaction(self._partition, marker.txn, self._deadline_ms, where)

    async def abort(self) -> None:
        """Abort, so that readers of the topics need not wait for the driver or the timeout."""
        if self._txn is None:
            return
        try:
            await self._txn.abort()
        except EncoreError as error:
            log.warning("the driver will abort transaction %s: %s", self._txn.id, error)

    async def _store(self, topic: str, record: Record, txn: MessageTransaction | None) -> MessageId:
        destinations = (Destination(topic),)
        producer = await self._producers.take(destinations[0], self._kind)
        try:
            stored = await producer.publish(OutgoingMessage(payload=encode(record), txn=txn))
        except BaseException:
            await self._producers.drop(destinations, self._kind)
            raise
        self._producers.give_back(destinations, self._kind)
        return stored
