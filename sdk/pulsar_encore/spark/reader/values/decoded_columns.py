"""Decoded values as columns, and the handling of malformed values by the option `mode`.

A malformed value ends the query (`FAILFAST`), drops its row (`DROPMALFORMED`), or is null with its
bytes in ``_corrupt_record`` (`PERMISSIVE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from struct import Struct
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from ...source_columns import CORRUPT, VALUE
from ...spark_errors import MalformedValueError
from ..message_blocks import MessageBlock
from ..payloads import Payloads
from .value_decoder import Ids, Malformed, PartDecoder

KEY: Final = "key"

_LENGTH: Final = Struct(">i")


class _MessageNotes:
    """Schema versions and ids of messages that are not decoded yet."""

    def __init__(self, topic: str, mode: str) -> None:
        self._topic = topic
        self._mode = mode
        self.versions: list[int] = []
        self._ids: list[tuple[int, Ids]] = []

    def note(self, block: MessageBlock, ids: Ids) -> None:
        # All messages of an entry have the same schema version.
        for first, count in zip(block.firsts, block.counts, strict=True):
            self.versions += repeat(first.int_schema_version(), count)
        if self._mode == "FAILFAST":
            self._ids.append((block.count, ids))

    def clear(self) -> None:
        self.versions = []
        self._ids = []

    def kept(self, malformed: Malformed, count: int) -> list[bool] | None:
        """Return which rows stay (None: all), or raise MalformedValueError."""
        if not malformed or self._mode == "PERMISSIVE":
            return None
        if self._mode == "FAILFAST":
            at = min(malformed)
            raise MalformedValueError(
                f"message {self._id(at)} of {self._topic} cannot be decoded: {malformed[at]} "
                "(mode=FAILFAST). PERMISSIVE reads it as null, DROPMALFORMED leaves it out"
            )
        return [at not in malformed for at in range(count)]

    def _id(self, at: int) -> str:
        for count, ids in self._ids:
            if at < count:
                return str(list(ids())[at])
            at -= count
        return "?"


def corrupt(data: Sequence[bytes | None], malformed: Malformed) -> pa.Array:
    if not malformed:
        return pa.nulls(len(data), pa.binary())
    return pa.array(
        [each if at in malformed else None for at, each in enumerate(data)], pa.binary()
    )


class DecodedValues:
    """Values as the columns of a record's fields, or as the column ``value``."""

    def __init__(self, part: PartDecoder, topic: str, mode: str) -> None:
        self._part = part
        self._notes = _MessageNotes(topic, mode)

    def note(self, block: MessageBlock, ids: Ids) -> None:
        self._notes.note(block, ids)

    def columns(self, payloads: Payloads) -> tuple[dict[str, pa.Array], list[bool] | None]:
        data = payloads.to_list()
        array, malformed = self._part.decode(data, self._notes.versions)
        kept = self._notes.kept(malformed, len(data))
        self._notes.clear()
        arrays = {CORRUPT: corrupt(data, malformed)}
        kind = self._part.type
        if isinstance(kind, StructType):
            arrays |= dict(zip(kind.names, array.flatten(), strict=True))
        else:
            arrays[VALUE] = array
        return arrays, kept


class PairValues:
    """Pairs of a key and a value, in two columns.

    With `separated`, the key is the message's partition key; else the payload holds both.
    """

    def __init__(
        self, key: PartDecoder, value: PartDecoder, topic: str, mode: str, *, separated: bool
    ) -> None:
        self._key = key
        self._value = value
        self._separated = separated
        self._notes = _MessageNotes(topic, mode)
        self._keys: list[bytes | None] = []

    def note(self, block: MessageBlock, ids: Ids) -> None:
        self._notes.note(block, ids)
        if self._separated:
            self._keys += (
                [each.partition_key_bytes() for each in block.messages]
                if block.plain is None
                else repeat(None, block.count)
            )

    def columns(self, payloads: Payloads) -> tuple[dict[str, pa.Array], list[bool] | None]:
        data = payloads.to_list()
        malformed: Malformed = {}
        if self._separated:
            keys, values = self._keys, data
        else:
            keys, values = _halves(data, malformed)
        versions = self._notes.versions
        key, wrong_keys = self._key.decode(keys, versions)
        value, wrong_values = self._value.decode(values, versions)
        malformed |= wrong_values
        malformed |= {at: f"a pair whose key is {reason}" for at, reason in wrong_keys.items()}
        if malformed:  # if one half is malformed, the other is null too
            whole = pa.array([at not in malformed for at in range(len(data))])
            key, value = (_only(whole, each) for each in (key, value))
        kept = self._notes.kept(malformed, len(data))
        self._notes.clear()
        self._keys = []
        return {KEY: key, VALUE: value, CORRUPT: corrupt(data, malformed)}, kept


def _only(whole: pa.Array, array: pa.Array) -> pa.Array:
    indexes = [at if here else None for at, here in enumerate(whole.to_pylist())]
    return array.take(pa.array(indexes, pa.int64()))


def _halves(
    data: Sequence[bytes | None], malformed: Malformed
) -> tuple[list[bytes | None], list[bytes | None]]:
    """Split payloads into keys and values, each after its length, which is -1 for null."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for at, each in enumerate(data):
        key = value = None
        if each is not None:
            try:
                key, value_start = _half(each, 0)
                value, end = _half(each, value_start)
                if end != len(each):
                    raise ValueError("bytes are left over")
            except ValueError as error:
                malformed[at] = f"no pair of key and value: {error}"
                key = value = None
        keys.append(key)
        values.append(value)
    return keys, values


def _half(data: bytes, at: int) -> tuple[bytes | None, int]:
    start = at + _LENGTH.size
    if start > len(data):
        raise ValueError("it ends too early")
    (length,) = _LENGTH.unpack_from(data, at)
    if length == -1:
        return None, start
    if not 0 <= length <= len(data) - start:
        raise ValueError(f"a half of {length} bytes")
    return data[start : start + length], start + length
