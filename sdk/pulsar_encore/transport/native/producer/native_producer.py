"""The `TransportProducer` of a topic and its partitions.

It finds new partitions while it runs, and waits for a deleted topic. If the topic comes back with
other partitions, messages without a receipt go to those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final, Protocol, cast

from ....errors import (
    ClosedError,
    ConfigurationError,
    EncoreError,
    NotConnected,
)
from ....eventloop.affinity import cancel
from ....eventloop.alarm import now_ms
from ....eventloop.close_once import CloseOnce
from ....eventloop.process import in_background
from ....options import ProducerOptions
from ....values.message_id import MessageId
from ....values.outgoing_message import OutgoingMessage
from ....values.topic_names import full_name
from ....wire.compression import compress
from ...interface import OnPosted, ProducerListener, report_posted
from ..connection.reconnect_backoff import ReconnectBackoff
from ..connection.retry_log import RetryLog
from ..lookup.lookup import Lookup
from ..lookup.topic_shape import TopicShape
from ..transactions.native_transaction import NativeTransaction, own_transaction
from .frame_rewrite import key_of
from .message_router import MessageRouter
from .partition_producer import PartitionProducer
from .registration import Registration
from .send_encoder import Encrypt
from .send_encryption import encryptor_of
from .send_queue import SendQueue
from .send_results import PostedSend, TransactionalSend, closed_error, deleted_error, set_failed
from .transaction_sends import TransactionSends
from .unconfirmed_frames import SendFrame, Waiter

LOG_NAME: Final = "pulsar_encore.producer"


class ProducerClient(Protocol):
    def lookup_for(self, producer: NativeProducer) -> Lookup:
        """Return the lookup of the running loop, and close the producer with the client."""

    def ended(self, producer: NativeProducer) -> None:
        """Forget a closed producer."""


async def open_producer(
    client: ProducerClient,
    options: ProducerOptions,
    ids: Iterator[int],
    listener: ProducerListener | None = None,
) -> NativeProducer:
    """Make a producer that the brokers have accepted. `ids` never repeats a producer id."""
    compress(options.compression_type.value, b"")  # raises if the codec is not available
    encrypt = await encryptor_of(options)
    producer = NativeProducer(client, options, ids, encrypt, listener)
    try:
        await producer.open()
    except BaseException:
        producer.abandon()
        raise
    return producer


class NativeProducer:
    """One producer (`TransportProducer`), made by `open_producer`.

    After the end of its event loop it continues on the next loop that uses it, and attaches again
    there. Pending messages are lost with the loop.
    """

    def __init__(
        self,
        client: ProducerClient,
        options: ProducerOptions,
        ids: Iterator[int],
        encrypt: Encrypt | None,
        listener: ProducerListener | None = None,
    ) -> None:
        self._client = client
        self._options = options
        self._ids = ids
        self.topic: str = full_name(options.topic)
        name = f" {options.producer_name!r}" if options.producer_name else ""
        self._encrypt = encrypt
        self._listener = listener
        self._lookup = client.lookup_for(self)
        logger_of = self._lookup.pool.settings.logger_of
        self._log = logger_of(LOG_NAME)
        self._retry_log = RetryLog(f"producer{name} on {self.topic}", logger_of)
        self._loop = self._lookup.pool.loop
        self._choice = MessageRouter(options, self._lookup.pool.rng)
        self.parts: list[PartitionProducer] = []
        self._queue = SendQueue(options, self.topic)
        self._transaction_sends = TransactionSends(self._queue)
        self._partitioned = False
        self._shape = self._shape_of(0)
        self._recovery_task: asyncio.Task[None] | None = None
        self._parts_lock = asyncio.Lock()  # held while `parts` changes
        self._growth_task: asyncio.Task[None] | None = None
        self._closed = False
        self._close_once = CloseOnce(self._close)

    # Opening and growing

    async def open(self) -> None:
        """Attach to all partitions, or only to a random one for a lazy start."""
        partitions = await self._lookup.partitions(self.topic)
        self._shape.partitions = partitions
        self._partitioned = partitions > 0
        lazy = self._options.lazy_start_partitioned_producers
        count = max(1, partitions)
        # The first part shows errors of all parts, and gets the producer name.
        first = self._lookup.pool.rng.randrange(count) if lazy else 0
        chosen = self._part(first)
        self.parts = [chosen]
        await chosen.open()
        parts = [
            chosen if number == first else self._part(number, chosen.name, established=lazy)
            for number in range(count)
        ]
        self.parts = parts
        if not lazy:
            await _open_all(part.open() for part in parts if part is not chosen)
        self._watch_growth()

    def _part(self, number: int, name: str = "", *, established: bool = False) -> PartitionProducer:
        topic = f"{self.topic}-partition-{number}" if self._partitioned else self.topic
        registration = Registration(self._options, topic, next(self._ids), name)
        return self._new_part(registration, established=established)

    def _new_part(self, registration: Registration, *, established: bool) -> PartitionProducer:
        return PartitionProducer(
            self._lookup,
            self._options,
            registration,
            encrypt=self._encrypt,
            release_slots=self._queue.release,
            listener=self._listener,
            on_missing=self._look_for_topic,
            established=established,
            retry_log=self._retry_log,
        )

    def _watch_growth(self) -> None:
        if self._partitioned and not self._closed:
            self._growth_task = in_background(self._loop, self._look_for_growth(self._lookup))

    async def _look_for_growth(self, lookup: Lookup) -> None:
        when = lookup.make_round()
        while True:
            await when.next(lookup.pool.settings.discovery_s)
            if not await self._grow():
                when.again()

    async def _grow(self) -> bool:
        """Add new partitions. Return False if this must be retried."""
        before = self._shape.partitions
        try:
            partitions = await self._lookup.partitions(self.topic, create=False)
            async with self._parts_lock:
                if not self._partitioned:
                    return True
                if self._shape.partitions != before:
                    return False  # `_recover` looked meanwhile: this answer may be older
                for number in range(len(self.parts), partitions):
                    part = self._part(number, self.producer_name, established=True)
                    if not self._options.lazy_start_partitioned_producers:
                        try:
                            await part.open()
                        except BaseException:
                            part.abandon()
                            raise
                    self.parts.append(part)
                    self._shape.partitions = len(self.parts)
        except EncoreError as error:
            self._log.warning("cannot add new partitions of %s, will retry: %s", self.topic, error)
            return False
        return True

    # A topic that is deleted and comes back

    def _look_for_topic(self) -> None:
        if self._closed or (self._recovery_task is not None and not self._recovery_task.done()):
            return
        self._recovery_task = in_background(self._loop, self._recover())

    async def _recover(self) -> None:
        pool, shape = self._lookup.pool, self._shape
        delays = ReconnectBackoff(pool.settings.backoff_s, pool.settings.max_backoff_s, pool.rng)
        while True:
            try:
                count = await shape.ask()
                if count is not None:
                    async with self._parts_lock:
                        self._fit_parts(count)
                    if not self._retry_missing():
                        return
            except EncoreError as error:
                self._log.info("cannot get the partitions of %s, will retry: %s", self.topic, error)
            await pool.rest(shape.next_look_s(delays.next()))

    def _retry_missing(self) -> bool:
        """Let the parts with a missing topic attach again now. Return True if there are any."""
        missing = [part for part in self.parts if part.missing_s is not None]
        for part in missing:
            part.may_create |= self._shape.may_create or self._shape.is_due(part.missing_s)
            part.retry_now()
        return bool(missing)

    def _fit_parts(self, count: int) -> None:
        topics = self._shape.topics(count)
        left = {part.topic: part for part in self.parts}
        if [topic for topic, _ in topics] == list(left):
            return
        self._log.warning(
            "%s was created again: it had %s and has %s now. Messages without a receipt go to the "
            "new partitions",
            self.topic,
            _partitions_in_words(len(left) if self._partitioned else 0),
            _partitions_in_words(count),
        )
        name = self.producer_name
        self._partitioned = count > 0
        self.parts = [
            left.pop(topic) if topic in left else self._part(number, name, established=True)
            for number, (topic, _) in enumerate(topics)
        ]
        for part in self.parts:
            if part.missing_s is None and not part.started:
                part.may_create = self._shape.may_create
                if not self._options.lazy_start_partitioned_producers:
                    part.begin()
        self._move(list(left.values()))
        if self._growth_task is None:
            self._watch_growth()

    def _move(self, gone: list[PartitionProducer]) -> None:
        with self._queue.waiting_paused():  # until waiting messages name the current parts
            self._move_all(gone)
        if self._listener is not None:
            for part in gone:
                self._listener.on_removed(part.topic)

    def _move_all(self, gone: list[PartitionProducer]) -> None:
        frames: list[tuple[PartitionProducer, SendFrame]] = []
        early: list[tuple[OutgoingMessage, Waiter, int]] = []
        for part in gone:
            released, unpacked = part.release()
            frames += [(part, each) for each in released]
            early += unpacked
        frames.sort(key=lambda each: each[1].since)
        moved: dict[SendFrame, PartitionProducer] = {}
        for old, frame in frames:
            first = frame.first_chunk
            if frame.txn is not None:  # the other partition is not registered in it
                self._fail_moved(old, frame, deleted_error(old.topic))
                continue
            if first is not None and first not in moved:
                error = NotConnected(
                    f"{old.topic} was deleted while it held some chunks of this message; send the "
                    "message again"
                )
                self._fail_moved(old, frame, error)
                continue
            part = moved[first] if first is not None else self._choose_part(key_of(frame))
            moved[frame] = part
            part.adopt([frame], old)
            part.begin()
        self._queue.move(gone, self._choose_part)
        for message, waiter, slots in early:
            if message.txn is not None:
                set_failed((waiter,), deleted_error(self.topic))
                self._queue.release(slots)
            else:
                self._choose_part(message).publish(message, waiter, slots)

    def _fail_moved(self, old: PartitionProducer, frame: SendFrame, error: Exception) -> None:
        set_failed(frame.waiters, error)
        old.flushes.complete(frame, error)
        self._queue.release(frame.slots)

    def _choose_part(self, message: OutgoingMessage) -> PartitionProducer:
        """Choose another part for a message of a deleted partition.

        Only the partition key of an encoded message is known, so `message_router` gets it without
        payload and properties.
        """
        if len(self.parts) == 1:
            return self.parts[0]
        try:
            return self.parts[self._choice.partition(message, len(self.parts), now_ms(self._loop))]
        except ConfigurationError as error:
            self._log.warning(
                "%s: message_router failed for a message that moves to the new partitions; it goes "
                "to partition 0: %s",
                self.topic,
                error,
            )
            return self.parts[0]

    def _move_to_running_loop(self) -> None:
        self._end_tasks()
        self._lookup = self._client.lookup_for(self)
        self._loop = self._lookup.pool.loop
        self._retry_log.forget_all()
        gone, self.parts = self.parts, []
        for old in gone:
            old.registration.forget()
            part = self._new_part(old.registration, established=True)
            part.replace(old)
            self.parts.append(part)
        self._queue.reset()
        self._transaction_sends = TransactionSends(self._queue)
        self._parts_lock = asyncio.Lock()
        self._recovery_task = self._growth_task = None
        self._shape = self._shape_of(self._shape.partitions)
        self._watch_growth()

    def _shape_of(self, partitions: int) -> TopicShape:
        name = self._retry_log.name
        return TopicShape(self._lookup, self.topic, creates=True, partitions=partitions, name=name)

    # `TransportProducer`

    @property
    def producer_name(self) -> str:
        return next((part.name for part in self.parts if part.name), "")

    @property
    def last_sequence_id(self) -> int:
        return max(part.last_sequence_id for part in self.parts)

    def is_connected(self) -> bool:
        started = [part for part in self.parts if part.started]
        return not self._closed and bool(started) and all(each.is_connected() for each in started)

    def _ensure_open(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed: create another")
        # The end of an event loop first closes the pool, and then the loop.
        if self._loop.is_closed() or self._lookup.pool.closed:
            self._move_to_running_loop()

    def check(self, message: OutgoingMessage) -> None:
        error: EncoreError | None = None
        for part in self.parts:
            try:
                part.check(message)
            except EncoreError as refusal:  # the limit of another broker may be higher
                error = refusal
            else:
                return
        if error is not None:
            raise error

    def publish(self, message: OutgoingMessage) -> Awaitable[MessageId]:
        self._ensure_open()
        if message.txn is not None:
            return self._publish_in_transaction(message)
        waiter: Waiter = self._loop.create_future()
        self._send(message, waiter)
        return waiter

    def _publish_in_transaction(self, message: OutgoingMessage) -> Waiter:
        waiter = TransactionalSend(self._loop, self._checked_transaction(message).work)
        try:
            self._send(message, waiter)
        except BaseException:
            waiter.cancel()  # else the commit would wait for it
            raise
        return waiter

    def _checked_transaction(self, message: OutgoingMessage) -> NativeTransaction:
        """Return the transaction of a message, which can be sent in it."""
        txn = own_transaction(message.txn, self._lookup.pool, "producer")
        if not self.topic.startswith("persistent://"):
            raise ConfigurationError(
                f"{self.topic} is not persistent, so its messages cannot be in a transaction: "
                "leave txn out"
            )
        txn.check_open()
        txn.add_sender(self)
        return txn

    def post(self, message: OutgoingMessage, on_done: OnPosted) -> None:
        self._ensure_open()
        if message.txn is not None:
            sending = self._publish_in_transaction(message)
            sending.add_done_callback(partial(report_posted, on_done))
            return
        self._send(message, PostedSend(self._loop, on_done))

    def _send(self, message: OutgoingMessage, waiter: Waiter) -> None:
        parts = self.parts
        if len(parts) == 1:
            part = parts[0]
        else:
            try:
                at = self._choice.partition(message, len(parts), now_ms(self._loop))
            except ConfigurationError as error:
                waiter.set_exception(error)
                return
            part = parts[at]
        if part.error is not None:
            set_failed((waiter,), part.error)
        elif message.txn is None:
            self._queue.put(part, message, waiter)
        else:
            txn = cast(NativeTransaction, message.txn)
            self._transaction_sends.put(part, message, waiter, txn)

    def discard(self, txn: NativeTransaction, error: Exception) -> None:
        """Fail each message of a transaction that is not on its way to the broker."""
        self._transaction_sends.discard(txn, error)
        self._queue.discard(txn, error)
        for part in self.parts:
            part.discard(txn, error)

    async def flush(self) -> None:
        self._ensure_open()
        pending: list[asyncio.Future[Any]] = [
            *self._transaction_sends.waiters,
            *self._queue.waiters,
        ]
        for part in self.parts:
            pending += part.flush()
        if not pending:
            return
        await asyncio.wait(pending)
        failed = [
            error
            for each in pending
            if not each.cancelled() and (error := each.exception()) is not None
        ]
        if failed:
            raise failed[0]

    def flush_of(self, txn: NativeTransaction) -> list[asyncio.Future[Any]]:
        """Send the open batches now. Return futures for the frames of a transaction that are on
        their way."""
        if self._closed:
            return []
        return [flushed for part in self.parts for flushed in part.flush(txn)]

    async def close(self) -> None:
        await self._close_once()

    async def _close(self) -> None:
        self._end()
        if self._loop.is_closed():
            return
        self._transaction_sends.fail_all(closed_error())
        await self._queue.close()
        await asyncio.gather(*(part.close() for part in self.parts))

    def abandon(self) -> None:
        self._end()
        if not self._loop.is_closed():
            self._transaction_sends.fail_all(closed_error())
            self._queue.abandon()
            for part in self.parts:
                part.abandon()

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._client.ended(self)
        self._end_tasks()

    def _end_tasks(self) -> None:
        for task in (self._growth_task, self._recovery_task):
            if task is not None:
                cancel(task)


def _partitions_in_words(count: int) -> str:
    return f"{count} partitions" if count else "no partitions"


async def _open_all(opening: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all. If one fails, cancel the others and wait for their end."""
    tasks = [asyncio.ensure_future(each) for each in opening]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
