"""Reconsume or dead-letter: counting rules, topic names, and the properties of a letter.

Pure. Java's rules, so that letters are understood both ways (consumer-semantics notes 8 to 11, 20):
- looks are counted in RECONSUMETIMES on the reconsume path, by redelivery on the nack path;
- of the properties that point back, the first values stay through every retry.
"""

from __future__ import annotations

from collections.abc import Mapping

from .. import letters
from ..ids import MessageId


def reconsume_times(properties: Mapping[str, str]) -> int:
    """How often the message was reconsumed so far; what is no number counts as never."""
    text = properties.get(letters.RECONSUME_TIMES, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def parked_looks(properties: Mapping[str, str]) -> int:
    """Looks that were had before a nack was parked on the retry-letter topic."""
    text = properties.get(letters.PARKED_LOOKS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


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
) -> dict[str, str]:
    """What every letter says: the user's properties, and where it came from, unless said before."""
    properties = dict(original)
    origin = properties.get(letters.ORIGIN_MESSAGE_ID)
    if origin is None:
        origin = properties[letters.ORIGIN_MESSAGE_ID] = id_text(message_id)
    properties.setdefault(letters.ORIGIN_MESSAGE_ID_LEGACY, origin)
    properties.setdefault(letters.REAL_TOPIC, real_topic)
    properties.setdefault(letters.REAL_SUBSCRIPTION, subscription)
    return properties
