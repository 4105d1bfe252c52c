"""Positions: their order, their text, and the forms that users can write."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore import ConfigurationError, MessageId
from pulsar_encore.spark.offsets import (
    EARLIEST,
    LATEST,
    Position,
    before,
    later,
    offset_json,
    read_offset,
    user_position,
)

positions = st.builds(
    Position, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(-1, 2**20)
)


@given(st.dictionaries(st.text(min_size=1), positions | st.just(EARLIEST)))
def test_serialised_offsets_can_be_parsed(offsets: dict[str, Position]) -> None:
    text = json.dumps(offset_json(offsets))
    assert read_offset(text) == read_offset(json.loads(text)) == offsets


@given(st.lists(st.tuples(st.text(min_size=1), positions), unique_by=lambda each: each[0]))
def test_equal_offsets_have_equal_text(pairs: list[tuple[str, Position]]) -> None:
    """Spark plans an empty batch when the text of two equal offsets differs."""
    one, other = offset_json(dict(pairs)), offset_json(dict(reversed(pairs)))
    assert json.dumps(one) == json.dumps(other)


def test_the_position_after_an_entry_is_after_each_of_its_messages() -> None:
    entry = [Position(3, 4, 0), Position(3, 4, 1), Position(3, 4, 1000), Position(3, 4)]
    following = [Position(3, 5, 0), Position(4, 0), LATEST]
    in_order = [EARLIEST, Position(3, 3), *entry, *following]
    assert sorted(in_order, key=lambda each: each.order) == in_order
    assert later(in_order[2], in_order[5]) == later(in_order[5], in_order[2]) == in_order[5]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("{", "is JSON"),
        ({}, "no offset of the pulsar source"),
        ({"logOffset": 3}, "a checkpointLocation of its own"),
        ({"v": 2, "p": {}}, "version 2"),
        ({"v": 1, "p": {"t": "3:4"}}, "ledger:entry:batchIndex, got '3:4'"),
        ({"v": 1, "p": {"t": "a:b:c"}}, "the offset of t"),
    ],
)
def test_the_error_for_an_invalid_offset_says_how_to_solve_it(wrong: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_offset(wrong)


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(-1, 2**20))
def test_all_forms_of_an_id_are_equivalent(ledger: int, entry: int, index: int) -> None:
    serialized = MessageId(2, ledger, entry, index).serialize()
    forms = [
        f"{ledger}:{entry}:{index}",
        {"ledgerId": ledger, "entryId": entry, "batchIndex": index},
        base64.b64encode(serialized).decode(),
        list(serialized),
        [each - 256 if each > 127 else each for each in serialized],  # as a JVM prints bytes
    ]
    if index == -1:
        forms += [f"{ledger}:{entry}", {"ledgerId": ledger, "entryId": entry}]
    assert {user_position(each, "startingOffsets") for each in forms} == {
        Position(ledger, entry, index)
    }


@pytest.mark.parametrize("earliest", ["earliest", -2])
@pytest.mark.parametrize("latest", ["latest", -1])
def test_both_ends_have_names(earliest: object, latest: object) -> None:
    assert user_position(earliest, "") == EARLIEST
    assert user_position(latest, "") == LATEST
    for end, position in ((MessageId.earliest, EARLIEST), (MessageId.latest, LATEST)):
        assert user_position(list(end.serialize()), "") == position


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "3",
        "3:4:5:6",
        "x:y",
        "-3:4",
        {"ledgerId": 3},
        {"ledgerId": 3, "entryId": "4"},
        {"ledgerId": 3, "entryId": 4, "entry": 5},
        [1000],
        [255, 255, 255],
        "not base64!",
        None,
        3.5,
        5,
    ],
)
def test_the_error_for_an_invalid_id_names_the_option(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="startingOffsets of t"):
        user_position(wrong, "startingOffsets of t")


def test_a_read_that_starts_at_a_message_is_positioned_after_the_previous_one() -> None:
    assert before(Position(3, 4, 7)) == Position(3, 4, 6)
    assert before(Position(3, 4, 0)) == before(Position(3, 4)) == Position(3, 3)
    assert before(Position(3, 0)) == Position(3, -1)
    assert before(EARLIEST) == EARLIEST
    assert before(LATEST) == LATEST
