"""A client that acks in transactions, frame by frame."""

from __future__ import annotations

import itertools
from typing import TypeAlias

from pulsar_encore.wire import pb
from pulsar_encore.wire.ack_set_words import from_words, to_words

from .contract_kit import SUBSCRIPTION
from .frame_client import WAIT_S, FrameClient

COMMIT, ABORT = pb.TxnAction.COMMIT, pb.TxnAction.ABORT
MINUTE_MS = 60_000

EntryId: TypeAlias = tuple[int, int]
TransactionId: TypeAlias = tuple[int, int]
Got: TypeAlias = tuple[int, int, int | None]
"""Number of the entry, redelivery count, mask of unacked indexes."""

_numbers = itertools.count(10_000)


class TransactionClient(FrameClient):
    """One connection with a consumer that acks in transactions.

    Attributes:
        topic: Topic of the consumer.
        entries: (ledger, entry) of the published entries.
        batch: Messages of each entry; 0 if they are not batched.
    """

    topic: str
    entries: list[EntryId]
    batch: int = 0

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._begun: list[TransactionId] = []

    async def start(self, topic: str, kind: int, count: int, *, batch: int = 0) -> None:
        """Subscribe, publish entries and ask for them."""
        self.topic, self.batch = topic, batch
        await self.subscribe(topic, kind)
        self.entries = await self.publish(topic, count, batch=batch)
        self.send(self.flow(1000))

    async def join(self, other: TransactionClient, kind: int, permits: int = 1000) -> None:
        """Subscribe to the topic of another client."""
        self.topic, self.batch, self.entries = other.topic, other.batch, other.entries
        await self.subscribe(self.topic, kind)
        self.send(self.flow(permits))

    async def connect_coordinator(self) -> None:
        """Load the only coordinator of the broker, as Pulsar needs it once after its start."""
        assign = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
        await self.lookup(assign)
        request = pb.CommandTcClientConnectRequest(request_id=next(_numbers), tc_id=0)
        await self.request(request, "TC_CLIENT_CONNECT_RESPONSE")

    async def begin(self, *, registered: bool = True, ttl_ms: int = MINUTE_MS) -> TransactionId:
        """Begin a transaction, and register the subscription."""
        await self.connect_coordinator()
        command = pb.CommandNewTxn(request_id=next(_numbers), txn_ttl_seconds=ttl_ms)
        answer = (await self.request(command, "NEW_TXN_RESPONSE")).newTxnResponse
        txn = (answer.txnid_most_bits, answer.txnid_least_bits)
        self._begun.append(txn)
        if registered:
            await self.register(txn)
        return txn

    async def register(self, txn: TransactionId) -> str:
        """Register the subscription. Return the name of the error, or an empty string."""
        command = pb.CommandAddSubscriptionToTxn(
            request_id=next(_numbers),
            txnid_most_bits=txn[0],
            txnid_least_bits=txn[1],
            subscription=[pb.Subscription(topic=self.topic, subscription=SUBSCRIPTION)],
        )
        answer = await self.request(command, "ADD_SUBSCRIPTION_TO_TXN_RESPONSE")
        assert answer.addSubscriptionToTxnResponse.request_id == command.request_id
        return _error(answer.addSubscriptionToTxnResponse)

    async def end(self, txn: TransactionId, action: pb.TxnAction.ValueType) -> None:
        """End a transaction, and assert that it ends."""
        assert await self.try_end(txn, action) == ""

    async def end_all(self) -> None:
        """Abort what is open. An open transaction keeps late acks of newer ones pending."""
        for txn in self._begun:
            await self.try_end(txn, ABORT)

    async def try_end(self, txn: TransactionId, action: pb.TxnAction.ValueType) -> str:
        """End a transaction. Return the name of the error, or an empty string."""
        command = pb.CommandEndTxn(
            request_id=next(_numbers),
            txnid_most_bits=txn[0],
            txnid_least_bits=txn[1],
            txn_action=action,
        )
        answer = await self.request(command, "END_TXN_RESPONSE")
        return _error(answer.endTxnResponse)

    def ack_command(
        self, numbers: tuple[int, ...], mask: int | None = None, cumulative: bool = False
    ) -> pb.CommandAck:
        """Build an ACK of entries by their numbers, or of the indexes with bit 0 in `mask`."""
        size = self.batch or None
        words = to_words(mask, self.batch) if mask is not None else None
        return pb.CommandAck(
            consumer_id=1,
            ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
            message_id=[
                pb.MessageIdData(
                    ledgerId=self.entries[number][0],
                    entryId=self.entries[number][1],
                    ack_set=words,
                    batch_size=size,
                )
                for number in numbers
            ],
            request_id=next(_numbers),
        )

    async def ack(
        self,
        txn: TransactionId | None,
        *numbers: int,
        mask: int | None = None,
        cumulative: bool = False,
        timeout_s: float = WAIT_S,
    ) -> str:
        """Ack entries by their numbers. Return the error and its text, or an empty string."""
        command = self.ack_command(numbers, mask, cumulative)
        if txn is not None:
            command.txnid_most_bits, command.txnid_least_bits = txn
        return await self.answer_to(command, timeout_s)

    async def answer_to(self, command: pb.CommandAck, timeout_s: float = WAIT_S) -> str:
        """Send an ACK. Return the error and its text, or an empty string."""
        self.send(command)
        answer = (await self.answer("ACK_RESPONSE", timeout_s)).ackResponse
        assert answer.request_id == command.request_id
        assert not answer.HasField("txnid_most_bits")
        error = _error(answer)
        return f"{error} {answer.message}" if error else ""

    async def got(self, expected: int) -> list[Got]:
        """Return the expected messages, and unexpected ones after them."""
        return [self._got(each) for each in await self.messages(expected)]

    def _got(self, message: pb.CommandMessage) -> Got:
        entry_id = (message.message_id.ledgerId, message.message_id.entryId)
        mask = from_words(message.ack_set) if message.ack_set else None
        return self.entries.index(entry_id), message.redelivery_count, mask

    async def seek(self, number: int) -> None:
        """Seek to an entry, and subscribe again as a client does after CLOSE_CONSUMER."""
        entry_id = self.entries[number]
        command = pb.CommandSeek(
            consumer_id=1,
            request_id=next(_numbers),
            message_id=pb.MessageIdData(ledgerId=entry_id[0], entryId=entry_id[1]),
        )
        await self.request(command, "SUCCESS")


def _error(answer: object) -> str:
    if not answer.HasField("error"):  # type: ignore[attr-defined]
        return ""
    return pb.ServerError.Name(answer.error)  # type: ignore[attr-defined]
