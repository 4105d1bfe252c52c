"""Compression: round trips, Java's unfinished zlib streams, and results of the wrong size."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.wire import (
    CodecError,
    DecompressionError,
    UncompressedSizeError,
    compress,
    decompress,
    pb,
)

TEXT = b"play it again, " * 100
LIMIT = 5 * 1024 * 1024
OPTIONAL = [pb.LZ4, pb.ZSTD, pb.SNAPPY]


def java_zlib(data: bytes) -> bytes:
    stream = zlib.compressobj()
    return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)


@given(st.binary(max_size=500))
def test_zlib_and_none_round_trip(data: bytes) -> None:
    for codec in (pb.NONE, pb.ZLIB):
        assert decompress(codec, compress(codec, data), len(data), LIMIT) == data
    assert decompress(pb.ZLIB, memoryview(java_zlib(data)), len(data), LIMIT) == data


def test_java_streams_without_an_end_are_decompressed() -> None:
    with pytest.raises(zlib.error):
        zlib.decompress(java_zlib(TEXT))


def test_no_compression_ignores_the_announced_size() -> None:
    assert decompress(pb.NONE, TEXT, 0, LIMIT) == TEXT
    assert decompress(pb.NONE, TEXT, 7, LIMIT) == TEXT
    with pytest.raises(UncompressedSizeError):
        decompress(pb.NONE, TEXT, 0, len(TEXT) - 1)


@pytest.mark.parametrize("size", [0, 1, len(TEXT) - 1, len(TEXT) + 1, 20_000])
@pytest.mark.parametrize("make", [zlib.compress, java_zlib])
def test_the_error_for_zlib_data_of_another_size_says_so(
    make: Callable[[bytes], bytes], size: int
) -> None:
    with pytest.raises(DecompressionError, match=f"{size} announced"):
        decompress(pb.ZLIB, make(TEXT), size, LIMIT)


@pytest.mark.parametrize("data", [b"", b"no zlib", zlib.compress(TEXT)[:-20]])
def test_the_error_for_broken_zlib_data_says_so(data: bytes) -> None:
    with pytest.raises(DecompressionError) as raised:
        decompress(pb.ZLIB, data, len(TEXT), LIMIT)
    assert raised.value.validation_error == pb.CommandAck.DecompressionError


@pytest.mark.parametrize("codec", [pb.ZLIB, *OPTIONAL])
@pytest.mark.parametrize("size", [LIMIT + 1, 2**32 - 1, -1])
def test_a_size_over_the_limit_is_refused_first(codec: int, size: int) -> None:
    with pytest.raises(UncompressedSizeError) as raised:
        decompress(codec, b"", size, LIMIT)
    assert raised.value.validation_error == pb.CommandAck.UncompressedSizeCorruption


@pytest.mark.parametrize("codec", OPTIONAL)
def test_the_error_for_a_missing_package_names_it(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(CodecError, match="pip install cramjam") as raised:
        decompress(codec, b"x", 1, 1)
    assert isinstance(raised.value, ConfigurationError)
    with pytest.raises(CodecError, match="pip install cramjam"):
        compress(codec, b"x")


def test_the_error_for_an_unknown_codec_names_it() -> None:
    with pytest.raises(CodecError, match="codec 9 is unknown"):
        decompress(9, b"x", 1, 1)
    with pytest.raises(CodecError, match="codec 9 is unknown"):
        compress(9, b"x")


@pytest.mark.parametrize("codec", OPTIONAL)
def test_optional_codecs_round_trip_and_are_bounded(codec: int) -> None:
    for data in (TEXT, b"x", b""):
        packed = compress(codec, data)
        assert decompress(codec, packed, len(data), LIMIT) == data
        assert decompress(codec, memoryview(packed), len(data), LIMIT) == data
    packed = compress(codec, TEXT)
    for size in (0, 1, len(TEXT) - 1, len(TEXT) + 1):
        with pytest.raises(DecompressionError):
            decompress(codec, packed, size, LIMIT)
    for broken in (b"", b"\xff\xff\xff", bytes(packed[:-3])):
        with pytest.raises(DecompressionError):
            decompress(codec, broken, len(TEXT), LIMIT)
