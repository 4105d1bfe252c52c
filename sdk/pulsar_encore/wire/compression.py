"""Compression of entries: five codecs whose output is bounded before memory is allocated.

The uncompressed size in the metadata is a claim of the publisher, so two checks come before the
codec: the size must not exceed the caller's limit, nor the largest ratio that the codec's format
can express. A large buffer is anonymous mapped memory, whose pages exist only once the codec has
written to them. Formats: `docs/notes/wire-protocol.md#compression`.
"""

from __future__ import annotations

import importlib
import io
import mmap
import zlib
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..errors import NotSupportedError
from . import pulsar_pb2 as pb
from .entries import EntryError

if TYPE_CHECKING:
    from .checksum import Data

_ZSTD_LEVEL: Final = 3  # the level that other clients use

# The largest ratio of uncompressed to compressed bytes that each format can express. LZ4: a length
# byte stands for 255 bytes. SNAPPY: a copy of 3 bytes stands for 64 bytes. ZLIB: 2 bits stand for
# 258 bytes. ZSTD: a block of 4 bytes stands for 128 KiB. Headers only lower the ratio, so that no
# constant has to be added for small payloads. Measured with zeros: 255.0, 21.3, 1028.7, 32563.
_LARGEST_RATIO: Final[dict[int, int]] = {pb.LZ4: 256, pb.SNAPPY: 22, pb.ZLIB: 1032, pb.ZSTD: 32_768}

# Filling a `bytearray` of 100 MB with zeros takes 88 ms. Up to this size the zeros cost less than
# mapping memory.
_MIN_MAPPED_BYTES: Final = 1024 * 1024
_COPY_BYTES: Final = 256 * 1024  # bytes copied at a time; in between, another thread can run


class DecompressionError(EntryError):
    """The payload is malformed for its codec, or its size differs from the metadata."""

    validation_error: ClassVar[pb.CommandAck.ValidationError.ValueType] = (
        pb.CommandAck.DecompressionError
    )


class UncompressedSizeError(EntryError):
    """The payload would be larger than the caller accepts."""

    validation_error: ClassVar[pb.CommandAck.ValidationError.ValueType] = (
        pb.CommandAck.UncompressedSizeCorruption
    )


class CodecError(NotSupportedError):
    """The codec is unknown, or its package is not installed.

    The entry must not be acked: another consumer can read it, or this one after an install.
    """


def decompress(codec: int, data: Data, uncompressed_size: int, max_size: int) -> Data:
    """Undo the compression of a payload, a whole batch or joined chunks.

    `uncompressed_size` is the size in the metadata, ignored for NONE. The result is `bytes` if it
    is over 1 MiB.
    """
    if codec == pb.NONE:
        if len(data) > max_size:
            raise _too_large(len(data), max_size)
        return data
    size = uncompressed_size
    check_claim(codec, len(data), size, max_size)
    if codec == pb.ZLIB:
        return _inflate(data, size)
    cramjam = _cramjam(codec)
    large = size > _MIN_MAPPED_BYTES
    out: Any = mmap.mmap(-1, size) if large else bytearray(size)
    try:
        if codec == pb.LZ4:
            written = cramjam.lz4.decompress_block_into(data, out)
        elif codec == pb.ZSTD:
            written = cramjam.zstd.decompress_into(data, out)
        else:
            written = cramjam.snappy.decompress_raw_into(data, out)
    except cramjam.DecompressionError as error:
        raise DecompressionError(f"{_name(codec)} payload: {error}") from error
    if written != size:
        raise DecompressionError(f"{_name(codec)} payload of {written} bytes, {size} announced")
    return _to_bytes(out) if large else out


def check_claim(codec: int, compressed: int, size: int, max_size: int) -> None:
    """Check the uncompressed size that a publisher claims: possible, and at most `max_size`."""
    if not 0 <= size <= max_size:
        raise _too_large(size, max_size)
    ratio = _LARGEST_RATIO.get(codec)
    if ratio is not None and size > ratio * compressed:
        raise DecompressionError(
            f"{_name(codec)} payload of {compressed} bytes announces {size} bytes uncompressed; "
            f"{ratio} times the size is the most that the format can express"
        )


def _too_large(size: int, max_size: int) -> UncompressedSizeError:
    return UncompressedSizeError(
        f"payload of {size} bytes uncompressed, limit {max_size} (max_uncompressed_size)"
    )


def _to_bytes(out: mmap.mmap) -> bytes:
    """Copy mapped memory into bytes, and return it to the system.

    `bytes(out)` would hold the interpreter lock for the whole copy, 80 to 200 ms for 100 MB, and
    stop the event loop in another thread. Between two pieces the lock can change hands.
    """
    clear = io.BytesIO()
    with memoryview(out) as view:
        for at in range(0, len(view), _COPY_BYTES):
            clear.write(view[at : at + _COPY_BYTES])
    out.close()
    return clear.getvalue()  # without a copy


def compress(codec: int, data: Data) -> Data:
    if codec == pb.NONE:
        return data
    if codec == pb.ZLIB:
        return zlib.compress(data)
    cramjam = _cramjam(codec)
    if codec == pb.LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if codec == pb.ZSTD:
        return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL))
    return bytes(cramjam.snappy.compress_raw(data))


def _inflate(data: Data, size: int) -> bytes:
    """Decompress zlib, with or without an end marker: Java's streams are flushed and never
    finished."""
    try:
        # One byte more, to detect a longer stream. 0 would mean "no limit".
        out = zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise DecompressionError(f"ZLIB payload: {error}") from error
    if len(out) != size:
        found = "more" if len(out) > size else str(len(out))
        raise DecompressionError(f"ZLIB payload of {found} bytes, {size} announced")
    return out


def _cramjam(codec: int) -> Any:
    """Import the library of LZ4, ZSTD and SNAPPY late, because few topics need it."""
    if codec not in (pb.LZ4, pb.ZSTD, pb.SNAPPY):
        raise CodecError(f"compression codec {codec} is unknown to this version")
    try:
        return importlib.import_module("cramjam")
    except ImportError as error:
        raise CodecError(
            f"{_name(codec)} needs the package cramjam: pip install cramjam"
        ) from error


def _name(codec: int) -> str:
    return str(pb.CompressionType.DESCRIPTOR.values_by_number[codec].name)
