"""Keys of the store as bytes.

Numbers are big-endian because RocksDB compares bytes. Format 1 of a directory had a separate key
for each due time. Such keys are merged into the records when the directory is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Final

from pulsar_encore.core.message_key import MAX_BATCH_INDEX, MAX_ID_BITS, MessageKey
from pulsar_encore.errors import ConfigurationError

FORMAT: Final = 2
#: Formats that can be read. A directory of an older format is upgraded when it is opened.
FORMATS: Final = (1, FORMAT)

MAX_SOURCES: Final = 2**32 - 1

_DUE: Final = Struct(">QIQQI")
_ENTRY: Final = Struct(">IQQ")
_SOURCE: Final = Struct(">I")
_U64: Final = Struct(">Q")
_OPENING: Final = Struct(">QQ")

# Returns the key of a record, 20 bytes, for a topic number, ledger and entry id. An alias, because
# a function would cost a call for each message.
entry_key: Final[Callable[[int, int, int], bytes]] = _ENTRY.pack


def due_key(due_ms: int, topic_number: int, key: MessageKey) -> bytes:
    return _DUE.pack(due_ms, topic_number, key[0], key[1], key[2] + 1)


def read_due_key(data: bytes) -> tuple[int, int, MessageKey]:
    if len(data) != _DUE.size:
        raise ValueError(f"a due key has {_DUE.size} bytes, not {len(data)}")
    due_ms, topic_number, ledger, entry, index = _DUE.unpack(data)
    if (ledger | entry) >> MAX_ID_BITS:
        raise ValueError(f"not an id: {ledger}:{entry}")
    if index - 1 > MAX_BATCH_INDEX:
        raise ValueError(f"not a batch index: {index - 1}")
    return due_ms, topic_number, (ledger, entry, index - 1)


def read_entry_key(data: bytes) -> tuple[int, int, int]:
    if len(data) != _ENTRY.size:
        raise ValueError(f"an entry key has {_ENTRY.size} bytes, not {len(data)}")
    topic_number, ledger, entry = _ENTRY.unpack(data)
    if (ledger | entry) >> MAX_ID_BITS:
        raise ValueError(f"not an id: {ledger}:{entry}")
    return topic_number, ledger, entry


def topic_range(topic_number: int) -> tuple[bytes, bytes]:
    return _SOURCE.pack(topic_number), _SOURCE.pack(topic_number) + b"\xff" * 17


def entries_through(topic_number: int, ledger: int, entry: int) -> tuple[bytes, bytes]:
    """Return the key range of a topic's records up to and including one entry."""
    return _SOURCE.pack(topic_number), entry_key(topic_number, ledger, entry) + b"\0"


# `meta`

FORMAT_KEY: Final = b"format"
EPOCH_KEY: Final = b"epoch"
OPENINGS_KEY: Final = b"openings"
SOURCE_PREFIX: Final = b"source/"


def source_key(topic: str, subscription: str, consumer: str) -> bytes:
    """Return the key under which the number of a topic is stored."""
    for name in (topic, subscription, consumer):
        if "\0" in name:
            raise ConfigurationError(f"names must not contain NUL: {name!r}")
    try:
        return SOURCE_PREFIX + "\0".join((topic, subscription, consumer)).encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"a name contains a lone surrogate, which UTF-8 cannot encode: topic {topic!r}, "
            f"subscription {subscription!r}, consumer {consumer!r}. Use names of whole characters"
        ) from error


def read_source_key(data: bytes) -> tuple[str, str, str]:
    topic, subscription, consumer = data.removeprefix(SOURCE_PREFIX).decode().split("\0")
    return topic, subscription, consumer


def openings_bytes(opened: Iterable[tuple[int, int]]) -> bytes:
    """Encode epochs, and when their owners opened the store (ms since the epoch)."""
    return b"".join(_OPENING.pack(*each) for each in opened)


def read_openings(data: bytes) -> list[tuple[int, int]]:
    if len(data) % _OPENING.size:
        raise ValueError(f"a list of openings has pairs of numbers, not {len(data)} bytes")
    return list(_OPENING.iter_unpack(data))


def number_bytes(value: int) -> bytes:
    return _U64.pack(value)


def read_number(data: bytes) -> int:
    if len(data) != _U64.size:
        raise ValueError(f"a number has {_U64.size} bytes, not {len(data)}")
    value: int = _U64.unpack(data)[0]
    return value
