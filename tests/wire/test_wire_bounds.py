"""Claimed sizes: memory is allocated for received data, not for claims."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from random import Random
from typing import Any

import pytest

from pulsar_encore.values.message_id import MAX_BATCH_SIZE
from pulsar_encore.wire import DecompressionError, ack_set_words, compress, decompress, pb
from pulsar_encore.wire.compression import check_claim

CODECS = [pb.ZLIB, pb.LZ4, pb.ZSTD, pb.SNAPPY]
CLAIM = 200_000_000
LIMIT = 256 * 1024 * 1024


@pytest.mark.parametrize("codec", CODECS)
def test_a_small_payload_with_a_large_claim_is_an_error_before_memory_is_allocated(
    codec: int,
) -> None:
    garbage = Random(1).randbytes(50)
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionError, match=r"50 bytes announces 200000000 bytes"):
            decompress(codec, garbage, CLAIM, LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


_PEAK = """
import sys
from random import Random
from pulsar_encore.wire import DecompressionError, compress, decompress, pb
codec, claim = int(sys.argv[1]), 200_000_000
compress(codec, b"x")  # loads what it needs
ratio = {pb.LZ4: 256, pb.ZSTD: 32_768, pb.SNAPPY: 22}[codec]
good = compress(codec, Random(1).randbytes(3_000))
garbage = [
    Random(1).randbytes(claim // ratio + 1),
    good + bytes(claim // ratio + 1 - len(good)),
    bytes(claim // ratio + 1),
]


def peak():
    # Not ru_maxrss: that of a child begins with the memory of the process which started it.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


before = peak()
for payload in garbage:
    try:
        decompress(codec, payload, claim, claim)
    except DecompressionError:
        pass
    else:
        raise SystemExit("decompressed")
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures resident memory in KiB")
@pytest.mark.parametrize("codec", [pb.LZ4, pb.ZSTD, pb.SNAPPY])
def test_a_plausible_claim_of_a_corrupted_payload_touches_no_memory(codec: int) -> None:
    """The pages of the buffer exist only after the codec has written to them."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(codec)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # the package under test
    )
    assert int(done.stdout) < 20_000


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 2, 10, 100, 1_000, 100_000, 1_048_576, 10_000_000])
@pytest.mark.parametrize("make", [bytes, Random(1).randbytes])
def test_real_payloads_stay_below_the_ratio_limit(codec: int, size: int, make: Any) -> None:
    data = make(size)
    packed = compress(codec, data)
    check_claim(codec, len(packed), size, LIMIT)
    clear = decompress(codec, packed, size, LIMIT)
    assert bytes(clear) == data
    if size > 1024 * 1024:
        assert type(clear) is bytes


@pytest.mark.parametrize("codec", CODECS)
def test_the_error_for_a_large_payload_of_another_size_contains_both_sizes(codec: int) -> None:
    data = Random(1).randbytes(10_000) * 300
    packed = compress(codec, data)
    for size in (len(data) - 1, len(data) + 1, 2 * len(data), len(data) // 2):
        with pytest.raises(DecompressionError):
            decompress(codec, packed, size, LIMIT)


def test_ack_set_words_beyond_the_largest_batch_are_dropped() -> None:
    words = [-1] * (2 * MAX_BATCH_SIZE // 64)
    assert ack_set_words.from_words(words) == ack_set_words.full(MAX_BATCH_SIZE)
    assert ack_set_words.from_words([5, -1]) == 5 | (2**64 - 1) << 64
