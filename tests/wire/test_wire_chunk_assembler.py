"""Chunks: joined messages, discarded chunks and their fate, and no forgotten chunk."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.wire import pb
from pulsar_encore.wire.chunk_assembler import (
    KEPT,
    Chunk,
    ChunkAssembler,
    ChunkFate,
    JoinedMessage,
    Place,
    is_chunk,
)

EXPIRE_MS = 60_000


class Topic:
    """Chunks in one ledger, and the assembler that receives them."""

    def __init__(self, **limits: object) -> None:
        self.assembler = ChunkAssembler(**limits)  # type: ignore[arg-type]
        self.now_ms = 0
        self._entries = itertools.count()

    def chunk(self, uuid: str, index: int, count: int = 3, **fields: object) -> Chunk:
        """Return the chunk ``<uuid><index>`` in a new entry."""
        payload = f"{uuid}{index}".encode()
        values: dict[str, object] = {
            "uuid": uuid,
            "index": index,
            "count": count,
            "total": count * len(payload),
            "place": (7, next(self._entries)),
            "payload": payload,
        }
        return Chunk(**{**values, **fields})  # type: ignore[arg-type]

    def add(
        self, chunk: Chunk
    ) -> tuple[JoinedMessage | None, int, list[tuple[tuple[int, ...], ChunkFate]]]:
        """Return the joined message, the permits, and the discarded chunks by entry numbers."""
        found = self.assembler.add(chunk, now_ms=self.now_ms)
        let_go = [(tuple(entry for _, entry in one.places), one.fate) for one in found.discarded]
        assert all(one.uuid and one.reason for one in found.discarded)
        return found.joined, found.permits, let_go


def test_a_message_is_joined_when_its_last_chunk_arrives() -> None:
    topic = Topic()
    for index in (0, 1):
        chunk = topic.chunk("a", index)
        assert topic.assembler.add(chunk, now_ms=0) == KEPT
    assert topic.assembler.held > 0
    joined, credit, let_go = topic.add(topic.chunk("a", 2))
    assert joined == JoinedMessage(b"a0a1a2", ((7, 0), (7, 1), (7, 2)))
    assert (credit, let_go) == (0, [])
    assert (len(topic.assembler), topic.assembler.held) == (0, 0)


@pytest.mark.parametrize("sealed", [(0, 1, 2), (0,), (2,)])
def test_chunks_that_stay_encrypted_can_exceed_the_announced_size(sealed: tuple[int, ...]) -> None:
    topic = Topic()
    chunks = [topic.chunk("a", index, encrypted=index in sealed, total=5) for index in range(3)]
    for chunk in chunks[:2]:
        assert topic.add(chunk) == (None, 1, [])
    joined, credit, let_go = topic.add(chunks[2])
    assert joined == JoinedMessage(b"a0a1a2", ((7, 0), (7, 1), (7, 2)), encrypted=True)
    assert (credit, let_go) == (0, [])


def test_chunks_of_several_messages_can_be_interleaved() -> None:
    topic = Topic()
    order = [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    joined = [topic.add(topic.chunk(*each))[0] for each in order]
    assert [one.payload for one in joined if one] == [b"a0a1a2", b"b0b1b2"]


def test_the_same_entry_again_is_a_redelivery_and_changes_nothing() -> None:
    topic = Topic()
    first, second = topic.chunk("a", 0), topic.chunk("a", 1)
    for chunk in (first, second, first, second):
        assert topic.add(chunk) == (None, 1, [])
    joined, _, _ = topic.add(topic.chunk("a", 2))
    assert joined is not None and joined.payload == b"a0a1a2"


def test_another_entry_of_the_same_chunk_is_acked_as_a_ghost() -> None:
    topic = Topic()
    topic.add(topic.chunk("a", 0))
    topic.add(topic.chunk("a", 1))
    assert topic.add(topic.chunk("a", 1)) == (None, 1, [((2,), ChunkFate.ACK)])
    joined, _, _ = topic.add(topic.chunk("a", 2))
    assert joined == JoinedMessage(b"a0a1a2", ((7, 0), (7, 1), (7, 3)))


def test_a_message_that_starts_again_replaces_its_earlier_chunks() -> None:
    topic = Topic()
    topic.add(topic.chunk("a", 0))
    topic.add(topic.chunk("a", 1))
    assert topic.add(topic.chunk("a", 0)) == (None, 1, [((0, 1), ChunkFate.ACK)])
    topic.add(topic.chunk("a", 1))
    joined, _, _ = topic.add(topic.chunk("a", 2))
    assert joined == JoinedMessage(b"a0a1a2", ((7, 2), (7, 3), (7, 4)))


def test_with_a_missing_chunk_the_other_chunks_are_requested_again_together() -> None:
    topic = Topic()
    topic.add(topic.chunk("a", 0))
    assert topic.add(topic.chunk("a", 2)) == (None, 1, [((0, 1), ChunkFate.REDELIVER)])
    assert len(topic.assembler) == 0


def test_chunks_with_a_gap_are_acked_only_after_other_consumers_had_time_to_return_the_rest() -> (
    None
):
    topic = Topic()
    first, last = (topic.chunk("a", index) for index in (0, 2))
    fates = []
    for now_ms in (5_000, 6_000, 5_000 + 3 * EXPIRE_MS, 5_001 + 3 * EXPIRE_MS):
        topic.now_ms = now_ms
        topic.add(first)
        fates += topic.add(last)[2]
    assert fates == [((0, 1), ChunkFate.REDELIVER)] * 3 + [((0, 1), ChunkFate.ACK)]


@pytest.mark.parametrize("ack_oldest", [False, True])
def test_one_message_over_the_limit_discards_the_longest_waiting_message(ack_oldest: bool) -> None:
    topic = Topic(max_messages=2, ack_oldest=ack_oldest)
    for uuid, index in (("a", 0), ("b", 0), ("a", 1)):
        topic.add(topic.chunk(uuid, index))
    fate = ChunkFate.ACK if ack_oldest else ChunkFate.REDELIVER
    assert topic.add(topic.chunk("c", 0)) == (None, 1, [((1,), fate)])
    assert len(topic.assembler) == 2


def test_the_rest_of_a_discarded_message_is_requested_again_although_it_is_old() -> None:
    topic = Topic(max_messages=1)
    first, rest = (topic.chunk("a", index) for index in (0, 1))
    topic.add(first)
    assert topic.add(topic.chunk("b", 0))[2] == [((0,), ChunkFate.REDELIVER)]
    for _ in range(3):
        assert topic.add(rest)[2] == [((1,), ChunkFate.REDELIVER)]
        topic.now_ms += 4 * EXPIRE_MS


def test_without_a_limit_all_messages_are_kept() -> None:
    topic = Topic(max_messages=0)
    for number in range(50):
        assert topic.add(topic.chunk(f"m{number}", 0))[2] == []
    assert len(topic.assembler) == 50


def test_the_bytes_are_bounded() -> None:
    topic = Topic(max_messages=0, max_bytes=2000)
    for number in range(10):
        topic.add(topic.chunk(f"m{number}", 0, count=2, total=0, payload=bytes(500)))
        assert topic.assembler.held <= 2000
    assert len(topic.assembler) == 2


@pytest.mark.parametrize("total", [0, 2500])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [2, 0, 1, 3, 4], [0, 1, 4, 3, 2]])
def test_every_chunk_of_a_message_above_the_limit_is_refused(total: int, order: list[int]) -> None:
    """Such chunks were once requested again and returned for ever, three times a second."""
    topic = Topic(max_bytes=1200)
    chunks = [topic.chunk("a", i, 5, total=total, payload=bytes(500)) for i in range(5)]
    let_go = [one for at in order for one in topic.add(chunks[at])[2]]
    let_go += [one for chunk in chunks for one in topic.add(chunk)[2]]  # chunks to request again
    refused = [entry for places, fate in let_go for entry in places if fate is ChunkFate.REFUSE]
    assert set(refused) == {0, 1, 2, 3, 4}
    assert not topic.assembler.held


def test_a_chunk_with_a_too_large_total_size_also_discards_the_kept_chunks() -> None:
    topic = Topic(max_bytes=1200)
    assert topic.add(topic.chunk("a", 0, total=900, payload=bytes(300))) == (None, 1, [])
    found = topic.add(topic.chunk("a", 1, total=1500, payload=bytes(300)))
    assert found == (None, 1, [((0, 1), ChunkFate.REFUSE)])


def test_only_the_first_refusal_of_a_message_is_marked_as_first() -> None:
    topic = Topic(max_bytes=1200)
    chunks = [topic.chunk("a", i, total=1500, payload=bytes(500)) for i in range(3)]
    let_go = [one for each in chunks for one in topic.assembler.add(each, now_ms=0).discarded]
    assert [one.is_first for one in let_go] == [True, False, False]
    assert "1500 bytes" in let_go[0].reason and "max_uncompressed_size" in let_go[0].reason


def test_tiny_chunks_are_bounded_too() -> None:
    topic = Topic(max_bytes=30_000)
    let_go = [
        one
        for index in range(200)
        for one in topic.add(topic.chunk("a", index, 10**6, total=0, payload=b""))[2]
    ]
    assert let_go[0][1] is ChunkFate.REFUSE and topic.assembler.held <= 30_000


@pytest.mark.parametrize(
    ("chunks", "entries"),
    [
        ([{"index": 3}], (0,)),
        ([{"index": -1}], (0,)),
        ([{"index": 0, "count": 0}], (0,)),
        ([{"index": 0, "total": -1}], (0,)),
        ([{"index": 0}, {"index": 1, "count": 4}], (0, 1)),
        ([{"index": 0}, {"index": 1, "total": 7}], (0, 1)),
        ([{"index": 0, "total": 3}, {"index": 1, "total": 3}], (0, 1)),
        ([{"index": i, "total": 9} for i in range(3)], (0, 1, 2)),
    ],
)
def test_inconsistent_chunks_are_acked(
    chunks: list[dict[str, int]], entries: tuple[int, ...]
) -> None:
    topic = Topic()
    let_go = [one for fields in chunks for one in topic.add(topic.chunk("a", **fields))[2]]
    assert let_go == [(entries, ChunkFate.ACK)]
    assert topic.assembler.held == 0


def test_the_wait_for_a_chunk_ends_and_another_consumer_may_get_the_rest() -> None:
    topic = Topic(expire_ms=1000)
    assembler = topic.assembler
    assert assembler.next_expiry() is None
    first = topic.chunk("a", 0)
    topic.add(first)
    topic.now_ms = 500
    topic.add(topic.chunk("b", 0))
    assert assembler.next_expiry() == 1000
    assert assembler.expire(999) == []
    (expired,) = assembler.expire(1000)
    assert (expired.uuid, expired.places, expired.fate) == ("a", ((7, 0),), ChunkFate.REDELIVER)
    assert assembler.next_expiry() == 1500
    topic.now_ms = 2000
    topic.add(first)
    assert [(one.uuid, one.fate) for one in assembler.expire(3000)] == [
        ("b", ChunkFate.REDELIVER),
        ("a", ChunkFate.ACK),
    ]


def test_a_joined_message_has_the_lowest_redelivery_count_of_its_chunks() -> None:
    topic = Topic()
    for index, count in enumerate((1, 1, 5)):
        joined, _, _ = topic.add(topic.chunk("a", index, redelivery_count=count))
    assert joined is not None
    assert joined.redelivery_count == 1


def test_a_new_chunk_and_time_without_permits_extend_the_wait() -> None:
    topic = Topic(expire_ms=1000)
    topic.add(topic.chunk("a", 0))
    topic.now_ms = 900
    topic.add(topic.chunk("a", 1))
    assert topic.assembler.next_expiry() == 1900
    topic.assembler.postpone(5000)
    assert topic.assembler.expire(5999) == []
    assert len(topic.assembler.expire(6000)) == 1


def test_a_lost_connection_drops_all_held_chunks() -> None:
    topic = Topic()
    topic.add(topic.chunk("a", 0))
    topic.add(topic.chunk("b", 0))
    assert topic.assembler.clear() == [(7, 0), (7, 1)]
    assert (len(topic.assembler), topic.assembler.held) == (0, 0)


@given(data=st.data())
def test_every_entry_has_one_fate(data: st.DataObject) -> None:
    """In any order and with redeliveries, each chunk is joined, requested again, acked, or still
    held.
    """
    limits = {"max_messages": data.draw(st.integers(0, 3)), "max_bytes": 4000}
    topic = Topic(**limits, ack_oldest=data.draw(st.booleans()))
    log = [
        topic.chunk(uuid, index)
        for uuid in "abcd"
        for index in data.draw(st.lists(st.integers(0, 2), max_size=5))
    ]
    shown: Counter[Place] = Counter()
    held: set[Place] = set()
    for chunk in data.draw(st.lists(st.sampled_from(log), max_size=30)) if log else []:
        found = topic.assembler.add(chunk, now_ms=0)
        shown[chunk.place] += 1
        held.add(chunk.place)
        assert found.permits == (0 if found.joined else 1)
        for places in [
            *([found.joined.places] if found.joined else []),
            *(one.places for one in found.discarded),
        ]:
            assert held.issuperset(places) and len(set(places)) == len(places)
            held.difference_update(places)
        if found.joined:
            by_place = {one.place: one for one in log}
            parts = [by_place[place] for place in found.joined.places]
            assert [part.index for part in parts] == [0, 1, 2]
            assert len({part.uuid for part in parts}) == 1
            assert found.joined.payload == b"".join(bytes(part.payload) for part in parts)
        assert topic.assembler.held <= 4000
        assert not limits["max_messages"] or len(topic.assembler) <= limits["max_messages"]
    assert sorted(held) == sorted(topic.assembler.clear())


def naively(chunks: list[Chunk]) -> list[tuple[tuple[Place, ...], str]]:
    """Return the fate of chunks by a simple model: one list of all kept chunks, without limits."""
    kept: list[Chunk] = []
    ends: list[tuple[tuple[Place, ...], str]] = []

    def end(which: list[Chunk], how: str) -> None:
        ends.append((tuple(one.place for one in which), how))
        kept[:] = [one for one in kept if one not in which]

    for chunk in chunks:
        same = [one for one in kept if one.uuid == chunk.uuid]
        if chunk in same:
            continue
        if same and chunk.index == 0:
            end(same, "ack")
        elif chunk.index < len(same):
            end([chunk], "ack")
            continue
        elif chunk.index > len(same):
            end([*same, chunk], "redeliver")
            continue
        kept.append(chunk)
        if chunk.index == chunk.count - 1:
            end([one for one in kept if one.uuid == chunk.uuid], "joined")
    return ends


@given(data=st.data())
def test_the_rules_equal_those_of_a_simple_model(data: st.DataObject) -> None:
    topic = Topic(max_messages=0)
    log = [
        topic.chunk(uuid, index, 3)
        for uuid, index in data.draw(
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), min_size=1, max_size=9)
        )
    ]
    shown = data.draw(st.lists(st.sampled_from(log), max_size=30) | st.just(log + log))
    ends: list[tuple[tuple[Place, ...], str]] = []
    for chunk in shown:
        found = topic.assembler.add(chunk, now_ms=0)
        ends += [(one.places, one.fate.value) for one in found.discarded]
        ends += [(found.joined.places, "joined")] if found.joined else []
    assert ends == naively(shown)


@given(
    messages=st.lists(st.tuples(st.binary(max_size=50), st.integers(1, 20)), max_size=6),
    data=st.data(),
)
def test_a_message_cut_into_chunks_is_joined_however_they_are_interleaved(
    messages: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    topic = Topic(max_messages=0)
    waiting = []
    for number, (payload, most) in enumerate(messages):
        parts = [payload[at : at + most] for at in range(0, max(len(payload), 1), most)]
        fields = {"count": len(parts), "total": len(payload)}
        waiting.append(
            [topic.chunk(f"m{number}", i, payload=p, **fields) for i, p in enumerate(parts)]
        )
    whole = []
    while waiting := [each for each in waiting if each]:
        chunk = data.draw(st.sampled_from(waiting)).pop(0)
        joined, _, let_go = topic.add(chunk)
        assert let_go == []
        whole += [joined.payload] if joined else []
    assert sorted(whole) == sorted(payload for payload, _ in messages)


@pytest.mark.parametrize(
    ("name", "value"), [("max_messages", -1), ("max_bytes", 0), ("expire_ms", 0)]
)
def test_limits_out_of_range_are_errors_that_name_them(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=name):
        Topic(**{name: value})


def test_a_single_chunk_is_an_ordinary_message() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    assert not is_chunk(metadata)
    metadata.num_chunks_from_msg = 1
    assert not is_chunk(metadata)
    metadata.num_chunks_from_msg = 2
    assert is_chunk(metadata)
