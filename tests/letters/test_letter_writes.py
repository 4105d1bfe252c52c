"""Each kind of letter, written of a row that is no `Message`, and read again."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from original_kit import TOPIC, Row

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.letters.evidence import Evidence, evidence_of
from pulsar_encore.letters.letter_reader import LetterFacts
from pulsar_encore.letters.letter_writer import (
    LetterAuthor,
    dead_letter_by_nack,
    dead_letter_by_reconsume,
    letter_properties,
    overflowed_nack,
    replayed_copy,
    retry_letter,
)
from pulsar_encore.letters.reconsume_counts import (
    overflowed_attempts,
    reconsume_attempt,
    reconsume_times,
)
from pulsar_encore.values.outgoing_message import OutgoingMessage

RETRY = f"{TOPIC}-s-RETRY"
DEAD = f"{TOPIC}-s-DLQ"
AUTHOR = LetterAuthor(subscription="s", consumer_name="me", version="1.2.3")
FAILURE = Evidence("nack", "ValueError", "bad", "place", "aaaaaaaaaaaa")
LATER = Evidence("reconsume_later", "KeyError", "worse", fingerprint="bbbbbbbbbbbb")

ROW = Row(key="k", ordering="o", event_ms=7, attributes={"colour": "red"})
POINTERS = {
    letters.ORIGIN_MESSAGE_ID: "5:6:-1",
    letters.ORIGIN_MESSAGE_ID_LEGACY: "5:6:-1",
    letters.REAL_TOPIC: TOPIC,
    letters.REAL_SUBSCRIPTION: "s",
}
END = {letters.CONSUMER: "me", letters.VERSION: "1.2.3"}

texts = st.text(max_size=40)
names = st.text(string.ascii_letters + string.digits + "-_.", min_size=1, max_size=20)


def properties_of(letter: OutgoingMessage) -> dict[str, str]:
    assert letter.properties is not None
    return letter.properties


# Kind by kind


def test_a_retry_letter_has_the_fields_of_its_original_and_its_pointers() -> None:
    letter = retry_letter(
        ROW, AUTHOR, attempt=1, delay_ms=500, deliver_at=1_501, wall_now=1_000, custom={"own": "1"}
    )
    assert letter == OutgoingMessage(
        payload=b"payload",
        partition_key="k",
        ordering_key="o",
        event_timestamp=7,
        deliver_at=1_501,
        properties={
            "colour": "red",
            "own": "1",
            **POINTERS,
            letters.RECONSUME_TIMES: "1",
            letters.DELAY_TIME: "500",
            letters.FIRST_TIME: "1000",
        },
    )


def test_a_dead_letter_by_reconsume_is_delivered_at_once() -> None:
    letter = dead_letter_by_reconsume(
        ROW, AUTHOR, attempt=4, delay_ms=500, wall_now=1_000, evidence=LATER, custom={"own": "1"}
    )
    assert letter.deliver_at is None
    assert properties_of(letter) == {
        "colour": "red",
        "own": "1",
        **POINTERS,
        **END,
        **LATER.properties(),
        letters.RECONSUME_TIMES: "4",
        letters.DELAY_TIME: "500",
        letters.ATTEMPTS: "4",
        letters.FIRST_TIME: "1000",
        letters.LAST_TIME: "1000",
    }


def test_a_dead_letter_after_nacks_names_the_partition() -> None:
    row = Row(topic=f"{TOPIC}-partition-3", payload=None)
    letter = dead_letter_by_nack(
        row, AUTHOR, attempt=4, reason="nack", wall_now=2_000, evidence=FAILURE, first_failed=900
    )
    assert letter.payload is None
    assert properties_of(letter) == {
        **POINTERS,
        **END,
        **FAILURE.properties(),
        letters.REAL_TOPIC: f"{TOPIC}-partition-3",
        letters.ATTEMPTS: "4",
        letters.FIRST_TIME: "900",
        letters.LAST_TIME: "2000",
    }


def test_a_dead_letter_without_an_error_has_the_reason() -> None:
    letter = dead_letter_by_nack(ROW, AUTHOR, attempt=1, reason="ack timeout", wall_now=2_000)
    reason = evidence_of(None, "ack timeout").properties()
    found = properties_of(letter)
    assert {name: found[name] for name in letters.FAILURE & set(found)} == reason
    assert found[letters.FIRST_TIME] == "2000"


def test_a_parked_nack_has_no_reconsume_count() -> None:
    letter = overflowed_nack(
        ROW,
        AUTHOR,
        attempt=2,
        delay_ms=500,
        deliver_at=1_501,
        evidence=FAILURE,
        first_failed=900,
    )
    assert letter.deliver_at == 1_501
    assert properties_of(letter) == {
        "colour": "red",
        **POINTERS,
        **FAILURE.properties(),
        letters.PARKED_LOOKS: "2",
        letters.PARKED_TIMES: "0",
        letters.DELAY_TIME: "500",
        letters.FIRST_TIME: "900",
    }
    assert overflowed_attempts(properties_of(letter)) == 2


@pytest.mark.parametrize("keep_counters", [False, True])
def test_a_replayed_copy_has_the_counters_only_with_keep_counters(keep_counters: bool) -> None:
    dead = dead_letter_by_reconsume(
        ROW, AUTHOR, attempt=4, delay_ms=0, wall_now=1_000, evidence=FAILURE
    )
    copy = replayed_copy(ROW.read_back(dead, DEAD), replay_id="r", keep_counters=keep_counters)
    kept = properties_of(dead) if keep_counters else {"colour": "red", **POINTERS}
    assert properties_of(copy) == {**kept, letters.REPLAY_ID: "r", letters.REPLAYED_FROM: "90:0:0"}
    assert (copy.payload, copy.partition_key, copy.ordering_key) == (b"payload", "k", "o")
    assert (copy.event_timestamp, copy.deliver_at) == (7, None)


def test_absent_fields_of_the_original_are_none_in_the_letter() -> None:
    letter = dead_letter_by_nack(Row(), AUTHOR, attempt=1, reason="nack", wall_now=0)
    assert (letter.partition_key, letter.ordering_key, letter.event_timestamp) == (None, None, None)


@pytest.mark.parametrize("row", [Row(key=None), Row(attributes=None), Row(key="AAE=")])
def test_every_kind_of_letter_refuses_an_original_that_cannot_be_copied(row: Row) -> None:
    author = LetterAuthor(subscription="s", consumer_name="me", version="1", refuse_byte_keys=True)
    of_reconsume: Any = {"attempt": 1, "delay_ms": 0, "wall_now": 0}
    with pytest.raises(encore.NotSupportedError):
        retry_letter(row, author, deliver_at=None, **of_reconsume)
    with pytest.raises(encore.NotSupportedError):
        dead_letter_by_reconsume(row, author, **of_reconsume)
    with pytest.raises(encore.NotSupportedError):
        dead_letter_by_nack(row, author, attempt=1, reason="nack", wall_now=0)
    with pytest.raises(encore.NotSupportedError):
        overflowed_nack(row, author, attempt=1, delay_ms=0, deliver_at=0)
    with pytest.raises(encore.NotSupportedError):
        replayed_copy(row, replay_id="r", keep_counters=True, refuse_byte_keys=True)


def test_properties_that_the_caller_has_read_are_not_read_again() -> None:
    unreadable, found = Row(attributes=None), {letters.RECONSUME_TIMES: "1", "colour": "red"}
    assert reconsume_attempt(unreadable, "s", from_retry_topic=True, found=found) == 2
    of_reconsume: Any = {"attempt": 2, "delay_ms": 0, "wall_now": 0, "found": found}
    retry = retry_letter(unreadable, AUTHOR, deliver_at=None, **of_reconsume)
    dead = dead_letter_by_reconsume(unreadable, AUTHOR, **of_reconsume)
    for letter in (retry, dead):
        assert properties_of(letter)["colour"] == "red"
        assert properties_of(letter)[letters.RECONSUME_TIMES] == "2"
    assert found == {letters.RECONSUME_TIMES: "1", "colour": "red"}


# Properties that survive a second pass


def again(row: Row, wall_now: int, **given_: Any) -> OutgoingMessage:
    """Copy for another `reconsume_later`, counted from the row's own properties."""
    attempt = reconsume_attempt(row, "s")
    return retry_letter(
        row, AUTHOR, attempt=attempt, delay_ms=0, deliver_at=None, wall_now=wall_now, **given_
    )


