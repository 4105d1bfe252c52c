"""The Pulsar binary protocol without any I/O: bytes in, objects out, and back.

`frames` cuts the stream, `commands` makes commands, `entries` opens what SEND and MESSAGE carry,
`ack_sets` and `checksum` are what they say, `pulsar_pb2` is generated from `pulsar.proto`.
Nothing here knows a socket, a clock or an event loop.
"""

from . import ack_sets, commands
from . import pulsar_pb2 as pb
from .checksum import crc32c
from .frames import (
    DEFAULT_MAX_MESSAGE_SIZE,
    FRAME_OVERHEAD,
    Frame,
    FrameDecoder,
    FrameError,
    encode,
    encode_with_body,
)

__all__ = [
    "DEFAULT_MAX_MESSAGE_SIZE",
    "FRAME_OVERHEAD",
    "Frame",
    "FrameDecoder",
    "FrameError",
    "ack_sets",
    "commands",
    "crc32c",
    "encode",
    "encode_with_body",
    "pb",
]
