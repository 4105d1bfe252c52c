"""One topic or partition of a subscription, on the broker that serves it.

Its parts: `incoming_entries` receives MESSAGE, `permits` counts FLOW, `ack_writer` sends ACK,
`subscriber` SUBSCRIBE, `seek` SEEK, `redelivery_requests` and `rewind_command` REDELIVER.

Order on a connection: SUBSCRIBE, its answer, the acks that no broker has confirmed, and only then
permits (`docs/notes/wire-protocol.md#order-after-a-reconnect`). Entries that were on their way when
a connection ended are never delivered; the broker sends them again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from ....errors import PulsarException
from ....eventloop.affinity import end_all
from ....values.message_id import MessageId
from ....wire import pb
from ...interface import AckPlan
from ..connection.attachment import Attachment
from ..connection.session import Session
from ..lookup.lookup import Lookup
from . import ack_commands as commands
from .ack_writer import AckWriter
from .broker_consumer import BrokerConsumer
from .chunked_messages import ChunkedMessages
from .consumer_states import State, Step
from .decryption import Decryption
from .entry_reader import EntryReader
from .incoming_entries import IncomingEntries
from .memory_budget import MemoryBudget
from .permits import Permits
from .position_queries import PositionQueries
from .read_position import ReadPosition
from .redelivery_requests import RedeliveryRequests
from .rewind_command import RewindCommand
from .seek import Seek
from .skipped_entries import SkippedEntries
from .subscribe_commands import SubscribeCommands
from .subscriber import Subscriber
from .topic_events import TopicEvents
from .transaction_ack_writer import TransactionAckWriter

LOG_NAME: Final = "pulsar_encore.consumer"


class TopicSnapshot(NamedTuple):
    """The state of a `TopicConsumer` at one moment, for tests and debugging.

    Attributes:
        open_permits: Messages that the broker may still send.
        unconsumed: Messages that arrived and that the application has not taken.
        queued: (ledger, entry) of the entries that wait for decompression; (-1, -1) for a notice.
        queued_messages: Permits that the broker took for them.
    """

    state: State
    open_permits: int
    unconsumed: int
    queued: tuple[tuple[int, int], ...]
    queued_messages: int
    incomplete_chunked: int


class TopicConsumer:
    """The consumer of one topic; a `ConsumerHandler` of the session that it is attached to.

    Args:
        ids: Consumer ids of the client.
        queue_size, most_bytes: Most messages and bytes that may be on their way or unconsumed.
        is_new: Discovery found the topic while the consumer runs, so it is read from its first
            message.
        creates: The first SUBSCRIBE may create the topic.

    Attributes:
        attachment, subscriber, queries, redelivery, seek: The parts that the owner calls directly.
        on_entry, on_run, on_entries_end: Methods of `IncomingEntries`, which saves a call for each
            entry.
    """

    def __init__(
        self,
        number: int,
        topic: str,
        partition: int,
        lookup: Lookup,
        subscribe_commands: SubscribeCommands,
        ids: Iterator[int],
        listener: TopicEvents,
        decryption: Decryption,
        queue_size: int,
        most_bytes: int,
        budget: MemoryBudget,
        *,
        is_new: bool = False,
        creates: bool = True,
    ) -> None:
        settings, loop = lookup.pool.settings, lookup.pool.loop
        timeout_s, max_size = settings.operation_timeout_s, settings.max_uncompressed_size
        durable, log = subscribe_commands.durable, settings.logger_of(LOG_NAME)
        self.number: int = number
        self.topic: str = topic
        self.partition: int = partition
        self.permits: Permits = Permits(queue_size, most_bytes)
        self._subscribe_commands = subscribe_commands
        self._listener = listener
        self._started = False  # the delivery listener asked for messages
        self._position: ReadPosition | None = None
        if not durable:
            self._position = subscribe_commands.read_position(topic, partition, is_new=is_new)
        self._broker = BrokerConsumer(topic, loop, timeout_s)
        self.queries: PositionQueries = PositionQueries(self._broker, partition, self._position)
        self.attachment: Attachment = Attachment(
            lookup,
            topic,
            self._attach,
            partial(listener.on_failed, number),
            retrying=partial(listener.on_retrying, number),
            retry_log=listener.retry_log,
        )
        self._chunked = ChunkedMessages(
            subscribe_commands.subscription,
            topic,
            loop,
            lambda entries: self._acks.ack_skipped(entries),
            lambda entries: self.redelivery.request_chunks(entries),
            lambda: self.permits.open <= 0,
            max_size,
            lambda entries: self._acks.ack_unreadable(
                entries, pb.CommandAck.UncompressedSizeCorruption
            ),
            log,
        )
        self._acks = AckWriter(self._broker, self._chunked, durable=durable)
        self.transaction_acks: TransactionAckWriter = TransactionAckWriter(
            self._broker,
            self._chunked,
            subscribe_commands.name,
            lookup.pool,
            shared=subscribe_commands.shared,
        )
        self._incoming = IncomingEntries(
            number,
            self._broker,
            self.permits,
            self._position,
            EntryReader(topic, decryption, max_size),
            budget,
            lookup.pool.codecs,
            self._chunked,
            self._acks,
            SkippedEntries(number, topic, self._acks, listener, log, durable=durable),
            listener,
            self.reattach,
            self._flow,
            log,
        )
        self._rewind = RewindCommand(self._broker, self._incoming, self.permits, self._flow)
        self.redelivery: RedeliveryRequests = RedeliveryRequests(
            self._broker,
            self._chunked,
            self._incoming,
            self._rewind,
            shared=subscribe_commands.shared,
            reattach=self.reattach,
            flow=self._flow,
        )
        self.seek: Seek = Seek(
            self._broker,
            subscribe_commands,
            self._acks,
            self._on_seek,
            self.attachment.begin,
            self._on_lost_by_seek,
            self.reattach,
        )
        self.subscriber: Subscriber = Subscriber(
            self._broker,
            self,
            subscribe_commands,
            self.queries,
            self._position,
            ids,
            lambda: self._incoming.epoch,
            lambda: self.attachment.moved_to_new_cluster,
            partial(listener.on_missing, number),
            is_new=is_new,
            creates=creates,
        )
        self.on_entry: Callable[..., Any] = self._incoming.on_entry
        self.on_run: Callable[..., Any] = self._incoming.on_run
        self.on_entries_end: Callable[..., Any] = self._incoming.on_entries_end

    # Attaching

    @property
    def is_attached(self) -> bool:
        return self._broker.session is not None

    @property
    def can_ack(self) -> bool:
        """True if acks can be sent now.

        While a seek runs, acks are held back because they would refer to the old position. A
        reconnect during the seek and `close` still send them.
        """
        if self._broker.session is None:
            return False
        is_urgent = self._broker.state is State.RESENDING or self.permits.stopped
        return is_urgent or not self.seek.is_running

    async def _attach(self, session: Session) -> None:
        self._broker.step(Step.BEGIN_ATTACH)
        try:
            consumer_id, epoch = await self.subscriber.subscribe(session)
        except BaseException:
            self._broker.step(Step.ATTACH_FAILED)
            raise
        self._broker.attach(session, consumer_id)
        # The messages that a reader holds are not redelivered, so they keep their permits. All
        # unacked messages of a consumer are redelivered, and are counted as they arrive.
        self.permits.reset(keeps=self._position is not None)
        if self._position is None:
            self._incoming.queue.release_held()
        self._incoming.arrived_s = self._broker.loop.time()
        if self._started:
            # The listener sends unconfirmed acks within this call. Without them the broker would
            # send the acked messages again.
            try:
                self._listener.on_connected(self.number)
            except BaseException:
                # Attached without permits, the broker would keep its messages for ever.
                if self._detach(Step.REATTACH):
                    self.subscriber.abandon(session, consumer_id)
                raise
            if epoch != self._incoming.epoch:
                # A rewind was requested after SUBSCRIBE had been sent, so the broker has the old
                # epoch. It would put that epoch into every MESSAGE, and `IncomingEntries` would
                # drop them all.
                session.write(commands.redeliver(consumer_id, [], self._incoming.epoch))
        self._broker.step(Step.RESUME)
        self._flow()
        notices, self.subscriber.early_notices = self.subscriber.early_notices, []
        for notify in notices:
            notify()

    def reattach(self) -> None:
        """Leave the broker and attach again, so that it sends all undelivered entries again.

        While SEEK is unanswered, this happens after the answer.
        """
        session, consumer_id = self._broker.session, self._broker.consumer_id
        if session is not None and self._detach(Step.REATTACH):
            self.subscriber.abandon(session, consumer_id)
            self.attachment.again()

    def _detach(self, step: Step) -> bool:
        """Take a step that may end the attachment. Return True if the consumer must reattach."""
        if not self._broker.detach(step):
            return False
        self._incoming.connection_lost()
        self._rewind.cancel()
        # During a seek the listener is not informed yet: if the seek succeeds, nothing was lost.
        if self._started and self._broker.state is State.DETACHED:
            self._listener.on_disconnected(self.number)
        return not self._broker.is_ended

    # Called by the session and the attachment

    def on_lost(self, error: Exception) -> None:
        if self._detach(Step.LOSE):
            self.attachment.again()

    def on_closed_by_broker(self, address: str | None) -> None:
        # If the broker closed the consumer for a seek, `Seek` attaches it after the answer: at once
        # after a success, with backoff after a failure.
        if self._detach(Step.CLOSED_BY_BROKER) and self._broker.state is State.DETACHED:
            self.attachment.again(address)

    def on_end_of_topic(self) -> None:
        self._incoming.after_queued(
            lambda: self._notify(lambda: self._listener.on_end_of_topic(self.number))
        )

    def on_active_change(self, active: bool) -> None:
        self._notify(lambda: self._listener.on_active_changed(self.number, active))

    def _notify(self, notify: Callable[[], None]) -> None:
        if self._broker.session is None:
            self.subscriber.early_notices.append(notify)
        else:
            notify()

    # Permits

    def start(self) -> None:
        """Give permits from now on."""
        self._started = True
        self._flow()

    def consumed(self, messages: int) -> None:
        is_due = self.permits.consumed(messages)
        if self._incoming.queue.held:
            self._incoming.queue.taken(self.permits.taken)
        if is_due:
            self._flow()

    def request_messages(self, messages: int) -> None:
        self.permits.want(messages)
        self._flow()

    def _flow(self) -> None:
        session = self._broker.session
        if session is not None and self._started and not self._rewind.is_pending:
            is_starved = self.permits.open <= 0
            permits = self.permits.take_due()
            if permits:
                if is_starved:
                    self._chunked.postpone()
                session.send(
                    pb.CommandFlow(consumer_id=self._broker.consumer_id, messagePermits=permits)
                )

    def ack(self, plan: AckPlan) -> list[asyncio.Future[Any]]:
        answers = self._acks.ack(plan)
        self._incoming.drop_acked(plan)
        return answers

    def _on_seek(self, target: MessageId | int) -> None:
        self._incoming.drop_all()
        if self._position is not None:
            self._position.seek_to(target)
        self._listener.on_seek(self.number)

    def _on_lost_by_seek(self) -> None:
        if self._started:
            self._listener.on_disconnected(self.number)
        self.attachment.again()

    # The end

    async def unsubscribe(self) -> None:
        await self._broker.when_attached(
            lambda session: session.request(
                lambda request_id: pb.CommandUnsubscribe(
                    consumer_id=self._broker.consumer_id, request_id=request_id
                ),
                f"unsubscribe {self._subscribe_commands.name!r} from {self.topic}",
                self._broker.timeout_s,
            )
        )
        self.abandon()

    async def close(self) -> None:
        """Close the consumer at the broker. Errors of the broker are ignored. Idempotent."""
        await self.transaction_acks.close(self._broker.timeout_s)
        self._broker.end()
        await self.attachment.stop()
        self._rewind.cancel()
        self._chunked.clear()
        self._incoming.clear_queue()
        self._incoming.queue.release_held()
        session, consumer_id = self._broker.finish(), self._broker.consumer_id
        if session is None:
            return
        session.detach_consumer(consumer_id)
        with contextlib.suppress(PulsarException):
            await session.request(
                lambda request_id: pb.CommandCloseConsumer(
                    consumer_id=consumer_id, request_id=request_id
                ),
                f"close the consumer of {self.topic}",
                self._broker.timeout_s,
            )

    def abandon(self) -> None:
        """Leave at once, without a command."""
        end_all(
            self._broker.loop,
            self.transaction_acks.abandon,
            self._broker.end,
            self.attachment.abandon,
            self._rewind.cancel,
            self._chunked.clear,
            self._incoming.clear_queue,
            self._incoming.queue.release_held,
        )
        session = self._broker.finish()
        if session is not None:
            session.detach_consumer(self._broker.consumer_id)

    def snapshot(self) -> TopicSnapshot:
        return TopicSnapshot(
            self._broker.state,
            self.permits.open,
            self.permits.held,
            tuple((each.ledger, each.entry) for each in self._incoming.queue.waiting),
            self._incoming.queue.charged,
            len(self._chunked.assembler),
        )
