"""Messages: views of an entry's bytes, decoded on access (`RawMessage`).

A message that is never read costs one small object. All messages of an entry share its bytes.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Sequence
from itertools import repeat
from struct import Struct
from typing import Final, overload

from google.protobuf.message import DecodeError

from ....errors import UnreadableError
from ....values.outgoing_message import ordering_key_text
from ....wire import pulsar_pb2 as pb
from ....wire.entries import properties, text
from .encryption_context import MessageEncryption, encryption_of

_U32: Final = Struct(">I")
_PAYLOAD_SIZE: Final = 0x18  # field 3 of SingleMessageMetadata, usually the first one
# The first byte of the tag of `null_value`. It is field 25 of MessageMetadata and field 9 of
# SingleMessageMetadata. An encoder may write the tag of field 9 in more bytes than it needs.
_NULL_VALUE: Final = 0xC8
_SINGLE_NULL_VALUE: Final = 0x48


class _Body:
    """``md_size metadata ...`` of an entry; the metadata is decoded on first access."""

    __slots__ = ("_metadata", "body")

    def __init__(self, body: bytes, metadata: pb.MessageMetadata | None = None) -> None:
        self.body: bytes = body
        self._metadata = metadata

    @property
    def entry_metadata(self) -> pb.MessageMetadata:
        metadata = self._metadata
        if metadata is None:
            (size,) = _U32.unpack_from(self.body)
            metadata = self._metadata = pb.MessageMetadata.FromString(self.body[4 : 4 + size])
        return metadata


class _View:
    """The properties of a message, from its own metadata and from that of its entry."""

    __slots__ = ()

    @property
    def metadata(self) -> pb.MessageMetadata | pb.SingleMessageMetadata:
        raise NotImplementedError

    @property
    def entry_metadata(self) -> pb.MessageMetadata:
        raise NotImplementedError

    def properties(self) -> dict[str, str]:
        return properties(self.metadata.properties)

    def partition_key(self) -> str:
        return text(self.metadata.partition_key)

    def partition_key_bytes(self) -> bytes | None:
        metadata = self.metadata
        if not metadata.HasField("partition_key"):
            return None
        key: str | bytes = metadata.partition_key
        if metadata.partition_key_b64_encoded:
            try:
                return b64decode(key)
            except (Base64Error, ValueError):
                pass  # marked as base64, but it is not: return the bytes as they are
        return key if isinstance(key, bytes) else key.encode()

    def ordering_key(self) -> str:
        return ordering_key_text(self.metadata.ordering_key)

    def ordering_key_bytes(self) -> bytes | None:
        metadata = self.metadata
        return metadata.ordering_key if metadata.HasField("ordering_key") else None

    def publish_timestamp(self) -> int:
        return self.entry_metadata.publish_time

    def event_timestamp(self) -> int:
        return self.metadata.event_time

    def schema_version(self) -> str:
        """Return the bytes as text, one character each, as the C++ client does."""
        return self.entry_metadata.schema_version.decode("latin-1")

    def int_schema_version(self) -> int:
        version = self.entry_metadata.schema_version
        return int.from_bytes(version, "big") if version else -1

    def producer_name(self) -> str:
        return text(self.entry_metadata.producer_name)

    def sequence_id(self) -> int:
        return self.entry_metadata.sequence_id

    def has_null_value(self) -> bool:
        return self.metadata.null_value

    def encryption_context(self) -> MessageEncryption | None:
        return encryption_of(self.entry_metadata)


class PlainMessage(_Body, _View):
    """A message that is its entry.

    Args:
        body: ``md_size metadata payload``; empty if `metadata` and `payload` are given.
        payload: The payload in clear, if the entry was compressed, encrypted or chunked; else
            `body` contains it.
    """

    __slots__ = ("_payload", "_topic")

    def __init__(
        self,
        topic: str,
        body: bytes,
        metadata: pb.MessageMetadata | None = None,
        payload: bytes | None = None,
    ) -> None:
        self._topic = topic
        self.body = body
        self._metadata = metadata
        self._payload = payload

    @property
    def metadata(self) -> pb.MessageMetadata:
        return self.entry_metadata

    def data(self) -> bytes:
        if self._payload is not None:
            return self._payload
        body = self.body
        return body[4 + _U32.unpack_from(body)[0] :]

    def length(self) -> int:
        if self._payload is not None:
            return len(self._payload)
        return len(self.body) - 4 - int(_U32.unpack_from(self.body)[0])

    def has_null_value(self) -> bool:
        # Metadata without the tag's first byte cannot have the field. Decoding the metadata takes
        # twice as long as the rest of `Message.value`, which calls this.
        if self._metadata is None:
            body = self.body
            if body.find(_NULL_VALUE, 4, 4 + _U32.unpack_from(body)[0]) < 0:
                return False
        return self.metadata.null_value

    def topic_name(self) -> str:
        return self._topic


class PlainSource:
    """The unbatched messages of a topic (`MessageSource`). The place of a message is its body."""

    __slots__ = ("_topic",)

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def data(self, at: bytes) -> bytes:
        return at[4 + _U32.unpack_from(at)[0] :]

    def message(self, at: bytes) -> PlainMessage:
        return PlainMessage(self._topic, at)


class PlainMessages(Sequence[PlainMessage]):
    """Unbatched messages, each made on access; `places` are their bodies."""

    __slots__ = ("places", "source")

    def __init__(self, source: PlainSource, places: Sequence[bytes]) -> None:
        self.source: PlainSource = source
        self.places: Sequence[bytes] = places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, at: int, /) -> PlainMessage: ...
    @overload
    def __getitem__(self, at: slice, /) -> PlainMessages: ...
    def __getitem__(self, at: int | slice, /) -> PlainMessage | PlainMessages:
        if isinstance(at, slice):
            return PlainMessages(self.source, self.places[at])
        return self.source.message(self.places[at])

    def __iter__(self) -> Iterator[PlainMessage]:
        return map(self.source.message, self.places)


class SealedMessage(PlainMessage):
    """An entry that is delivered as one message, although it may be a batch."""

    __slots__ = ()

    @property
    def messages(self) -> int:
        """How many messages the broker counts."""
        return self.metadata.num_messages_in_batch


class EncryptedMessage(SealedMessage):
    """An entry or a chunked message that could not be decrypted and is delivered encrypted."""

    __slots__ = ()

    def encryption_context(self) -> MessageEncryption | None:
        return encryption_of(self.metadata, failed=True)


class UnreadableMessage(SealedMessage):
    """An entry that cannot be read here; each access to the payload raises `error`."""

    __slots__ = ("error",)

    def __init__(
        self, topic: str, body: bytes, metadata: pb.MessageMetadata, error: Exception
    ) -> None:
        super().__init__(topic, body, metadata, b"")
        self.error: Exception = error

    def data(self) -> bytes:
        raise self.error.with_traceback(None)

    def length(self) -> int:
        return len(self.body) - 4 - int(_U32.unpack_from(self.body)[0])


class Batch(_Body):
    """The data that all messages of a batch share (`MessageSource`).

    Args:
        body: ``md_size metadata ...`` of the entry; empty if `metadata` is given.
        buffer: The messages one after the other, perhaps with other bytes before them.
    """

    __slots__ = ("buffer", "topic")

    def __init__(
        self, topic: str, body: bytes, buffer: bytes, metadata: pb.MessageMetadata | None = None
    ) -> None:
        super().__init__(body, metadata)
        self.topic: str = topic
        self.buffer: bytes = buffer

    def data(self, at: int) -> bytes:
        """Return the payload of the message whose metadata size is at this offset."""
        buffer = self.buffer
        (size,) = _U32.unpack_from(buffer, at)
        at += 4
        start = at + size
        return buffer[start : start + payload_size(buffer, at, start)]

    def message(self, at: int) -> BatchMessage:
        return tuple.__new__(BatchMessage, (self, at))


class BatchMessage(_View, tuple[Batch, int]):
    """A batch message: its batch, and the offset of its metadata size in the batch's buffer."""

    __slots__ = ()

    def __new__(cls, batch: Batch, at: int) -> BatchMessage:
        return tuple.__new__(cls, (batch, at))

    @property
    def metadata(self) -> pb.SingleMessageMetadata:
        batch, at = self
        (size,) = _U32.unpack_from(batch.buffer, at)
        return _decode_single(batch.buffer, at + 4, at + 4 + size)

    @property
    def entry_metadata(self) -> pb.MessageMetadata:
        return self[0].entry_metadata

    def data(self) -> bytes:
        batch, at = self
        return batch.data(at)

    def length(self) -> int:
        batch, at = self
        (size,) = _U32.unpack_from(batch.buffer, at)
        return payload_size(batch.buffer, at + 4, at + 4 + size)

    def has_null_value(self) -> bool:
        batch, at = self
        buffer = batch.buffer
        (size,) = _U32.unpack_from(buffer, at)
        if size < 4:  # the payload size, which is required, and `null_value` take two bytes each
            return False
        at += 4
        end = at + size
        if buffer.find(_SINGLE_NULL_VALUE, at, end) < 0 and buffer.find(_NULL_VALUE, at, end) < 0:
            return False
        return self.metadata.null_value

    def topic_name(self) -> str:
        return self[0].topic

    def decoded(self) -> DecodedMessage:
        """Return the message with decoded metadata, to read several properties."""
        return DecodedMessage(self[0], self[1])


