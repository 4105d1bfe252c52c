"""Frames: where each command starts and ends in the byte stream of a connection.

The result does not depend on how the stream is cut into reads. The decoder holds at most one frame
of `max_frame_size` and one read. A malformed frame raises `FrameError`; a real broker closes the
connection instead.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError

from ..errors import ProtocolError
from . import pulsar_pb2 as pb
from .commands import BODY_FIELDS, base_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message

DEFAULT_MAX_MESSAGE_SIZE: Final = 5 * 1024 * 1024
"""Largest payload until CONNECTED names another limit, in bytes."""

FRAME_OVERHEAD: Final = 10 * 1024
"""Bytes that a frame may have beyond the largest payload, its own size field included."""

_U32: Final = struct.Struct(">I")
_SIZES: Final = struct.Struct(">II")
_ENTRY_METADATA_MAGIC: Final = b"\x0e\x02"
_SIZE_LIMIT: Final = 0x7FFFFFFF  # a size with its highest bit set is negative to the other side

_Type = pb.BaseCommand.Type
_WITH_PAYLOAD: Final = frozenset({_Type.Value("SEND"), _Type.Value("MESSAGE")})
# Commands without any text, which make up nearly all of the traffic.
_WITHOUT_TEXT: Final = frozenset(
    {
        _Type.Value("SEND"),
        _Type.Value("SEND_RECEIPT"),
        _Type.Value("MESSAGE"),
        _Type.Value("ACK"),
        _Type.Value("FLOW"),
        _Type.Value("PING"),
        _Type.Value("PONG"),
        _Type.Value("REDELIVER_UNACKNOWLEDGED_MESSAGES"),
    }
)


class FrameError(ProtocolError):
    """A frame breaks the protocol. Nothing after it on the connection can be trusted.

    `frames` holds the frames that the same `feed` decoded before it. They must still be handled.
    """

    def __init__(self, message: str, frames: Iterable[Frame] = ()) -> None:
        super().__init__(message)
        self.frames: list[Frame] = list(frames)


class Frame:
    """One command, with the body of SEND and MESSAGE.

    Attributes:
        body: ``[0e01 crc] md_size metadata payload``, byte for byte; None for other commands.
        broker_entry_metadata: The serialized `BrokerEntryMetadata`, already removed from `body`.
    """

    __slots__ = ("body", "broker_entry_metadata", "command")

    def __init__(
        self,
        command: pb.BaseCommand,
        body: bytes | None = None,
        broker_entry_metadata: bytes | None = None,
    ) -> None:
        self.command: pb.BaseCommand = command
        self.body: bytes | None = body
        self.broker_entry_metadata: bytes | None = broker_entry_metadata

    def __repr__(self) -> str:
        size = "" if self.body is None else f" +{len(self.body)} bytes"
        return f"Frame({_Type.Name(self.command.type)}{size})"


class FrameDecoder:
    """Decodes the bytes that are read from a socket into frames.

    Args:
        max_frame_size: Longest accepted frame in bytes, its own size field included. Assign
            ``max_message_size + FRAME_OVERHEAD`` after CONNECTED.
        skip_unknown: True for a client, because brokers may be newer. False makes commands of an
            unknown type an error.
    """

    __slots__ = ("_buffer", "_failed", "max_frame_size", "skip_unknown")

    def __init__(
        self,
        max_frame_size: int = DEFAULT_MAX_MESSAGE_SIZE + FRAME_OVERHEAD,
        *,
        skip_unknown: bool = True,
    ) -> None:
        self.max_frame_size: int = max_frame_size
        self.skip_unknown: bool = skip_unknown
        self._buffer = bytearray()
        self._failed = ""

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """Decode every frame that `data` completes. After a FrameError, every later call raises it,
        too."""
        if self._failed:
            raise FrameError(self._failed)
        buffer = self._buffer
        if buffer:
            # Appending keeps the cost of a frame that comes in many reads linear.
            buffer += data
            if len(buffer) < 4:
                return []
            (total,) = _U32.unpack_from(buffer, 0)
            if 4 <= total <= self.max_frame_size - 4 and len(buffer) < 4 + total:
                return []
            data = bytes(buffer)
            buffer.clear()
        frames: list[Frame] = []
        try:
            end = self._decode(data, frames)
        except FrameError as error:
            self._failed = str(error)
            error.frames = frames
            raise
        if end < len(data):
            buffer += memoryview(data)[end:]
        return frames

    def _decode(self, data: bytes, frames: list[Frame]) -> int:
        at, size = 0, len(data)
        while size - at >= 4:
            (total,) = _U32.unpack_from(data, at)
            if total > self.max_frame_size - 4:
                # One comparison in the usual case: a negative size is a huge unsigned number.
                if total > _SIZE_LIMIT:
                    raise FrameError(f"negative frame size {total - (1 << 32)}")
                raise FrameError(f"frame of {total + 4} bytes, the limit is {self.max_frame_size}")
            if total < 4:
                raise FrameError(f"frame size {total} has no room for a command")
            start, end = at + 4, at + 4 + total
            if end > size:
                break
            (command_size,) = _U32.unpack_from(data, start)
            if command_size > total - 4:
                raise FrameError(f"command of {command_size} bytes in a frame of {total}")
            split = start + 4 + command_size
            command = decode_command(data[start + 4 : split], self.skip_unknown)
            if command is not None:
                if command.type in _WITH_PAYLOAD:
                    frames.append(_with_body(command, data, split, end))
                else:
                    # Bytes after any other command are ignored, as brokers do.
                    frames.append(Frame(command))
            at = end
        return at


def encode(command: Message) -> bytes:
    data = _serialize(base_command(command))
    return _SIZES.pack(4 + len(data), len(data)) + data


def encode_with_body(
    command: Message, body: bytes, *, broker_entry_metadata: bytes | None = None
) -> bytes:
    """Encode SEND or MESSAGE as one frame, with `body` (see `entries.encode_body`) verbatim."""
    data = _serialize(base_command(command))
    extra = b""
    if broker_entry_metadata is not None:
        extra = _ENTRY_METADATA_MAGIC + _U32.pack(len(broker_entry_metadata))
        extra += broker_entry_metadata
    total = 4 + len(data) + len(extra) + len(body)
    return b"".join((_SIZES.pack(total, len(data)), data, extra, body))


def _serialize(command: pb.BaseCommand) -> bytes:
    field = BODY_FIELDS[command.type]
    if not command.HasField("type") or not command.HasField(field):  # type: ignore[arg-type]
        raise FrameError(f"command without its type or its {field}")
    try:
        return command.SerializeToString()
    except EncodeError as error:
        raise FrameError(str(error)) from error


def decode_command(data: bytes, skip_unknown: bool) -> pb.BaseCommand | None:
    """Decode one command; None for an unknown type to skip."""
    command = pb.BaseCommand()
    try:
        command.ParseFromString(data)
    except DecodeError as error:
        raise FrameError(f"undecodable command: {error}") from error
    if not command.HasField("type"):
        # Protobuf drops an unknown enum number. Read the type again as a plain number.
        head = pb.CommandHead()
        head.ParseFromString(data)
        if not head.HasField("type"):
            raise FrameError("command without a type")
        if skip_unknown:
            return None
        raise FrameError(f"unknown command type {head.type}")
    number = command.type
    field = BODY_FIELDS[number]
    if not command.HasField(field):  # type: ignore[arg-type]
        raise FrameError(f"{_Type.Name(number)} without its {field}")
    if not command.IsInitialized():
        untyped: Any = command  # the stubs leave this method out
        missing = ", ".join(untyped.FindInitializationErrors())
        raise FrameError(f"{_Type.Name(number)} without required {missing}")
    if number not in _WITHOUT_TEXT and _has_broken_text(command):
        raise FrameError(f"{_Type.Name(number)} with text that is not UTF-8")
    return command


def _has_broken_text(message: Message) -> bool:
    """Return True if a string field is not UTF-8, which protobuf returns as bytes."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            values = (value,) if type(value) in (str, bytes) else value
            if any(type(item) is bytes for item in values):
                return True
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            values = (value,) if hasattr(value, "ListFields") else value
            if any(_has_broken_text(item) for item in values):
                return True
    return False


def _with_body(command: pb.BaseCommand, data: bytes, at: int, end: int) -> Frame:
    broker_entry_metadata: bytes | None = None
    if data.startswith(_ENTRY_METADATA_MAGIC, at, end):
        if end - at < 6:
            raise FrameError("frame ends inside the size of its broker entry metadata")
        (size,) = _U32.unpack_from(data, at + 2)
        at += 6
        if size > end - at:
            raise FrameError(f"broker entry metadata of {size} bytes, {end - at} are left")
        broker_entry_metadata = data[at : at + size]
        at += size
    if at == end:
        raise FrameError(f"{_Type.Name(command.type)} without metadata and payload")
    return Frame(command, data[at:end], broker_entry_metadata)
