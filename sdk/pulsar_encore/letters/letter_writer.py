"""Writing letters: of a message, and what befell it, the `OutgoingMessage` to publish.

One function for each kind: `retry_letter`, `dead_letter_by_reconsume`, `dead_letter_by_nack`,
`parked_nack`, `replayed_copy`. All copy the original's content, and all but the last say where it
came from: of the properties that point back, the first values stay through every retry, as Java
keeps them; those that nobody believes (`counting.is_letter`) are written anew. Two failures are
never mixed: what describes one is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..values.message_id import MessageId
from ..values.outgoing_message import OutgoingMessage
from ..values.topic_names import base_name
from .evidence import Evidence, evidence_of
from .id_text import id_text
from .original_message import OriginalMessage, keys_of
from .properties import (
    ATTEMPTS,
    CONSUMER,
    COUNTERS,
    DELAY_TIME,
    EVIDENCE,
    FAILURE,
    FINGERPRINT,
    FIRST_TIME,
    LAST_TIME,
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_LEGACY,
    PARKED,
    PARKED_LOOKS,
    PARKED_TIMES,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUME_TIMES,
    REPLAY_ID,
    REPLAYED_FROM,
    RESERVED,
    VERSION,
)
from .reconsume_counts import is_letter

_LETTERS_OWN: Final = RESERVED - {REPLAY_ID, REPLAYED_FROM}
_RESET: Final = COUNTERS | EVIDENCE


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterAuthor:
    """Who writes: what all letters of one consumer have in common.

    Attributes:
        subscription: Its name.
        consumer_name: For the evidence.
        version: Of this package, for the evidence.
        refuse_byte_keys: Keys that read as bytes are not copied (`original.keys_of`).
    """

    subscription: str
    consumer_name: str
    version: str
    refuse_byte_keys: bool = False


def retry_letter(
    original: OriginalMessage,
    author: LetterAuthor,
    *,
    attempt: int,
    delay_ms: int,
    deliver_at: int | None,
    wall_now: int,
    evidence: Evidence | None = None,
    custom: Mapping[str, str] | None = None,
    from_retry_topic: bool = False,
) -> OutgoingMessage:
    """What `reconsume_later` sends to the retry-letter topic.

    Args:
        original: The message that failed.
        author: Who writes.
        attempt: The one that failed, 1 for the first (`counting.reconsume_attempt`).
        delay_ms: Until the next one, as it was asked for.
        deliver_at: When that is, ms since the epoch; None for at once.
        wall_now: Ms since the epoch.
        evidence: Of the failure; None leaves what the message brought along.
        custom: The application's own properties (`properties.checked_properties`).
        from_retry_topic: The message is from the subscription's retry-letter topic.

    Raises:
        NotSupportedError: Not all of the original can be read, or told from something else.
    """
    properties = _reconsumed(
        original, author, attempt, delay_ms, wall_now, custom, from_retry_topic
    )
    if evidence is not None:
        _replace_failure(properties, evidence)
    return _copy(original, properties, author.refuse_byte_keys, deliver_at)


def dead_letter_by_reconsume(
    original: OriginalMessage,
    author: LetterAuthor,
    *,
    attempt: int,
    delay_ms: int,
    wall_now: int,
    evidence: Evidence | None = None,
    custom: Mapping[str, str] | None = None,
    from_retry_topic: bool = False,
) -> OutgoingMessage:
    """What `reconsume_later` sends to the dead-letter topic when the retries are used up.

    The arguments and errors are those of `retry_letter`; the letter is delivered at once.
    """
    properties = _reconsumed(
        original, author, attempt, delay_ms, wall_now, custom, from_retry_topic
    )
    _add_end(properties, author, evidence, "reconsume_later", attempt, wall_now)
    return _copy(original, properties, author.refuse_byte_keys)


def dead_letter_by_nack(
    original: OriginalMessage,
    author: LetterAuthor,
    *,
    attempt: int,
    reason: str,
    wall_now: int,
    evidence: Evidence | None = None,
    first_failed: int | None = None,
    from_retry_topic: bool = False,
) -> OutgoingMessage:
    """What goes to the dead-letter topic when the redeliveries are used up.

    Args:
        original: The message that failed.
        author: Who writes.
        attempt: The last one, 1 for the first.
        reason: What is said of a message that neither has evidence nor brought any.
        wall_now: Ms since the epoch.
        evidence: Of the last failure that is known; None leaves what the message brought along.
        first_failed: When the first attempt failed, ms since the epoch; None where it is not known.
        from_retry_topic: The message is from the subscription's retry-letter topic.

    Raises:
        NotSupportedError: Not all of the original can be read, or told from something else.
    """
    properties = _kept(original, author, from_retry_topic, with_partition=True)
    if first_failed is not None:
        properties.setdefault(FIRST_TIME, str(first_failed))
    _add_end(properties, author, evidence, reason, attempt, wall_now)
    return _copy(original, properties, author.refuse_byte_keys)


def parked_nack(
    original: OriginalMessage,
    author: LetterAuthor,
    *,
    attempt: int,
    delay_ms: int,
    deliver_at: int,
    evidence: Evidence | None = None,
    first_failed: int | None = None,
    from_retry_topic: bool = False,
) -> OutgoingMessage:
    """What a nack that would fill the broker's unacked window sends to the retry-letter topic.

    It is no reconsume: the letter counts on where the redeliveries were.

    Args:
        original: The message that failed.
        author: Who writes.
        attempt: The one that failed, 1 for the first.
        delay_ms: The nack's.
        deliver_at: When it is over, ms since the epoch.
        evidence: Of the failure; None leaves what the message brought along.
        first_failed: When the first attempt failed, ms since the epoch; None where it is not known.
        from_retry_topic: The message is from the subscription's retry-letter topic.

    Raises:
        NotSupportedError: Not all of the original can be read, or told from something else.
    """
    properties = _kept(original, author, from_retry_topic)
    if evidence is not None:
        _replace_failure(properties, evidence)
    if first_failed is not None:
        properties.setdefault(FIRST_TIME, str(first_failed))
    properties[PARKED_LOOKS] = str(attempt)
    properties[PARKED_TIMES] = properties.get(RECONSUME_TIMES, "0")
    properties[DELAY_TIME] = str(delay_ms)
    return _copy(original, properties, author.refuse_byte_keys, deliver_at)


def replayed_copy(
    original: OriginalMessage,
    *,
    replay_id: str,
    keep_counters: bool,
    refuse_byte_keys: bool = False,
) -> OutgoingMessage:
    """What a replay sends of a dead letter, back to the topic it died on.

    Args:
        original: The letter.
        replay_id: Of the replay.
        keep_counters: Keep attempt counts and evidence.
        refuse_byte_keys: Keys that read as bytes are not copied (`original.keys_of`).

    Raises:
        NotSupportedError: Not all of the original can be read, or told from something else.
    """
    properties = original.properties()
    if not keep_counters:
        properties = {name: value for name, value in properties.items() if name not in _RESET}
    properties[REPLAY_ID] = replay_id
    properties[REPLAYED_FROM] = id_text(original.message_id())
    return _copy(original, properties, refuse_byte_keys)


def letter_properties(
    original: Mapping[str, str],
    message_id: MessageId,
    *,
    real_topic: str,
    subscription: str,
    letter: bool,
) -> dict[str, str]:
    """What every letter says: the user's properties, and where it came from.

    Args:
        original: The properties of the message.
        message_id: Its id.
        real_topic: The topic it was read from.
        subscription: That read it.
        letter: It is a letter itself (`is_letter`): what it says of its origin and its counts is
            kept. Anything else has only what replays left behind, which mark doubles.
    """
    if letter:
        properties = {k: v for k, v in original.items() if k not in PARKED}
    else:
        properties = {k: v for k, v in original.items() if k not in _LETTERS_OWN}
    origin = properties.get(ORIGIN_MESSAGE_ID)
    if origin is None:
        origin = properties[ORIGIN_MESSAGE_ID] = id_text(message_id)
    properties.setdefault(ORIGIN_MESSAGE_ID_LEGACY, origin)
    properties.setdefault(REAL_TOPIC, real_topic)
    properties.setdefault(REAL_SUBSCRIPTION, subscription)
    return properties


def _kept(
    original: OriginalMessage,
    author: LetterAuthor,
    from_retry_topic: bool,
    *,
    with_partition: bool = False,
) -> dict[str, str]:
    """What every letter keeps; as in Java, one by nack names the partition it came from."""
    said = original.properties()
    topic, subscription = original.topic_name(), author.subscription
    return letter_properties(
        said,
        original.message_id(),
        real_topic=topic if with_partition else base_name(topic),
        subscription=subscription,
        letter=is_letter(said, topic, subscription, from_retry_topic=from_retry_topic),
    )


def _reconsumed(
    original: OriginalMessage,
    author: LetterAuthor,
    attempt: int,
    delay_ms: int,
    wall_now: int,
    custom: Mapping[str, str] | None,
    from_retry_topic: bool,
) -> dict[str, str]:
    properties = _kept(original, author, from_retry_topic)
    if custom:
        properties.update(custom)
    properties[RECONSUME_TIMES] = str(attempt)
    properties[DELAY_TIME] = str(delay_ms)
    properties.setdefault(FIRST_TIME, str(wall_now))
    return properties


def _add_end(
    properties: dict[str, str],
    author: LetterAuthor,
    evidence: Evidence | None,
    reason: str,
    attempt: int,
    wall_now: int,
) -> None:
    """What a dead letter says of its end; without new evidence, what it brought along."""
    if evidence is not None or FINGERPRINT not in properties:
        _replace_failure(properties, evidence or evidence_of(None, reason))
    properties.setdefault(FIRST_TIME, str(wall_now))
    properties[LAST_TIME] = str(wall_now)
    properties[ATTEMPTS] = str(attempt)
    properties[CONSUMER] = author.consumer_name
    properties[VERSION] = author.version


def _replace_failure(properties: dict[str, str], evidence: Evidence) -> None:
    for name in FAILURE:
        properties.pop(name, None)
    properties.update(evidence.properties())


def _copy(
    original: OriginalMessage,
    properties: dict[str, str],
    refuse_byte_keys: bool,
    deliver_at: int | None = None,
) -> OutgoingMessage:
    key, ordering_key = keys_of(original, refuse_byte_keys=refuse_byte_keys)
    event_timestamp = original.event_timestamp()
    return OutgoingMessage(
        payload=None if original.has_null_value() else original.data(),
        properties=properties,
        partition_key=key,
        ordering_key=ordering_key,
        event_timestamp=event_timestamp if event_timestamp > 0 else None,
        deliver_at=deliver_at,
    )
