"""Reads an entry: checksum, metadata, encryption, compression, batch.

Plain entries, and batches that are neither compressed nor encrypted, are read by looking at a few
bytes. Their keys and properties are decoded when the application reads them. All others are decoded
by `wire`, with the same result (`tests/native`).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from fastcrc import crc32
from google.protobuf.message import DecodeError

from ....errors import EncoreError, UnreadableError
from ....options import ConsumerCryptoFailureAction
from ....values.message_id import MAX_BATCH_SIZE
from ....wire import pulsar_pb2 as pb
from ....wire.compression import CodecError, check_claim, decompress
from ....wire.entries import BatchError, ChecksumError, EntryError
from ..connection.fast_path import MessageTemplate
from .batch_layout import BatchLayout
from .decryption import Decryption
from .entry_contents import (
    BatchEntry,
    ChunkEntry,
    CompressedEntry,
    EntryContent,
    Marker,
    UndecryptableEntry,
)
from .message_views import (
    Batch,
    BatchMessage,
    BatchMessages,
    EncryptedMessage,
    PlainMessage,
    PlainSource,
    UnreadableMessage,
)
from .metadata_layout import MetadataLayouts

# A larger payload is decompressed later, in a thread. 1 MiB takes 0.05 ms (LZ4) to 2 ms (ZLIB).
_AT_ONCE: Final = 1024 * 1024
# Bytes that may be decompressed on the loop between two calls of `begin_step`, one for each time
# that the session hands deliveries over. Later payloads wait. LZ4 batches stay below it up to a
# ratio of 16.
_AT_ONCE_PER_STEP: Final = 4 * 1024 * 1024

_U32: Final = Struct(">I")
_CHECKSUM_MAGIC: Final = b"\x0e\x01"

_NO_METADATA: Final = bytes(4)

_iscsi = crc32.iscsi


class EntryReader:
    """Reads the entries of one topic.

    Args:
        max_size: Largest payload after decompression, in bytes.
    """

    def __init__(self, topic: str, decryption: Decryption, max_size: int) -> None:
        self._topic = topic
        self.plain_source: PlainSource = PlainSource(topic)
        self._decryption = decryption
        self._max_size = max_size
        #: Bytes by which decompression enlarged payloads since `take_grown`.
        self.grown: int = 0
        self._left = _AT_ONCE_PER_STEP
        self._layouts = MetadataLayouts()
        self._batch_layout = BatchLayout()

    def take_grown(self) -> int:
        grown, self.grown = self.grown, 0
        return grown

    def begin_step(self) -> None:
        """Reset the number of bytes that may be decompressed on the loop."""
        self._left = _AT_ONCE_PER_STEP

    def defer_decompression(self) -> None:
        """Leave all payloads compressed until `begin_step`, because earlier entries still wait."""
        self._left = 0

    def open(self, data: bytes, at: int, end: int) -> EntryContent:
        """Read the body ``data[at:end]``, or raise EntryError if it is broken."""
        if data.startswith(_CHECKSUM_MAGIC, at) and end - at >= 10:
            body = data[at + 6 : end]
            if _iscsi(body) != _U32.unpack_from(data, at + 2)[0]:
                raise ChecksumError("the entry's bytes do not match its checksum")
        else:
            body = data[at:end]
        if len(body) < 4:
            raise EntryError(f"an entry of {len(body)} bytes ends before its metadata")
        stop = 4 + int(_U32.unpack_from(body)[0])
        if stop > len(body):
            raise EntryError(f"metadata of {stop - 4} bytes, {len(body) - 4} are left")
        try:
            return self._read_body(body, stop)
        except IndexError as error:  # a number that does not end, or no metadata at all
            raise EntryError("undecodable metadata: it ends inside a field") from error

    def _read_body(self, body: bytes, stop: int) -> EntryContent:
        """Read a body with the metadata ``body[4:stop]``."""
        # Decoding reports a payload over the limit, compressed or not.
        fits = len(body) - stop <= self._max_size
        count = self._layouts.messages_in(body, stop - 4) if fits else -1
        if count == 0:
            return PlainMessage(self._topic, body)
        if count > 0:
            return self._batch(Batch(self._topic, body, body), count, stop)
        return self._decode_body(body, stop)

    def take_run(
        self,
        template: MessageTemplate,
        ledger: int,
        data: bytes,
        at: int,
        most: int,
        stop: int,
        positions: list[tuple[int, int]],
        bodies: list[bytes],
    ) -> int:
        """Read frames that match the template, as long as their messages are plain.

        Args:
            at: Offset of the first frame's size.
            most: Largest frame, without its size.
            stop: Frames that begin at or after this offset are not read.
            positions: Gets the (ledger, entry) of each message.
            bodies: Gets the body of each message, a place in `plain_source`.

        Returns:
            The offset of the first frame that was not read.
        """
        # Comparing bytes takes a tenth of the time of decoding the command
        # (`docs/notes/wire-protocol.md#cost-per-message`). Any unexpected byte and any wrong
        # checksum end the loop. Then `open` reads the frame and reports errors.
        layouts = self._layouts
        patterns = layouts.plain
        prefix, suffix, wide = template.prefix, template.suffix, template.width
        fields = template.fields.unpack_from
        entry_at = 4 + len(prefix)
        suffix_at = entry_at + wide
        body_at = suffix_at + len(suffix) + 4
        size = len(data)
        stop = min(stop, size - template.fields.size + 1)
        most = min(most, self._max_size)  # `open` decides about an entry over the limit
        add_position, add_body = positions.append, bodies.append
        while at < stop:
            total, crc, metadata_size = fields(data, at)
            end = at + 4 + total
            if end > size or total > most:
                break
            if not (data.startswith(prefix, at + 4) and data.startswith(suffix, at + suffix_at)):
                break
            body = data[at + body_at : end]
            match = patterns.get(metadata_size)
            if (match is None or not match(body)) and not layouts.is_plain(body):
                break
            if _iscsi(body) != crc:
                break
            entry = data[at + entry_at]
            if wide > 1:
                second = data[at + entry_at + 1]
                if entry < 0x80:
                    break
                entry = entry & 0x7F | (second & 0x7F) << 7
                if wide == 2:
                    if second >= 0x80:
                        break
                else:
                    third = data[at + entry_at + 2]
                    if second < 0x80 or third >= 0x80:
                        break
                    entry |= third << 14
            elif entry >= 0x80:
                break
            add_position((ledger, entry))
            add_body(body)
            at = end
        return at

    def _decode_body(self, body: bytes, stop: int) -> EntryContent:
        metadata = pb.MessageMetadata()
        try:
            metadata.ParseFromString(body[4:stop])
        except DecodeError as error:
            raise EntryError(f"undecodable metadata: {error}") from error
        if not metadata.IsInitialized():
            raise EntryError("metadata without its producer name, sequence id or publish time")
        if metadata.HasField("marker_type"):
            return Marker(metadata.marker_type)
        payload = body[stop:]
        try:
            payload = self._decryption.decrypt(metadata, payload)
        except EncoreError as error:
            action = self._decryption.failure_action
            is_consumed = action is ConsumerCryptoFailureAction.CONSUME
            if is_consumed and metadata.num_chunks_from_msg > 1:
                return ChunkEntry(metadata, body, payload, sealed=True)
            _check_count(metadata, len(payload))
            if is_consumed:
                return EncryptedMessage(self._topic, body, metadata)
            error = error.with_traceback(None)  # its frames hold the entry's bytes
            return UndecryptableEntry(metadata.num_messages_in_batch, action, error)
        if metadata.num_chunks_from_msg > 1:
            return ChunkEntry(metadata, body, payload)
        return self.read_payload(metadata, body, payload)

    def read_chunked(
        self, last: ChunkEntry, payload: bytes, sealed: bool
    ) -> PlainMessage | BatchEntry | CompressedEntry:
        """Read a complete chunked message, or raise EntryError.

        Args:
            payload: The joined payloads of all chunks.
            sealed: A chunk could not be decrypted. Then the message is delivered encrypted.
        """
        if sealed:
            return EncryptedMessage(self._topic, last.body, last.metadata, payload)
        return self.read_payload(last.metadata, last.body, payload)

    def unpack(self, packed: CompressedEntry) -> PlainMessage | BatchEntry:
        """Decompress a payload, or raise EntryError. May be called in any thread."""
        metadata = packed.metadata
        try:
            clear = decompress(metadata.compression, packed.payload, packed.size, self._max_size)
        except CodecError as error:
            body = _NO_METADATA + packed.payload
            return UnreadableMessage(self._topic, body, metadata, error)
        return self._read_clear(metadata, bytes(clear))

    def read_payload(
        self, metadata: pb.MessageMetadata, body: bytes, payload: bytes
    ) -> PlainMessage | BatchEntry | CompressedEntry:
        """Read the messages of a decrypted payload, or raise EntryError."""
        codec = metadata.compression
        if codec != pb.NONE:
            size = metadata.uncompressed_size
            if size > _AT_ONCE or size > self._left:
                check_claim(codec, len(payload), size, self._max_size)
                _check_count(metadata, len(payload))
                return CompressedEntry(metadata, payload, size)
            self._left -= size
        try:
            clear = decompress(codec, payload, metadata.uncompressed_size, self._max_size)
        except CodecError as error:
            # Another installation may be able to read it: the application decides.
            _check_count(metadata, len(payload))
            return UnreadableMessage(self._topic, body, metadata, error)
        opened = self._read_clear(metadata, bytes(clear))
        self.grown += max(0, len(clear) - len(payload))
        return opened

    def _read_clear(self, metadata: pb.MessageMetadata, clear: bytes) -> PlainMessage | BatchEntry:
        """Read the messages of a decompressed payload. The entry's bytes are not kept."""
        if not metadata.HasField("num_messages_in_batch"):
            return PlainMessage(self._topic, b"", metadata, clear)
        batch = Batch(self._topic, b"", clear, metadata)
        return self._batch(batch, metadata.num_messages_in_batch, 0)

    def _batch(self, batch: Batch, count: int, at: int) -> BatchEntry:
        starts, removed = self._batch_layout.message_starts(batch.buffer, at, count)
        if removed:
            return _without_removed(batch, count, starts)
        return BatchEntry(count, BatchMessages(batch, starts))


def _check_count(metadata: pb.MessageMetadata, size: int) -> None:
    """Raise BatchError if a batch has more messages than bytes.

    Brokers take that many permits, whether or not the batch can be read.

    Args:
        size: Bytes of its payload, as stored.
    """
    if metadata.HasField("num_messages_in_batch"):
        count = metadata.num_messages_in_batch
        most = min(max(size, metadata.uncompressed_size), MAX_BATCH_SIZE)
        if not 1 <= count <= most:
            raise BatchError(f"a batch of {count} messages in {most} bytes")


def _without_removed(batch: Batch, count: int, starts: Sequence[int]) -> BatchEntry:
    """Return the messages that compaction left; removed messages keep their index."""
    messages = BatchMessages(batch, starts)
    indexes = [at for at, each in enumerate(messages) if not _is_removed(each)]
    return BatchEntry(count, [messages[at] for at in indexes], indexes)


def _is_removed(message: BatchMessage) -> bool:
    """Return True if compaction removed a message.

    Broken metadata is reported when the application reads it.
    """
    try:
        return message.metadata.compacted_out
    except UnreadableError:
        return False