def test_pointers_and_first_time_survive_retries_dead_letter_and_replay() -> None:
    first = again(ROW, 1_000, evidence=FAILURE, custom={"own": "1"})
    second = again(ROW.read_back(first, RETRY, 1), 2_000)
    assert {name: properties_of(second)[name] for name in POINTERS} == POINTERS
    assert properties_of(second)[letters.RECONSUME_TIMES] == "2"
    assert properties_of(second)[letters.FIRST_TIME] == "1000"
    # A retry without an error keeps the fingerprint of the previous one.
    assert properties_of(second)[letters.FINGERPRINT] == "aaaaaaaaaaaa"
    assert (properties_of(second)["colour"], properties_of(second)["own"]) == ("red", "1")

    third = ROW.read_back(second, RETRY, 2)
    dead = dead_letter_by_reconsume(
        third, AUTHOR, attempt=3, delay_ms=0, wall_now=3_000, evidence=LATER
    )
    assert {name: properties_of(dead)[name] for name in POINTERS} == POINTERS
    assert properties_of(dead)[letters.FIRST_TIME] == "1000"
    assert properties_of(dead)[letters.LAST_TIME] == "3000"
    # The stack is of the first failure; the properties of two failures are never mixed.
    assert letters.ERROR_STACK not in properties_of(dead)
    assert properties_of(dead)[letters.ERROR_MESSAGE] == "worse"

    copy = replayed_copy(ROW.read_back(dead, DEAD, 3), replay_id="r", keep_counters=False)
    replayed = ROW.read_back(copy, TOPIC, 4)
    assert reconsume_attempt(replayed, "s") == 1
    anew = again(replayed, 9_000)
    assert {name: properties_of(anew)[name] for name in POINTERS} == POINTERS
    assert properties_of(anew)[letters.FIRST_TIME] == "9000"
    assert properties_of(anew)[letters.REPLAYED_FROM] == "90:3:0"

    kept = replayed_copy(ROW.read_back(dead, DEAD, 3), replay_id="r", keep_counters=True)
    assert reconsume_attempt(ROW.read_back(kept, TOPIC, 4), "s") == 4


