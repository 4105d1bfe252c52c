"""A range of one topic, fetched: what a task of Spark reads.

Owns `ReadRange`, which the driver plans and a task gets, and `fetch`. A subscription that is not
durable is made for it, on the process's event loop; its deliveries are handed over to the task's
thread in piles, and what a task does not take stays at the broker. It ends at the range's end,
whatever that entry is: of one that a broker shows to nobody, the subscription's cursor tells.

What cannot be had is never left out silently: it is `DataLossError`, or with
``failOnDataLoss=false`` a line in the log. What cannot be decrypted is there, and no loss: it is
`CryptoError`, unless the options say to leave it out or to hand it on.
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

_QUIET_S: Final = 0.5  # silence after which the broker is asked whether there is more
_LOOK_S: Final = 10.0  # a question to the broker; asked again
_SHORTLY_S: Final = 0.05  # the same at first, where nothing but the end is to come
_OPEN_S: Final = 120.0


Came = Delivery | SkippedEntry
"""A delivery, or an entry that is none."""

Place = tuple[int, int]
"""Ledger and entry."""


@dataclass(frozen=True)
class ReadRange(InputPartition):
    """What one task reads.

    Attributes:
        topic: Full name, of the partition if any.
        partition: Its number, or -1.
        start: The last message before it.
        end: Its last message.
        ledgers: Closed ones that it goes over, and the last entry of each; those that are known.
        is_end_stored: Its end is an entry that was there, and not a number that somebody said.
        is_kept: All behind its start is there, also if the ledger of its start is not, or the start
            is a number in a filter.
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
    """What came and was not taken (`DeliveryListener`): filled on the event loop, emptied by a
    task.

    What one read of a connection brought is taken together: a piece whose message is torn has to be
    seen before what came behind it is used.

    Args:
        loop: That fills it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Condition()
        self._came: list[Came] = []
        self._error: Exception | None = None
        self._refusal: Exception | None = None
        # On the event loop alone, until the end of its turn.
        self._deliveries: list[Delivery] = []
        self._unread: list[SkippedEntry] = []
        self._publishing = False

    @property
    def failed(self) -> bool:
        """Nothing comes any more: its subscription is not attached again."""
        with self._lock:
            return self._error is not None

    @property
    def refusal(self) -> Exception | None:
        """The last refusal of an attempt to attach again; None while it is attached."""
        with self._lock:
            return self._refusal

    def take(self, timeout_s: float) -> tuple[list[Came], Exception | None]:
        """All that is here, in order; waits for something, for so long at most."""
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
        """The messages that are here stay."""

    def on_retrying(self, source: int | None, notice: RetryNotice) -> None:
        # A range is of messages that were stored when it was planned: none comes back with a topic
        # that is created again.
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
            self._refusal = None  # the subscription goes on from its position

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        """What lies here does not come again."""

    def on_uncertain(self, only: Container[int] | None = None) -> None:
        """There are no acks to be lost."""

    def on_all_requested(
        self, unseen: Sequence[Delivery], only: Container[int] | None = None
    ) -> None:
        """Nothing is asked for again."""

    def on_seek(self, only: Container[int] | None = None) -> None:
        """Nothing is sought."""

    def on_end_of_topic(self, source: int) -> None:
        """The end of a range is not that of its topic."""

    def on_active_changed(self, source: int, active: bool) -> None:
        """Nobody takes turns."""

    def on_new_source(self, source: int) -> None:
        """There is one."""


class RangeFetch:
    """The messages of a range, in order and each once, in piles.

    Args:
        runtime: The process's.
        connection: To the cluster.
        wanted: The range.
        reading: How it is read.
        fail_on_loss: Whether what is missing is an error.
        reads_values: Whether values are looked at; else an entry that cannot be unpacked here is
            as good as any.
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
        # Of a compacted topic nobody knows which entries are to come; nor does the other engine.
        self._counts = native and not reading.compacted
        self._first: Place | None = None  # of what came since it was opened
        self._hole: tuple[Place, Place] | None = None  # the one that was looked into
        self._unmoved = False  # the cursor, as far as what is being cut came
        self._last_look: Position | None = None  # from where it was looked for the end
        self._unanswered: TransportError | None = None
        keys = reading.keys
        self._keys = None if keys is None else keys.reader(self._transport.capabilities.name)
        # The library leaves out what it cannot decrypt, and does not say so: it hands it on, and
        # what becomes of it is settled here.
        self._tells_sealed = native
        self._sealed = 0
        self._lookback = 0  # entries before the start that are read for their pieces
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
        """Give the subscription back; again does nothing."""
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
        """Where the subscription begins: behind what is done with, or earlier for its pieces."""
        last = self._cutter.last
        if last == EARLIEST:
            return MessageId.earliest
        if self._lookback > last.entry + 1:
            return MessageId.earliest  # they are in a ledger before, and only a broker knows which
        # An entry that was read in part comes again as a whole: that nothing of it is left is seen
        # then, where an engine that left out its first messages would send nothing at all.
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
            # No look may take all of the patience: what was sent meanwhile would lie there.
            if self._ends(min(_LOOK_S, max(_QUIET_S, left_s))):
                return
            if left_s <= 0:
                stalled, refusal = self._stalled(), self._pile.refusal
                # The client retries these without end, and they say what to change.
                if isinstance(refusal, (AuthenticationError, AuthorizationError)):
                    raise refusal from stalled
                raise stalled from self._unanswered
            pause_s = min(2 * pause_s, _QUIET_S) if self._last_look == looked else _SHORTLY_S

    def _stalled(self) -> StalledError:
        why = "the broker says that there is more"
        if self._unanswered is not None:
            why = f"the broker cannot be asked whether there is more: {self._unanswered}"
        return StalledError(
            f"{self._wanted}: nothing came for {self._reading.poll_timeout_ms} ms "
            f"(pollTimeoutMs) behind {self._cutter.last}, and {why}"
        )

    def _cut(self, came: list[Came]) -> list[Cut]:
        """What of it is the range's; less where it is read again from further back."""
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
        """Whether it cannot be unpacked, for want of a codec, and is left out for that."""
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

    # What does not come

    def _looks_into(self, place: Place) -> bool:
        """Whether what is missing before an entry is read again, which has begun then.

        Brokers show markers and what transactions took back to nobody. But where messages expire
        they move the cursors of readers too, past what was not sent yet. Nothing is acked here, so
        a cursor that is not before all that came was moved; one that is now was not when any of
        this came, so one question does for all of it. Where nothing came yet it cannot be told, and
        it is read once more.
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
                self._check_ledgers(place)  # it is the first entry of the first that is there
                return False
        elif self._unmoved or self._acked(_OPEN_S) < self._first:
            self._unmoved = True
            self._check_ledgers(place)
            return False
        self._hole = hole
        self._open_again()
        return True

    def _check_ledgers(self, place: Place) -> None:
        """That ledgers which are passed before an entry, and were not read to their end, are there.

        Raises:
            DataLossError: One is not, and `failOnDataLoss` is true.
            TransportError: The web service could not be asked.
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
            # A new cursor is in the ledger of its place, or before it, if that ledger is there;
            # else in the first that is.
            at = self._acked(_OPEN_S)[0]
            gone = {ledger for ledger in passed if ledger < at}
            if not gone and last[0] < at and not wanted.is_kept:
                gone = {last[0]}
                known_to = "nobody knows whether it was read to its end (admin.url would tell)"
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
        """Whether nothing of the range is to come; asked when nothing came for a while.

        Read anew from behind what came, with that acked, the cursor goes over what is shown to
        nobody, and over nothing else. So it tells of the end of a range that is such an entry.
        """
        self._unanswered = None
        try:
            if self._link is None:  # it could not be opened again
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
            self._unanswered = error  # it reconnects meanwhile; the poll timeout ends that
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
        """Where the subscription's cursor is."""
        link = self._link
        assert link is not None
        doing = f"place of a cursor on {self._wanted.topic}"
        acked = self._runtime.call(link.acked_position(), doing, timeout_s)
        assert acked is not None, "this engine tells"
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
        """What an entry means that is no message; True when it is read again from further back."""
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
        """Read from further back, for a message whose first pieces are before the range.

        Eight times as far each time, then from the beginning of the topic. False when that has been
        tried: they are gone.
        """
        last = self._cutter.last
        if not self._reading.chunk_lookback or last == EARLIEST:
            return False
        if self._lookback > last.entry + 1:
            return False
        self._lookback = max(self._reading.chunk_lookback, 8 * self._lookback)
        log.info("%s: %d:%d is a later piece of a message, read from before", self._wanted, *place)
        self.close()
        self._open()
        return True

    def _refuses(self, delivery: Delivery) -> bool:
        """Whether it is handed on encrypted, and that is not what was asked for."""
        if self._reading.crypto_failure is ConsumerCryptoFailureAction.CONSUME:
            return False
        context = delivery.messages[0].encryption_context()
        return context is not None and context.is_decryption_failed()

    def _not_decrypted(self, passed: SkippedEntry) -> None:
        place = (passed.ledger, passed.entry)
        if self._reading.crypto_failure is ConsumerCryptoFailureAction.DISCARD:
            if place > self._cutter.last.place:  # after a reconnect it comes again
                self._sealed += 1
            return
        given = self._reading.keys is not None
        why = passed.error or (
            "no key that was given fits, as the client's log says" if given else "there is no key"
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
        log.warning("%s; it goes on, as failOnDataLoss=false says", text)
