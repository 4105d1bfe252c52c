"""Varints have the same bytes as protobuf's."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_encore.wire import pb
from pulsar_encore.wire.varints import SMALL_VARINTS, varint


@given(st.integers(0, 2**64 - 1))
@example(0x7F)
@example(0x80)
@example(0x3FFF)
@example(0x4000)
@example(0x1F_FFFF)
@example(0x20_0000)
def test_varints_equal_protobufs(value: int) -> None:
    field = pb.CommandFlow(consumer_id=value, messagePermits=0).SerializeToString()
    assert field == b"\x08" + varint(value) + b"\x10\x00"


def test_the_varint_of_minus_one_has_ten_bytes() -> None:
    assert varint(-1) == b"\xff" * 9 + b"\x01"


def test_the_table_contains_all_varints_of_at_most_two_bytes() -> None:
    assert {len(each) for each in SMALL_VARINTS} == {1, 2}
    assert len(varint(len(SMALL_VARINTS))) == 3
