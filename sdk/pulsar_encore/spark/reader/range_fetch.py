"""Fetching a range of one topic, in a task of Spark.

`RangeFetch` creates a non-durable subscription on the event loop and passes its deliveries to the
task's thread. Messages that the task does not take stay at the broker. The last entry of a range
may be one that the broker never sends, such as a transaction marker; the cursor of the subscription
then shows that the end was passed.

A missing message is never skipped silently: it raises `DataLossError`, or is logged if
``failOnDataLoss=false``. A message that cannot be decrypted raises `CryptoError`, unless the
options say to skip it or to pass it on encrypted.
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
    singly,
)
from ...transport.native.consumer.message_views import Unreadable
from ...values.message_id import MessageId
from ..admin import Admin
from ..connection_options import ConnectionOptions
from ..offsets import EARLIEST, Position
from ..runtime import Runtime
from ..source_options import Reading
from ..spark_errors import DataLossError, StalledError
from .range_filter import Cut, RangeFilter

log: Final = logging.getLogger("pulsar_encore.spark")

_QUIET_S: Final = 0.5  # after this silence, ask the broker for more messages
_LOOK_S: Final = 10.0  # timeout of one such request, which is repeated
_SHORTLY_S: Final = 0.05  # the first pause after such a request, when only the end can be missing
_OPEN_S: Final = 120.0


Came = Delivery | SkippedEntry
"""A delivery, or an entry that the transport skipped."""

Place = tuple[int, int]
"""Ledger and entry id."""


@dataclass(frozen=True)
class ReadRange(InputPartition):
    """A range for one task.

    Attributes:
        topic: Full name, of the partition if any.
        partition: Partition number, or -1.
        start: The last message before the range.
        end: The last message of the range.
        ledgers: The known closed ledgers in the range, each with its last entry.
        is_end_stored: The end is a stored entry, and not a number that a user gave.
        is_kept: All messages behind the start exist, even if its ledger is gone or the start comes
            from a filter.
    """

    topic: str
    partition: int
    start: Position
    end: Position
    ledgers: tuple[tuple[int, int], ...] = ()
    is_end_stored: bool = True
    is_kept: bool = False

    def __str__(self) -> str:
        return f"{self.topic} behind {self.start} up to {self.end}"


class FetchBuffer:
    """Deliveries for a task (a `DeliveryListener`): filled on the event loop, taken by a thread.

    All deliveries of one pass of the loop become available together: a chunk of an incomplete
    message must be seen before the messages that follow it are used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Condition()
        self._came: list[Came] = []
        self._error: Exception | None = None
        self._refusal: Exception | None = None
        # Used on the event loop only: published at the end of the loop's pass.
        self._deliveries: list[Delivery] = []
        self._unread: list[SkippedEntry] = []
        self._publishing = False

    @property
    def failed(self) -> bool:
        """True if nothing more will come, because the subscription cannot be attached again."""
        with self._lock:
            return self._error is not None

    @property
    def refusal(self) -> Exception | None:
        """The error of the last attempt to attach again; None while attached."""
        with self._lock:
            return self._refusal

    def take(self, timeout_s: float) -> tuple[list[Came], Exception | None]:
        """Take everything in order; wait up to `timeout_s` for the first item."""
        with self._lock:
            if not (self._came or self._error):
                self._lock.wait(timeout_s)
            came, self._came = self._came, []
            return came, self._error

    def on_deliveries(self, deliveries: Deliveries) -> None:
        self._deliveries.extend(singly(deliveries))
        self._publish_soon()

    def on_skipped(self, source: int, entries: Sequence[SkippedEntry]) -> None:
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
        came: list[Came] = [*deliveries, *unread]
        if deliveries and unread:
            came.sort(key=lambda each: (each.ledger, each.entry))
        with self._lock:
            self._came += came
            self._lock.notify()

    def on_removed(self, source: int) -> None:
        """Do nothing: messages that were delivered stay."""

    def on_retrying(self, source: int | None, notice: RetryNotice) -> None:
        # A range holds messages that existed when it was planned. A recreated topic does not have
        # them.
        if isinstance(notice.error, TopicNotFound):
            self.on_failed(notice.error)
        with self._lock:
            self._refusal = notice.error

    def on_failed(self, error: Exception, source: int | None = None) -> None:
        with self._lock:
            self._error = error
            self._lock.notify()

    def on_connected(self, only: Container[int] | None = None) -> None:
        with self._lock:
            self._refusal = None  # the subscription continues at its position

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        """Do nothing: a new attachment does not send delivered messages again."""

    def on_uncertain(self, only: Container[int] | None = None) -> None:
        """Do nothing: acks that may be lost do not matter here."""

    def on_all_requested(
        self, unseen: Sequence[Delivery], only: Container[int] | None = None
    ) -> None:
        """Do nothing: messages are never requested again."""

    def on_seek(self, only: Container[int] | None = None) -> None:
        """Do nothing: this subscription never seeks."""

    def on_end_of_topic(self, source: int) -> None:
        """Do nothing: a range has an end of its own."""

    def on_active_changed(self, source: int, active: bool) -> None:
        """Do nothing: the subscription has one consumer."""

    def on_new_source(self, source: int) -> None:
        """Do nothing: the subscription has one topic."""