class BatchMessages(Sequence[BatchMessage]):
    """The messages of a batch, each made on access.

    Attributes:
        source: The batch.
        places: The offset of each message in the batch's buffer.
    """

    __slots__ = ("places", "source")

    def __init__(self, batch: Batch, starts: Sequence[int]) -> None:
        self.source: Batch = batch
        self.places: Sequence[int] = starts

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, at: int, /) -> BatchMessage: ...
    @overload
    def __getitem__(self, at: slice, /) -> BatchMessages: ...
    def __getitem__(self, at: int | slice, /) -> BatchMessage | BatchMessages:
        if isinstance(at, slice):
            return BatchMessages(self.source, self.places[at])
        return BatchMessage(self.source, self.places[at])

    def __iter__(self) -> Iterator[BatchMessage]:
        # Without a call for each message, in half the time.
        return map(tuple.__new__, repeat(BatchMessage), zip(repeat(self.source), self.places))


class DecodedMessage(_View):
    """A batch message with decoded metadata; `at` as for `BatchMessage`."""

    __slots__ = ("_batch", "_metadata", "_payload_at")

    def __init__(self, batch: Batch, at: int) -> None:
        buffer = batch.buffer
        self._batch = batch
        self._payload_at: int = at + 4 + _U32.unpack_from(buffer, at)[0]
        self._metadata = _decode_single(buffer, at + 4, self._payload_at)

    @property
    def metadata(self) -> pb.SingleMessageMetadata:
        return self._metadata

    @property
    def entry_metadata(self) -> pb.MessageMetadata:
        return self._batch.entry_metadata

    def data(self) -> bytes:
        at = self._payload_at
        return self._batch.buffer[at : at + self._metadata.payload_size]

    def length(self) -> int:
        return self._metadata.payload_size

    def topic_name(self) -> str:
        return self._batch.topic


def _decode_single(buffer: bytes, at: int, end: int) -> pb.SingleMessageMetadata:
    """Decode the metadata ``buffer[at:end]`` of a batch message.

    Raises:
        UnreadableError: if it is broken behind the payload size, which is all that `message_starts`
            has read.
    """
    try:
        return pb.SingleMessageMetadata.FromString(buffer[at:end])
    except DecodeError as error:
        raise UnreadableError(f"undecodable metadata of a batch message: {error}") from error


def payload_size(buffer: bytes, at: int, end: int) -> int:
    """Return the payload size in the batch message's metadata ``buffer[at:end]``."""
    if buffer[at] == _PAYLOAD_SIZE:
        size = buffer[at + 1]
        if size < 0x80:
            return size
        size = size & 0x7F | buffer[at + 2] << 7
        if buffer[at + 2] < 0x80:
            return size
        if buffer[at + 3] < 0x80:
            return size & 0x3FFF | buffer[at + 3] << 14
    return _decode_single(buffer, at, end).payload_size
