"""A producer on one topic or partition: its pending messages, and its broker.

Frames without a receipt are sent again after a reconnect, in order and unchanged, before new ones.
Nothing is scheduled per message: one timer serves all send timeouts, and writing pauses while the
socket is full.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from ....errors import (
    BrokerMetadataError,
    NotAllowedError,
    NotConnected,
    ProducerBlockedQuotaExceededException,
    PulsarException,
    TopicNotFound,
    TopicTerminated,
    TransportTimeout,
    UnknownError,
)
from ....options import ProducerOptions
from ....values.outgoing_message import OutgoingMessage
from ....values.topic_names import partition_of
from ....wire import pulsar_pb2 as pb
from ...interface import ProducerListener
from ..connection.attachment import Attachment
from ..connection.requests import refusal
from ..connection.retry_log import RetryLog
from ..connection.session import Session
from ..lookup.lookup import Lookup
from ..transactions.native_transaction import NativeTransaction
from .flushes import Flushes
from .frame_rewrite import rewrite
from .packer import Packer
from .registration import Registration
from .send_encoder import Encrypt, SendEncoder
from .send_results import FAILURES_PER_STEP, U63, closed_error, set_failed, set_stored
from .unconfirmed_frames import OutOfStepError, SendFrame, UnconfirmedFrames, Waiter

LOG_NAME: Final = "pulsar_encore.producer"

# By these, brokers refuse a topic that was deleted or has another number of partitions.
_MAYBE_MISSING: Final = (TopicNotFound, NotAllowedError, BrokerMetadataError, UnknownError)
_STEP_BYTES: Final = 1_000_000  # written at once, before the socket can report that it is full
_STEP_FRAMES: Final = 2_000  # about 2 ms


class _Failing(NamedTuple):
    """Frames that failed together, and waiters and queue slots of messages without a frame."""

    frames: deque[SendFrame]
    waiters: deque[Waiter]
    slots: int
    error: Exception


class PartitionProducer:
    """One topic or partition of a producer; a `ProducerHandler`.

    Args:
        release_slots: Called with the queue slots of completed messages, after their waiters.
        on_missing: Called when the broker does not know the topic, or refuses it by its name.
        established: The producer was attached before: this part does not create its topic, and its
            first attempt is retried like later ones.

    Attributes:
        pending_slots: Queue slots of messages without id or error.
        last_sequence_id: Of the last message stored, also by an earlier producer of this name.
        error: Why nothing can be sent any more, or None.
        missing_s: Loop time of the first TopicNotFound since it was attached, or None.
        may_create: True if the next attempts to attach again may create the topic.
    """

    def __init__(
        self,
        lookup: Lookup,
        options: ProducerOptions,
        registration: Registration,
        *,
        encrypt: Encrypt | None,
        release_slots: Callable[[int], None],
        listener: ProducerListener | None,
        on_missing: Callable[[], None],
        established: bool,
        retry_log: RetryLog,
    ) -> None:
        self.topic: str = registration.topic
        self.partition: int = partition_of(registration.topic)
        self.pending_slots: int = 0
        self.last_sequence_id: int = -1
        self.error: Exception | None = None
        self.missing_s: float | None = None
        self.may_create: bool = False
        self._lookup = lookup
        self._log = lookup.pool.settings.logger_of(LOG_NAME)
        self._on_missing = on_missing
        self._was_attached = established  # this part, or another of the producer
        # A non-persistent topic exists only while it is in use.
        self._stored = not self.topic.startswith("non-persistent://")
        self._options = options
        self.registration: Registration = registration
        self._encrypt = encrypt
        self._release_slots = release_slots
        self._listener = listener
        self._loop = lookup.pool.loop
        self._request_timeout_s = lookup.pool.settings.operation_timeout_s
        self._attachment = Attachment(
            lookup,
            self.topic,
            self._attach,
            self._give_up,
            retrying=None if listener is None else listener.on_retrying,
            established=established,
            retry_log=retry_log,
        )
        self._session: Session | None = None  # from PRODUCER on
        self._attached = False
        self._packer = Packer(self._loop, options, self._on_packed, self._on_not_sent)
        self._unconfirmed = UnconfirmedFrames()
        self._timeout_s = options.send_timeout_millis / 1000
        self._timeout: asyncio.TimerHandle | None = None
        self._writing = False
        self.flushes: Flushes = Flushes(self._loop)
        # Before the first message; None until the broker has told it.
        self._highest_id: int | None = None
        self._begun = False
        self._adopted: list[SendFrame] = []  # not rewritten yet
        self._early_s = 0.0  # loop time of the first message that waits for an attachment
        self._corrupted: SendFrame | None = None
        # Not reported to their waiters yet.
        self._failing: deque[_Failing] = deque()
        self._is_reporting = False

    # Attaching

    @property
    def name(self) -> str:
        return self.registration.name

    @property
    def started(self) -> bool:
        return self._packer.encoder is not None

    def is_connected(self) -> bool:
        return self._attached and self.error is None

    async def open(self) -> None:
        """Attach within the operation timeout. If that fails, the caller must end the part."""
        self._begun = True
        await self._attachment.first()

    def begin(self) -> None:
        """Attach in the background, with retries as after a loss. No effect after the first
        call."""
        if not self._begun:
            self._begun = True
            self._attachment.begin()

    def retry_now(self) -> None:
        self._attachment.retry_now()

    def replace(self, old: PartitionProducer) -> None:
        """Continue for a part whose event loop has ended. Its pending messages are lost."""
        self.error = old.error
        if old._packer.encoder is not None:
            self.last_sequence_id = old.last_sequence_id
            self._highest_id = old._packer.highest_id

    async def _attach(self, session: Session) -> None:
        if self.error is not None:
            raise self.error  # closed while it was opened
        registration = self.registration
        creates = self.may_create or self._attachment.moved_to_new_cluster
        if self._was_attached and self._stored and not creates:
            await self._check_topic()
        session.attach_producer(registration.producer_id, self)
        self._session = session
        try:
            if registration.may_wait_for_access:
                self._attachment.remove_time_limit()
            answer: pb.CommandProducerSuccess = await session.request(
                registration.command, f"create a producer on {self.topic}", self._request_timeout_s
            )
        except BaseException as error:
            self._not_attached(session, error)
            if isinstance(error, _MAYBE_MISSING):
                self._note_missing(error)
            raise
        if self.error is not None:
            self._ask_to_close(session)
            raise self.error
        if self._session is not session:
            raise NotConnected(f"{self.topic}: it was closed as soon as it was attached")
        # Before it is attached: a failed message can make room for another, which is then written.
        self._fail_uncertain(deduplicates=answer.last_sequence_id >= 0)
        is_again, self._attached, self._was_attached = self._was_attached, True, True
        if self.missing_s is not None and self.may_create:
            self._log.warning(
                "%s was missing for %.0f s (recreate_after): the producer created it again, or it "
                "was created just now",
                self.topic,
                self._loop.time() - self.missing_s,
            )
        self.missing_s, self.may_create = None, False
        registration.accept(answer)
        begins = self._packer.encoder is None
        self._packer.set_encoder(
            SendEncoder(
                producer_id=registration.producer_id,
                producer_name=registration.name,
                schema_version=registration.schema_version,
                codec=self._options.compression_type.value,
                max_message_size=session.max_message_size,
                encrypt=self._encrypt,
            )
        )
        if begins:
            if self._highest_id is None:
                initial = self._options.initial_sequence_id
                last = registration.last_sequence_id if initial is None else initial
                self.last_sequence_id = self._highest_id = last
            adopted, self._adopted = self._adopted, []
            highest = self._rewrite(adopted, self._highest_id)
        self._write()
        if is_again and self._listener is not None:
            self._listener.on_connected(self.topic)
        if begins:
            self._packer.begin(highest)

    # Moving to another topic

    def release(
        self,
    ) -> tuple[list[SendFrame], list[tuple[OutgoingMessage, Waiter, int]]]:
        """End the part, because the topic is gone. Return its frames, in order, and
        `Packer.early`."""
        self._packer.flush()
        frames = self._unconfirmed.all()
        self._unconfirmed.drop(frames)
        early = self._packer.take_early()
        self._abandon(
            NotConnected(f"{self.topic} was deleted while the send waited: send it again")
        )
        return frames, early

    def adopt(self, frames: Sequence[SendFrame], of: PartitionProducer) -> None:
        """Send frames of the part `of`, after all earlier messages.

        Chunks of a message stay together.
        """
        self.flushes.adopt(of.flushes)
        self.pending_slots += sum(each.slots for each in frames)
        if self.started:
            self._packer.flush()
            self._packer.skip_ids(self._rewrite(frames, self._packer.highest_id))
        else:
            self._adopted += frames
        self._on_packed(frames)

    def _rewrite(self, frames: Sequence[SendFrame], highest_id: int) -> int:
        for each in frames:
            highest_id = rewrite(
                each,
                highest_id,
                producer_id=self.registration.producer_id,
                producer_name=self.registration.name,
                schema_version=self.registration.schema_version,
            )
        return highest_id

    async def _check_topic(self) -> None:
        """Raise `TopicNotFound` if the topic is missing or has partitions now: PRODUCER would
        create it."""
        try:
            partitions = await self._lookup.partitions(self.topic, create=False)
            if partitions:
                raise TopicNotFound(f"{self.topic} has {partitions} partitions now")
        except _MAYBE_MISSING as error:
            self._note_missing(error)
            raise

    def _note_missing(self, error: PulsarException) -> None:
        if self._was_attached:
            if isinstance(error, TopicNotFound) and self.missing_s is None:
                self.missing_s = self._loop.time()
                self._log.warning(
                    "%s does not exist any more. The producer waits for it, and may create it "
                    "again after %g s (recreate_after)",
                    self.topic,
                    self._lookup.pool.settings.recreate_after_s,
                )
            self._on_missing()

    def _not_attached(self, session: Session, error: BaseException) -> None:
        if self._session is session:
            self._session = None
        session.detach_producer(self.registration.producer_id)
        if isinstance(error, ProducerBlockedQuotaExceededException):
            self._fail_all(error)
        if not isinstance(error, PulsarException) or isinstance(error, TransportTimeout):
            # The broker may still accept it, and nothing would ever close it.
            self._ask_to_close(session)

    def on_closed_by_broker(self, address: str | None) -> None:
        self._on_connection_end(address)

    def on_lost(self, error: Exception) -> None:
        self._on_connection_end(None)

    def _on_connection_end(self, address: str | None) -> None:
        self._session = None
        if self._attached:  # else `_attach` raises
            self._attached = False
            self._unconfirmed.disconnected()
            self._fail_uncertain(deduplicates=True)
            self._attachment.again(address)
            # If the pool is closed, the producer continues on the next event loop.
            if self._listener is not None and not self._lookup.pool.closed:
                self._listener.on_disconnected(self.topic)

    def _fail_uncertain(self, *, deduplicates: bool) -> None:
        """Fail messages of transactions that must not be sent any more, on a lost connection.

        If the topic does not deduplicate, the transaction would have those twice that may be
        stored. Of a transaction whose time is over, or of another cluster, no message may leave.
        """
        in_transactions = [each for each in self._unconfirmed.all() if each.txn is not None]
        txns = {*self._packer.transactions(), *(each.txn for each in in_transactions)}
        ended = {txn for txn in txns if not cast(NativeTransaction, txn).may_send}
        uncertain = [
            each
            for each in in_transactions
            if each.txn in ended or (each.may_be_stored and not deduplicates)
        ]
        error = NotConnected(
            f"send to {self.topic}: the connection was lost before the receipt came. A message of "
            "a transaction is sent again only on topics that deduplicate, while it is open"
        )
        for txn in ended:
            self.discard(cast(NativeTransaction, txn), error)
        if uncertain:
            self._fail_frames_of(uncertain, error)

    def discard(self, txn: NativeTransaction, error: Exception) -> None:
        """Fail each message of a transaction that is not on its way to the broker."""
        waiters, slots = self._packer.take_back_of(txn)
        frames = self._unconfirmed.unwritten_of(txn)
        if waiters:
            self._on_not_sent(waiters, slots, error)
        if frames:
            self._fail_frames_of(frames, error)

    def _fail_frames_of(self, frames: Sequence[SendFrame], error: Exception) -> None:
        """Fail frames of transactions, each with all chunks of its message."""
        firsts = {each.first_chunk or each for each in frames}
        whole = [
            each for each in self._unconfirmed.all() if each in firsts or each.first_chunk in firsts
        ]
        self._unconfirmed.drop(whole)
        self._fail(whole, error)

    def _attach_again(self) -> None:
        """Close the producer at the broker, which drops everything in flight, and attach again."""
        session = self._session
        if session is not None:
            session.detach_producer(self.registration.producer_id)
            self._ask_to_close(session)
            self._on_connection_end(None)

    def _ask_to_close(self, session: Session) -> None:
        if not session.closed:
            session.send(self.registration.close_command(session.requests.new_id()))

    def _give_up(self, error: Exception) -> None:
        self.error = error
        self._log.error("%s: the producer has ended for good: %s", self.topic, error)
        self._stop_timers()
        self._fail_all(error)
        if self._listener is not None:
            self._listener.on_failed(self.topic, error)

    def _stop_timers(self) -> None:
        self._packer.stop()
        if self._timeout is not None:
            self._timeout.cancel()

    # Publishing

    def slots_of(self, message: OutgoingMessage) -> int:
        return self._packer.slots_of(message)

    def check(self, message: OutgoingMessage) -> None:
        """Raise the error that each send of this message would get."""
        self._packer.check(message)

    def publish(self, message: OutgoingMessage, waiter: Waiter, slots: int) -> None:
        self.pending_slots += slots
        packer = self._packer
        if packer.encoder is None:
            self.begin()
            if not packer.early:
                self._early_s = self._loop.time()
                self._attachment.retry_now()
            self._start_timeout()
        packer.add(message, waiter, slots)

    def _on_packed(self, packed: Sequence[SendFrame]) -> None:
        self._unconfirmed.add(packed)
        self._start_timeout()
        if not self._writing:
            self._write()

    def _start_timeout(self) -> None:
        if self._timeout is None and self._timeout_s:
            self._timeout = self._loop.call_later(self._timeout_s, self._expire)

    def _on_not_sent(self, waiters: Sequence[Waiter], slots: int, error: Exception) -> None:
        set_failed(waiters, error)
        self._free_slots(slots)

    def _write(self) -> None:
        self._writing = False
        session = self._session
        if session is None or not self._attached or not session.writable:
            return
        for data in self._unconfirmed.to_write(_STEP_BYTES, _STEP_FRAMES):
            session.write(data)
        if self._unconfirmed.has_unwritten:
            self._writing = True
            self._loop.call_soon(self._write)

    def on_writable(self, writable: bool) -> None:
        if writable:
            self._write()

    # Receipts and errors

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> int:
        try:
            frame = self._unconfirmed.receipt(receipt.sequence_id)
        except OutOfStepError as error:
            # Only the state of this producer is uncertain: the connection stays open.
            self._log.warning("%s: %s; unanswered messages are sent again", self.topic, error)
            self._attach_again()
            return 0
        if frame is None:
            return 0
        if frame is self._corrupted:
            self._corrupted = None
        if frame.txn is not None and receipt.message_id.ledgerId >= U63 and not frame.may_be_stored:
            self._fail((frame,), _dropped(frame, self.topic))
            return len(frame.waiters)
        set_stored(frame, receipt.message_id, self.topic, self.partition)
        if frame.waiters:
            self.last_sequence_id = frame.last
        self._remove(frame)
        return len(frame.waiters)

    def on_send_error(self, error: pb.CommandSendError) -> None:
        refused = refusal(error.error, error.message, f"send to {self.topic}")
        kind = error.error
        if isinstance(refused, TopicTerminated):
            self._attachment.abandon()
            self._give_up(refused)
        elif kind == pb.NotAllowedError:
            self._refuse(error.sequence_id, refused)
        elif kind == pb.ChecksumError and self._is_corrupted_again(error.sequence_id):
            self._refuse(error.sequence_id, refused)
        else:
            self._log.warning("%s; it is sent again", refused)
            self._attach_again()

    def _is_corrupted_again(self, sequence_id: int) -> bool:
        """Return True if the same message arrived corrupted twice: something on the way always
        corrupts it."""
        corrupted = self._unconfirmed.on_wire(sequence_id)
        again = corrupted is not None and corrupted is self._corrupted
        self._corrupted = corrupted
        return again

    def _refuse(self, sequence_id: int, error: Exception) -> None:
        """Fail a message that the broker refused, with all its chunks."""
        frame = self._unconfirmed.refused(sequence_id)
        if frame is None:
            return
        first = frame.first_chunk or frame
        others = [
            each for each in self._unconfirmed.all() if each is first or each.first_chunk is first
        ]
        self._unconfirmed.drop(others)
        self._fail((frame, *others), error)

    def _expire(self) -> None:
        self._timeout = None
        oldest = self._unconfirmed.oldest
        if oldest is not None:
            since = oldest.since
        elif self._packer.early:
            since = self._early_s
        else:
            return
        left = since + self._timeout_s - self._loop.time()
        if left > 0:
            self._timeout = self._loop.call_later(left, self._expire)
            return
        text = f"send to {self.topic}: no answer in {self._timeout_s:g} s (send_timeout_millis)"
        refused = self._attachment.failure
        if refused is not None:
            text += f"; the producer is not attached, the last attempt failed: {refused}"
        twice = self._unconfirmed.unanswered
        if refused is not None and not self.started:
            self._fail_all(refused)  # it was never attached
        else:
            self._fail_all(TransportTimeout(text))
        session = self._session
        if twice and session is not None:
            session.fail(TransportTimeout(f"{session.peer} takes messages and answers none"))

    def _fail_all(self, error: Exception) -> None:
        pending = self._unconfirmed.drop_all()
        # Before any waiter is notified: that admits other messages, which have not failed.
        waiters, slots = self._packer.take_back()
        self._failing.append(_Failing(deque(pending), deque(waiters), slots, error))
        if not self._is_reporting:
            self._report_step()

    def _report_step(self) -> None:
        """Report some failures, and the others in later steps of the loop."""
        self._is_reporting = True
        try:
            self._report_failures(FAILURES_PER_STEP)
        finally:
            # Also after an exception of application code for a newly admitted message.
            self._is_reporting = bool(self._failing)
            if self._is_reporting:
                self._loop.call_soon(self._report_step)

    def _report_failures(self, most: int) -> None:
        while self._failing and most > 0:
            frames, waiters, slots, error = self._failing[0]
            while frames and most > 0:
                frame = frames.popleft()
                most -= max(1, len(frame.waiters))
                self._fail((frame,), error)
            while waiters and most > 0:
                most -= 1
                set_failed((waiters.popleft(),), error)
            if not (frames or waiters):
                self._failing.popleft()
                self._free_slots(slots)

    def _fail(self, frames: Sequence[SendFrame], error: Exception) -> None:
        for frame in frames:
            set_failed(frame.waiters, error)
            self._remove(frame, error)

    def _remove(self, frame: SendFrame, error: Exception | None = None) -> None:
        self.flushes.complete(frame, error)
        self._free_slots(frame.slots)

    def _free_slots(self, slots: int) -> None:
        if slots:
            self.pending_slots -= slots
            self._release_slots(slots)

    # Flushing and closing

    def flush(self, txn: NativeTransaction | None = None) -> list[asyncio.Future[Any]]:
        """Send the open batches now; return futures of all messages without id or error, also of
        failed messages that are not reported yet. With `txn`, only of its frames."""
        self._packer.flush()
        if txn is not None:
            return self.flushes.begin([each for each in self._unconfirmed.all() if each.txn is txn])
        frames = self._unconfirmed.all()
        waiters = [waiter for _, waiter, _ in self._packer.early]
        for failing in self._failing:
            frames += failing.frames
            waiters += failing.waiters
        return [*waiters, *self.flushes.begin(frames)]

    async def close(self) -> None:
        """Fail all pending messages with `ClosedError`, and close the producer at the broker."""
        session = self._end(closed_error())
        while self._failing:  # noqa: ASYNC110 - `_report_step` continues with them
            await asyncio.sleep(0)
        await self._attachment.stop()
        if session is None or session.closed:
            return
        try:
            await session.request(
                self.registration.close_command,
                f"close the producer on {self.topic}",
                self._request_timeout_s,
            )
        except PulsarException as error:
            self._log.info("%s; it ends with its connection", error)

    def abandon(self) -> None:
        """Close without waiting for the broker's answer."""
        self._abandon(closed_error())

    def _abandon(self, error: Exception) -> None:
        session = self._end(error)
        self._report_failures(sys.maxsize)
        if session is not None:
            self._ask_to_close(session)

    def _end(self, error: Exception) -> Session | None:
        session = self._session if self._attached else None
        self.error = error
        self._attachment.abandon()
        self._stop_timers()
        if self._session is not None:
            self._session.detach_producer(self.registration.producer_id)
        self._session = None
        self._attached = False
        self._fail_all(error)
        return session


def _dropped(frame: SendFrame, topic: str) -> NotAllowedError:
    return NotAllowedError(
        f"send to {topic}: the topic deduplicates, and dropped the sequence id "
        f"{frame.sequence_id}, which was used before. An aborted transaction has used its ids too: "
        "give each message a new one, or leave sequence_id out"
    )
