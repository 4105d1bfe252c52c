"""Ack sets: the unacked indexes of a batch, as an int and as the 64-bit words of the protocol.

Bit i is set while index i is unacked, in the signed word i // 64. Trailing zero words are cut, but
one word always stays: ``[0]`` means that every index is acked. Without any word, ACK acks the whole
entry, and MESSAGE means that nothing is acked (`docs/notes/wire-protocol.md#ack-sets`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import ConfigurationError
from ..values.message_id import MAX_BATCH_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORD: Final = 8  # bytes
_MAX_WORDS: Final = MAX_BATCH_SIZE // 64


def full(batch_size: int) -> int:
    if batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size}, it must be 1 or more")
    return (1 << batch_size) - 1


def to_words(mask: int, batch_size: int) -> list[int]:
    if mask < 0 or mask > full(batch_size):
        raise ConfigurationError(f"the ack set has an index outside its batch of {batch_size}")
    if mask < 1 << 63:
        return [mask]
    count = -(-mask.bit_length() // 64)
    data = memoryview(mask.to_bytes(count * _WORD, "little"))
    return [
        int.from_bytes(data[at : at + _WORD], "little", signed=True)
        for at in range(0, count * _WORD, _WORD)
    ]


def from_words(words: Sequence[int]) -> int:
    """Convert words to a mask. The caller must cut bits beyond the batch, by `full`.

    Words beyond the largest possible batch (2**24 messages) are ignored, because a frame has room
    for millions of words. Without words, the meaning depends on the command.
    """
    if not words:
        raise ConfigurationError("an ack set without words: its meaning depends on the command")
    if len(words) == 1:
        return words[0] & 0xFFFFFFFFFFFFFFFF
    return int.from_bytes(
        b"".join(
            (word & 0xFFFFFFFFFFFFFFFF).to_bytes(_WORD, "little") for word in words[:_MAX_WORDS]
        ),
        "little",
    )
