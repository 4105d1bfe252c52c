"""Patterns of metadata decide as the walk over its fields does."""

from __future__ import annotations

import re
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.transport.native.consumer.metadata_layout import MetadataLayouts, messages_in
from pulsar_encore.wire import pb

WALKS = 32  # before the first pattern of a size


def _body(made: pb.MessageMetadata) -> bytes:
    encoded = made.SerializeToString()
    return len(encoded).to_bytes(4, "big") + encoded + b"payload"


def _metadata(rng: Random) -> pb.MessageMetadata:
    made = pb.MessageMetadata(
        producer_name="standalone-0-1",
        sequence_id=rng.choice([3, 300, 2**40]),
        publish_time=1_700_000_000_000 + rng.randrange(10**9),
    )
    if rng.random() < 0.5:
        made.partition_key = rng.choice(["k", "customer-1", "k" * 200])
    if rng.random() < 0.5:
        made.properties.add(key=rng.choice(["a", "trace"]), value=str(rng.randrange(1000)))
    if rng.random() < 0.3:
        made.event_time = rng.choice([5, 1_700_000_000_000])
    if rng.random() < 0.3:
        made.ordering_key = b"o"
    if rng.random() < 0.2:
        made.num_messages_in_batch = rng.choice([1, 10, 1000])
    return made


def _decided(messages_in: object, *arguments: object) -> object:
    try:
        return messages_in(*arguments)  # type: ignore[operator]
    except IndexError:
        return IndexError


@pytest.mark.parametrize("seed", range(20))
def test_a_pattern_decides_as_the_walk(seed: int) -> None:
    """Also about metadata whose bytes were changed."""
    rng = Random(seed)
    layouts = MetadataLayouts()
    for _ in range(60):
        made = _metadata(rng)
        body = _body(made)
        size = int.from_bytes(body[:4], "big")
        batched = made.HasField("num_messages_in_batch")
        for _ in range(WALKS + 1):
            expected = made.num_messages_in_batch if batched else 0
            assert layouts.messages_in(body, size) == expected
        for _ in range(40):
            changed = bytearray(body)
            changed[rng.randrange(4, 4 + size)] = rng.choice(
                [0, 0x7F, 0x80, 0xFF, rng.randrange(256)]
            )
            walked = _decided(messages_in, bytes(changed), 4 + size)
            assert _decided(layouts.messages_in, bytes(changed), size) == walked, changed.hex()


@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_after_a_pattern_was_made(tail: bytes) -> None:
    layouts = MetadataLayouts()
    good = _body(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1))
    size = int.from_bytes(good[:4], "big")
    for _ in range(WALKS + 1):
        layouts.messages_in(good, size)
    body = good[:4] + tail.ljust(size, b"\0")
    expected = _decided(messages_in, body, 4 + size)
    assert _decided(layouts.messages_in, body, size) == expected


def test_messages_of_one_layout_are_matched_after_the_first_ones() -> None:
    layouts = MetadataLayouts()
    for number in range(WALKS):
        body = _body(
            pb.MessageMetadata(producer_name="p", sequence_id=200, publish_time=number % 99)
        )
        assert layouts.is_plain(body)
    walk = "pulsar_encore.transport.native.consumer.metadata_layout.messages_in"
    with patch(walk, side_effect=AssertionError("walked")):
        later = pb.MessageMetadata(producer_name="q", sequence_id=16_000, publish_time=7)
        assert layouts.is_plain(_body(later))


def test_changing_layouts_make_few_patterns() -> None:
    """A pattern takes as long as a hundred walks."""
    rng = Random(7)
    layouts = MetadataLayouts()
    made: list[bytes] = []
    compile_pattern = re.compile

    def counted(pattern: bytes, flags: int) -> re.Pattern[bytes]:
        made.append(pattern)
        return compile_pattern(pattern, flags)

    with patch.object(re, "compile", counted):
        for _ in range(20_000):  # sizes that repeat, with two layouts each
            key = rng.randrange(20)
            body = _body(
                pb.MessageMetadata(
                    producer_name="p" * (40 - key),
                    sequence_id=1,
                    publish_time=1,
                    partition_key="k" * key,
                )
            )
            assert layouts.is_plain(body)
        assert len(made) < 40
        for size in range(9_000):  # sizes that never repeat
            body = _body(
                pb.MessageMetadata(
                    producer_name="p", sequence_id=1, publish_time=1, partition_key="k" * size
                )
            )
            assert layouts.is_plain(body)
    assert len(made) < 60