class RangeFetch:
    """The messages of a range, in order and each once, as lists of cuts.

    Args:
        runtime: The runtime of this process.
        connection: How the cluster is reached.
        wanted: The range.
        reading: Options of reading.
        fail_on_loss: Whether missing messages are an error.
        reads_values: If false, an entry that cannot be unpacked is no loss.
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
        native = self._transport.capabilities.name == "native"
        self._cutter = RangeFilter(wanted.start, wanted.end, whole=native)
        # On a compacted topic the next entry cannot be predicted, nor on the stock transport.
        self._counts = native and not reading.compacted
        self._first: Place | None = None  # first entry received since the subscription was opened
        self._hole: tuple[Place, Place] | None = None  # the gap for which the range was read again
        self._unmoved = False  # the cursor had not moved when the present deliveries came
        self._last_look: Position | None = None  # the position of the last check for the end
        self._unanswered: TransportError | None = None
        keys = reading.keys
        self._keys = None if keys is None else keys.reader(self._transport.capabilities.name)
        # The C++ client drops messages that it cannot decrypt, without a notice. It is therefore
        # told to pass them on, and this class decides about them.
        self._tells_sealed = native
        self._sealed = 0
        self._lookback = 0  # entries before the start that are read to find first chunks
        self._link: TransportConsumer | None = None
        self._pile = FetchBuffer(runtime.loop)

    def __iter__(self) -> Generator[list[Cut]]:
        if self._cutter.done:
            return
        try:
            self._open()
            yield from self._piles()
        except TopicNotFound as error:
            self._lost(f"{self._wanted}: the topic was deleted", error)
        finally:
            self.close()
            if self._sealed:
                log.warning(
                    "%s: %d entries could not be decrypted and are left out, as "
                    "pulsar.reader.cryptoFailureAction=DISCARD says",
                    self._wanted,
                    self._sealed,
                )

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._runtime.call(link.close(), f"close the reader of {self._wanted.topic}", _OPEN_S)

    def _open(self) -> None:
        begin = self._begin()
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
                if self._tells_sealed
                else ConsumerCryptoFailureAction.CONSUME
            ),
        )
        self._pile = pile = FetchBuffer(self._runtime.loop)
        self._first = None

        async def begin_reading() -> TransportConsumer:
            link = await self._transport.subscribe(subscription)
            link.start(pile)
            return link

        self._link = self._runtime.call(begin_reading(), f"read {self._wanted.topic}", _OPEN_S)

    def _begin(self) -> MessageId:
        """Return where to subscribe: behind the last finished message, or earlier for chunks."""
        last = self._cutter.last
        if last == EARLIEST:
            return MessageId.earliest
        if self._lookback > last.entry + 1:
            # The chunks are in an earlier ledger, which only the broker can find.
            return MessageId.earliest
        # An entry that was read in part is requested as a whole, and the filter drops the messages
        # already read. If nothing of it is left in the range, a transport that skips its first
        # messages would send nothing at all.
        back = self._lookback or int(last.batch_index >= 0)
        return MessageId(self._wanted.partition, last.ledger, last.entry - back)

    def _piles(self) -> Iterator[list[Cut]]:
        cutter = self._cutter
        patience_s = self._reading.poll_timeout_ms / 1000
        silent_since = time.monotonic()
        pause_s = min(_QUIET_S, patience_s)
        while not cutter.done:
            came, error = self._pile.take(pause_s)
            if came:
                silent_since = time.monotonic()
                pause_s = min(_QUIET_S, patience_s)
                cuts = self._cut(came)
                if cuts:
                    yield cuts
                continue
            if error is not None:
                raise error
            left_s = silent_since + patience_s - time.monotonic()
            looked = self._last_look
            # One check must not take all of the poll timeout: messages sent in the meantime would
            # wait.
            if self._ends(min(_LOOK_S, max(_QUIET_S, left_s))):
                return
            if left_s <= 0:
                stalled, refusal = self._stalled(), self._pile.refusal
                # The client retries these errors without end. They say what to change.
                if isinstance(refusal, (AuthenticationError, AuthorizationError)):
                    raise refusal from stalled
                raise stalled from self._unanswered
            pause_s = min(2 * pause_s, _QUIET_S) if self._last_look == looked else _SHORTLY_S

    def _stalled(self) -> StalledError:
        why = "the broker reports more messages"
        if self._unanswered is not None:
            why = f"the broker cannot be asked whether there is more: {self._unanswered}"
        return StalledError(
            f"{self._wanted}: nothing came for {self._reading.poll_timeout_ms} ms "
            f"(pollTimeoutMs) behind {self._cutter.last}, and {why}"
        )

    def _cut(self, came: list[Came]) -> list[Cut]:
        """Return the cuts that belong to the range; fewer if it is read again from further back."""
        cutter, count, source = self._cutter, 0, -1
        cuts: list[Cut] = []
        self._unmoved = False
        for each in came:
            if not isinstance(each, Delivery):
                if self._looks_back(each):
                    return cuts
                continue
            last = cutter.last
            follows = each.entry == last.entry + 1 and each.ledger == last.ledger
            if not follows and self._looks_into((each.ledger, each.entry)):
                return cuts
            if self._first is None:
                self._first = (each.ledger, each.entry)
            count += len(each.messages)
            source = each.source
            if not self._tells_sealed and self._refuses(each):
                self._looks_back(SkippedEntry(each.ledger, each.entry, SkipReason.SEALED))
                continue
            cut = cutter.take(each)
            if cut is not None and not (self._reads_values and self._is_unreadable(each)):
                cuts.append(cut)
        self._consumed(source, count)
        return cuts

    def _is_unreadable(self, delivery: Delivery) -> bool:
        """Return True if the entry is skipped because its codec is missing."""
        messages = delivery.messages
        if not (isinstance(messages, tuple) and isinstance(messages[0], Unreadable)):
            return False
        self._lost(
            f"{delivery.ledger}:{delivery.entry} of {self._wanted.topic} cannot be read here: "
            f"{messages[0].error}"
        )
        return True

    def _consumed(self, source: int, count: int) -> None:
        link = self._link
        if count and link is not None:
            self._runtime.loop.call_soon_threadsafe(link.consumed, source, count)

    def _looks_into(self, place: Place) -> bool:
        """Return True if entries are missing before `place` and the range is now read again.

        Gaps are normal: brokers do not send markers and aborted transactions. But where messages
        expire, brokers also move the cursors of readers past unsent messages. Nothing is acked
        here, so only an expiry moves the cursor to or past the first received entry. One request
        serves all deliveries of a list, because a cursor that has not moved now had not moved
        before. If nothing was received before the gap, the cursor proves nothing, and the range is read a
        second time.
        """
        cutter = self._cutter
        hole = (cutter.last.place, place)
        if not self._counts or cutter.done or place <= cutter.last.place:
            return False
        if hole == self._hole:
            self._check_ledgers(place)
            return False
        if self._first is None:
            if cutter.last == EARLIEST and not place[1]:
                self._check_ledgers(place)  # the first entry of the first stored ledger
                return False
        elif self._unmoved or self._acked(_OPEN_S) < self._first:
            self._unmoved = True
            self._check_ledgers(place)
            return False
        self._hole = hole
        self._open_again()
        return True

    def _check_ledgers(self, place: Place) -> None:
        """Check that the ledgers between the last message read and `place` still exist.

        Raises:
            DataLossError: if a ledger is gone and ``failOnDataLoss`` is true.
        """
        wanted, last = self._wanted, self._cutter.last.place
        known = list(wanted.ledgers)
        if wanted.is_end_stored:
            known.append(wanted.end.place)
        passed = {ledger for ledger, entry in known if last < (ledger, entry) and ledger < place[0]}
        gone, known_to = set(), "was not read to its end"
        if self._connection.admin_url is not None:
            if passed:
                gone = passed - self._runtime.call(
                    self._ledgers(), f"ledgers of {wanted.topic}", _OPEN_S
                )
        elif self._first is None and last[0] >= 0:
            # A new cursor is in the ledger of its start or an earlier one if that ledger exists,
            # else in the first stored ledger.
            at = self._acked(_OPEN_S)[0]
            gone = {ledger for ledger in passed if ledger < at}
            if not gone and last[0] < at and not wanted.is_kept:
                gone = {last[0]}
                known_to = "it is not known whether it was read to its end (admin.url would tell)"
        if gone:
            self._lost(
                f"{wanted}: ledger {min(gone)} is gone, and {known_to}: retention or a backlog "
                "quota deleted it, or the topic was deleted and created again"
            )

    async def _ledgers(self) -> set[int]:
        admin = Admin(self._connection)
        try:
            return {each.id for each in (await admin.ledgers(self._wanted.topic)).ledgers}
        finally:
            admin.close()

    def _ends(self, timeout_s: float) -> bool:
        """Return True if the rest of the range holds no messages; called after a silence.

        The range is read again from behind the last message, which is acked. The cursor then moves
        over entries that the broker never sends, and over nothing else, so it shows whether the
        range ends with such entries.
        """
        self._unanswered = None
        try:
            if self._link is None:  # opening it again has failed
                self._open()
            if not self._counts:
                return not self._has_more(timeout_s)
            stored = self._last_stored(timeout_s)
            if self._last_look != self._cutter.last:
                self._open_again()
                self._ack_last(timeout_s)
                self._last_look = self._cutter.last
                return False
            end = self._wanted.end.place
            reached = self._acked(timeout_s) >= end
            if stored < end and not (reached and stored[0] >= 0):
                self._lost(
                    f"{self._wanted}: the topic ends at {stored[0]}:{stored[1]} now: it was "
                    "deleted and created again, or its last messages were"
                )
                return True
            return reached
        except TransportError as error:
            if not error.retryable:
                raise
            self._unanswered = error  # the transport reconnects; the poll timeout limits the wait
            return False

    def _open_again(self) -> None:
        self.close()
        self._lookback = 0
        self._open()

    def _ack_last(self, timeout_s: float) -> None:
        last = self._cutter.last
        entry = last.entry - (last.batch_index >= 0)
        link = self._link
        if entry < 0 or link is None:
            return

        async def ack() -> None:
            receipt = link.ack(AckPlan(0, (last.ledger, entry, 0, -1), [], []))
            if receipt is not None:
                await receipt

        self._runtime.call(ack(), f"ack on {self._wanted.topic}", timeout_s)

    def _acked(self, timeout_s: float) -> Place:
        """Return the position of the subscription's cursor."""
        link = self._link
        assert link is not None
        doing = f"place of a cursor on {self._wanted.topic}"
        acked = self._runtime.call(link.acked_position(), doing, timeout_s)
        assert acked is not None, "the native transport knows the cursor"
        return acked.ledger_id(), acked.entry_id()

    def _last_stored(self, timeout_s: float) -> Place:
        link = self._link
        assert link is not None
        doing = f"end of {self._wanted.topic}"
        last = self._runtime.call(link.last_message_id(), doing, timeout_s)
        return last.ledger_id(), last.entry_id()

    def _has_more(self, timeout_s: float) -> bool:
        link = self._link
        assert link is not None
        doing = f"end of {self._wanted.topic}"
        return self._runtime.call(link.has_message_available(), doing, timeout_s)

    def _looks_back(self, passed: SkippedEntry) -> bool:
        """Handle an entry without a message; True if the range is read again from further back."""
        ledger, entry, why, _ = passed
        place, start = (ledger, entry), self._wanted.start
        if self._first is None:
            self._first = place
        if self._cutter.done or Position(*place).order <= start.order:
            return False
        if place > self._wanted.end.place:
            self._cutter.passed(ledger, entry)
            return False
        if why is SkipReason.TORN and self._goes_back(place):
            return True
        if why is SkipReason.SEALED:
            self._not_decrypted(passed)
        elif why in (SkipReason.BROKEN, SkipReason.TORN):
            self._lost(f"{ledger}:{entry} of {self._wanted.topic} is {why.value}")
        self._cutter.passed(ledger, entry)
        return False

    def _goes_back(self, place: tuple[int, int]) -> bool:
        """Read again from further back, for a message with first chunks before the range.

        The lookback grows eightfold each time, then covers the whole topic. Return False if that
        has been tried: the chunks are gone.
        """
        last = self._cutter.last
        if not self._reading.chunk_lookback or last == EARLIEST:
            return False
        if self._lookback > last.entry + 1:
            return False
        self._lookback = max(self._reading.chunk_lookback, 8 * self._lookback)
        log.info("%s: %d:%d is a later chunk; reading again from before", self._wanted, *place)
        self.close()
        self._open()
        return True

    def _refuses(self, delivery: Delivery) -> bool:
        """Return True if the message is still encrypted and the options do not accept that."""
        if self._reading.crypto_failure is ConsumerCryptoFailureAction.CONSUME:
            return False
        context = delivery.messages[0].encryption_context()
        return context is not None and context.is_decryption_failed()

    def _not_decrypted(self, passed: SkippedEntry) -> None:
        place = (passed.ledger, passed.entry)
        if self._reading.crypto_failure is ConsumerCryptoFailureAction.DISCARD:
            if place > self._cutter.last.place:  # after a reconnect the broker sends it again
                self._sealed += 1
            return
        given = self._reading.keys is not None
        why = passed.error or (
            "none of the given keys fits, see the client's log" if given else "there is no key"
        )
        raise CryptoError(
            f"{passed.ledger}:{passed.entry} of {self._wanted.topic} is encrypted, and cannot be "
            f"decrypted here: {why}. Set pulsar.reader.cryptoPrivateKeyPath (or cryptoKeyReader) "
            "to the private key; or pulsar.reader.cryptoFailureAction=DISCARD to leave such "
            "messages out, CONSUME to read their bytes as they are"
        )

    def _lost(self, text: str, cause: Exception | None = None) -> None:
        if self._fail_on_loss:
            raise DataLossError(
                f"{text}. Set failOnDataLoss=false to go on without what cannot be read"
            ) from cause
        log.warning("%s; the read continues because failOnDataLoss=false", text)
