"""Entries: the bodies of SEND and MESSAGE, and the messages of a batch.

A body is ``[0e01 crc32c] md_size MessageMetadata payload``. A batch is n times ``size
SingleMessageMetadata payload``. Decoded payloads are views of the input, and nothing is allocated
by a size that the bytes only claim to have.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from google.protobuf.message import DecodeError, EncodeError

from ..errors import ProtocolError
from . import pulsar_pb2 as pb
from .checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .checksum import Data

_U32: Final = struct.Struct(">I")
_CHECKSUM_MAGIC: Final = b"\x0e\x01"
_CHECKSUM_SIZE: Final = 6  # magic and crc


class EntryError(ProtocolError):
    """An entry is broken. Ack it with `validation_error` and continue."""

    validation_error: ClassVar[pb.CommandAck.ValidationError.ValueType] = (
        pb.CommandAck.ChecksumMismatch
    )


class ChecksumError(EntryError):
    """The checksum does not match."""


class BatchError(EntryError):
    """The payload is not the batch that its metadata announces."""

    validation_error: ClassVar[pb.CommandAck.ValidationError.ValueType] = (
        pb.CommandAck.BatchDeSerializeError
    )


class Entry(NamedTuple):
    """A decoded body.

    Attributes:
        metadata: Metadata of the entry; unless it is a batch, also of its only message.
        payload: The rest of the body, possibly encrypted, compressed or a batch.
        checksum_ok: None if the body has no checksum or it was not checked.
    """

    metadata: pb.MessageMetadata
    payload: memoryview
    checksum_ok: bool | None


def encode_body(metadata: pb.MessageMetadata, payload: Data, *, checksum: bool = True) -> bytes:
    try:
        data = metadata.SerializeToString()
    except EncodeError as error:
        raise EntryError(str(error)) from error
    body = b"".join((_U32.pack(len(data)), data, payload))
    return _CHECKSUM_MAGIC + _U32.pack(crc32c(body)) + body if checksum else body


def decode_body(body: Data, *, verify: bool = True) -> Entry:
    """Decode a body (`Frame.body`); `verify` checks the checksum, if there is one."""
    view = memoryview(body)
    checksum_ok: bool | None = None
    if verify and _has_checksum(view) and len(view) >= _CHECKSUM_SIZE:
        (expected,) = _U32.unpack_from(view, 2)
        actual = crc32c(view[_CHECKSUM_SIZE:])
        if actual != expected:
            raise ChecksumError(f"checksum {expected:08x} expected, {actual:08x} found")
        checksum_ok = True
    metadata, at = _metadata(view)
    return Entry(metadata, view[at:], checksum_ok)


def metadata_of(body: Data) -> pb.MessageMetadata:
    return _metadata(memoryview(body))[0]


def _has_checksum(view: memoryview) -> bool:
    return bytes(view[:2]) == _CHECKSUM_MAGIC


def _metadata(view: memoryview) -> tuple[pb.MessageMetadata, int]:
    at = _CHECKSUM_SIZE if _has_checksum(view) else 0
    if len(view) - at < 4:
        raise EntryError(f"entry of {len(view)} bytes ends before its metadata")
    (size,) = _U32.unpack_from(view, at)
    at += 4
    if size > len(view) - at:
        raise EntryError(f"metadata of {size} bytes, {len(view) - at} are left")
    metadata = pb.MessageMetadata()
    try:
        metadata.ParseFromString(view[at : at + size])  # type: ignore[arg-type]
    except DecodeError as error:
        raise EntryError(f"undecodable metadata: {error}") from error
    if not metadata.IsInitialized():
        raise EntryError("metadata without its producer name, sequence id or publish time")
    return metadata, at + size


def encode_batch(messages: Iterable[tuple[pb.SingleMessageMetadata, Data]]) -> bytes:
    """Encode the payload of a batch. Sets `payload_size` of each metadata."""
    parts: list[Data] = []
    for metadata, payload in messages:
        metadata.payload_size = len(payload)
        data = metadata.SerializeToString()
        parts += (_U32.pack(len(data)), data, payload)
    return b"".join(parts)


def decode_batch(payload: Data, count: int) -> list[tuple[pb.SingleMessageMetadata, memoryview]]:
    """Split the decompressed payload of a batch into its messages.

    `count` is `num_messages_in_batch`. It includes messages that compaction removed.
    """
    if count < 1:
        raise BatchError(f"batch of {count} messages")
    view = memoryview(payload)
    at, end = 0, len(view)
    messages: list[tuple[pb.SingleMessageMetadata, memoryview]] = []
    for index in range(count):
        if end - at < 4:
            raise BatchError(f"batch ends before message {index} of {count}")
        (size,) = _U32.unpack_from(view, at)
        at += 4
        if size > end - at:
            raise BatchError(f"metadata of message {index}: {size} bytes, {end - at} are left")
        metadata = pb.SingleMessageMetadata()
        try:
            metadata.ParseFromString(view[at : at + size])  # type: ignore[arg-type]
        except DecodeError as error:
            raise BatchError(f"metadata of message {index} is undecodable: {error}") from error
        if not metadata.HasField("payload_size"):
            raise BatchError(f"message {index} without its payload size")
        at += size
        length = metadata.payload_size
        if not 0 <= length <= end - at:
            raise BatchError(f"payload of message {index}: {length} bytes, {end - at} are left")
        messages.append((metadata, view[at : at + length]))
        at += length
    if at != end:
        raise BatchError(f"{end - at} bytes are left after the {count} messages of the batch")
    return messages


def text(value: str | bytes) -> str:
    """Return the text of a field that may not be UTF-8, with U+FFFD for broken bytes.

    Clients in other languages put any bytes into keys and properties. The protobuf runtime then
    returns bytes where str is typed.
    """
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def properties(pairs: Sequence[pb.KeyValue]) -> dict[str, str]:
    """Return properties as a mapping. If a key is repeated, the last value counts."""
    return {text(pair.key): text(pair.value) for pair in pairs}
