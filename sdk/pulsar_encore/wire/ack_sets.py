"""Ack sets: a batch's indexes as an int, and as the words the protocol carries.

Bit i is set while index i is still unacked; word i // 64 holds it, as a signed 64-bit number.
Trailing zero words are cut, but one word always stays: ``[0]`` says that all is acked, while no
words at all say nothing of the kind. In ACK they mean the whole entry is acked, in MESSAGE that
none of it is (`docs/notes/wire-protocol.md#ack-sets`), so an empty list is refused here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import ConfigurationError
from ..values.message_id import MOST_IN_BATCH

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORD: Final = 8  # bytes
_MAX_WORDS: Final = MOST_IN_BATCH // 64


def full(batch_size: int) -> int:
    """The mask with every index of a batch unacked.

    Raises:
        ConfigurationError: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size}, it must be 1 or more")
    return (1 << batch_size) - 1


def to_words(mask: int, batch_size: int) -> list[int]:
    """Write a mask as words.

    Raises:
        ConfigurationError: `mask` has an index outside the batch.
    """
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
    """Read words as a mask; bits beyond the batch are the caller's to cut with `full`.

    Words beyond the largest batch there can be (2**24 messages) are left out: a frame has room for
    millions.

    Raises:
        ConfigurationError: No words: what that means depends on the command.
    """
    if not words:
        raise ConfigurationError("an ack set without words: decide by the command what it means")
    if len(words) == 1:
        return words[0] & 0xFFFFFFFFFFFFFFFF
    return int.from_bytes(
        b"".join(
            (word & 0xFFFFFFFFFFFFFFFF).to_bytes(_WORD, "little") for word in words[:_MAX_WORDS]
        ),
        "little",
    )
