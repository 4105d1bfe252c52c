"""One topic (or partition) of a subscription: attached, flowing, and what it is told to send.

Owns `TopicConsumer`. Order on a connection: SUBSCRIBE, its answer, what was acked and not
confirmed, and only then permits (wire-protocol notes 0.2 and 8). Each attachment has a consumer id of its own, so
that what comes late for an old one is nobody's. What a lost connection had under way is never
delivered, and what was not handed over comes again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

from ....errors import ClosedError, NotSupportedError, PulsarException, TransportTimeout
from ....exceptions import (
    BrokerMetadataError,
    NotAllowedError,
    NotConnected,
    TopicNotFound,
    UnknownError,
)
from ....ids import MOST_IN_BATCH, MessageId
from ....loops import end_all
from ....wire import commands as wire_commands
from ....wire import pulsar_pb2 as pb
from ....wire.chunks import Fate, Joined
from ....wire.compression import UncompressedSizeError
from ....wire.entries import EntryError
from ...base import AckPlan, Deliveries, Delivery, NoDelivery, RetryNotice, Run, Unread
from ..connection.attachment import Attachment
from ..connection.fast_path import Template
from ..connection.retry_log import RetryLog
from ..connection.session import Session
from ..lookup.lookup import Lookup
from . import commands
from .chunked_messages import ChunkedMessages, uuid_of
from .decompression_queue import DecompressionQueue, MemoryBudget, QueuedEntry
from .decryption import Decryption, Undecrypted
from .entries import Chunk, EntryReader, Marker, Opened, Packed, Read, Withheld
from .messages import PlainMessage
from .permits import Permits
from .read_position import ReadPosition
from .subscribe_commands import SubscribeCommands

log: Final = logging.getLogger("pulsar_encore.consumer")

_Answer = TypeVar("_Answer")

_ONLY: Final = (0,)
# A rewind meets a read under way, and the broker skips a block, unless its permits ran dry or
# nothing came for so long (wire-protocol notes 5.5).
_CALM_S: Final = 0.1
_DRAIN_S: Final = 0.5
# A broker that is still writing an ack says that a SEEK is done, and skips it (4.2.4, 2 of 540
# seeks right after acks). The first ack of a cursor takes it some 40 ms.
_WRITTEN_S: Final = 0.5
_FENCED: Final = "Failed to fence subscription"  # a broker's words, for which it has no code
_AGAIN_S: Final = 0.1
# Errors by which brokers refuse a topic that was deleted or has another number of partitions.
_PERHAPS_MISSING: Final = (TopicNotFound, NotAllowedError, BrokerMetadataError, UnknownError)
_MOST_DAMAGED: Final = 1_000  # entries remembered


class TopicListener(Protocol):
    """Where a source's news go: the link."""

    retry_log: RetryLog

    def deliver(self, deliveries: Deliveries) -> None: ...
    def connected(self, source: int) -> None: ...
    def disconnected(self, source: int) -> None: ...
    def sought(self, source: int) -> None: ...
    def retrying(self, source: int, notice: RetryNotice) -> None: ...
    def missing(self, source: int) -> None: ...
    def failed(self, source: int, error: Exception) -> None: ...
    def ended(self, source: int) -> None: ...
    def active(self, source: int, active: bool) -> None: ...
    def unread(self, source: int, entries: Sequence[NoDelivery]) -> None: ...
    def asked_all(self, source: int, unseen: Sequence[Delivery]) -> None: ...


