"""The Pulsar binary protocol without any I/O: bytes in, objects out, and back.

`frames` splits the stream, `commands` wraps commands, and `entries` decodes the bodies of SEND and
MESSAGE. `pulsar_pb2` is generated from `pulsar.proto`.
"""

from . import ack_set_words
from . import pulsar_pb2 as pb
from .checksum import crc32c, topics_hash
from .commands import (
    BODY_FIELDS,
    NO_REQUEST,
    PROTOCOL_VERSION,
    base_command,
    key_values,
    message_id,
)
from .compression import (
    CodecError,
    DecompressionError,
    UncompressedSizeError,
    compress,
    decompress,
)
from .entries import (
    BatchError,
    ChecksumError,
    EntryError,
    decode_batch,
    decode_body,
    encode_batch,
    encode_body,
    metadata_of,
    properties,
    text,
)
from .frames import (
    FRAME_OVERHEAD,
    Frame,
    FrameDecoder,
    FrameError,
    encode,
    encode_with_body,
)

__all__ = [
    "BODY_FIELDS",
    "FRAME_OVERHEAD",
    "NO_REQUEST",
    "PROTOCOL_VERSION",
    "BatchError",
    "ChecksumError",
    "CodecError",
    "DecompressionError",
    "EntryError",
    "Frame",
    "FrameDecoder",
    "FrameError",
    "UncompressedSizeError",
    "ack_set_words",
    "base_command",
    "compress",
    "crc32c",
    "decode_batch",
    "decode_body",
    "decompress",
    "encode",
    "encode_batch",
    "encode_body",
    "encode_with_body",
    "key_values",
    "message_id",
    "metadata_of",
    "pb",
    "properties",
    "text",
    "topics_hash",
]
