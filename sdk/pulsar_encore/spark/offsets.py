"""Where a read of a topic is: positions, the offsets of a query, and positions as users write them.

Owns `Position` and the JSON of a query's offsets. Pure. A position is the last message that was
processed, so a range is from behind one up to and with another, and a range's start is never read
twice. Two positions that mean the same are written the same, because Spark compares offsets as
text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from ..errors import ConfigurationError
from ..wire import pulsar_pb2 as pb
from .option_parsers import shown

VERSION: Final = 1
_MOST: Final = (1 << 63) - 1
_WHOLE: Final = -1
_FORMS: Final = (
    '"earliest", "latest", "ledger:entry" or "ledger:entry:batchIndex", '
    '{"ledgerId": .., "entryId": .., "batchIndex": ..}, or a message id as base64 or as a list of '
    "bytes"
)


class Position(NamedTuple):
    """The last message processed of a topic or partition.

    Attributes:
        ledger, entry: Where it is stored; -1 and -1 before the first message of all.
        batch_index: In its batch; -1 for all of the entry.
    """

    ledger: int
    entry: int
    batch_index: int = _WHOLE

    @property
    def order(self) -> tuple[int, int, int]:
        """What positions are compared by: all of an entry is behind each of its messages."""
        return self.ledger, self.entry, _MOST if self.batch_index < 0 else self.batch_index

    @property
    def place(self) -> tuple[int, int]:
        """Ledger and entry."""
        return self.ledger, self.entry

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}:{self.batch_index}"


EARLIEST: Final = Position(-1, -1, -1)
"""Before the first message, whichever that is by then."""

LATEST: Final = Position(_MOST, _MOST, -1)
"""Behind the last message there is; never part of an offset."""

LAST_ENTRY: Final = _MOST
"""Of a ledger, whichever that is."""

Offsets = Mapping[str, Position]
"""A position for each topic or partition, by full name."""


def later(one: Position, other: Position) -> Position:
    """Whichever is further on."""
    return one if one.order >= other.order else other


def offset_json(offsets: Offsets, slicing: str = "") -> dict[str, Any]:
    """Offsets as Spark keeps them: a dict whose JSON text is the same for the same positions.

    Args:
        offsets: The positions.
        slicing: How what ends there is cut into tasks, for `slicing_text`; nothing where it is not.
    """
    positions = {topic: str(offsets[topic]) for topic in sorted(offsets)}
    cut = {"s": slicing} if slicing else {}
    return {"p": positions, **cut, "v": VERSION}


def slicing_text(value: Any) -> str:
    """How the batch that ends at these offsets is cut, as it was given to `offset_json`."""
    return str(value.get("s", "")) if isinstance(value, Mapping) else ""


def read_offset(value: Any) -> dict[str, Position]:
    """The offsets of `offset_json`, which Spark handed back.

    Raises:
        ConfigurationError: It is none, or of a version that is not known here.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigurationError(
                f"an offset of this source is JSON, got {shown(value)}"
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


# As users write them


def user_position(value: Any, where: str) -> Position:
    """The message that a user names; `EARLIEST` and `LATEST` for the ends.

    Args:
        value: As it came out of the JSON.
        where: The option and the topic, for errors.

    Raises:
        ConfigurationError: It is none of the forms.
    """
    if value in ("earliest", -2):
        return EARLIEST
    if value in ("latest", -1):
        return LATEST
    if isinstance(value, Mapping):
        return _of_mapping(value, where)
    if isinstance(value, list):
        return _of_bytes(value, where)
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
            except ValueError:  # of other letters, or cut
                pass
            else:
                return _of_wire(data, where)
    raise ConfigurationError(f"{where} must be {_FORMS}; got {shown(value)}")


def _of_mapping(value: Mapping[str, Any], where: str) -> Position:
    known = {"ledgerId", "entryId", "batchIndex", "partition", "partitionIndex"}
    numbers = [value.get("ledgerId"), value.get("entryId"), value.get("batchIndex", -1)]
    if set(value) - known or not all(type(each) is int for each in numbers):
        raise ConfigurationError(f"{where} must be {_FORMS}; got {shown(value)}")
    return _checked(*numbers, where=where)


def _of_bytes(value: list[Any], where: str) -> Position:
    """Signed bytes, as a JVM prints them, or unsigned ones."""
    if not all(type(each) is int and -128 <= each <= 255 for each in value):
        raise ConfigurationError(f"{where} must be {_FORMS}; got {shown(value)}")
    return _of_wire(bytes(each & 0xFF for each in value), where)


def _of_wire(data: bytes, where: str) -> Position:
    """A serialized message id, as every client writes it."""
    message_id = pb.MessageIdData()
    try:
        message_id.ParseFromString(data)
    except DecodeError as error:
        raise ConfigurationError(f"{where} holds bytes that are no message id") from error
    if not message_id.IsInitialized():
        raise ConfigurationError(f"{where} holds bytes that are no message id")
    if message_id.ledgerId == _MOST:
        return LATEST
    if message_id.ledgerId >= 1 << 63:
        return EARLIEST
    index = message_id.batch_index if message_id.HasField("batch_index") else -1
    return _checked(message_id.ledgerId, message_id.entryId, index, where=where)


def _checked(ledger: int, entry: int, index: int = -1, *, where: str) -> Position:
    if not (0 <= ledger <= _MOST and 0 <= entry <= _MOST and -1 <= index <= 1 << 31):
        raise ConfigurationError(f"{where}: {ledger}:{entry}:{index} is no message id")
    return Position(ledger, entry, index)


def before(first: Position) -> Position:
    """The position from where a read begins with the message `first`.

    Of a whole entry, or its first message, that is all of the entry before it: where there is no
    such entry, a read begins with the next there is.
    """
    if first in (EARLIEST, LATEST):
        return first
    if first.batch_index > 0:
        return Position(first.ledger, first.entry, first.batch_index - 1)
    return Position(first.ledger, first.entry - 1)
