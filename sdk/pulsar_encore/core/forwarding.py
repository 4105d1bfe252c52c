"""Reconsume or dead-letter: counting rules, and the properties of a letter.

Pure. Java's rules, so that letters are understood both ways (consumer-semantics notes 8 to 11, 20):
- looks are counted in RECONSUMETIMES on the reconsume path, by redelivery on the nack path;
- of the properties that point back, the first values stay through every retry.
But for one: on an ordinary topic these properties are whatever its publisher wrote, often copied
along from a message of elsewhere, and a replay acts on them with an operator's rights. There they
are not believed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from .. import letters
from ..ids import MessageId
from ..topic_names import base_name, full_name

# Base64 as an encoder writes it, with padding: unused bits are 0.
_PADDED: Final = re.compile(
    r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)"
)
_LETTERS_OWN: Final = letters.RESERVED - {letters.REPLAY_ID, letters.REPLAYED_FROM}


def reads_as_bytes(key: str) -> bool:
    """Whether a key's text is padded base64, as keys of bytes look on an engine without the flag.

    Without padding (bytes in threes) it cannot be told from any word of four letters.
    """
    return key.endswith("=") and _PADDED.fullmatch(key) is not None


def reconsume_times(properties: Mapping[str, str]) -> int:
    """How often the message was reconsumed so far; what is no number counts as never."""
    text = properties.get(letters.RECONSUME_TIMES, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def parked_looks(properties: Mapping[str, str]) -> int:
    """Looks that were had before a nack was parked on the retry-letter topic.

    Of that very letter: a Java consumer that reconsumes it writes a new one, counts that itself,
    and copies every property along.
    """
    text = properties.get(letters.PARKED_LOOKS, "")
    parked_at = properties.get(letters.PARKED_TIMES)
    if parked_at is not None and parked_at != properties.get(letters.RECONSUME_TIMES, "0"):
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def is_letter(properties: Mapping[str, str], topic: str, subscription: str) -> bool:
    """Whether a message's letter properties were written for this subscription.

    So on its retry-letter topics, and for what a replay sent back to the topic it died on. What a
    publisher copies from one topic's messages to another's is neither.

    Args:
        properties: The message's.
        topic: Full name of the topic it was read from.
        subscription: That read it.
    """
    topic = base_name(topic)
    if topic.endswith(f"-{subscription}-RETRY"):
        return True
    home = properties.get(letters.REAL_TOPIC, "")
    return (
        letters.REPLAY_ID in properties
        and base_name(full_name(home)) == topic
        and properties.get(letters.REAL_SUBSCRIPTION) == subscription
    )


def id_text(message_id: MessageId) -> str:
    """An id as letters write it: `L:E:P`, `L:E:P:I` in a batch, `first;last` when chunked."""
    plain = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
    first = message_id.first_chunk
    if first is not None:
        return f"{first.ledger_id()}:{first.entry_id()}:{first.partition()};{plain}"
    if message_id.batch_index() >= 0 and message_id.batch_size > 1:
        return f"{plain}:{message_id.batch_index()}"
    return plain


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
        properties = {k: v for k, v in original.items() if k not in letters.PARKED}
    else:
        properties = {k: v for k, v in original.items() if k not in _LETTERS_OWN}
    origin = properties.get(letters.ORIGIN_MESSAGE_ID)
    if origin is None:
        origin = properties[letters.ORIGIN_MESSAGE_ID] = id_text(message_id)
    properties.setdefault(letters.ORIGIN_MESSAGE_ID_LEGACY, origin)
    properties.setdefault(letters.REAL_TOPIC, real_topic)
    properties.setdefault(letters.REAL_SUBSCRIPTION, subscription)
    return properties
