"""Writing letters: one function for each kind makes the `OutgoingMessage` to publish.

All letters copy the content of the original. All but `replayed_copy` add properties that name the
origin. As in Java, the first values of these stay through every retry; values that cannot be
trusted (`letter_trust`) are replaced. The properties of one failure are replaced as a whole, so
that a letter never mixes two failures.

Unless stated otherwise, `attempt` is the number of the failed attempt, 1 for the first. `wall_now`
is the current time, `first_failed` the time of the first failed attempt (None if unknown), and
`deliver_at` the end of the delay (None for at once), in ms since the epoch. With `evidence` None,
earlier evidence in the message stays. `from_retry_topic` is True if the message was read from the
subscription's retry letter topic. All functions raise NotSupportedError if a part of the original
cannot be read, or bytes of it cannot be told from text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..values.message_id import MessageId
from ..values.outgoing_message import OutgoingMessage
from ..values.topic_names import base_name
from . import property_names as names
from .evidence import Evidence, evidence_of
from .id_text import id_text
from .letter_trust import is_letter
from .original_message import OriginalMessage, keys_of

_LETTERS_OWN: Final = names.RESERVED - {names.REPLAY_ID, names.REPLAYED_FROM}
_RESET: Final = names.COUNTERS | names.EVIDENCE


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterAuthor:
    """The consumer that writes letters; `refuse_byte_keys` as for `original_message.keys_of`."""

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
    found: Mapping[str, str] | None = None,
) -> OutgoingMessage:
    """Return the letter that `reconsume_later` sends to the retry letter topic.

    `custom` are properties from the application (`properties.checked_properties`), `found` those of
    the original if the caller has read them.
    """
    properties = _reconsumed(
        original, author, attempt, delay_ms, wall_now, custom, from_retry_topic, found
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
    found: Mapping[str, str] | None = None,
) -> OutgoingMessage:
    """Return the letter that `reconsume_later` sends to the dead letter topic after the last retry.

    It is delivered at once. `custom` and `found` are as for `retry_letter`.
    """
    properties = _reconsumed(
        original, author, attempt, delay_ms, wall_now, custom, from_retry_topic, found
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
    """Return the letter for the dead letter topic after the last redelivery.

    `reason` is the reason for a message that has no evidence.
    """
    properties = _kept(original, author, from_retry_topic, with_partition=True)
    if first_failed is not None:
        properties.setdefault(names.FIRST_TIME, str(first_failed))
    _add_end(properties, author, evidence, reason, attempt, wall_now)
    return _copy(original, properties, author.refuse_byte_keys)


def overflowed_nack(
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
    """Return the letter of a nack that overflows to the retry letter topic.

    Such nacks would fill the broker's unacked window. The letter is not a reconsume: its attempts
    count on from the redelivery count.
    """
    properties = _kept(original, author, from_retry_topic)
    if evidence is not None:
        _replace_failure(properties, evidence)
    if first_failed is not None:
        properties.setdefault(names.FIRST_TIME, str(first_failed))
    properties[names.PARKED_LOOKS] = str(attempt)
    properties[names.PARKED_TIMES] = properties.get(names.RECONSUME_TIMES, "0")
    properties[names.DELAY_TIME] = str(delay_ms)
    return _copy(original, properties, author.refuse_byte_keys, deliver_at)


def replayed_copy(
    original: OriginalMessage,
    *,
    replay_id: str,
    keep_counters: bool,
    refuse_byte_keys: bool = False,
) -> OutgoingMessage:
    """Return the copy of a dead letter that a replay sends back to its topic.

    `keep_counters` keeps attempt counts and evidence.
    """
    properties = original.properties()
    if not keep_counters:
        properties = {name: value for name, value in properties.items() if name not in _RESET}
    properties[names.REPLAY_ID] = replay_id
    properties[names.REPLAYED_FROM] = id_text(original.message_id())
    return _copy(original, properties, refuse_byte_keys)


def letter_properties(
    original: Mapping[str, str],
    message_id: MessageId,
    *,
    real_topic: str,
    subscription: str,
    letter: bool,
) -> dict[str, str]:
    """Return the properties of every letter: those of the user, and the origin.

    Args:
        real_topic: Topic that the message was read from.
        letter: True if the message is itself a letter (`is_letter`). Its origin and counts are then
            kept. From any other message only the marks of replays are kept, which show that it is a
            copy.
    """
    dropped = names.PARKED if letter else _LETTERS_OWN
    if dropped.isdisjoint(original):  # nearly always
        properties = dict(original)
    else:
        properties = {k: v for k, v in original.items() if k not in dropped}
    origin = properties.get(names.ORIGIN_MESSAGE_ID)
    if origin is None:
        origin = properties[names.ORIGIN_MESSAGE_ID] = id_text(message_id)
    properties.setdefault(names.ORIGIN_MESSAGE_ID_LEGACY, origin)
    properties.setdefault(names.REAL_TOPIC, real_topic)
    properties.setdefault(names.REAL_SUBSCRIPTION, subscription)
    return properties


def _kept(
    original: OriginalMessage,
    author: LetterAuthor,
    from_retry_topic: bool,
    found: Mapping[str, str] | None = None,
    *,
    with_partition: bool = False,
) -> dict[str, str]:
    """Return the properties to keep. As in Java, a letter by nack names the partition."""
    if found is None:
        found = original.properties()
    topic, subscription = original.topic_name(), author.subscription
    return letter_properties(
        found,
        original.message_id(),
        real_topic=topic if with_partition else base_name(topic),
        subscription=subscription,
        letter=is_letter(found, topic, subscription, from_retry_topic=from_retry_topic),
    )


def _reconsumed(
    original: OriginalMessage,
    author: LetterAuthor,
    attempt: int,
    delay_ms: int,
    wall_now: int,
    custom: Mapping[str, str] | None,
    from_retry_topic: bool,
    found: Mapping[str, str] | None,
) -> dict[str, str]:
    properties = _kept(original, author, from_retry_topic, found)
    if custom:
        properties.update(custom)
    properties[names.RECONSUME_TIMES] = str(attempt)
    properties[names.DELAY_TIME] = str(delay_ms)
    properties.setdefault(names.FIRST_TIME, str(wall_now))
    return properties


def _add_end(
    properties: dict[str, str],
    author: LetterAuthor,
    evidence: Evidence | None,
    reason: str,
    attempt: int,
    wall_now: int,
) -> None:
    if evidence is not None or names.FINGERPRINT not in properties:
        _replace_failure(properties, evidence or evidence_of(None, reason))
    properties.setdefault(names.FIRST_TIME, str(wall_now))
    properties[names.LAST_TIME] = str(wall_now)
    properties[names.ATTEMPTS] = str(attempt)
    properties[names.CONSUMER] = author.consumer_name
    properties[names.VERSION] = author.version


def _replace_failure(properties: dict[str, str], evidence: Evidence) -> None:
    for name in names.FAILURE:
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
