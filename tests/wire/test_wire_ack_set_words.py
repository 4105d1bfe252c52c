"""Ack sets compared with a simple model: a set of indexes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.wire.ack_set_words import from_words, full, to_words


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, set[int]]:
    size = draw(st.integers(1, 300))
    return size, draw(st.sets(st.integers(0, size - 1)))


@given(batches())
def test_the_words_contain_the_unacked_indexes(batch: tuple[int, set[int]]) -> None:
    size, unacked = batch
    mask = sum(1 << index for index in unacked)
    words = to_words(mask, size)
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
    read = {i for i in range(len(words) * 64) if words[i // 64] >> (i % 64) & 1}
    assert read == unacked
    assert len(words) == (max(unacked) // 64 + 1 if unacked else 1)
    assert from_words(words) == mask
    # Other clients omit trailing zero words.
    assert from_words([*words, 0, 0]) == mask


@pytest.mark.parametrize(
    ("mask", "size", "words"),
    [
        (0, 1, [0]),
        (0, 1000, [0]),
        (1, 1, [1]),
        (full(10), 10, [1023]),
        (full(63), 63, [(1 << 63) - 1]),
        (full(64), 64, [-1]),
        (1 << 63, 64, [-(1 << 63)]),
        (full(65), 65, [-1, 1]),
        (1 << 64, 100, [0, 1]),
        (full(128) - 1, 128, [-2, -1]),
    ],
)
def test_known_words_are_produced(mask: int, size: int, words: list[int]) -> None:
    assert to_words(mask, size) == words
    assert from_words(words) == mask


def test_invalid_ack_sets_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="without words"):
        from_words([])
    for mask, size in ((-1, 10), (1 << 10, 10), (0, 0), (1, -3)):
        with pytest.raises(ConfigurationError):
            to_words(mask, size)
    with pytest.raises(ConfigurationError, match="batch_size is 0"):
        full(0)
