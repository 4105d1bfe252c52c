"""Fetching a range of one topic, in a task of Spark.

`RangeFetch` passes the deliveries of a non-durable subscription from the event loop to the task's
thread. Messages that the task does not take stay at the broker. The broker never sends some
entries, such as transaction markers. If a range ends with one, the cursor of the subscription shows
that the end was passed. A missing message is never skipped silently.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Container, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from ...client import transport_of
from ...errors import (
    AuthenticationError,
    AuthorizationError,
    CryptoError,
    TopicNotFound,
    TransportError,
)
from ...options import ConsumerCryptoFailureAction, ConsumerType, Subscription
from ...transport.interface import (
    AckPlan,
    Deliveries,
    Delivery,
    RetryNotice,
    SkippedEntry,
    SkipReason,
    TransportConsumer,
    each_delivery,
)
from ...transport.native.consumer.message_views import UnreadableMessage
from ...values.message_id import MessageId
from ..admin import Admin
from ..connection_options import ConnectionOptions
from ..offsets import EARLIEST, Position
from ..runtime import Runtime
from ..source_options import Reading
from ..spark_errors import DataLossError, StalledError
from .range_filter import DeliverySlice, RangeFilter

log: Final = logging.getLogger("pulsar_encore.spark")

_SILENCE_S: Final = 0.5  # after this silence, check for the end of the range
_REQUEST_TIMEOUT_S: Final = 10.0  # of a request in that check
# The first pause after a check that reads the range again: often only the end is missing.
_FIRST_PAUSE_S: Final = 0.05
_OPEN_TIMEOUT_S: Final = 120.0


Received = Delivery | SkippedEntry
"""A delivery, or an entry that the transport skipped."""
EntryKey = tuple[int, int]
"""Ledger and entry id."""


@dataclass(frozen=True)
class ReadRange(InputPartition):
    """A range for one task.

    Attributes:
        topic: Full name, of the partition if any.
        partition: Partition number, or -1.
        start: The last message before the range.
        end: The last message of the range.
        ledgers: The known closed ledgers in the range, each with its last entry id.
        is_end_stored: The end is a stored entry, and not a number that a user gave.
        is_start_retained: All messages after the start exist, even if its ledger is gone or the
            start comes from a filter.
    """

    topic: str
    partition: int
    start: Position
    end: Position
    ledgers: tuple[tuple[int, int], ...] = ()
    is_end_stored: bool = True
    is_start_retained: bool = False

    def __str__(self) -> str:
        return f"{self.topic} after {self.start} up to {self.end}"


class FetchBuffer:
    """Deliveries for a task (a `DeliveryListener`): filled on the event loop, taken by a thread.

    All deliveries of one pass of the loop become available together: a chunk of an incomplete
    message must be seen before the messages that follow it are used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Condition()
        self._received: list[Received] = []
        self._error: Exception | None = None
        self._refusal: Exception | None = None
        # Used on the event loop only, until the end of the loop's pass.
        self._deliveries: list[Delivery] = []
        self._unread: list[SkippedEntry] = []
        self._publishing = False

    @property
    def failed(self) -> bool:
        """True if the subscription cannot be attached again."""
        with self._lock:
            return self._error is not None

    @property
    def refusal(self) -> Exception | None:
        """The error of the last attempt to attach again; None while attached."""
        with self._lock:
            return self._refusal

    def take(self, timeout_s: float) -> tuple[list[Received], Exception | None]:
        """Take everything in order; wait up to `timeout_s` for the first delivery."""
        with self._lock:
            if not (self._received or self._error):
                self._lock.wait(timeout_s)
            received, self._received = self._received, []
            return received, self._error

    def on_deliveries(self, deliveries: Deliveries) -> None:
        self._deliveries.extend(each_delivery(deliveries))
        self._publish_soon()

    def on_skipped(self, topic_number: int, entries: Sequence[SkippedEntry]) -> None:
        self._unread.extend(entries)
        self._publish_soon()

    def _publish_soon(self) -> None:
        if not self._publishing:
            self._publishing = True
            self._loop.call_soon(self._publish)

    def _publish(self) -> None:
        self._publishing = False
        deliveries, self._deliveries = self._deliveries, []
        unread, self._unread = self._unread, []
        received: list[Received] = [*deliveries, *unread]
        if deliveries and unread:
            received.sort(key=lambda each: (each.ledger, each.entry))
        with self._lock:
            self._received += received
            self._lock.notify()

    def on_retrying(self, topic_number: int | None, notice: RetryNotice) -> None:
        # A topic that is created again does not have the messages of the range.
        if isinstance(notice.error, TopicNotFound):
            self.on_failed(notice.error)
        with self._lock:
            self._refusal = notice.error

    def on_failed(self, error: Exception, topic_number: int | None = None) -> None:
        with self._lock:
            self._error = error
            self._lock.notify()

    def on_connected(self, topics: Container[int] | None = None) -> None:
        with self._lock:
            self._refusal = None  # the subscription continues at its position

    # Nothing to do: delivered messages stay, no ack matters, and the subscription has one topic and
    # one consumer, and never seeks.
    def on_removed(self, topic_number: int) -> None: ...
    def on_disconnected(self, topics: Container[int] | None = None) -> None: ...
    def on_uncertain(self, topics: Container[int] | None = None) -> None: ...
    def on_all_requested(
        self, unseen: Sequence[Delivery], topics: Container[int] | None = None
    ) -> None: ...
    def on_seek(self, topics: Container[int] | None = None) -> None: ...
    def on_end_of_topic(self, topic_number: int) -> None: ...
    def on_active_changed(self, topic_number: int, active: bool) -> None: ...
    def on_new_topic(self, topic_number: int) -> None: ...


