"""The properties of a letter as typed values, for the columns of ``view=dlq`` and ``view=retry``.

A number or time that cannot be parsed becomes null.
"""

from __future__ import annotations

from typing import Any

from ...letters import (
    ATTEMPTS,
    CONSUMER,
    DELAY_TIME,
    ERROR_STACK,
    FIRST_TIME,
    LAST_TIME,
    ORIGIN_MESSAGE_ID,
    REAL_SUBSCRIPTION,
    REASON,
    RECONSUME_TIMES,
)
from ...letters.letter_reader import LetterFacts
from ...values.topic_names import base_name
from ..source_columns import LAST_US

_MAX_BY_BITS: dict[int, int] = {32: (1 << 31) - 1, 64: (1 << 62) // 1000}


def letter_values(letter: LetterFacts[Any], topic: str) -> dict[str, Any]:
    get_property = letter.properties.get
    delay = _number(get_property(DELAY_TIME), 64)
    subscription = get_property(REAL_SUBSCRIPTION)
    if subscription is None:  # a blank name is kept here; `deadletters.Letter` treats it as missing
        subscription = _subscription_in_name(topic, letter.real_topic)
    return {
        "realTopic": letter.real_topic or None,
        "realSubscription": subscription,
        "originMessageId": get_property(ORIGIN_MESSAGE_ID),
        "reconsumeTimes": _number(get_property(RECONSUME_TIMES), 32),
        "delayTime": delay,
        "dueTime": None if delay is None else _time_us(letter.written_ms + delay),
        "attempts": _number(get_property(ATTEMPTS), 32),
        "reason": get_property(REASON),
        "errorClass": letter.error_class or None,
        "errorMessage": letter.error_message or None,
        "errorStack": get_property(ERROR_STACK),
        "fingerprint": letter.fingerprint or None,
        "firstTime": _time(get_property(FIRST_TIME)),
        "lastTime": _time(get_property(LAST_TIME)),
        "consumer": get_property(CONSUMER),
        "replayId": letter.replay_id or None,
    }


def _number(text: str | None, bits: int) -> int | None:
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    number = int(text)
    return number if number <= _MAX_BY_BITS[bits] else None


def _time(text: str | None) -> int | None:
    number = _number(text, 64)
    return None if number is None else _time_us(number)


def _time_us(time_ms: int) -> int | None:
    """Convert ms since the epoch to us; None for a time that Spark cannot represent."""
    return time_ms * 1000 if time_ms * 1000 <= LAST_US else None


def _subscription_in_name(topic: str, real_topic: str) -> str | None:
    """Return the subscription in the name of a letter topic that is named as in Java."""
    stem, _, kind = base_name(topic).rpartition("-")
    if kind not in ("DLQ", "RETRY") or not real_topic:
        return None
    name = stem.removeprefix(f"{real_topic}-")
    return name if name != stem else None
