"""The byte layout of entry metadata, read without decoding protobuf where possible.

Most messages of a topic have metadata with the same fields of the same sizes. `MetadataLayouts`
compiles a regular expression for such metadata. Matching it takes a third of the time of walking
over the fields, and a sixth if there is a key and a property.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

_PRODUCER: Final = 0x0A
_SEQUENCE: Final = 0x10
_PUBLISHED: Final = 0x18
_IN_BATCH: Final = 0x58
_PROPERTY: Final = 0x22
_PROPERTY_KEY: Final = 0x0A
_PROPERTY_VALUE: Final = 0x12
# Uncompressed size (Java writes it for uncompressed messages too), event time,
# partition_key_b64_encoded, highest sequence id. Tags of two bytes are little-endian numbers.
_NUMBERS: Final = frozenset({0x48, 0x60, 0x0188, 0x01C0})
# Properties, partition key, schema version, ordering key.
_TEXTS: Final = frozenset({_PROPERTY, 0x32, 0x0182, 0x0192})
_MAX_NUMBER_BYTES: Final = 9  # a number of ten bytes may exceed 64 bits, which protobuf decides
# Making a pattern takes as long as walking over the metadata of a hundred messages.
_FIRST_PATTERN: Final = 32  # walks over metadata of one size before it gets a pattern
_MAX_SIZES: Final = 32

Match = Callable[[bytes], Any]
"""`re.Pattern.match` of a pattern that begins with the size of the metadata."""


class MetadataLayouts:
    """The layouts of the metadata of one topic, by the metadata's size.

    If the layout of a size changes, the next pattern for it is made after twice as many walks, so
    that a topic whose layouts keep changing is mostly walked.

    Attributes:
        plain: A pattern of plain messages for each size of metadata that has one.
    """

    def __init__(self) -> None:
        self.plain: dict[int, Match] = {}
        self._batches: dict[int, tuple[Match, int]] = {}
        self._walks: dict[int, tuple[int, int]] = {}  # left until the next pattern; from it on

    def messages_in(self, body: bytes, size: int) -> int:
        """Return how many messages the metadata ``body[4 : 4 + size]`` announces.

        Returns:
            As `messages_in`.

        Raises:
            IndexError: for a number that does not end.
        """
        match = self.plain.get(size)
        if match is not None and match(body):
            return 0
        known = self._batches.get(size)
        if known is not None and known[0](body):
            return known[1]
        count = messages_in(body, 4 + size)
        if count >= 0:
            self._walked(body, size, count)
        return count

    def is_plain(self, body: bytes) -> bool:
        """Return True if ``md_size metadata payload`` is a plain message."""
        if len(body) < 5:
            return False
        size = int.from_bytes(body[:4], "big")
        try:
            return 4 + size <= len(body) and self.messages_in(body, size) == 0
        except IndexError:  # a number that does not end
            return False

    def _walked(self, body: bytes, size: int, count: int) -> None:
        left, after = self._walks.get(size, (_FIRST_PATTERN, _FIRST_PATTERN))
        if left > 1:
            if len(self._walks) == _MAX_SIZES and size not in self._walks:
                self.plain.clear()
                self._batches.clear()
                self._walks.clear()
            self._walks[size] = left - 1, after
            return
        self._walks[size] = 2 * after, 2 * after
        match = re.compile(b"".join(_pattern(body, 4 + size)), re.DOTALL).match
        if count:
            self._batches[size] = match, count
        else:
            self.plain[size] = match


def messages_in(body: bytes, end: int) -> int:
    """Return how many messages the metadata ``body[4:end]`` announces.

    Fields that nothing needs before the application reads them are skipped. They have been checked
    as protobuf would, so that decoding the metadata later cannot fail.

    Returns:
        0 for a plain message, 1 or more for a batch, -1 if the metadata has to be decoded.
    """
    if body[4] != _PRODUCER:
        return -1
    at = 6 + body[5]
    if body[5] >= 0x80:
        return -1
    for required in (_SEQUENCE, _PUBLISHED):
        if at >= end or body[at] != required:
            return -1
        start = at + 1
        at = _after_number(body, start)
        if at - start > _MAX_NUMBER_BYTES:
            return -1
    count = 0
    while at < end:
        tag = body[at]
        at += 1
        if tag >= 0x80:
            tag |= body[at] << 8
            at += 1
        start = at
        at = _after_number(body, start)
        if tag in _NUMBERS:
            if at - start > _MAX_NUMBER_BYTES:
                return -1
        elif tag in _TEXTS and at - start <= 2:
            size = body[start] if at - start == 1 else body[start] & 0x7F | body[start + 1] << 7
            stop = at + size
            if stop > end or (tag == _PROPERTY and not _is_property(body, at, stop)):
                return -1
            at = stop
        elif tag == _IN_BATCH and at - start <= 4 and not count:
            for offset in range(at - start):
                count |= (body[start + offset] & 0x7F) << 7 * offset
            if not count:
                return -1
        else:
            return -1
    return count if at == end else -1


def _after_number(body: bytes, at: int) -> int:
    """Return where the number at `at` ends; at most `_MAX_NUMBER_BYTES` + 1 bytes are read."""
    last = at + _MAX_NUMBER_BYTES
    while at < last and body[at] >= 0x80:
        at += 1
    return at + 1


def _is_property(body: bytes, at: int, end: int) -> bool:
    """Return True if ``body[at:end]`` is a key and a value, each shorter than 128 bytes."""
    if at + 2 > end or body[at] != _PROPERTY_KEY or body[at + 1] >= 0x80:
        return False
    at += 2 + body[at + 1]
    if at + 2 > end or body[at] != _PROPERTY_VALUE or body[at + 1] >= 0x80:
        return False
    return at + 2 + body[at + 1] == end


def _pattern(body: bytes, end: int) -> Iterator[bytes]:
    """Yield a pattern for all metadata over which `messages_in` walks the same way as here.

    It fixes tags and sizes, and the number of messages in a batch. Texts may be anything, and
    numbers anything of the same width. `messages_in` has accepted ``body[4:end]``.
    """
    yield re.escape(body[:4])
    at = 4
    while at < end:
        width = 1 if body[at] < 0x80 else 2
        tag = int.from_bytes(body[at : at + width], "little")
        yield re.escape(body[at : at + width])
        at += width
        start = at
        at = _after_number(body, start)
        if tag == _PRODUCER or tag in _TEXTS:
            yield re.escape(body[start:at])
            size = body[start] if at - start == 1 else body[start] & 0x7F | body[start + 1] << 7
            if tag == _PROPERTY:
                key_end = at + 2 + body[at + 1]
                yield re.escape(body[at : at + 2]) + b".{%d}" % body[at + 1]
                yield re.escape(body[key_end : key_end + 2]) + b".{%d}" % body[key_end + 1]
            else:
                yield b".{%d}" % size
            at += size
        elif tag == _IN_BATCH:
            yield re.escape(body[start:at])
        else:
            yield b"[\x80-\xff]{%d}[\x00-\x7f]" % (at - start - 1)
