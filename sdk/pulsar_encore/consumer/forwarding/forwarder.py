"""Forwarding: copy a message to a letter topic, then ack the original.

If the copy fails, the message is redelivered with a growing delay. A forwarding belongs to no task
of a caller, so a cancelled caller leaves nothing half done. A transactional policy makes the copy
and the ack one transaction (`letter_groups`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from ...core.attempts import Failures
from ...core.topic_state import TopicState
from ...errors import ClosedError, ConfigurationError, EncoreError, MessageNotHeldError
from ...eventloop.alarm import wall_due_in_ms, wall_now_ms
from ...eventloop.shielded_work import shielded
from ...letters.attempt_limit import used_up
from ...letters.evidence import Evidence, evidence_of
from ...letters.letter_form import PLAIN, LetterForm, form_of
from ...letters.letter_writer import (
    LetterAuthor,
    dead_letter_by_nack,
    dead_letter_by_reconsume,
    overflowed_nack,
    retry_letter,
)
from ...letters.property_names import checked_properties
from ...letters.reconsume_counts import reconsume_attempt
from ...message import Held, Message
from ...transaction_group import GroupEnd
from ...transport.interface import TransportTransaction
from ...values.backoff import Backoff, BackoffLike, BackoffTable, backoff_of, to_ms
from ...values.outgoing_message import OutgoingMessage
from ...values.topic_names import full_name
from ..settlement.settlement import Settlement
from ..settlement.transaction_acks import TransactionAcks
from .letter_groups import GroupedLetter, LetterGroups
from .letter_log import LetterLog
from .letter_producer import LetterProducer
from .letter_topics import LetterTopics

if TYPE_CHECKING:  # only a client with observers imports this module
    from ...observability.observations import LetterWritten

_DRAIN_S: Final = 10.0  # time for letters in flight at `close`
_MAX_DELAY_MS: Final = 100 * 365 * 86_400_000  # keeps sums with the wall clock within 64 bits


class _Kind(Enum):
    RETRY = "retry letter"
    DEAD = "dead letter"
    REJECTED = "dead letter of a rejected message"


class _Written(NamedTuple):
    """A letter that is not sent yet."""

    letter: OutgoingMessage
    message: Message
    topic: str
    kind: _Kind
    form: LetterForm


@dataclass(eq=False, slots=True)
class _Forwarding:
    """A letter that is being sent.

    Attributes:
        message: The original, in state FORWARDING, or ACK_PENDING in a transaction.
        held: Settles the original.
        kind: A retry letter, a dead letter, or the dead letter of a rejected message.
        cumulative: True if the ack of the original is cumulative.
        keep: True if the original stays held when the letter fails.
        failed_before: How often letters of this message failed before.
        due: For an overflowed nack, the due time in ms since the epoch.
        outcome: Awaited by a caller; None without one.
        properties: Properties of the letter, from `_send` on.
    """

    message: Message
    held: Held
    topic: str
    kind: _Kind
    form: LetterForm = PLAIN
    cumulative: bool = False
    keep: bool = False
    failed_before: int = 0
    due: int | None = None
    outcome: asyncio.Future[None] | None = None
    properties: Mapping[str, str] = field(init=False)


class Forwarder:
    """Writes the letters of one consumer.

    Args:
        groups: Writes each letter in a transaction with the ack of its original; None for a policy
            that is not transactional.

    Attributes:
        retry_letters, dead_letters, rejected: Counts of stored letters; `rejected` is a part of
            `dead_letters`.
    """

    def __init__(
        self,
        topics: LetterTopics,
        settlement: Settlement,
        transaction_acks: TransactionAcks,
        consumer_name: str,
        version: str,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
        letter_written: Callable[[LetterWritten], None] | None = None,
        groups: LetterGroups | None = None,
    ) -> None:
        self._logger = logger_of(__name__)
        self._letter_written = letter_written
        self._topics = topics
        self._settlement = settlement
        self._transaction_acks = transaction_acks
        self._groups = groups
        self._author = LetterAuthor(
            subscription=topics.subscription,
            consumer_name=consumer_name,
            version=version,
            refuse_byte_keys=topics.refuse_bytes,
        )
        self._loop = asyncio.get_running_loop()
        self._rng = Random()
        self._in_flight: set[_Forwarding] = set()
        self._drained: asyncio.Future[None] | None = None
        self._log = LetterLog(self._loop, logger_of)
        self.retry_letters: int = 0
        self.dead_letters: int = 0
        self.rejected: int = 0

    @property
    def max_redeliver_count(self) -> int:
        return self._topics.policy.max_redeliver_count

    def reconsume(
        self,
        message: Message,
        delay: float | timedelta | BackoffLike,
        properties: Mapping[str, str] | None,
        error: BaseException | str | None,
        *,
        cumulative: bool = False,
    ) -> asyncio.Future[None]:
        """Send a message to the retry letter topic, or dead-letter it if no retry is left.

        The future is done when the original is acked. Cancelling it does not stop the forwarding.
        If it raises an error, the message is redelivered, though a copy may be stored.
        """
        written = self._reconsumed(message, delay, properties, error)
        return self._send_awaited(*written, cumulative=cumulative)

    def _reconsumed(
        self,
        message: Message,
        delay: float | timedelta | BackoffLike,
        properties: Mapping[str, str] | None,
        error: BaseException | str | None,
    ) -> _Written:
        backoff, delay_ms = None, 0
        if isinstance(delay, (Backoff, BackoffTable, list, tuple)):
            backoff = backoff_of(delay, "delay")
        elif isinstance(delay, (int, float, timedelta)) and not isinstance(delay, bool):
            delay_ms = to_ms(delay, "delay")
        else:
            raise ConfigurationError(
                "delay must be seconds, a timedelta, a Backoff, or a list of delays by attempt "
                f"such as [10, 60, 600] (s), got {type(delay).__name__}"
            )
        if delay_ms > _MAX_DELAY_MS:
            raise ConfigurationError(f"delay must be at most 100 years, got {delay!r}")
        custom = checked_properties(properties)
        if not isinstance(message, Message):
            raise ConfigurationError(
                "reconsume_later needs the received message, not an id: it is copied"
            )
        evidence = None if error is None else evidence_of(error, "reconsume_later")
        form = form_of(message)
        from_retry = self._from_retry_topic(message)
        found = message.properties()
        attempt = reconsume_attempt(
            message, self._author.subscription, from_retry_topic=from_retry, found=found
        )
        if backoff is not None:
            delay_ms = backoff.delay_ms(attempt - 1, self._rng)
        if used_up(attempt, self.max_redeliver_count):
            letter = dead_letter_by_reconsume(
                message,
                self._author,
                attempt=attempt,
                delay_ms=delay_ms,
                wall_now=self._wall_now(),
                evidence=evidence,
                custom=custom,
                from_retry_topic=from_retry,
                found=found,
            )
            topic, kind = self._topics.dead(message), _Kind.DEAD
        else:
            letter = retry_letter(
                message,
                self._author,
                attempt=attempt,
                delay_ms=delay_ms,
                deliver_at=wall_due_in_ms(self._loop, delay_ms) if delay_ms else None,
                wall_now=self._wall_now(),
                evidence=evidence,
                custom=custom,
                from_retry_topic=from_retry,
                found=found,
            )
            topic, kind = self._topics.retry(), _Kind.RETRY
        return _Written(letter, message, topic, kind, form)

    async def reconsume_each(
        self,
        messages: Sequence[Message],
        delay: float | timedelta | BackoffLike,
        properties: Mapping[str, str] | None,
        error: BaseException | str | None,
    ) -> None:
        """Call `reconsume` for each message before the first wait."""
        failures: list[Exception] = []
        begun = []
        for message in messages:
            try:
                begun.append(self.reconsume(message, delay, properties, error))
            except EncoreError as failure:
                failures.append(failure)
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        failures += [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(messages)} letters failed", failures)

    async def reconsume_in(
        self,
        txn: TransportTransaction,
        messages: Sequence[Message],
        delay: float | timedelta | BackoffLike,
        properties: Mapping[str, str] | None,
        error: BaseException | str | None,
        *,
        cumulative: bool = False,
    ) -> None:
        """Send letters as `reconsume` does and ack their originals, in an open transaction.

        All of them or, after an error before the first is sent, none. Returns when the broker has
        stored the letters and the acks. After a later error the transaction can only abort. A
        cancelled call has done nothing, or is completed in the background.
        """
        # Every possible error is raised before any state changes.
        all_written = [self._reconsumed(each, delay, properties, error) for each in messages]
        producers: dict[LetterProducer, None] = {}
        for each in all_written:
            if not full_name(each.topic).startswith("persistent://"):
                raise ConfigurationError(
                    f"{each.topic} is not persistent, so its letters cannot be in a transaction: "
                    "leave txn out, or name another letter topic"
                )
            producers[self._topics.producer(each.topic, each.form)] = None
        txn.check_open("send letters in it")
        self._transaction_acks.check_held(messages)
        while waited_for := next((each for each in producers if not each.is_ready), None):
            await self._until_ready(waited_for)
        # From here on nothing else runs until every letter is with its producer.
        pending = self._transaction_acks.ack_with_letters(messages, txn, cumulative=cumulative)
        pending += [self._post_in(txn, each) for each in all_written]
        outcomes = await shielded(asyncio.gather(*pending, return_exceptions=True))
        # The errors of letters come first: they are the cause.
        for outcome in reversed(outcomes):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _until_ready(self, producer: LetterProducer) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        producer.when_ready(partial(_set_outcome, ready))
        await ready

    def _post_in(self, txn: TransportTransaction, written: _Written) -> asyncio.Future[None]:
        sent: asyncio.Future[None] = self._loop.create_future()
        letter, message, topic, kind, form = written

        def on_sent(error: Exception | None) -> None:
            if error is not None:
                txn.spoil(error, "a letter")
            _set_outcome(sent, error)

        def on_end(committed: bool) -> None:
            if committed:
                self._report_stored(message, topic, kind, letter.properties or {})

        txn.when_ended(on_end)
        self._topics.producer(topic, form).post(replace(letter, txn=txn), on_sent)
        return sent

    def reject(
        self,
        message: Message,
        held: Held,
        reason: BaseException | str,
        *,
        path: str = "reject",
        keep: bool,
    ) -> asyncio.Future[None]:
        """Dead-letter a held message, whatever its number of attempts is.

        The future is done when the original is acked. If it raises an error, the message is
        redelivered, or stays held with `keep`. A copy may be stored nevertheless.
        """
        # Every possible error is raised before any state changes.
        form, topic = form_of(message), self._topics.dead(message)
        letter = dead_letter_by_nack(
            message,
            self._author,
            attempt=message.attempt,
            reason=path,
            wall_now=self._wall_now(),
            evidence=evidence_of(reason, path),
            first_failed=_first_failed(held, _failures(held)),
            from_retry_topic=self._from_retry_topic(message),
        )
        return self._send_awaited(letter, message, topic, _Kind.REJECTED, form, keep=keep)

    def send_to_retry_topic(
        self,
        message: Message,
        held: Held,
        delay_ms: int,
        error: BaseException | str | None,
        *,
        keep: bool,
    ) -> asyncio.Future[None]:
        """Send a held message to the retry letter topic after a failed attempt.

        Unlike `reconsume`, the attempts before count on. The future is as for `reject`.
        """
        delay_ms = min(delay_ms, _MAX_DELAY_MS)
        form, topic = form_of(message), self._topics.retry()
        letter = overflowed_nack(
            message,
            self._author,
            attempt=held.failed + 1,
            delay_ms=delay_ms,
            deliver_at=wall_due_in_ms(self._loop, delay_ms),
            evidence=None if error is None else evidence_of(error, "nack"),
            first_failed=_first_failed(held, _failures(held)),
            from_retry_topic=self._from_retry_topic(message),
        )
        return self._send_awaited(letter, message, topic, _Kind.RETRY, form, keep=keep)

    def dead_letter(
        self, message: Message, held: Held, evidence: Evidence | None, reason: str
    ) -> None:
        """Dead-letter a message that has used up its attempts.

        Without evidence of the last attempt, the letter has that of an earlier one.
        """
        topic = self._topics.dead(message)
        if not _begin_forwarding(held):
            return
        # Every failed letter costs a redelivery, so the excess over the limit counts earlier
        # failures.
        failed_before = held.failed - self.max_redeliver_count
        forwarding = _Forwarding(message, held, topic, _Kind.DEAD, failed_before=failed_before)

        def write() -> OutgoingMessage:
            failures = _failures(held)
            return dead_letter_by_nack(
                message,
                self._author,
                attempt=held.failed + 1,
                reason=reason,
                wall_now=self._wall_now(),
                evidence=evidence or (failures and failures.evidence),
                first_failed=_first_failed(held, failures),
                from_retry_topic=self._from_retry_topic(message),
            )

        self._send_written(forwarding, write)

    def overflow(
        self, message: Message, held: Held, delay_ms: int, evidence: Evidence | None
    ) -> None:
        """Send a nacked message to the retry letter topic."""
        if not _begin_forwarding(held):
            return
        delay_ms = min(delay_ms, _MAX_DELAY_MS)
        due = wall_due_in_ms(self._loop, delay_ms)
        forwarding = _Forwarding(message, held, self._topics.retry(), _Kind.RETRY, due=due)

        def write() -> OutgoingMessage:
            failures = _failures(held)
            return overflowed_nack(
                message,
                self._author,
                attempt=held.failed + 1,
                delay_ms=delay_ms,
                deliver_at=due,
                evidence=evidence,
                first_failed=_first_failed(held, failures),
                from_retry_topic=self._from_retry_topic(message),
            )

        self._send_written(forwarding, write)

    def _from_retry_topic(self, message: Message) -> bool:
        return self._topics.reads_letters(message.topic_name())

    # Copy, then ack

    def _send_awaited(
        self,
        letter: OutgoingMessage,
        message: Message,
        topic: str,
        kind: _Kind,
        form: LetterForm,
        *,
        cumulative: bool = False,
        keep: bool = False,
    ) -> asyncio.Future[None]:
        """Send a letter for a caller; raise if its message is not held."""
        held = self._settlement.begin_forwarding(message, cumulative=cumulative)
        outcome: asyncio.Future[None] = self._loop.create_future()
        forwarding = _Forwarding(
            message, held, topic, kind, form, cumulative=cumulative, keep=keep, outcome=outcome
        )
        self._send(forwarding, letter)
        return outcome

    def _send_written(self, forwarding: _Forwarding, write: Callable[[], OutgoingMessage]) -> None:
        """Send a letter without a caller. After any error its message is redelivered."""
        try:
            forwarding.form = form_of(forwarding.message)
            letter = write()
        except Exception as error:
            self._failed(forwarding, error)
            return
        self._send(forwarding, letter)

    def _send(self, forwarding: _Forwarding, letter: OutgoingMessage) -> None:
        forwarding.properties = letter.properties or {}
        self._in_flight.add(forwarding)
        producer = self._topics.producer(forwarding.topic, forwarding.form)
        if self._groups is None:
            producer.post(letter, partial(self._sent, forwarding))
            return
        self._groups.add(
            GroupedLetter(
                letter,
                producer,
                forwarding.held,
                partial(self._group_ended, forwarding),
                counts=forwarding.due is None,
            )
        )

    def _sent(self, forwarding: _Forwarding, error: Exception | None) -> None:
        if not self._take(forwarding):
            return
        if error is not None:
            self._failed(forwarding, error)
            return
        not_acked: MessageNotHeldError | None = None
        try:
            self._settlement.forwarded(forwarding.held, cumulative=forwarding.cumulative)
        except MessageNotHeldError as failure:
            not_acked = failure
        self._stored(forwarding)
        if not_acked is not None:
            self._logger.warning(
                "a letter was stored, but its original cannot be acked and may be redelivered: %s",
                not_acked,
            )

    def _group_ended(self, forwarding: _Forwarding, end: GroupEnd, error: Exception | None) -> None:
        if not self._take(forwarding):
            return
        if end is GroupEnd.COMMITTED:  # which has settled the original
            if forwarding.cumulative:
                self._settlement.forwarded(forwarding.held, cumulative=True)
            self._stored(forwarding)
            return
        assert error is not None
        if isinstance(error, MessageNotHeldError):  # the message is none of ours any more
            _set_outcome(forwarding.outcome, error)
        elif end is GroupEnd.STILL_HELD:
            self._failed(forwarding, error)
        else:  # the broker delivers the message again, unless it was committed
            _set_outcome(forwarding.outcome, error)
            self._log_failed(forwarding, error)

    def _take(self, forwarding: _Forwarding) -> bool:
        """Return False if `close` gave up on this letter."""
        if forwarding not in self._in_flight:
            return False
        self._in_flight.discard(forwarding)
        if self._drained is not None and not self._in_flight and not self._drained.done():
            self._drained.set_result(None)
        return True

    def _stored(self, forwarding: _Forwarding) -> None:
        _set_outcome(forwarding.outcome, None)
        self._report_stored(
            forwarding.message, forwarding.topic, forwarding.kind, forwarding.properties
        )

    def _report_stored(
        self, message: Message, topic: str, kind: _Kind, properties: Mapping[str, str]
    ) -> None:
        if self._letter_written is not None:
            from ...observability.observations import LetterWritten  # lazy: only for observers

            self._letter_written(
                LetterWritten(
                    kind="retry" if kind is _Kind.RETRY else "dead",
                    message=message,
                    topic=full_name(topic),
                    properties=properties,
                    subscription=self._topics.subscription,
                )
            )
        if kind is _Kind.RETRY:
            self.retry_letters += 1
            return
        self.dead_letters += 1
        self.rejected += kind is _Kind.REJECTED
        # Log lines are last, because a filter of a logger may raise.
        self._log.stored(message, topic, properties)

    def _failed(self, forwarding: _Forwarding, error: Exception) -> None:
        self._end_failed(forwarding, error)
        self._log_failed(forwarding, error)

    def _log_failed(self, forwarding: _Forwarding, error: Exception) -> None:
        if forwarding.outcome is None or forwarding.keep:
            self._log.failed(forwarding.topic, error)

    def _end_failed(self, forwarding: _Forwarding, error: Exception) -> None:
        """Redeliver the message of a failed letter, or keep it held, and tell the caller."""
        wall_now = self._wall_now()
        outcome = forwarding.outcome
        # After a cancelled call nobody knows that the message would be held again.
        if forwarding.keep and outcome is not None and not outcome.cancelled():
            self._settlement.keep_held(forwarding.held)
        # The attempt of an overflowed nack was counted, and its delay stays.
        elif forwarding.due is not None:
            self._settlement.not_forwarded(forwarding.held, max(0, forwarding.due - wall_now), None)
        else:
            producer = self._topics.producer(forwarding.topic, forwarding.form)
            failed_before = forwarding.failed_before
            if self._groups is not None:
                failed_before = max(failed_before, self._groups.failures - 1)
            delay_ms = producer.retry_delay_ms(failed_before)
            self._settlement.not_forwarded(forwarding.held, delay_ms, wall_now)
        _set_outcome(outcome, error)

    def _wall_now(self) -> int:
        return wall_now_ms(self._loop)

    async def close(self, *, drain_s: float = _DRAIN_S) -> None:
        """Wait up to `drain_s` for the letters in flight, and close the producers."""
        if self._in_flight:
            self._drained = self._loop.create_future()
            await asyncio.wait((self._drained,), timeout=drain_s)
        if self._groups is not None:
            self._groups.close()
        abandoned, self._in_flight = self._in_flight, set()
        error = ClosedError("closed before the letter was sent; its message is redelivered")
        try:
            for forwarding in abandoned:
                self._end_failed(forwarding, error)
        finally:
            await self._topics.close()
        # Log lines are last, because a filter of a logger may raise.
        for forwarding in abandoned:
            self._log_failed(forwarding, error)
        self._log.close()


def _set_outcome(outcome: asyncio.Future[None] | None, error: Exception | None) -> None:
    """Tell a caller the outcome, if there is one who still waits."""
    if outcome is None or outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)


def _begin_forwarding(held: Held) -> bool:
    """Mark a message as being forwarded, if it is held or queued."""
    state: TopicState = held.entry.topic_state
    return state.begin_forwarding(held.entry, held.batch_index)


def _failures(held: Held) -> Failures | None:
    state: TopicState = held.entry.topic_state
    return state.attempts.failures_of(held.entry.due_key(held.batch_index))


def _first_failed(held: Held, failures: Failures | None) -> int | None:
    """Return the time of the first attempt, in ms since the epoch.

    With durable state it is the first delivery of the entry in any process, otherwise the first
    failure of this message here. None if unknown.
    """
    durable = held.entry.topic_state.durable
    first = None if durable is None else durable.first_ms(held.entry.key)
    return failures.first_ms if first is None and failures is not None else first
