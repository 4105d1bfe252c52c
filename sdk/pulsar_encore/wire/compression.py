"""Compression of entries: five codecs, and an output that is never larger than announced.

ZLIB is in Python; LZ4, ZSTD and SNAPPY are the package `cramjam`'s, which writes into a buffer of
given size, so a bomb stops there (decompressors that trust the size in the stream do not).
Refuses: a size over the caller's limit before anything is allocated, and an output of any other
size than the metadata says. Formats: wire-protocol notes 6.2.
"""

from __future__ import annotations

import importlib
import zlib
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..errors import NotSupportedError
from . import pulsar_pb2 as pb
from .entries import EntryError

if TYPE_CHECKING:
    from .checksum import Data

_ZSTD_LEVEL: Final = 3  # what other clients write


class DecompressionError(EntryError):
    """The payload is not what its codec writes, or not of the size its metadata says."""

    validation_error: ClassVar[pb.CommandAck.ValidationError.ValueType] = (
        pb.CommandAck.DecompressionError
    )


class UncompressedSizeError(EntryError):
    """The payload would be larger than the caller accepts."""

    validation_error: ClassVar[pb.CommandAck.ValidationError.ValueType] = (
        pb.CommandAck.UncompressedSizeCorruption
    )


class CodecError(NotSupportedError):
    """The codec is unknown or its package is not installed; the entry itself may be sound.

    It must be neither acked nor lost: the message is readable elsewhere, or after an install.
    """


def decompress(codec: int, data: Data, uncompressed_size: int, max_size: int) -> Data:
    """Undo the compression of a payload.

    Args:
        codec: `MessageMetadata.compression`.
        data: The payload, of a whole batch or of joined chunks.
        uncompressed_size: What the metadata says, in bytes; not looked at for NONE.
        max_size: Most the result may have, in bytes.

    Raises:
        UncompressedSizeError: The result would be over `max_size`.
        DecompressionError: Broken data, or a result that is not of `uncompressed_size`.
        CodecError: The codec is unknown, or `cramjam` is not installed.
    """
    size = len(data) if codec == pb.NONE else uncompressed_size
    if not 0 <= size <= max_size:
        raise UncompressedSizeError(f"payload of {size} bytes uncompressed, limit {max_size}")
    if codec == pb.NONE:
        return data
    if codec == pb.ZLIB:
        return _inflate(data, size)
    cramjam = _cramjam(codec)
    out = bytearray(size)
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
    return out


def compress(codec: int, data: Data) -> Data:
    """Compress a payload; the metadata must then say `codec` and the size of `data`.

    Raises:
        CodecError: The codec is unknown, or `cramjam` is not installed.
    """
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
    """Decompress zlib, with or without an end: Java's streams are flushed and never finished."""
    try:
        # One byte more than announced shows a stream that goes on; 0 would mean "no limit".
        out = zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise DecompressionError(f"ZLIB payload: {error}") from error
    if len(out) != size:
        found = "more" if len(out) > size else str(len(out))
        raise DecompressionError(f"ZLIB payload of {found} bytes, {size} announced")
    return out


def _cramjam(codec: int) -> Any:
    """Find the library behind all other codecs; imported late because few topics need it."""
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
