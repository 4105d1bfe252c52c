"""Listing, showing and selecting letters change nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from letters_kit import DEAD, HOME, properties_of, write_letters

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.deadletters import (
    DeadLetters,
    Letter,
    LetterNotFoundError,
    NothingSelectedError,
    Selection,
    printable,
)
from pulsar_encore.deadletters.letter_groups import Grouping
from pulsar_encore.letters.id_text import id_text
from pulsar_encore.message import Message
from pulsar_encore.testing import MemoryTransport
from pulsar_encore.values.message_id import MessageId

OTHER = "persistent://public/default/refunds"


class Raw:
    """A message for tests that use only its properties and publish time."""

    def __init__(self, properties: dict[str, str] | None, written_ms: int) -> None:
        self._properties = properties
        self._written_ms = written_ms

    def properties(self) -> dict[str, str]:
        if self._properties is None:
            raise encore.UnreadableError("raw bytes")
        return self._properties

    def publish_timestamp(self) -> int:
        return self._written_ms


def letter_of(properties: dict[str, str] | None, written_ms: int = 0, entry: int = 0) -> Letter:
    raw: Any = Raw(properties, written_ms)
    return Letter(Message.of_reader(raw, None, MessageId(-1, 1, entry)))


async def test_letters_are_counted_by_fingerprint_and_topic(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    write_letters(transport, b"1", b"2")
    (last,) = write_letters(transport, b"3", **{letters.REPLAY_ID: "r"})
    write_letters(transport, b"4", real_topic=f"{OTHER}-partition-2")
    write_letters(transport, b"5", fingerprint=None)
    first, second, third = await dead.list()
    assert (first.fingerprint, first.real_topic) == ("aaaaaaaaaaaa", HOME)
    assert (first.count, first.again, first.sample_id) == (3, 1, last)
    assert (first.error_class, first.error_message) == ("ValueError", "no a")
    assert (second.fingerprint, second.real_topic, second.count) == ("-", HOME, 1)
    assert (third.fingerprint, third.real_topic, third.count) == ("aaaaaaaaaaaa", OTHER, 1)


@pytest.mark.parametrize("gap", [0.001, 0.02])
async def test_listing_ends_where_the_topic_ended_at_its_start(
    transport: MemoryTransport, dead: DeadLetters, gap: float
) -> None:
    """Letters may arrive at any rate. A listing that waits for a pause might wait for ever."""

    async def keep_dead_lettering() -> None:
        while True:
            write_letters(transport, b"later", fingerprint="bbbbbbbbbbbb")
            await asyncio.sleep(gap)

    write_letters(transport, *(b"%d" % number for number in range(3)))
    transport.put(DEAD, b"x", b"y", properties=properties_of())
    dying = asyncio.ensure_future(keep_dead_lettering())
    try:
        async with asyncio.timeout(60):
            groups = await dead.list()
            found = await dead.show("aaaaaaaaaaaa")
            with pytest.raises(LetterNotFoundError):
                await dead.show("cccccccccccc")
            with pytest.raises(NothingSelectedError):
                await dead.replay(Selection(fingerprints=["cccccccccccc"]))
    finally:
        dying.cancel()
    assert groups[0].count == 5
    assert sum(group.count for group in groups[1:]) < 100
    assert found.message.data() == b"y"


async def test_listing_an_empty_topic_ends_while_letters_arrive(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    async def keep_dead_lettering() -> None:
        while True:
            await asyncio.sleep(0.01)
            write_letters(transport, b"later")

    dying = asyncio.ensure_future(keep_dead_lettering())
    try:
        async with asyncio.timeout(60):
            assert await dead.list() == []
    finally:
        dying.cancel()


async def test_listing_needs_no_durable_subscription_and_leaves_none(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    (letter_id,) = write_letters(transport, b"1")
    await dead.list()
    await dead.show(letter_id)
    assert not any(each.details.durable for each in transport.recorded("SUBSCRIBE"))
    assert not any(state.subscriptions for state in transport.catalogue.topics.values())
    assert not transport.recorded("ACK")


async def test_one_letter_can_be_shown_by_its_id(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    write_letters(transport, b"before")
    (letter_id,) = write_letters(transport, b"this", key="k")
    write_letters(transport, b"after")
    shown = await dead.show(letter_id)
    assert (shown.message.data(), shown.id, shown.message.partition_key()) == (
        b"this",
        letter_id,
        "k",
    )
    assert shown.user_properties() == {"colour": "red"}
    assert shown.evidence()[letters.ERROR_MESSAGE] == "no a"
    assert (await dead.show(shown.message.message_id())).id == letter_id


async def test_a_batch_message_can_be_shown(transport: MemoryTransport, dead: DeadLetters) -> None:
    ids = transport.put(DEAD, b"x", b"y", b"z", properties=properties_of())
    for message_id, body in zip(ids, (b"x", b"y", b"z"), strict=True):
        assert (await dead.show(id_text(message_id))).message.data() == body


async def test_a_chunked_letter_can_be_shown(transport: MemoryTransport, dead: DeadLetters) -> None:
    transport.put_chunked(DEAD, b"long", 3)
    [letter] = [each async for each in dead.letters()]
    assert ";" in letter.id
    assert (await dead.show(letter.id)).message.data() == b"long"


async def test_a_fingerprint_shows_its_latest_letter(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    write_letters(transport, b"old")
    write_letters(transport, b"new")
    write_letters(transport, b"other", fingerprint=None)
    assert (await dead.show("aaaaaaaaaaaa")).message.data() == b"new"
    assert (await dead.show("-")).message.data() == b"other"


async def test_a_missing_letter_is_an_error_that_names_it(
    transport: MemoryTransport, dead: DeadLetters
) -> None:
    write_letters(transport, b"1")
    for missing in ("9:9:-1", "1:0:5", "0:0:-1"):
        with pytest.raises(LetterNotFoundError, match="has no letter"):
            await dead.show(missing)
    with pytest.raises(LetterNotFoundError, match="it has 'aaaaaaaaaaaa'"):
        await dead.show("bbbbbbbbbbbb")


@pytest.mark.parametrize("wrong", ["1:", "1:2:3:4:5", "x:1:2", "1:2:-2", "9" * 20 + ":1:-1", "1;2"])
async def test_an_invalid_id_is_refused(dead: DeadLetters, wrong: str) -> None:
    with pytest.raises(encore.ConfigurationError):
        await dead.show(wrong)


async def test_a_missing_topic_is_an_error_that_names_it() -> None:
    settings = encore.testing.BrokerSettings(auto_create=False)
    transport = MemoryTransport(settings)
    async with encore.Client("pulsar://memory:6650", transport=transport) as client:
        with pytest.raises(encore.TransportError, match=r"no dead-letter topic .*orders-DLQ"):
            await DeadLetters(client, "orders-DLQ").list()


@given(
    st.lists(
        st.tuples(st.sampled_from("abc-"), st.sampled_from("xyz"), st.integers(0, 50)), max_size=40
    )
)
def test_groups_can_be_added(given_letters: list[tuple[str, str, int]]) -> None:
    grouping = Grouping()
    naive: Counter[tuple[str, str]] = Counter()
    times: dict[tuple[str, str], list[int]] = {}
    for mark, topic, written in given_letters:
        key = (mark, f"persistent://public/default/{topic}")
        grouping.add(letter_of(properties_of(key[1], None if mark == "-" else mark), written))
        naive[key] += 1
        times.setdefault(key, []).append(written)
    groups = grouping.result()
    assert {(each.fingerprint, each.real_topic): each.count for each in groups} == naive
    assert [each.count for each in groups] == sorted(naive.values(), reverse=True)
    for each in groups:
        seen = times[each.fingerprint, each.real_topic]
        assert (each.first_ms, each.last_ms) == (min(seen), max(seen))


def test_many_fingerprints_use_bounded_memory() -> None:
    grouping = Grouping(most=10)
    for number in range(1000):
        grouping.add(letter_of(properties_of(fingerprint=f"{number:012}")))
    groups = grouping.result()
    assert len(groups) == 11
    assert (groups[0].fingerprint, groups[0].count) == ("(others)", 990)


@given(
    st.sets(st.sampled_from("abc-")),
    st.sets(st.sampled_from(["x", "y"])),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(10, 20),
    st.sampled_from("abcd-"),
    st.sampled_from(["x", "y", ""]),
    st.integers(0, 20_000),
)
def test_a_selection_matches_letters_that_match_every_field(
    marks: set[str],
    topics: set[str],
    since: int | None,
    until: int | None,
    mark: str,
    topic: str,
    written_ms: int,
) -> None:
    selection = Selection(
        fingerprints=marks or None, real_topics=topics or None, since=since, until=until
    )
    letter = letter_of(properties_of(topic or None, None if mark == "-" else mark), written_ms)
    expected = (
        (not marks or mark in marks)
        and (not topics or topic in topics)
        and (since is None or written_ms >= since * 1000)
        and (until is None or written_ms < until * 1000)
    )
    assert selection.takes(letter) == expected
    assert selection.everything == (not marks and not topics and since is None and until is None)


def test_a_selection_accepts_datetimes_and_ids() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    at = round(noon.timestamp() * 1000)
    selection = Selection(since=noon)
    assert selection.takes(letter_of({}, at))
    assert not selection.takes(letter_of({}, at - 1))
    for one in ("1:4", "1:4:-1", MessageId(-1, 1, 4)):
        selection = Selection(ids=[one])
        assert selection.takes(letter_of({}, entry=4))
        assert not selection.takes(letter_of({}, entry=5))


@pytest.mark.parametrize(
    "wrong",
    [
        {"fingerprints": "abc"},
        {"fingerprints": [""]},
        {"fingerprints": []},
        {"real_topics": ()},
        {"ids": set()},
        {"real_topics": [7]},
        {"since": "yesterday"},
        {"since": float("inf")},
        {"since": 5, "until": 5},
        {"ids": ["five"]},
        {"ids": [5]},
        {"ids": "1:2"},
    ],
)
def test_an_invalid_selection_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(encore.ConfigurationError):
        Selection(**wrong)


def test_a_letter_with_raw_bytes_is_still_a_letter() -> None:
    letter = letter_of(None)
    assert (letter.real_topic, letter.fingerprint, letter.properties) == ("", "", {})
    with pytest.raises(encore.ConfigurationError, match="raw bytes"):
        letter.copy("r", keep_counters=False)


@given(st.text())
def test_printed_text_is_on_one_line_and_has_no_control_characters(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not set(shown) & set("\x1b\x9b\n\r\x7f\u202e\u2066\u200f\u2028")
    assert len(printable(text, 10)) <= 10


def test_escapes_are_shown() -> None:
    assert printable("a\x1b[31mred\n") == "a\\x1b[31mred\\x0a"
    assert printable("\u202egnp.exe") == "\\u202egnp.exe"
    assert printable("Grüße, 世界") == "Grüße, 世界"
    assert printable("x" * 50, 10) == "xxxxxxx..."
    assert printable("é" * 50, 10) == "ééééééé..."
