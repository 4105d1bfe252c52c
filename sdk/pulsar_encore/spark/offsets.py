"""Positions in a topic, the offsets of a query, and positions in options.

A range begins after one position and ends with another. Equal positions have equal texts,
because Spark compares offsets as text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from ..errors import ConfigurationError
from ..wire import pulsar_pb2 as pb
from .option_parsers import shortened

VERSION: Final = 1
_MAX_LONG: Final = (1 << 63) - 1
_WHOLE_ENTRY: Final = -1
_FORMS: Final = (
    '"earliest", "latest", "ledger:entry" or "ledger:entry:batchIndex", '
    '{"ledgerId": .., "entryId": .., "batchIndex": ..}, or a message id as base64 or as a list of '
    "bytes"
)


class Position(NamedTuple):
    """The last processed message of a topic or partition.

    `ledger` and `entry` are -1 before the first message. `batch_index` is -1 for a whole entry.
    """

    ledger: int
    entry: int
    batch_index: int = _WHOLE_ENTRY

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key; a whole entry is after each of its messages."""
        return self.ledger, self.entry, _MAX_LONG if self.batch_index < 0 else self.batch_index

    @property
    def entry_key(self) -> tuple[int, int]:
        return self.ledger, self.entry

    @property
    def ackable_entry(self) -> tuple[int, int]:
        """The last entry that was processed completely.

        A cumulative ack within a batch would undo single acks after it. After an ack of the entry
        before, the broker keeps the whole batch.
        """
        return self.ledger, self.entry - (self.batch_index >= 0)

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.batch_index}"


EARLIEST: Final = Position(-1, -1, -1)
"""Before the first message that is stored."""

LATEST: Final = Position(_MAX_LONG, _MAX_LONG, -1)
"""Behind the last message; never part of an offset."""

LAST_ENTRY: Final = _MAX_LONG
"""Stands for the last entry of a ledger."""


def later(one: Position, other: Position) -> Position:
    return one if one.order >= other.order else other


def offset_json(offsets: Mapping[str, Position], slicing: str = "") -> dict[str, Any]:
    """Return offsets for Spark; `slicing` is the split of the batch that ends at them, or ""."""
    positions = {topic: str(offsets[topic]) for topic in sorted(offsets)}
    split_fields = {"s": slicing} if slicing else {}
    return {"p": positions, **split_fields, "v": VERSION}


def slicing_text(value: Any) -> str:
    """Return the `slicing` in the value of `offset_json`."""
    return str(value.get("s", "")) if isinstance(value, Mapping) else ""


def read_offset(value: Any) -> dict[str, Position]:
    """Parse the value of `offset_json`, or raise ConfigurationError."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigurationError(
                f"an offset of this source is JSON, got {shortened(value)}"
            ) from error
    if not isinstance(value, Mapping) or not isinstance(value.get("p"), Mapping):
        raise ConfigurationError(
            f"this is no offset of the pulsar source: {value!r}; the checkpoint is another "
            "source's: give the query a checkpointLocation of its own"
        )
    if value.get("v") != VERSION:
        raise ConfigurationError(
            f"the checkpoint has offsets of version {value.get('v')!r}, and this release of "
            f"pulsar-encore reads version {VERSION}: run the release that wrote it, or begin a new "
            "checkpoint"
        )
    return {topic: _read_position(text, topic) for topic, text in value["p"].items()}


def _read_position(text: Any, topic: str) -> Position:
    try:
        ledger, entry, index = map(int, str(text).split(":"))
    except ValueError as error:
        raise ConfigurationError(
            f"the offset of {topic} must be ledger:entry:batchIndex, got {text!r}"
        ) from error
    return Position(ledger, entry, index)


def user_position(value: Any, where: str) -> Position:
    """Parse a position from the JSON of an option, or raise ConfigurationError.

    `where` names the option and the topic in errors.
    """
    if value in ("earliest", -2):
        return EARLIEST
    if value in ("latest", -1):
        return LATEST
    if isinstance(value, Mapping):
        return _from_mapping(value, where)
    if isinstance(value, list):
        return _from_bytes(value, where)
    if isinstance(value, str):
        parts = value.split(":")
        if len(parts) in (2, 3):
            try:
                return _checked(*map(int, parts), where=where)
            except ValueError:
                pass
        else:
            try:
                data = base64.b64decode(value, validate=True)
            except ValueError:  # not base64
                pass
            else:
                return _from_wire(data, where)
    raise ConfigurationError(f"{where} must be {_FORMS}; got {shortened(value)}")


def _from_mapping(value: Mapping[str, Any], where: str) -> Position:
    known = {"ledgerId", "entryId", "batchIndex", "partition", "partitionIndex"}
    numbers = [value.get("ledgerId"), value.get("entryId"), value.get("batchIndex", -1)]
    if set(value) - known or not all(type(each) is int for each in numbers):
        raise ConfigurationError(f"{where} must be {_FORMS}; got {shortened(value)}")
    return _checked(*numbers, where=where)


def _from_bytes(value: list[Any], where: str) -> Position:
    """Parse signed bytes, as a JVM prints them, or unsigned bytes."""
    if not all(type(each) is int and -128 <= each <= 255 for each in value):
        raise ConfigurationError(f"{where} must be {_FORMS}; got {shortened(value)}")
    return _from_wire(bytes(each & 0xFF for each in value), where)


def _from_wire(data: bytes, where: str) -> Position:
    """Parse a message id in the serialized form of all clients."""
    message_id = pb.MessageIdData()
    try:
        message_id.ParseFromString(data)
    except DecodeError as error:
        raise ConfigurationError(f"{where} holds bytes that are no message id") from error
    if not message_id.IsInitialized():
        raise ConfigurationError(f"{where} holds bytes that are no message id")
    if message_id.ledgerId == _MAX_LONG:
        return LATEST
    if message_id.ledgerId >= 1 << 63:
        return EARLIEST
    index = message_id.batch_index if message_id.HasField("batch_index") else -1
    return _checked(message_id.ledgerId, message_id.entryId, index, where=where)


def _checked(ledger: int, entry: int, index: int = -1, *, where: str) -> Position:
    if not (0 <= ledger <= _MAX_LONG and 0 <= entry <= _MAX_LONG and -1 <= index <= 1 << 31):
        raise ConfigurationError(f"{where}: {ledger}:{entry}:{index} is no message id")
    return Position(ledger, entry, index)


def before(first: Position) -> Position:
    """Return the position from which a read begins with the message `first`.

    The entry before `first` need not exist: the read begins with the next existing entry.
    """
    if first in (EARLIEST, LATEST):
        return first
    if first.batch_index > 0:
        return Position(first.ledger, first.entry, first.batch_index - 1)
    return Position(first.ledger, first.entry - 1)