def test_a_parked_nack_keeps_the_reconsume_count_and_a_retry_drops_the_nack_count() -> None:
    first = again(ROW, 1_000)
    parked = overflowed_nack(
        ROW.read_back(first, RETRY, 1), AUTHOR, attempt=2, delay_ms=5, deliver_at=5, first_failed=2
    )
    assert reconsume_times(properties_of(parked)) == 1
    assert overflowed_attempts(properties_of(parked)) == 2
    # The first failure was before the first nack.
    assert properties_of(parked)[letters.FIRST_TIME] == "1000"
    after = again(ROW.read_back(parked, RETRY, 2), 3_000)
    assert reconsume_times(properties_of(after)) == 2
    assert not letters.PARKED & set(properties_of(after))
    dead = dead_letter_by_nack(
        ROW.read_back(parked, RETRY, 2), AUTHOR, attempt=4, reason="nack", wall_now=4_000
    )
    assert not letters.PARKED & set(properties_of(dead))
    assert (properties_of(dead)[letters.ATTEMPTS], properties_of(dead)[letters.FIRST_TIME]) == (
        "4",
        "1000",
    )


def test_counts_of_a_retry_topic_with_another_name_are_used_if_the_caller_names_it() -> None:
    first = again(ROW, 1_000)
    row = ROW.read_back(first, "persistent://a/b/again", 1)
    attempt = reconsume_attempt(row, "s", from_retry_topic=True)
    assert attempt == 2
    second = again(row, 2_000, from_retry_topic=True)
    assert properties_of(second)[letters.ORIGIN_MESSAGE_ID] == "5:6:-1"
    assert properties_of(again(row, 2_000))[letters.ORIGIN_MESSAGE_ID] == "90:1:0"


# Letters read back

rows = st.builds(
    Row,
    payload=st.none() | st.binary(max_size=20),
    key=names | st.just(""),
    ordering=names | st.just(""),
    event_ms=st.integers(0, 2**60),
    attributes=st.dictionaries(names, texts),
    id=st.builds(encore.MessageId, st.integers(-1, 9), st.integers(0, 2**62), st.integers(0, 9)),
    topic=st.sampled_from([TOPIC, f"{TOPIC}-partition-1"]),
)
failures = st.one_of(
    st.builds(lambda text: evidence_of(ValueError(text), "nack"), texts),
    st.builds(evidence_of, texts, st.just("reconsume_later")),
)
moments = st.integers(0, 2**60)


def content(row: Row | OutgoingMessage) -> tuple[Any, ...]:
    if isinstance(row, Row):
        return row.payload, row.key, row.ordering, row.event_ms
    key, ordering = row.partition_key or "", row.ordering_key or ""
    return row.payload, key, ordering, row.event_timestamp or 0


