"""Requests to a broker for positions in one topic: its end, and the subscription's cursor."""

from __future__ import annotations

from ....errors import NotSupportedError
from ....values.message_id import MAX_BATCH_SIZE, MessageId
from ....wire import NO_REQUEST, pb
from ...interface import TopicEnds
from ..connection.session import Session
from .broker_consumer import BrokerConsumer
from .read_position import ReadPosition


class PositionQueries:
    """Asks for positions, on behalf of one topic's consumer."""

    def __init__(
        self, broker: BrokerConsumer, partition: int, position: ReadPosition | None
    ) -> None:
        self._broker = broker
        self._partition = partition
        self._position = position

    async def has_message_available(self) -> bool:
        """Return True if a message is stored after the last delivered one; only for a reader."""
        position = self._position
        if position is None:
            raise NotSupportedError(
                "a durable subscription has acks and no single read position; use a reader"
            )
        return position.is_before_end(await self._last_stored())

    async def last_message_id(self) -> MessageId:
        """Return the last message id of the topic; ledger and entry are -1 if it is empty."""
        return self._last_id(await self._last_stored())

    async def acked_position(self) -> MessageId:
        """Return the cursor's mark-delete position: ledger and entry, or -1 before the first."""
        return self._acked(await self._last_stored())

    async def ends(self) -> TopicEnds:
        answer = await self._last_stored()
        return TopicEnds(self._last_id(answer), self._acked(answer))

    def _acked(self, answer: pb.CommandGetLastMessageIdResponse) -> MessageId:
        cursor = answer.consumer_mark_delete_position
        entry = -1 if cursor.entryId == NO_REQUEST else cursor.entryId
        ledger = -1 if cursor.ledgerId == NO_REQUEST else cursor.ledgerId
        return MessageId(self._partition, ledger, entry, topic=self._broker.topic)

    async def last_id_by(self, session: Session, consumer_id: int) -> MessageId:
        """Return the last message id, as another consumer than the topic's own."""
        return self._last_id(await self._ask(session, consumer_id))

    async def _last_stored(self) -> pb.CommandGetLastMessageIdResponse:
        broker = self._broker
        return await broker.when_attached(lambda session: self._ask(session, broker.consumer_id))

    async def _ask(self, session: Session, consumer_id: int) -> pb.CommandGetLastMessageIdResponse:
        answer: pb.CommandGetLastMessageIdResponse = await session.request(
            lambda request_id: pb.CommandGetLastMessageId(
                consumer_id=consumer_id, request_id=request_id
            ),
            f"last message id of {self._broker.topic}",
            self._broker.timeout_s,
        )
        return answer

    def _last_id(self, answer: pb.CommandGetLastMessageIdResponse) -> MessageId:
        last, topic = answer.last_message_id, self._broker.topic
        if last.entryId == NO_REQUEST:
            return MessageId(self._partition, -1, -1, topic=topic)
        return MessageId(
            self._partition,
            last.ledgerId,
            last.entryId,
            last.batch_index,
            batch_size=last.batch_size if last.batch_size <= MAX_BATCH_SIZE else 0,
            topic=topic,
        )
