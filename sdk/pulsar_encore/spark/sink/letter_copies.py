"""Copies of rows that were read from Pulsar: retry letters, dead letters and replays."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple, TypeAlias, cast

from ...consumer.forwarding.copy_options import Destination
from ...deadletters.dead_letter import Letter
from ...errors import ConfigurationError
from ...letters.attempt_limit import used_up
from ...letters.evidence import Evidence, evidence_of
from ...letters.letter_form import form_of
from ...letters.letter_writer import (
    LetterAuthor,
    dead_letter_by_nack,
    dead_letter_by_reconsume,
    replayed_copy,
    retry_letter,
)
from ...letters.reconsume_counts import reconsume_attempt
from ...message import Message
from ...values.letter_topic_names import dead_topic_of, retry_topic_of
from ...values.outgoing_message import OutgoingMessage
from ...values.topic_names import base_name, full_name
from ...version import VERSION
from ..option_table import DEAD_LETTER
from .row_original import RowOriginal
from .sink_options import LetterOptions, ReplaySettings, SinkOptions

_AUTHOR: Final = "spark"  # the consumer name in evidence if no name was given
_MAX_CLASS, _MAX_STACK = 200, 4_000  # characters, as in the evidence of an exception
_MAX_REASON = 1_000


class AttemptTimes(NamedTuple):
    """The time of a batch of rows, in ms since the epoch.

    `wall_from` is rounded up, so that a due time is never early; `wall_now` is rounded down.
    """

    wall_now: int
    wall_from: int


class FailureReason(NamedTuple):
    """The job's description of a row's failure."""

    error_class: str | None = None
    error_message: str | None = None
    error_stack: str | None = None
    reason: str | None = None

    def evidence(self, default_reason: str) -> Evidence | None:
        """Return the evidence for a letter; None without a description."""
        if not any(self):
            return None
        reason = (self.reason or default_reason)[:_MAX_REASON]
        kind, stack = (self.error_class or "")[:_MAX_CLASS], (self.error_stack or "")[:_MAX_STACK]
        found = evidence_of(self.error_message or None, reason)
        if kind:  # failures of two classes differ even if their texts are equal
            fingerprint = evidence_of(f"{kind}: {self.error_message or ''}", reason).fingerprint
        else:
            fingerprint = found.fingerprint
        return Evidence(reason, kind, found.error_message, stack, fingerprint)


CopyRule: TypeAlias = Callable[
    [RowOriginal, FailureReason, AttemptTimes], tuple[Destination, OutgoingMessage]
]
"""Returns the copy of a row and its destination, or raises ConfigurationError."""


def copy_rule(options: SinkOptions, *, refuse_byte_keys: bool, rng: Random) -> CopyRule:
    """Return the rule of a `sinkMode` other than produce.

    `refuse_byte_keys` is for a transport that cannot copy keys of bytes.
    """
    if options.replay is not None:
        return _replay(options.replay, refuse_byte_keys)
    assert options.letters is not None  # the other two modes have them
    author = LetterAuthor(
        subscription=options.letters.subscription,
        consumer_name=options.publishing.name or _AUTHOR,
        version=VERSION,
        refuse_byte_keys=refuse_byte_keys,
    )
    if options.mode == DEAD_LETTER:
        return _dead_letter(options.letters, author)
    return _reconsume(options.letters, author, rng)


class _Topics:
    def __init__(self, options: LetterOptions) -> None:
        self._options = options
        self._retry_suffix = f"-{options.subscription}-RETRY"

    def from_retry_topic(self, topic: str) -> bool:
        return base_name(topic) == self._options.retry_topic

    def retry(self, topic: str) -> str:
        """Return the retry letter topic. A row that was read from one returns to it."""
        if self._options.retry_topic is not None:
            return self._options.retry_topic
        base = base_name(topic)
        if base.endswith(self._retry_suffix):
            return base
        return retry_topic_of((topic,), self._options.subscription)

    def dead(self, topic: str) -> str:
        """Return the dead letter topic; its name has no partition, as with `retry_enable`."""
        if self._options.dead_topic is not None:
            return self._options.dead_topic
        if self.from_retry_topic(topic):
            raise ConfigurationError(
                f"rows of the retry-letter topic {base_name(topic)} do not tell their dead-letter "
                "topic, because the retry topic has a name of its own: set deadLetterTopic"
            )
        first = base_name(topic).removesuffix(self._retry_suffix)
        return dead_topic_of((first,), self._options.subscription)

    def dead_destination(self, original: RowOriginal) -> Destination:
        topic = self.dead(original.topic_name())
        return Destination(topic, form_of(original), self._options.initial_subscription)


def _reconsume(options: LetterOptions, author: LetterAuthor, rng: Random) -> CopyRule:
    """Copy as `Consumer.reconsume_later`: to the retry letter topic or the dead letter topic."""
    topics = _Topics(options)

    def copy(
        original: RowOriginal, failure: FailureReason, times: AttemptTimes
    ) -> tuple[Destination, OutgoingMessage]:
        topic = original.topic_name()
        from_retry = topics.from_retry_topic(topic)
        attempt = reconsume_attempt(original, options.subscription, from_retry_topic=from_retry)
        delay_ms = options.delays.ms(attempt, rng)
        evidence = failure.evidence("reconsume_later")
        if used_up(attempt, options.max_redeliver_count):
            letter = dead_letter_by_reconsume(
                original,
                author,
                attempt=attempt,
                delay_ms=delay_ms,
                wall_now=times.wall_now,
                evidence=evidence,
                from_retry_topic=from_retry,
            )
            return topics.dead_destination(original), letter
        letter = retry_letter(
            original,
            author,
            attempt=attempt,
            delay_ms=delay_ms,
            deliver_at=times.wall_from + delay_ms if delay_ms else None,
            wall_now=times.wall_now,
            evidence=evidence,
            from_retry_topic=from_retry,
        )
        return Destination(topics.retry(topic), form_of(original)), letter

    return copy


def _dead_letter(options: LetterOptions, author: LetterAuthor) -> CopyRule:
    topics = _Topics(options)

    def copy(
        original: RowOriginal, failure: FailureReason, times: AttemptTimes
    ) -> tuple[Destination, OutgoingMessage]:
        from_retry = topics.from_retry_topic(original.topic_name())
        letter = dead_letter_by_nack(
            original,
            author,
            attempt=reconsume_attempt(original, options.subscription, from_retry_topic=from_retry),
            reason=DEAD_LETTER,
            wall_now=times.wall_now,
            evidence=failure.evidence(DEAD_LETTER),
            from_retry_topic=from_retry,
        )
        return topics.dead_destination(original), letter

    return copy


def _replay(settings: ReplaySettings, refuse_byte_keys: bool) -> CopyRule:
    """Send a dead letter back to the topic where the message failed."""

    def copy(
        original: RowOriginal, failure: FailureReason, times: AttemptTimes
    ) -> tuple[Destination, OutgoingMessage]:
        # `Letter` reads only methods of the message that a row has too.
        letter = Letter(cast(Message, original))
        topic = letter.target(original.topic_name(), settings.target, settings.real_topics)
        replayed = replayed_copy(
            original,
            replay_id=settings.replay_id,
            keep_counters=settings.keep_counters,
            refuse_byte_keys=refuse_byte_keys,
        )
        return Destination(full_name(topic), form_of(original)), replayed

    return copy
