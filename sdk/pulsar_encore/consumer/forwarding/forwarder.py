"""Letters: a copy to the retry-letter or dead-letter topic, then the ack of the original.

Owns `Forwarder`. The order is the invariant: the original is acked only after its copy is
persisted, and a copy that fails gives the message back with a growing delay. What is under way
belongs to nobody's task, so a cancelled caller leaves nothing half done. What letters say is
`letters`' business.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from random import Random
from typing import Final

from ...core.attempts import Failures
from ...core.topic_state import TopicState
from ...errors import ClosedError, ConfigurationError, EncoreError, MessageNotHeldError
from ...eventloop.alarm import wall_due_in_ms, wall_now_ms
from ...letters.evidence import Evidence, evidence_of
from ...letters.letter_form import PLAIN, LetterForm, form_of
from ...letters.letter_writer import (
    LetterAuthor,
    dead_letter_by_nack,
    dead_letter_by_reconsume,
    parked_nack,
    retry_letter,
)
from ...letters.properties import checked_properties
from ...letters.reconsume_counts import reconsume_attempt, used_up
from ...message import Held, Message
from ...values.backoff import Backoff, BackoffLike, BackoffTable, backoff_of, to_ms
from ...values.outgoing_message import OutgoingMessage
from ..settlement.settlement import Settlement
from .letter_topics import LetterTopics

logger: logging.Logger = logging.getLogger(__name__)

_DRAIN_S: Final = 10.0  # at close, letters under way get this long
_LOG_EVERY_S: Final = 30.0
_MOST_DELAY_MS: Final = 100 * 365 * 86_400_000  # sums with the wall clock stay within 64 bits


class _UnderWay:
    """A letter that is being sent.

    Attributes:
        message: The original, LEAVING.
        topic: Where to.
        form: What its producer writes.
        cumulative: Its ack covers what is before it.
        failed_before: How often its letter failed before.
        due: Of a parked nack: when the message is wanted again, ms since the epoch; else None.
        outcome: Awaited by a caller; None where nobody asked for the letter.
    """

    __slots__ = ("cumulative", "due", "failed_before", "form", "message", "outcome", "topic")

    def __init__(
        self,
        message: Message,
        topic: str,
        *,
        form: LetterForm = PLAIN,
        cumulative: bool = False,
        failed_before: int = 0,
        due: int | None = None,
        outcome: asyncio.Future[None] | None = None,
    ) -> None:
        self.message = message
        self.topic = topic
        self.form = form
        self.cumulative = cumulative
        self.failed_before = failed_before
        self.due = due
        self.outcome = outcome


class Forwarder:
    """Sends messages of one consumer on.

    Args:
        topics: The letter topics and their producers.
        settlement: Acks and nacks the originals.
        consumer_name: For the evidence.
        version: Of this package, for the evidence.
    """

    def __init__(
        self, topics: LetterTopics, settlement: Settlement, consumer_name: str, version: str
    ) -> None:
        self._topics = topics
        self._settlement = settlement
        self._author = LetterAuthor(
            subscription=topics.subscription,
            consumer_name=consumer_name,
            version=version,
            refuse_byte_keys=topics.refuse_bytes,
        )
        self._loop = asyncio.get_running_loop()
        self._rng = Random()
        self._under_way: set[_UnderWay] = set()
        self._drained: asyncio.Future[None] | None = None
        self._logged = 0.0

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
        """Through the retry-letter topic, or to the dead-letter topic when its retries are used up.

        Returns:
            Done when the original is acked. Cancelling it does not stop what was begun.

        Raises:
            ConfigurationError: Bad arguments; nothing was sent.
            MessageNotHeldError, NotSupportedError: The message is not here, or cannot be copied.
            TransportError: From the future: not known to be persisted; the message comes back.
            ClosedError: From the future: the consumer was closed first; the message comes back.
        """
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
        if delay_ms > _MOST_DELAY_MS:
            raise ConfigurationError(f"delay must be at most 100 years, got {delay!r}")
        custom = checked_properties(properties)
        if not isinstance(message, Message):
            raise ConfigurationError(
                "reconsume_later needs the received message, not an id: it is copied"
            )
        evidence = None if error is None else evidence_of(error, "reconsume_later")
        # Everything that can be wrong is found before anything is begun.
        form = form_of(message)
        from_retry = self._from_retry_topic(message)
        attempt = reconsume_attempt(message, self._author.subscription, from_retry_topic=from_retry)
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
            )
            topic = self._topics.dead(message)
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
            )
            topic = self._topics.retry(message)
        outcome: asyncio.Future[None] = self._loop.create_future()
        self._settlement.leave(message, cumulative=cumulative)
        sending = _UnderWay(message, topic, form=form, cumulative=cumulative, outcome=outcome)
        self._send(sending, letter)
        return outcome

    async def reconsume_each(
        self,
        messages: Sequence[Message],
        delay: float | timedelta | BackoffLike,
        properties: Mapping[str, str] | None,
        error: BaseException | str | None,
    ) -> None:
        """`reconsume` of each, all begun before the first wait.

        Raises:
            ExceptionGroup: The error of every message that failed.
        """
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

    def dead_letter(
        self, message: Message, held: Held, evidence: Evidence | None, reason: str
    ) -> None:
        """The message had its attempts: to the dead-letter topic.

        Args:
            message: Of this consumer.
            held: What is known of it here.
            evidence: Of the last attempt, or None for what an earlier one left.
            reason: Where there is none at all.
        """
        if not _leave(held):
            return
        # Every failure costs a redelivery, so what came back over the limit tells of earlier ones.
        failed_before = held.failed - self.max_redeliver_count
        sending = _UnderWay(message, self._topics.dead(message), failed_before=failed_before)

        def write() -> OutgoingMessage:
            known = _failures(held)
            return dead_letter_by_nack(
                message,
                self._author,
                attempt=held.failed + 1,
                reason=reason,
                wall_now=self._wall_now(),
                evidence=evidence or (known and known.evidence),
                first_failed=_first_failed(held, known),
                from_retry_topic=self._from_retry_topic(message),
            )

        self._send_written(sending, write)

    def park(self, message: Message, held: Held, delay_ms: int, evidence: Evidence | None) -> None:
        """A nack that would fill the broker's unacked window waits on the retry-letter topic.

        Args:
            message: Of this consumer.
            held: What is known of it here.
            delay_ms: The nack's.
            evidence: The nack's.
        """
        if not _leave(held):
            return
        delay_ms = min(delay_ms, _MOST_DELAY_MS)
        due = wall_due_in_ms(self._loop, delay_ms)
        sending = _UnderWay(message, self._topics.retry(message), due=due)

        def write() -> OutgoingMessage:
            known = _failures(held)
            return parked_nack(
                message,
                self._author,
                attempt=held.failed + 1,
                delay_ms=delay_ms,
                deliver_at=due,
                evidence=evidence,
                first_failed=_first_failed(held, known),
                from_retry_topic=self._from_retry_topic(message),
            )

        self._send_written(sending, write)

    def _from_retry_topic(self, message: Message) -> bool:
        return self._topics.reads_letters(message.topic_name())

    # Copy, then ack

    def _send_written(self, sending: _UnderWay, write: Callable[[], OutgoingMessage]) -> None:
        """Send a letter that nobody awaits; whatever fails gives its message back."""
        try:
            sending.form = form_of(sending.message)
            letter = write()
        except Exception as error:
            self._failed(sending, error)
            return
        self._send(sending, letter)

    def _send(self, sending: _UnderWay, letter: OutgoingMessage) -> None:
        self._under_way.add(sending)
        producer = self._topics.producer(sending.topic, sending.form)
        producer.post(letter, partial(self._sent, sending))

    def _sent(self, sending: _UnderWay, error: Exception | None) -> None:
        """The producer said how it went."""
        if sending not in self._under_way:
            return  # `close` gave up on it
        self._under_way.discard(sending)
        if self._drained is not None and not self._under_way and not self._drained.done():
            self._drained.set_result(None)
        if error is not None:
            self._failed(sending, error)
            return
        try:
            self._settlement.forwarded(sending.message, cumulative=sending.cumulative)
        except MessageNotHeldError as failure:
            logger.warning("a letter was sent, its original cannot be acked: %s", failure)
        if sending.outcome is not None and not sending.outcome.done():
            sending.outcome.set_result(None)

    def _failed(self, sending: _UnderWay, error: Exception) -> None:
        """The message comes back."""
        wall_now = self._wall_now()
        if sending.due is not None:  # the nack it was, and whose attempt was counted
            self._settlement.not_forwarded(sending.message, max(0, sending.due - wall_now), None)
        else:
            producer = self._topics.producer(sending.topic, sending.form)
            delay_ms = producer.retry_delay_ms(sending.failed_before)
            self._settlement.not_forwarded(sending.message, delay_ms, wall_now)
        if sending.outcome is None:
            self._complain(sending.topic, error)
        elif not sending.outcome.done():
            sending.outcome.set_exception(error)

    def _wall_now(self) -> int:
        return wall_now_ms(self._loop)

    def _complain(self, topic: str, error: Exception) -> None:
        now = self._loop.time()
        if self._logged == 0.0 or now - self._logged >= _LOG_EVERY_S:
            self._logged = now
            logger.warning("letters to %s fail, their originals come back: %s", topic, error)

    async def close(self) -> None:
        """Wait for the letters under way, for a while, and close the producers."""
        if self._under_way:
            self._drained = self._loop.create_future()
            await asyncio.wait((self._drained,), timeout=_DRAIN_S)
        given_up, self._under_way = self._under_way, set()
        try:
            for sending in given_up:
                self._failed(
                    sending, ClosedError("closed before the letter was sent; its message stays")
                )
        finally:
            await self._topics.close()


def _leave(held: Held) -> bool:
    """Whether the message is here to be copied; if so nobody else settles it meanwhile."""
    state: TopicState = held.entry.source
    return state.leave(held.entry, held.batch_index)


def _failures(held: Held) -> Failures | None:
    """What is remembered here of earlier attempts at a message."""
    state: TopicState = held.entry.source
    return state.attempts.of(held.entry.due_key(held.batch_index))


def _first_failed(held: Held, known: Failures | None) -> int | None:
    """When the first attempt was, in ms since the epoch: in this process, or in one before."""
    durable = held.entry.source.durable
    first = None if durable is None else durable.first_ms(held.entry.key)
    return known.first_ms if first is None and known is not None else first
