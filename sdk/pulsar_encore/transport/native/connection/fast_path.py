"""Recognizes MESSAGE commands that differ from the previous one only in the entry id.

On a busy subscription nearly every command is like the last one, and comparing bytes costs a tenth
of decoding them (`docs/notes/wire-protocol.md#cost-per-message`). Any other difference does not
match - a redelivery, an ack set, another consumer or ledger, broker entry metadata - and is
decoded, so the result is the same.
"""

from __future__ import annotations

from typing import Final, Self

# BaseCommand: type = MESSAGE, then field 9 with its size; inside, consumer_id and message_id.
_HEAD: Final = b"\x08\x09\x4a"
_CONSUMER_ID: Final = 0x08
_MESSAGE_ID: Final = 0x12
_LEDGER: Final = 0x08
_ENTRY: Final = 0x10
_CHECKSUM_MAGIC: Final = b"\x0e\x01"
# Enough for 2 million entries, far more than a ledger has.
_MAX_ENTRY_ID_BYTES: Final = 3


class MessageTemplate:
    """The bytes of a command, except for its entry id.

    Attributes:
        prefix: The size of the command, and its bytes up to the entry id.
        width: Bytes of the entry id, a varint. Ids of another width need another template.
        suffix: The rest of the command, and the magic number of the checksum.
        single: How many frames are handled one by one before the next attempt to take several plain
            messages together.
        patience: The next value of `single`. It doubles with each attempt that failed.
    """

    __slots__ = ("patience", "prefix", "single", "suffix", "width")

    def __init__(self, prefix: bytes, width: int, suffix: bytes) -> None:
        self.prefix: bytes = prefix
        self.width: int = width
        self.suffix: bytes = suffix
        self.single: int = 0
        self.patience: int = 1

    @classmethod
    def of(cls, command: bytes) -> Self | None:
        """Make a template of a serialized MESSAGE; None if its layout differs."""
        if not command.startswith(_HEAD):
            return None
        at = _skip_varint(command, len(_HEAD))
        if command[at : at + 1] != bytes((_CONSUMER_ID,)):
            return None
        at = _skip_varint(command, at + 1)
        if command[at : at + 1] != bytes((_MESSAGE_ID,)):
            return None
        at = _skip_varint(command, at + 1)
        if command[at : at + 1] != bytes((_LEDGER,)):
            return None
        at = _skip_varint(command, at + 1)
        if command[at : at + 1] != bytes((_ENTRY,)):
            return None
        start = at + 1
        end = _skip_varint(command, start)
        if end - start > _MAX_ENTRY_ID_BYTES:
            return None
        prefix = len(command).to_bytes(4, "big") + command[:start]
        return cls(prefix, end - start, command[end:] + _CHECKSUM_MAGIC)

    def read(self, data: bytes, at: int) -> int:
        """Return the entry id at `at`; -1 if there is no varint of this width."""
        first, width = data[at], self.width
        if width == 1:
            return first if first < 0x80 else -1
        second = data[at + 1]
        if first < 0x80:
            return -1
        if width == 2:
            return first & 0x7F | second << 7 if second < 0x80 else -1
        third = data[at + 2]
        if second < 0x80 or third >= 0x80:
            return -1
        return first & 0x7F | (second & 0x7F) << 7 | third << 14


def _skip_varint(data: bytes, at: int) -> int:
    """Return the end of the varint at `at`; the end of `data` if it is incomplete."""
    while at < len(data):
        at += 1
        if data[at - 1] < 0x80:
            break
    return at
