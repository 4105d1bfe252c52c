"""Recognizes MESSAGE commands that differ from the previous one only in the entry id.

On a busy subscription nearly every command does, and comparing bytes costs a tenth of decoding them
(`docs/notes/wire-protocol.md#cost-per-message`). A command with any other difference is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Final, Self

# BaseCommand: type = MESSAGE, then field 9 with its size.
_HEAD: Final = b"\x08\x09\x4a"
# Inside: consumer_id, message_id, and inside that ledgerId, entryId.
_TAGS: Final = (b"\x08", b"\x12", b"\x08", b"\x10")
_CHECKSUM_MAGIC: Final = b"\x0e\x01"
# Enough for 2 million entries, far more than a ledger has.
_MAX_ENTRY_ID_BYTES: Final = 3


@dataclass(slots=True, eq=False)
class MessageTemplate:
    """The bytes of a command, except for its entry id.

    Attributes:
        prefix: The size of the command, and its bytes up to the entry id.
        width: Bytes of the entry id, a varint.
        suffix: The rest of the command, and the magic number of the checksum.
        single_frames: How many frames are handled one by one before the next attempt to take
            several plain messages together.
        next_single_frames: The next value of `single_frames`. It doubles with each failed attempt.
        fields: The size of the frame, its checksum, and the size of the metadata.
    """

    prefix: bytes
    width: int
    suffix: bytes
    single_frames: int = 0
    next_single_frames: int = 1
    fields: Struct = field(init=False)

    def __post_init__(self) -> None:
        self.fields = Struct(f">I{len(self.prefix) + self.width + len(self.suffix)}xII")

    @classmethod
    def of(cls, command: bytes) -> Self | None:
        """Make a template of a serialized MESSAGE; None if its layout differs."""
        if not command.startswith(_HEAD):
            return None
        start = len(_HEAD)
        for tag in _TAGS:
            start = _skip_varint(command, start)
            if not command.startswith(tag, start):
                return None
            start += 1
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
    while at < len(data):
        at += 1
        if data[at - 1] < 0x80:
            break
    return at