@given(rows, failures, st.integers(1, 99), moments, st.booleans())
def test_letter_facts_read_a_dead_letter_and_its_replay_as_they_were_written(
    row: Row, evidence: Evidence, attempt: int, now: int, by_nack: bool
) -> None:
    if by_nack:
        letter = dead_letter_by_nack(
            row, AUTHOR, attempt=attempt, reason="nack", wall_now=now, evidence=evidence
        )
    else:
        letter = dead_letter_by_reconsume(
            row, AUTHOR, attempt=attempt, delay_ms=3, wall_now=now, evidence=evidence
        )
    found = LetterFacts(row.read_back(letter, DEAD))
    assert content(letter) == content(row)
    assert found.user_properties() == row.attributes
    assert found.real_topic == TOPIC
    assert found.marked
    assert not found.replay_id
    assert (found.fingerprint, found.error_class) == (evidence.fingerprint, evidence.error_class)
    assert found.error_message == (evidence.error_message or evidence.reason)
    properties = found.evidence()
    assert properties.items() >= {**END, **evidence.properties()}.items()
    assert (properties[letters.ATTEMPTS], properties[letters.LAST_TIME]) == (str(attempt), str(now))

    copy = replayed_copy(found.message, replay_id="r", keep_counters=False)
    replayed = LetterFacts(row.read_back(copy, TOPIC))
    assert content(copy) == content(row)
    assert replayed.user_properties() == row.attributes
    assert replayed.replay_id == "r"
    assert replayed.evidence()[letters.REPLAYED_FROM] == found.id
    assert replayed.evidence()[letters.ORIGIN_MESSAGE_ID] == properties[letters.ORIGIN_MESSAGE_ID]


@given(rows, st.lists(st.tuples(failures, moments), min_size=1, max_size=5))
def test_count_origin_and_first_time_survive_any_number_of_retries(
    row: Row, passes: list[tuple[Evidence, int]]
) -> None:
    here, pointers = row, None
    for number, (evidence, now) in enumerate(passes, 1):
        assert reconsume_attempt(here, "s") == number
        letter = again(here, now, evidence=evidence)
        given_ = {name: properties_of(letter)[name] for name in (*POINTERS, letters.FIRST_TIME)}
        assert pointers is None or given_ == pointers
        pointers = given_
        assert reconsume_times(properties_of(letter)) == number
        failure = {
            name: properties_of(letter)[name]
            for name in letters.FAILURE & set(properties_of(letter))
        }
        assert failure == evidence.properties()
        here = row.read_back(letter, RETRY, number)
    assert pointers is not None
    assert pointers[letters.FIRST_TIME] == str(passes[0][1])
    assert content(here) == content(row)


# Properties


@given(st.dictionaries(texts, texts), names, names)
def test_a_second_retry_changes_no_origin_property(
    original: dict[str, str], subscription: str, other: str
) -> None:
    first = letter_properties(
        original,
        encore.MessageId(-1, 5, 6, -1),
        real_topic="persistent://a/b/c",
        subscription=subscription,
        letter=False,
    )
    second = letter_properties(
        first,
        encore.MessageId(0, 7, 8, 9, batch_size=10),
        real_topic="persistent://a/b/d",
        subscription=other,
        letter=True,
    )
    assert second == first
    own = {name: text for name, text in original.items() if name not in letters.RESERVED}
    assert {name: first[name] for name in own} == own
    assert set(first) - set(original) <= {
        letters.REAL_TOPIC,
        letters.REAL_SUBSCRIPTION,
        letters.ORIGIN_MESSAGE_ID,
        letters.ORIGIN_MESSAGE_ID_LEGACY,
    }


@given(st.dictionaries(st.sampled_from(sorted(letters.RESERVED)), texts))
def test_letter_properties_of_a_publisher_are_removed_except_the_replay_ids(
    given: dict[str, str],
) -> None:
    given_ = letter_properties(
        {**given, "colour": "red"},
        encore.MessageId(-1, 5, 6, -1),
        real_topic="persistent://a/b/c",
        subscription="s",
        letter=False,
    )
    kept = {letters.REPLAY_ID, letters.REPLAYED_FROM} & set(given)
    assert given_ == {name: given[name] for name in kept} | {
        "colour": "red",
        letters.REAL_TOPIC: "persistent://a/b/c",
        letters.REAL_SUBSCRIPTION: "s",
        letters.ORIGIN_MESSAGE_ID: "5:6:-1",
        letters.ORIGIN_MESSAGE_ID_LEGACY: "5:6:-1",
    }