class TopicConsumer:
    """One topic of a consumer; a `ConsumerHandler` of the session it is attached to.

    Args:
        number: Its number in the link.
        topic: Full name; of the partition, if any.
        partition: Partition number or -1.
        lookup: Where topics are.
        subscribe_commands: What SUBSCRIBE says.
        ids: Consumer ids of the client.
        outlet: Where its news go.
        decryption: What becomes of encrypted entries.
        queue: Messages that may be on their way or unconsumed.
        most_bytes: The same in bytes.
        budget: For large decompressed payloads of the whole consumer.
        is_new: It came into being while the consumer runs.
        creates: Whether subscribing for the first time may create the topic.

    Attributes:
        missing_s: Loop time of the first broker's answer that the topic does not exist, since it
            was attached; None otherwise.
        may_create: Whether the next attempts to attach again may create the topic.
    """

    def __init__(
        self,
        number: int,
        topic: str,
        partition: int,
        lookup: Lookup,
        subscribe_commands: SubscribeCommands,
        ids: Iterator[int],
        outlet: TopicListener,
        decryption: Decryption,
        queue: int,
        most_bytes: int,
        budget: MemoryBudget,
        *,
        is_new: bool = False,
        creates: bool = True,
    ) -> None:
        self.missing_s: float | None = None
        self.may_create: bool = creates and subscribe_commands.creates
        # A topic that is not stored exists only while somebody uses it.
        self._stored = not topic.startswith("non-persistent://")
        self._is_new = is_new
        self._was_attached = False
        self.number: int = number
        self.topic: str = topic
        self.partition: int = partition
        self.permits: Permits = Permits(queue, most_bytes)
        self._lookup = lookup
        self._settings = lookup.pool.settings
        self._loop = lookup.pool.loop
        self._subscribe_commands = subscribe_commands
        self._ids = ids
        self._outlet = outlet
        self._attachment = Attachment(
            lookup,
            topic,
            self._attach,
            self._failed,
            retrying=self._retrying,
            retry_log=outlet.retry_log,
        )
        max_size = self._settings.max_uncompressed_size
        self._reader = EntryReader(self, decryption, max_size)
        self._queue = DecompressionQueue(
            budget,
            lookup.pool.codecs,
            self._loop,
            self._reader.unpack,
            self._handle,
            self._delivered_so_far,
            self._line_moved,
        )
        self._chunked = ChunkedMessages(
            subscribe_commands.subscription,
            topic,
            self._loop,
            self._ack,
            self._ask_again,
            lambda: self.permits.open <= 0,
            max_size,
            self._refuse_chunks,
        )
        self._session: Session | None = None  # while attached
        self._is_attached = asyncio.Event()
        self._id = -1  # of this attachment
        self._epoch = 0
        self._flowing = False  # the sink listens
        self._arrived: list[Delivery | Run] = []
        self._unread: list[NoDelivery] = []  # where there is a place
        self._damaged: set[tuple[int, int]] = set()  # entries that came broken, once
        self._is_damaged = False  # one came during a seek
        self._plain = self._plain_bytes = 0  # messages among those, and the size of their entries
        self._came_s = 0.0
        self._seeking = 0
        self._seek_turn = asyncio.Lock()
        self._closed_by_seek = False
        self._keeping = False  # acks, for a seek
        self._attaching = False
        self._acked_s = -math.inf  # when an ack was written last
        self._rewinding: asyncio.TimerHandle | None = None
        self._closed = False
        self._position: ReadPosition | None = (
            None  # of a durable one the broker's cursor says it all
        )
        if not subscribe_commands.durable:
            self._position = subscribe_commands.read_position(topic, partition, is_new=is_new)
        # What came with the answer to SUBSCRIBE, in one read: it is told after that.
        self._early: list[Callable[[], None]] = []

    # Attaching

    async def open(self) -> None:
        """Subscribe for the first time; raises what the broker says."""
        await self._attachment.first()

    @property
    def attached(self) -> bool:
        """Whether the broker holds this consumer."""
        return self._session is not None

    @property
    def takes_acks(self) -> bool:
        """Whether an ack would be sent now. None is shortly before a SEEK, nor behind it, where it
        would be wrong; but what may be lost leaves with a reconnect, and all of it at the end."""
        kept = self._keeping and not (self._attaching or self.permits.stopped)
        return self._session is not None and not kept

    async def _attach(self, session: Session) -> None:
        place = self._position
        if place is not None and place.at_last:
            place.begin_at(await self._find_last(session))
        if place is not None and place.since is not None:
            await self._seek_again(session, place.since)
        self._id = consumer_id = next(self._ids)
        session.attach_consumer(consumer_id, self)
        self._early.clear()
        epoch = self._epoch
        try:
            await self._subscribe(session, consumer_id, self._subscribe_command(consumer_id))
        except _PERHAPS_MISSING as error:
            self._perhaps_missing(error)
            raise
        if self._closed:
            self._abandon(session, consumer_id)
            raise ClosedError("the consumer was closed")
        if not session.holds_consumer(consumer_id):
            # What ended it came with the answer, in one read.
            raise NotConnected(f"{self.topic}: it was closed as soon as it was attached")
        self._session = session
        self._was_attached, self._is_new, self.missing_s = True, False, None
        self.may_create = self._subscribe_commands.creates and not self._stored
        self._is_attached.set()
        self.permits.reset(keeps=place is not None)
        if place is None:
            self._queue.forget_held()
        self._came_s = self._loop.time()
        if self._flowing:
            self._attaching = True
            self._outlet.connected(self.number)  # sends what was acked and not confirmed
            self._attaching = False
            if epoch != self._epoch:
                session.write(commands.redeliver(consumer_id, [], self._epoch))
            self.flow()
        early, self._early = self._early, []
        for tell in early:
            tell()

    def _perhaps_missing(self, error: PulsarException) -> None:
        """The broker does not know the topic, or does not take it as it is named."""
        if self._was_attached:
            if isinstance(error, TopicNotFound) and self.missing_s is None:
                self.missing_s = self._loop.time()
                self._is_new = True
            self._outlet.missing(self.number)

    def hurry(self) -> None:
        """Make the next attempt now, without waiting for the rest of the backoff."""
        self._attachment.hurry()

    async def _subscribe(
        self, session: Session, consumer_id: int, make: Callable[[int], pb.BaseCommand]
    ) -> None:
        """Ask for it; when that fails nothing of it is left, neither here nor there."""
        doing = f"subscribe {self._subscribe_commands.name!r} to {self.topic}"
        try:
            await session.ask(make, doing, self._settings.operation_timeout_s)
        except NotConnected:
            raise
        except (asyncio.CancelledError, TransportTimeout):
            # It may come about after all, and nobody would know of it.
            self._abandon(session, consumer_id)
            raise
        except PulsarException:
            session.detach_consumer(consumer_id)
            raise

    def _subscribe_command(self, consumer_id: int) -> Callable[[int], pb.BaseCommand]:
        """Makes SUBSCRIBE, for the place where it is now."""

        def make(request_id: int) -> pb.BaseCommand:
            start = None if self._position is None else self._position.start
            return self._subscribe_commands.command(
                self.topic,
                consumer_id,
                request_id,
                self._epoch,
                start,
                creates=self.may_create
                or (self._subscribe_commands.creates and self._attachment.is_elsewhere),
                from_start=self._is_new,
            )

        return make

    async def _seek_again(self, session: Session, since: int) -> None:
        """To a time that was sought, and of which nothing came before the connection was lost.

        The subscription went with it. A broker keeps a new one while the seek makes it subscribe
        anew, and its place.
        """
        consumer_id = next(self._ids)
        session.attach_consumer(consumer_id, self)
        await self._subscribe(session, consumer_id, self._subscribe_command(consumer_id))
        self._seeking += 1  # the broker closes it, which is no loss
        try:
            await session.ask(
                lambda request_id: wire_commands.seek(
                    consumer_id, request_id=request_id, publish_time_ms=since
                ),
                f"seek on {self.topic}",
                self._settings.operation_timeout_s,
            )
        except BaseException:
            self._abandon(session, consumer_id)
            raise
        finally:
            self._seeking -= 1
            self._closed_by_seek = False

    async def _find_last(self, session: Session) -> MessageId:
        """The last message now; the beginning of an empty topic, of which nothing is to be missed.

        Only a subscription can ask. This one has another name and gets no permits: one of the same
        name may still be there when ours is made, and would be given to us, at its own position.
        """
        consumer_id = next(self._ids)
        await self._subscribe(
            session,
            consumer_id,
            lambda request_id: self._subscribe_commands.probe(
                self.topic, consumer_id, request_id, creates=self.may_create
            ),
        )
        try:
            last = _last_id(await self._ask_last(session, consumer_id), self.partition, self.topic)
        finally:
            self._abandon(session, consumer_id)
        return MessageId.earliest if last.entry_id() < 0 else last

    def _abandon(self, session: Session, consumer_id: int) -> None:
        """Take back an attachment that nobody wants; its answer is not waited for."""
        session.detach_consumer(consumer_id)
        if not session.closed:
            request_id = session.requests.new_id()
            session.send(wire_commands.close_consumer(consumer_id, request_id=request_id))

    def _retrying(self, notice: RetryNotice) -> None:
        self._outlet.retrying(self.number, notice)

    def _failed(self, error: Exception) -> None:
        self._outlet.failed(self.number, error)

    def on_lost(self, error: Exception) -> None:
        if self._leave():
            self._attachment.again()

    def on_closed_by_broker(self, address: str | None) -> None:
        if self._seeking:
            self._closed_by_seek = True  # which goes on when it was answered
            self._leave()
        elif self._leave():
            self._attachment.again(address)

    def _leave(self) -> bool:
        """Nothing of this attachment comes any more; False when there was none."""
        if self._session is None:
            return False
        self._session = None
        self._is_attached.clear()
        self._unread.clear()
        dropped = self._drop_arrived()
        if self._position is not None:
            self._position.owe(self._chunked.begun())
            self._position.owe({each.uuid: each.chunks[0] for each in dropped if each.chunks})
        self._chunked.clear()
        self._stop_rewinding()
        if self._flowing and not self._closed and not self._seeking:
            self._outlet.disconnected(self.number)
        return not self._closed

    # What comes

    def on_entry(
        self,
        ledger: int,
        entry: int,
        redelivery_count: int,
        ack_set: int,
        epoch: int,
        data: bytes,
        at: int,
        end: int,
    ) -> None:
        try:
            opened = self._reader.open(data, at, end)
        except EntryError as error:
            if self._queue.waiting:
                self._queue.append(
                    QueuedEntry(ledger, entry, redelivery_count, ack_set, error, 0, 0)
                )
            else:
                self._broken(ledger, entry, error)
            return
        size = end - at
        if self._reader.grown:
            size += self._grown()
        place = self._position
        waiting = self._queue.waiting
        if (
            type(opened) is PlainMessage
            and epoch >= self._epoch
            and not waiting
            and (place is None or not place.is_before(ledger, entry))
        ):
            # What `_opened` does, without a call for each message.
            self._plain += 1
            self._plain_bytes += size
            self._arrived.append(
                Delivery(self.number, ledger, entry, 0, redelivery_count, _ONLY, (opened,))
            )
        elif waiting or (type(opened) is Packed and epoch >= self._epoch):
            if epoch >= self._epoch:
                self._reader.hold_back()
                charged = _charged(opened, ack_set)
                self.permits.queued(charged, size)
                self._queue.append(
                    QueuedEntry(ledger, entry, redelivery_count, ack_set, opened, size, charged)
                )
            else:
                self.permits.arrived(_charged(opened, ack_set), 0, size)
        else:
            self._opened(ledger, entry, redelivery_count, ack_set, epoch, opened, size)

    def _opened(
        self,
        ledger: int,
        entry: int,
        redelivery_count: int,
        ack_set: int,
        epoch: int,
        opened: Read,
        size: int,
    ) -> None:
        """Handle an entry that can be read, in its turn."""
        place = self._position
        if epoch < self._epoch or (
            place is not None and place.is_before(ledger, entry) and not self._owes(opened)
        ):
            self.permits.arrived(_charged(opened, ack_set), 0, size)
        elif isinstance(opened, PlainMessage):
            self._plain += 1  # counted together, at the end of the read
            self._plain_bytes += size
            self._arrived.append(
                Delivery(self.number, ledger, entry, 0, redelivery_count, _ONLY, (opened,))
            )
        elif isinstance(opened, Opened):
            self._batch(ledger, entry, redelivery_count, ack_set, opened, size)
        else:
            self._special(ledger, entry, redelivery_count, ack_set, opened, size)

    def _grown(self) -> int:
        """What decompressed payloads take more than on their way: they are held in clear."""
        grown, self._reader.grown = self._reader.grown, 0
        return grown

    def _owes(self, opened: Read) -> bool:
        """Whether it is a piece of a message of which pieces were lost with a connection."""
        if not isinstance(opened, Chunk) or self._position is None:
            return False
        uuid = uuid_of(opened.metadata)
        return self._position.is_owed(uuid) or self._chunked.holds(uuid)

    def on_run(
        self,
        template: Template,
        ledger: int,
        epoch: int,
        data: bytes,
        at: int,
        most: int,
        stop: int,
    ) -> int:
        if self._position is not None or epoch < self._epoch or self._queue.waiting:
            return at
        run = Run(self.number)
        end = self._reader.take_run(template, ledger, data, at, most, stop, run)
        count = len(run.places)
        if count:
            self._plain += count
            self._plain_bytes += end - at
            self._arrived.append(run)
        return end

    def _batch(
        self,
        ledger: int,
        entry: int,
        redelivery_count: int,
        ack_set: int,
        opened: Opened,
        size: int,
    ) -> None:
        count, messages, which = opened
        charged, indexes = count, range(count) if which is None else which
        first = 0 if self._position is None else self._position.first_index(ledger, entry)
        if ack_set != -1 or which is not None or first:
            if ack_set != -1:
                charged = _charged(opened, ack_set)
            # Bytes, because shifting a number of so many bits for each index is quadratic.
            unacked = (ack_set & (1 << count) - 1).to_bytes(count // 8 + 1, "little")
            kept = [
                (index, message)
                for index, message in zip(indexes, messages, strict=True)
                if unacked[index >> 3] >> (index & 7) & 1 and index >= first
            ]
            indexes = [index for index, _ in kept]
            messages = [message for _, message in kept]
            # What is not delivered is as good as acked, or the entry would never be done.
            left = bytearray(count // 8 + 1)
            for index in indexes:
                left[index >> 3] |= 1 << (index & 7)
            ack_set = int.from_bytes(left, "little")
        elif self._position is None:
            messages = list(messages)  # who settles them needs each
        self.permits.arrived(charged, len(messages), size)
        if messages:
            self._arrived.append(
                Delivery(
                    self.number, ledger, entry, count, redelivery_count, indexes, messages, ack_set
                )
            )
        else:
            self._ack([(ledger, entry)])  # of a reader it is none, and nothing more comes of it

    def _broken(self, ledger: int, entry: int, error: EntryError) -> None:
        """Damaged on its way, it is whole when it comes again; else it is acked as broken.

        So every client ends it, but not at once. What it cost in permits only its broker knows:
        the attachment is made anew, which sets them back.
        """
        session, place = self._session, (ledger, entry)
        if session is None:
            return
        if place not in self._damaged:
            if len(self._damaged) >= _MOST_DAMAGED:
                self._damaged.clear()
            self._damaged.add(place)
            log.warning("%s: entry %d:%d is asked for again: %s", self.topic, *place, error)
        else:
            self._damaged.discard(place)
            text = "%s: entry %d:%d is broken and %s: %s"
            log.error(text, self.topic, *place, self._left_out, error)
            if self._position is None:
                self._ack_unread(session, (ledger, entry), error.validation_error)
            else:
                self._pass(ledger, entry, Unread.BROKEN, error)
                self._hand_over()  # what comes next begins behind it
                self._position.passed(*place, broken=True)
        self._come_again()

    @property
    def _left_out(self) -> str:
        """What becomes of an entry that cannot be read, for a log line: a reader has no acks."""
        return "acked" if self._position is None else "passed over"

    def _come_again(self) -> None:
        """Attach anew, so that the broker redelivers every entry that was not delivered."""
        if self._seeking:
            self._is_damaged = True  # and perhaps void when the seek is answered
        else:
            self._attach_anew()

    def _pass(self, ledger: int, entry: int, why: Unread, error: Exception | None = None) -> None:
        """An entry that is not delivered; whoever has acks need not know."""
        if self._position is not None:
            self._unread.append(NoDelivery(ledger, entry, why, error))

    def _attach_anew(self) -> None:
        """Leave the broker that it is attached to, and come back."""
        session = self._session
        if session is not None and self._leave():
            self._abandon(session, self._id)
            self._attachment.again()

    def _special(
        self,
        ledger: int,
        entry: int,
        redelivery_count: int,
        ack_set: int,
        opened: Marker | Chunk | Withheld | Packed,
        size: int,
    ) -> None:
        if isinstance(opened, Marker):
            self.permits.arrived(1, 0, size)
            self._ack([(ledger, entry)])
            self._pass(ledger, entry, Unread.MARKER)
        elif isinstance(opened, Withheld):
            self._withhold(ledger, entry, ack_set, opened, size)
        elif isinstance(opened, Chunk):
            self._chunk(ledger, entry, redelivery_count, ack_set, opened, size)

    def _withhold(self, ledger: int, entry: int, ack_set: int, opened: Withheld, size: int) -> None:
        text = "%s: entry %d:%d is %s: %s"
        log.error(text, self.topic, ledger, entry, opened.action.value, opened.error)
        self.permits.arrived(_charged(opened, ack_set), 0, size)
        self._pass(ledger, entry, Unread.SEALED, opened.error)
        if opened.action is Undecrypted.DISCARDED and self._session is not None:
            self._ack_unread(self._session, (ledger, entry), pb.CommandAck.DecryptionError)

    def _chunk(
        self,
        ledger: int,
        entry: int,
        redelivery_count: int,
        ack_set: int,
        chunk: Chunk,
        size: int,
    ) -> None:
        joined = self._chunked.add(chunk, ledger, entry, redelivery_count)
        if self._position is not None:
            self._position.paid(uuid_of(chunk.metadata))
        if not isinstance(joined, Joined):
            self.permits.passed()
            if joined is Fate.REFUSE:
                error = UncompressedSizeError("a chunk of a message over max_uncompressed_size")
                self._pass(ledger, entry, Unread.BROKEN, error)
            else:
                torn = joined is Fate.REDELIVER
                self._pass(ledger, entry, Unread.TORN if torn else Unread.PIECE)
            return
        places, size = joined.places, len(joined.payload)
        if not ack_set:  # the message was acked while its last chunk waited in the line
            self._chunked.forget([(ledger, entry)])
            self.permits.arrived(1, 0, size)
            return
        count = joined.redelivery_count
        opened: Read | EntryError
        try:
            opened = self._reader.of_chunks(chunk, joined.payload, joined.sealed)
        except EntryError as error:
            opened = error
        waiting = QueuedEntry(
            ledger, entry, count, -1, opened, size, 1, places, uuid_of(chunk.metadata)
        )
        if isinstance(opened, Packed):
            self.permits.queued(1, size)
            self._queue.insert(waiting)
        else:
            self._joined(waiting, places, opened)

    def _joined(
        self,
        waiting: QueuedEntry,
        places: tuple[tuple[int, int], ...],
        content: Read | Exception | Callable[[], None],
    ) -> None:
        """Handle a chunked message that is complete."""
        ledger, entry, size = waiting.ledger, waiting.entry, waiting.size
        if isinstance(content, EntryError):
            self.permits.arrived(1, 0, size)
            text = "%s: chunked message %d:%d is broken and %s: %s"
            log.error(text, self.topic, *places[0], self._left_out, content)
            self._ack_chunks_unread(places, content.validation_error)
            self._pass(ledger, entry, Unread.BROKEN, content)
        elif isinstance(content, Exception):
            log.error("%s: entry %d:%d cannot be read now: %r", self.topic, ledger, entry, content)
            self.permits.arrived(1, 0, size)
            self._come_again()
        elif isinstance(content, PlainMessage):
            self.permits.arrived(1, 1, size + self._grown())
            count = waiting.redelivery_count
            self._arrived.append(
                Delivery(self.number, ledger, entry, 0, count, _ONLY, (content,), -1, places[0])
            )
        else:  # no client writes batches in chunks
            self.permits.arrived(1, 0, size)
            self._ack(list(places))
            self._pass(ledger, entry, Unread.BROKEN)

    def on_entries_end(self) -> None:
        self._came_s = self._loop.time()
        if self._queue.waiting:
            self._queue.advance()
        self._line_moved()

    # Entries that wait

    def _handle(self, waiting: QueuedEntry, content: Read | Exception | Callable[[], None]) -> None:
        """An entry has left the line."""
        self.permits.unqueued(waiting.charged)
        ledger, entry, ack_set = waiting.ledger, waiting.entry, waiting.ack_set
        if waiting.chunks is not None:
            self._joined(waiting, waiting.chunks, content)
        elif isinstance(content, EntryError):
            if waiting.charged:
                self.permits.arrived(waiting.charged, 0, waiting.size)
            self._broken(ledger, entry, content)
        elif isinstance(content, Exception):
            log.error("%s: entry %d:%d cannot be read now: %r", self.topic, ledger, entry, content)
            self.permits.arrived(waiting.charged, 0, waiting.size)
            self._come_again()
        elif callable(content):
            content()
        else:
            count, epoch = waiting.redelivery_count, self._epoch
            self._opened(ledger, entry, count, ack_set, epoch, content, waiting.size)

    def _delivered_so_far(self) -> int:
        permits = self.permits
        return permits.taken + permits.held - self._queue.charged + self._plain

    def _line_moved(self) -> None:
        if not self._queue.waiting:
            self._reader.allow()
        self._hand_over()
        self.flow()

    def _clear_line(self) -> list[QueuedEntry]:
        """Drop the entries that wait for decompression."""
        self._reader.allow()
        self.permits.withdrawn(self._queue.charged)
        return self._queue.clear()

    def _hand_over(self) -> None:
        """What came so far."""
        self._count_plain()
        arrived, self._arrived = self._arrived, []
        if arrived:
            last = arrived[-1]
            if self._position is not None and isinstance(last, Delivery):
                self._position.passed(last.ledger, last.entry)
            self._outlet.deliver(arrived)
        if self._unread:
            unread, self._unread = self._unread, []
            self._outlet.unread(self.number, unread)

    def _count_plain(self) -> None:
        if self._plain:
            self.permits.arrived(self._plain, self._plain, self._plain_bytes)
            self._plain = self._plain_bytes = 0

    def _drop_arrived(self) -> list[QueuedEntry]:
        """Drop everything that arrived and was not delivered.

        Returns:
            The entries that waited in the line.
        """
        self._count_plain()
        dropped, self._arrived = self._arrived, []
        for each in dropped:
            self.permits.withdrawn(len(each.messages))
        return self._clear_line()

    def on_end_of_topic(self) -> None:
        def tell() -> None:
            self._notice(lambda: self._outlet.ended(self.number))

        if self._queue.waiting:
            self._queue.append(QueuedEntry(-1, -1, 0, -1, tell, 0, 0))
        else:
            tell()

    def on_active_change(self, active: bool) -> None:
        self._notice(lambda: self._outlet.active(self.number, active))

    def _notice(self, tell: Callable[[], None]) -> None:
        if self._session is None:
            self._early.append(tell)
        else:
            tell()

    # Permits

    def start(self) -> None:
        """The sink listens: ask for messages."""
        self._flowing = True
        self.flow()

    def consumed(self, messages: int) -> None:
        """There is room for so many more."""
        self.permits.consumed(messages)
        if self._queue.held:
            self._queue.taken(self.permits.taken)
        self.flow()

    def wanted(self, messages: int) -> None:
        """Somebody waits for so many."""
        self.permits.want(messages)
        self.flow()

    def flow(self) -> None:
        """Give the permits that are due."""
        if self._session is not None and self._flowing and self._rewinding is None:
            starved = self.permits.open <= 0
            permits = self.permits.due()
            if permits:
                if starved:
                    self._chunked.postpone()
                self._session.send(wire_commands.flow(self._id, permits=permits))

    # Acks

    def ack(self, plan: AckPlan) -> list[asyncio.Future[Any]]:
        """Send a flush; returns the answers of its commands, which are its receipt.

        Raises:
            NotConnected: Nothing was sent.
        """
        session = self._ready()
        self._acked_s = self._loop.time()
        answers: list[asyncio.Future[Any]] = []

        def request() -> int:
            request_id = session.requests.new_id()
            doing = f"ack on {self.topic}"
            answers.append(
                session.requests.begin(request_id, doing, self._settings.operation_timeout_s)
            )
            return request_id

        partial, most = plan.partial, commands.MOST_IDS
        if plan.cumulative is not None:
            ledger, entry, size, mask = plan.cumulative
            self._chunked.forget_up_to((ledger, entry))
            if mask != -1:
                # A cumulative ack inside a batch undoes what was acked singly behind it (seen on
                # 4.2.4); up to the entry before and a part of this one, it does not.
                partial = [(ledger, entry, size, mask), *partial]
                entry -= 1
            session.write(commands.cumulative_ack(self._id, ledger, entry, request()))
        entries = self._chunked.expand(plan.entries)
        for at in range(0, max(len(entries), len(partial)), most):
            part = slice(at, at + most)
            session.write(
                commands.individual_acks(self._id, entries[part], partial[part], request())
            )
        if entries is not plan.entries:
            acked = plan.entries

            def forget(_: asyncio.Future[Any]) -> None:
                if all(each.done() and _confirmed(each) for each in answers):
                    self._chunked.forget(acked)

            for answer in answers:
                answer.add_done_callback(forget)
        if self._queue.waiting:
            self._drop_acked(plan)
        return answers

    def _drop_acked(self, plan: AckPlan) -> None:
        """Take messages out of the line that are acked by their ids before they were delivered.

        An entry may wait in the line for longer than the core remembers that its ack was sent.
        """
        whole = set(plan.entries)
        masks = {(ledger, entry): mask for ledger, entry, _, mask in plan.partial}
        through: tuple[int, int] = (-1, -1)
        if plan.cumulative is not None:
            ledger, entry, _, mask = plan.cumulative
            through = (ledger, entry)
            if mask != -1:
                masks[through] = masks.get(through, -1) & mask
                through = (ledger, entry - 1)
        kept: list[QueuedEntry] = []
        for each in self._queue.waiting:
            place, opened = (each.ledger, each.entry), each.opened
            if not isinstance(opened, EntryError) and not callable(opened):
                acked = place <= through or place in whole
                left = 0 if acked else each.ack_set & masks.get(place, -1)
                if left != each.ack_set:
                    each.ack_set = left
                    if isinstance(opened, Chunk):
                        kept.append(each)  # its message may go on behind the acked entries
                        continue
                    charged = _charged(opened, left) if left else 0
                    self.permits.withdrawn(each.charged - charged)
                    each.charged = charged
                    if not charged:
                        continue
            kept.append(each)
        self._queue.keep(kept)

    def _ack(self, entries: list[tuple[int, int]]) -> None:
        """Entries that are no messages."""
        if self._session is not None and self._position is None:
            self._acked_s = self._loop.time()
            self._session.write(commands.individual_acks(self._id, entries))

    def _ack_unread(
        self,
        session: Session,
        place: tuple[int, int],
        why: pb.CommandAck.ValidationError.ValueType,
    ) -> None:
        """An entry that cannot be read, with the validation error that says why."""
        self._acked_s = self._loop.time()
        which = [wire_commands.message_id(*place)]
        session.send(wire_commands.ack(self._id, which, validation_error=why))

    def _refuse_chunks(self, places: Sequence[tuple[int, int]]) -> None:
        self._ack_chunks_unread(places, pb.CommandAck.UncompressedSizeCorruption)

    def _ack_chunks_unread(
        self,
        places: Sequence[tuple[int, int]],
        why: pb.CommandAck.ValidationError.ValueType,
    ) -> None:
        """Ack the chunks of a message that cannot be read. A reader has no acks."""
        if self._session is not None and self._position is None:
            for place in places:
                self._ack_unread(self._session, place, why)

    def _ready(self) -> Session:
        session = self._session
        if session is None:
            raise NotConnected(
                f"{self.topic}: not connected at the moment; it reconnects by itself"
            )
        return session

    # Redelivery

    def redeliver(self, entries: list[tuple[int, int]]) -> None:
        """Ask for single entries again (Shared and Key_Shared).

        Raises:
            NotConnected: Nothing was asked for.
        """
        self._ask_for(self._ready(), self._chunked.expand(entries))

    def _ask_for(self, session: Session, entries: list[tuple[int, int]]) -> None:
        for at in range(0, len(entries), commands.MOST_IDS):
            session.write(commands.redeliver(self._id, entries[at : at + commands.MOST_IDS]))

    def _ask_again(self, entries: list[tuple[int, int]]) -> None:
        """Of what was let go; an ordered subscription brings nothing alone."""
        if self._session is None:
            return
        if self._subscribe_commands.shared:
            self._ask_for(self._session, entries)
        elif not self._seeking:
            self._attach_anew()

    def redeliver_all(self) -> None:
        """Ask for all that is unacked again; a reconnect does it where there is no connection."""
        if self._subscribe_commands.shared:
            if self._session is not None:
                self._session.write(commands.redeliver(self._id, []))
                self._drop_waiting()
                self.flow()
            return
        self._epoch += 1  # what is under way is of an earlier one, and dropped
        self._drop_arrived()
        self._chunked.clear()
        if self._session is not None and self._rewinding is None:
            self._rewind(self._loop.time() + _DRAIN_S)

    def _drop_waiting(self) -> None:
        """Drop the entries of the line, which the broker redelivers, and count no attempt for them.

        Pieces of chunked messages stay, because they follow pieces that were joined already.
        Broken entries stay, because they lead to another attachment.
        """
        kept: list[QueuedEntry] = []
        unseen: list[Delivery] = []
        for each in self._queue.waiting:
            opened = each.opened
            if isinstance(opened, EntryError | Chunk) or callable(opened):
                kept.append(each)
                continue
            self.permits.withdrawn(each.charged)
            size = _charged(opened, -1)
            unseen.append(Delivery(self.number, each.ledger, each.entry, size, 0, (), ()))
        if unseen:
            self._queue.keep(kept)
            self._outlet.asked_all(self.number, unseen)

    def _rewind(self, deadline: float) -> None:
        """Ask once the broker sends nothing more: its permits are used up, or it has nothing."""
        self._rewinding = None
        if self._session is None:
            return
        now = self._loop.time()
        calm = now - self._came_s >= _CALM_S
        if self.permits.open > 0 and not calm and now < deadline:
            wait = min(deadline, self._came_s + _CALM_S) - now
            self._rewinding = self._loop.call_later(max(0.001, wait), self._rewind, deadline)
            return
        self._session.write(commands.redeliver(self._id, [], self._epoch))
        self.flow()

    def _stop_rewinding(self) -> None:
        if self._rewinding is not None:
            self._rewinding.cancel()
            self._rewinding = None

    # Positions

    async def seek(self, place: MessageId | int) -> None:
        """To a message id or a publish time in ms; what comes from now on is from there.

        One after the other. Acks are kept meanwhile: void when it took effect.

        Raises:
            PulsarException: The broker refused, or it did not come about in time.
        """
        async with self._seek_turn:
            self._keeping = True
            try:
                await self._seek(place)
            finally:
                self._keeping = False

    async def _seek(self, place: MessageId | int) -> None:
        deadline = self._loop.time() + self._settings.operation_timeout_s
        while True:
            session = await self._until_attached(deadline)
            await self._until_written()
            if session is not self._session:
                continue
            self._seeking += 1
            try:
                await session.ask(
                    lambda request_id: self._seek_command(request_id, place),
                    f"seek on {self.topic}",
                    self._settings.operation_timeout_s,
                )
            except NotConnected:
                # Lost on the way: whether it took effect is not known, and once more is no harm.
                self._end_of_seek()
                if self._loop.time() >= deadline:
                    raise
                continue
            except PulsarException as error:
                self._end_of_seek()
                # One that was sought before, and lost or cancelled, is still under way there.
                if _FENCED not in str(error) or self._loop.time() + _AGAIN_S >= deadline:
                    raise
                await asyncio.sleep(_AGAIN_S)
                continue
            except BaseException:
                self._end_of_seek()
                raise
            self._drop_arrived()
            self._chunked.clear()
            if self._position is not None:
                self._position.sought(place)
            self._outlet.sought(self.number)
            self._seeking -= 1
            damaged, self._is_damaged = self._is_damaged, False
            if self._closed_by_seek:
                self._closed_by_seek = False
                self._attachment.begin()  # nothing was lost: no backoff, however often it seeks
            elif damaged:
                self._attach_anew()
            return

    async def _until_written(self) -> None:
        """Give the broker the time to write what was acked last; not for ever, because entries that
        are no messages are acked as they come."""
        end = self._loop.time() + 4 * _WRITTEN_S
        while True:
            rest = min(self._acked_s + _WRITTEN_S, end) - self._loop.time()
            if rest <= 0:
                return
            await asyncio.sleep(rest)

    def _seek_command(self, request_id: int, place: MessageId | int) -> pb.BaseCommand:
        if isinstance(place, int):
            return wire_commands.seek(self._id, request_id=request_id, publish_time_ms=place)
        target = self._subscribe_commands.place(place)
        return wire_commands.seek(self._id, request_id=request_id, message_id=target)

    def _end_of_seek(self) -> None:
        """It failed; where the broker closed us all the same, go on as after any loss."""
        self._seeking -= 1
        self._closed_by_seek = False
        damaged, self._is_damaged = self._is_damaged, False
        if self._session is None and not self._closed:
            if self._flowing:
                self._outlet.disconnected(self.number)
            self._attachment.again()
        elif damaged and not self._seeking:
            self._attach_anew()

    async def _until_attached(self, deadline: float) -> Session:
        """Wait for that.

        Raises:
            NotConnected: It did not come about by then.
            ClosedError: The consumer was closed.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._is_attached.wait()
        if self._closed:
            raise ClosedError(f"{self.topic}: the consumer was closed")
        return self._ready()

    async def _ask_last(
        self, session: Session, consumer_id: int
    ) -> pb.CommandGetLastMessageIdResponse:
        answer: pb.CommandGetLastMessageIdResponse = await session.ask(
            lambda request_id: wire_commands.get_last_message_id(
                consumer_id, request_id=request_id
            ),
            f"last message id of {self.topic}",
            self._settings.operation_timeout_s,
        )
        return answer

    async def has_message_available(self) -> bool:
        """Whether something is stored behind what was delivered last."""
        place = self._position
        if place is None:
            raise NotSupportedError("a durable subscription has acks, and no place to look behind")
        return place.is_before_end(await self._last_stored())

    async def last_message_id(self) -> MessageId:
        """Of the topic; ledger and entry are -1 when it is empty."""
        return _last_id(await self._last_stored(), self.partition, self.topic)

    async def acked_position(self) -> MessageId:
        """Of the cursor; ledger and entry are -1 before the first message."""
        answer = await self._last_stored()
        place = answer.consumer_mark_delete_position
        entry = -1 if place.entryId == wire_commands.NO_REQUEST else place.entryId
        ledger = -1 if place.ledgerId == wire_commands.NO_REQUEST else place.ledgerId
        return MessageId(self.partition, ledger, entry, topic=self.topic)

    async def _last_stored(self) -> pb.CommandGetLastMessageIdResponse:
        return await self._when_attached(lambda session: self._ask_last(session, self._id))

    async def _when_attached(self, ask: Callable[[Session], Awaitable[_Answer]]) -> _Answer:
        """Ask once it is attached, as after a seek or a loss, and again if it is lost meanwhile.

        Raises:
            NotConnected: It was not within the operation timeout.
            PulsarException: The broker refused, or did not answer in time.
        """
        deadline = self._loop.time() + self._settings.operation_timeout_s
        while True:
            session = await self._until_attached(deadline)
            try:
                return await ask(session)
            except NotConnected:
                if self._loop.time() >= deadline:
                    raise

    # Endings

    async def unsubscribe(self) -> None:
        """Delete the subscription; raises what the broker says."""
        await self._when_attached(
            lambda session: session.ask(
                lambda request_id: wire_commands.unsubscribe(self._id, request_id=request_id),
                f"unsubscribe {self._subscribe_commands.name!r} from {self.topic}",
                self._settings.operation_timeout_s,
            )
        )
        self.abandon()

    async def close(self) -> None:
        """Leave; idempotent, and never raises for what is gone already."""
        self._end()
        await self._attachment.stop()
        self._stop_rewinding()
        self._chunked.clear()
        self._clear_line()
        self._queue.forget_held()
        session, self._session = self._session, None
        if session is None:
            return
        session.detach_consumer(self._id)
        with contextlib.suppress(PulsarException):
            await session.ask(
                lambda request_id: wire_commands.close_consumer(self._id, request_id=request_id),
                f"close the consumer of {self.topic}",
                self._settings.operation_timeout_s,
            )

    def _end(self) -> None:
        self._closed = True
        self._is_attached.set()  # a seek that waits for it sees that it never comes

    def abandon(self) -> None:
        """Leave at once; the broker learns of it with the connection."""
        end_all(
            self._loop,
            self._end,
            self._attachment.abandon,
            self._stop_rewinding,
            self._chunked.clear,
            self._clear_line,
            self._queue.forget_held,
        )
        session, self._session = self._session, None
        if session is not None:
            session.detach_consumer(self._id)


def _last_id(answer: pb.CommandGetLastMessageIdResponse, partition: int, topic: str) -> MessageId:
    """What the answer says; ledger and entry are -1 of an empty topic."""
    place = answer.last_message_id
    if place.entryId == wire_commands.NO_REQUEST:
        return MessageId(partition, -1, -1, topic=topic)
    return MessageId(
        partition,
        place.ledgerId,
        place.entryId,
        place.batch_index,
        batch_size=place.batch_size if place.batch_size <= MOST_IN_BATCH else 0,
        topic=topic,
    )


def _charged(opened: Read, ack_set: int) -> int:
    """What the broker counted down for an entry: its messages, but for those acked before."""
    if isinstance(opened, Opened):
        count = opened.batch_size
    elif isinstance(opened, Withheld | Packed):
        count = opened.messages
    else:
        return 1
    if ack_set == -1:
        return count
    if count < ack_set.bit_length():
        ack_set &= (1 << count) - 1
    return ack_set.bit_count()


def _confirmed(answer: asyncio.Future[Any]) -> bool:
    return not answer.cancelled() and answer.exception() is None