async def ack_up_to(consumer: TransportConsumer, position: Position) -> None:
    """Ack cumulatively up to a position, and wait for the receipt."""
    receipt = consumer.ack(AckPlan(0, (*position.ackable_entry, 0, -1), [], []))
    if receipt is not None:
        await receipt


class RangeFetch:
    """The messages of a range, in order and each once.

    With `fail_on_loss`, missing messages are an error. Without `reads_values`, an entry that cannot
    be unpacked is no loss.
    """

    def __init__(
        self,
        runtime: Runtime,
        connection: ConnectionOptions,
        wanted: ReadRange,
        reading: Reading,
        *,
        fail_on_loss: bool,
        reads_values: bool = True,
    ) -> None:
        self._runtime = runtime
        self._connection = connection
        self._wanted = wanted
        self._reading = reading
        self._fail_on_loss = fail_on_loss
        self._reads_values = reads_values
        self._transport = transport_of(runtime.client(connection))
        is_native = self._transport.capabilities.name == "native"
        self._filter = RangeFilter(wanted.start, wanted.end, whole=is_native)
        # On a compacted topic or the stock transport, the next entry cannot be predicted.
        self._checks_gaps = is_native and not reading.compacted
        # Since the subscription was opened.
        self._first_received: EntryKey | None = None
        # The gap for which the range was read again.
        self._reread_gap: tuple[EntryKey, EntryKey] | None = None
        self._cursor_unmoved = False  # the cursor had not moved when the present deliveries came
        self._last_check: Position | None = None  # the last message at the last check for the end
        self._request_error: TransportError | None = None
        keys = reading.keys
        self._keys = None if keys is None else keys.reader(self._transport.capabilities.name)
        # The C++ client drops messages that it cannot decrypt without a notice, unless it is told
        # to pass them on.
        self._reports_undecryptable = is_native
        self._skipped_undecryptable = 0
        self._lookback = 0  # entries read before the start, to find first chunks
        self._consumer: TransportConsumer | None = None
        self._buffer = FetchBuffer(runtime.loop)

    def __iter__(self) -> Generator[list[DeliverySlice]]:
        if self._filter.done:
            return
        try:
            self._open()
            yield from self._slice_lists()
        except TopicNotFound as error:
            self._report_loss(f"{self._wanted}: the topic was deleted", error)
        finally:
            self.close()
            if self._skipped_undecryptable:
                log.warning(
                    "%s: %d entries could not be decrypted and are left out because of "
                    "pulsar.reader.cryptoFailureAction=DISCARD",
                    self._wanted,
                    self._skipped_undecryptable,
                )

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._runtime.call(
                consumer.close(), f"close the reader of {self._wanted.topic}", _OPEN_TIMEOUT_S
            )

    def _open(self) -> None:
        begin = self._start_id()
        subscription = Subscription(
            topics=(self._wanted.topic,),
            subscription_name=f"{self._reading.role_prefix}-{uuid.uuid4().hex[:10]}",
            consumer_type=ConsumerType.Exclusive,
            receiver_queue_size=self._reading.queue,
            durable=False,
            start_message_id=begin,
            read_compacted=self._reading.compacted,
            max_pending_chunked_message=0,
            force_topic_creation=False,
            crypto_key_reader=self._keys,
            crypto_failure_action=(
                self._reading.crypto_failure
                if self._reports_undecryptable
                else ConsumerCryptoFailureAction.CONSUME
            ),
        )
        self._buffer = buffer = FetchBuffer(self._runtime.loop)
        self._first_received = None

        async def begin_reading() -> TransportConsumer:
            consumer = await self._transport.subscribe(subscription)
            consumer.start(buffer)
            return consumer

        self._consumer = self._runtime.call(
            begin_reading(), f"read {self._wanted.topic}", _OPEN_TIMEOUT_S
        )

    def _start_id(self) -> MessageId:
        """Return where to subscribe: after the last finished message, or earlier for chunks."""
        last = self._filter.last
        if last == EARLIEST:
            return MessageId.earliest
        if self._lookback > last.entry + 1:
            # The chunks are in an earlier ledger, which only the broker can find.
            return MessageId.earliest
        # An entry that was read in part is requested as a whole. A transport that skips its first
        # messages would send nothing at all if none of the others is in the range.
        lookback = self._lookback or int(last.batch_index >= 0)
        return MessageId(self._wanted.partition, last.ledger, last.entry - lookback)

    def _slice_lists(self) -> Iterator[list[DeliverySlice]]:
        range_filter = self._filter
        poll_timeout_s = self._reading.poll_timeout_ms / 1000
        silent_since = time.monotonic()
        pause_s = min(_SILENCE_S, poll_timeout_s)
        while not range_filter.done:
            received, error = self._buffer.take(pause_s)
            if received:
                silent_since = time.monotonic()
                pause_s = min(_SILENCE_S, poll_timeout_s)
                slices = self._slices(received)
                if slices:
                    yield slices
                continue
            if error is not None:
                raise error
            remaining_s = silent_since + poll_timeout_s - time.monotonic()
            previous_check = self._last_check
            # Messages that arrive during the check wait for its end.
            if self._check_end(min(_REQUEST_TIMEOUT_S, max(_SILENCE_S, remaining_s))):
                return
            if remaining_s <= 0:
                stalled, refusal = self._stalled(), self._buffer.refusal
                # The client retries these errors without end.
                if isinstance(refusal, (AuthenticationError, AuthorizationError)):
                    raise refusal from stalled
                raise stalled from self._request_error
            pause_s = (
                min(2 * pause_s, _SILENCE_S)
                if self._last_check == previous_check
                else _FIRST_PAUSE_S
            )

    def _stalled(self) -> StalledError:
        reason = "the broker reports more messages"
        if self._request_error is not None:
            reason = f"the broker cannot be asked whether there is more: {self._request_error}"
        return StalledError(
            f"{self._wanted}: nothing came for {self._reading.poll_timeout_ms} ms "
            f"(pollTimeoutMs) after {self._filter.last}, and {reason}"
        )

    def _slices(self, received: list[Received]) -> list[DeliverySlice]:
        """Return the slices that belong to the range; fewer if the range is read again."""
        range_filter, count, topic_number = self._filter, 0, -1
        slices: list[DeliverySlice] = []
        self._cursor_unmoved = False
        for each in received:
            if not isinstance(each, Delivery):
                if self._handle_skipped(each):
                    return slices
                continue
            last = range_filter.last
            follows = each.entry == last.entry + 1 and each.ledger == last.ledger
            if not follows and self._reread_if_gap((each.ledger, each.entry)):
                return slices
            if self._first_received is None:
                self._first_received = (each.ledger, each.entry)
            count += len(each.messages)
            topic_number = each.topic_number
            if not self._reports_undecryptable and self._rejects_encrypted(each):
                self._handle_skipped(SkippedEntry(each.ledger, each.entry, SkipReason.ENCRYPTED))
                continue
            found = range_filter.take(each)
            if found is not None and not (self._reads_values and self._skip_if_unreadable(each)):
                slices.append(found)
        self._return_permits(topic_number, count)
        return slices

    def _skip_if_unreadable(self, delivery: Delivery) -> bool:
        """Return True if the codec of the entry is missing."""
        messages = delivery.messages
        if not (isinstance(messages, tuple) and isinstance(messages[0], UnreadableMessage)):
            return False
        self._report_loss(
            f"{delivery.ledger}:{delivery.entry} of {self._wanted.topic} cannot be read here: "
            f"{messages[0].error}"
        )
        return True

    def _return_permits(self, topic_number: int, count: int) -> None:
        consumer = self._consumer
        if count and consumer is not None:
            self._runtime.loop.call_soon_threadsafe(consumer.consumed, topic_number, count)

    def _reread_if_gap(self, entry_key: EntryKey) -> bool:
        """Read the range again if an expiry may have removed entries before `entry_key`.

        Return True if the range is read again. Gaps are normal: brokers do not send markers and
        aborted transactions. But where messages expire, brokers also move the cursors of readers
        past unsent messages. No message of the range is acked, so only an expiry moves the cursor
        to or past the first received entry. One request serves all deliveries of a list, because a
        cursor that has not moved now had not moved before. If nothing was received before the gap,
        the cursor proves nothing, and the range is read a second time.
        """
        range_filter = self._filter
        gap = (range_filter.last.entry_key, entry_key)
        if not self._checks_gaps or range_filter.done or entry_key <= range_filter.last.entry_key:
            return False
        if gap == self._reread_gap:
            self._check_ledgers(entry_key)
            return False
        if self._first_received is None:
            if range_filter.last == EARLIEST and not entry_key[1]:
                self._check_ledgers(entry_key)  # the first entry of the first stored ledger
                return False
        elif self._cursor_unmoved or self._cursor_position(_OPEN_TIMEOUT_S) < self._first_received:
            self._cursor_unmoved = True
            self._check_ledgers(entry_key)
            return False
        self._reread_gap = gap
        self._reopen()
        return True

    def _check_ledgers(self, entry_key: EntryKey) -> None:
        """Report ledgers between the last message read and `entry_key` that are gone."""
        wanted, last = self._wanted, self._filter.last.entry_key
        known = list(wanted.ledgers)
        if wanted.is_end_stored:
            known.append(wanted.end.entry_key)
        skipped = {
            ledger for ledger, entry in known if last < (ledger, entry) and ledger < entry_key[0]
        }
        missing, uncertainty = set(), "was not read to its end"
        if self._connection.admin_url is not None:
            if skipped:
                missing = skipped - self._runtime.call(
                    self._ledgers(), f"ledgers of {wanted.topic}", _OPEN_TIMEOUT_S
                )
        elif self._first_received is None and last[0] >= 0:
            # A new cursor is in the ledger of its start or an earlier one if that ledger exists,
            # else in the first stored ledger.
            at = self._cursor_position(_OPEN_TIMEOUT_S)[0]
            missing = {ledger for ledger in skipped if ledger < at}
            if not missing and last[0] < at and not wanted.is_start_retained:
                missing = {last[0]}
                uncertainty = (
                    "it is not known whether it was read to its end (admin.url would tell)"
                )
        if missing:
            self._report_loss(
                f"{wanted}: ledger {min(missing)} is gone, and {uncertainty}: retention or a "
                "backlog quota deleted it, or the topic was deleted and created again"
            )

    async def _ledgers(self) -> set[int]:
        admin = Admin(self._connection)
        try:
            return {each.id for each in (await admin.ledgers(self._wanted.topic)).ledgers}
        finally:
            admin.close()

    def _check_end(self, timeout_s: float) -> bool:
        """Return True if the rest of the range holds no messages; called after a silence.

        The range is read again from after the last message, which is acked. The cursor then moves
        over entries that the broker never sends, and over nothing else.
        """
        self._request_error = None
        try:
            if self._consumer is None:  # `_reopen` has failed
                self._open()
            consumer, doing = self._consumer, f"end of {self._wanted.topic}"
            assert consumer is not None
            if not self._checks_gaps:
                available = consumer.has_message_available()
                return not self._runtime.call(available, doing, timeout_s)
            last = self._runtime.call(consumer.last_message_id(), doing, timeout_s)
            stored = (last.ledger_id(), last.entry_id())
            if self._last_check != self._filter.last:
                self._reopen()
                self._ack_last(timeout_s)
                self._last_check = self._filter.last
                return False
            end = self._wanted.end.entry_key
            reached = self._cursor_position(timeout_s) >= end
            if stored < end and not (reached and stored[0] >= 0):
                self._report_loss(
                    f"{self._wanted}: the topic ends at {stored[0]}:{stored[1]} now: it was "
                    "deleted and created again, or its last messages were"
                )
                return True
            return reached
        except TransportError as error:
            if not error.retryable:
                raise
            # The transport reconnects until the poll timeout.
            self._request_error = error
            return False

    def _reopen(self) -> None:
        self.close()
        self._lookback = 0
        self._open()

    def _ack_last(self, timeout_s: float) -> None:
        last = self._filter.last
        if last.ackable_entry[1] >= 0 and self._consumer is not None:
            self._runtime.call(
                ack_up_to(self._consumer, last), f"ack on {self._wanted.topic}", timeout_s
            )

    def _cursor_position(self, timeout_s: float) -> EntryKey:
        assert self._consumer is not None
        doing = f"place of a cursor on {self._wanted.topic}"
        acked = self._runtime.call(self._consumer.acked_position(), doing, timeout_s)
        assert acked is not None, "the native transport knows the cursor"
        return acked.ledger_id(), acked.entry_id()

    def _handle_skipped(self, skipped: SkippedEntry) -> bool:
        """Handle an entry without a message; return True if the range is read again."""
        ledger, entry, reason, _ = skipped
        entry_key, start = (ledger, entry), self._wanted.start
        if self._first_received is None:
            self._first_received = entry_key
        if self._filter.done or Position(*entry_key).order <= start.order:
            return False
        if entry_key > self._wanted.end.entry_key:
            self._filter.skip(ledger, entry)
            return False
        if reason is SkipReason.INCOMPLETE and self._reread_for_chunks(entry_key):
            return True
        if reason is SkipReason.ENCRYPTED:
            self._report_undecryptable(skipped)
        elif reason in (SkipReason.BROKEN, SkipReason.INCOMPLETE):
            self._report_loss(f"{ledger}:{entry} of {self._wanted.topic} is {reason.value}")
        self._filter.skip(ledger, entry)
        return False

    def _reread_for_chunks(self, entry_key: tuple[int, int]) -> bool:
        """Read again from further back, for a message with first chunks before the range.

        The lookback grows eightfold each time, then covers the whole topic. Return False after
        that: the chunks are gone.
        """
        last = self._filter.last
        if not self._reading.chunk_lookback or last == EARLIEST:
            return False
        if self._lookback > last.entry + 1:
            return False
        self._lookback = max(self._reading.chunk_lookback, 8 * self._lookback)
        log.info("%s: %d:%d is a later chunk; reading again from before", self._wanted, *entry_key)
        self.close()
        self._open()
        return True

    def _rejects_encrypted(self, delivery: Delivery) -> bool:
        if self._reading.crypto_failure is ConsumerCryptoFailureAction.CONSUME:
            return False
        context = delivery.messages[0].encryption_context()
        return context is not None and context.is_decryption_failed()

    def _report_undecryptable(self, skipped: SkippedEntry) -> None:
        entry_key = (skipped.ledger, skipped.entry)
        if self._reading.crypto_failure is ConsumerCryptoFailureAction.DISCARD:
            if (
                entry_key > self._filter.last.entry_key
            ):  # after a reconnect the broker sends it again
                self._skipped_undecryptable += 1
            return
        has_keys = self._reading.keys is not None
        reason = skipped.error or (
            "none of the given keys fits, see the client's log" if has_keys else "there is no key"
        )
        raise CryptoError(
            f"{skipped.ledger}:{skipped.entry} of {self._wanted.topic} is encrypted, and cannot be "
            f"decrypted here: {reason}. Set pulsar.reader.cryptoPrivateKeyPath (or "
            "cryptoKeyReader) to the private key; or pulsar.reader.cryptoFailureAction=DISCARD to "
            "leave such messages out, CONSUME to read their bytes as they are"
        )

    def _report_loss(self, text: str, cause: Exception | None = None) -> None:
        if self._fail_on_loss:
            raise DataLossError(
                f"{text}. Set failOnDataLoss=false to continue without these messages"
            ) from cause
        log.warning("%s; the read continues because failOnDataLoss=false", text)
