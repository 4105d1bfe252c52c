"""The pure rules: counting, names, id text, and evidence that groups like failures."""

from __future__ import annotations

import base64
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_encore as encore
from pulsar_encore import letters, topic_names
from pulsar_encore.letters.counting import is_letter, parked_attempts, reconsume_times
from pulsar_encore.letters.evidence import evidence_of
from pulsar_encore.letters.id_text import id_text
from pulsar_encore.letters.original import reads_as_bytes
from pulsar_encore.letters.writing import letter_properties

texts = st.text(max_size=40)
names = st.text(string.ascii_letters + string.digits + "-_.", min_size=1, max_size=20)


# Counting


@given(st.integers(0, 999_999_999))
def test_counts_are_read_back(count: int) -> None:
    assert reconsume_times({letters.RECONSUME_TIMES: str(count)}) == count
    assert parked_attempts({letters.PARKED_LOOKS: str(count)}) == count


@given(st.dictionaries(texts, texts), st.one_of(texts, st.integers().map(str)))
def test_a_count_is_never_negative_and_never_raises(given_: dict[str, str], text: str) -> None:
    count = reconsume_times({**given_, letters.RECONSUME_TIMES: text})
    assert 0 <= count < 10**9
    assert parked_attempts(given_) == 0 or letters.PARKED_LOOKS in given_


# Properties


@given(st.dictionaries(texts, texts), names, names)
def test_first_values_stay_through_every_retry(
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
def test_what_a_publisher_says_of_letters_is_not_believed(said: dict[str, str]) -> None:
    given_ = letter_properties(
        {**said, "colour": "red"},
        encore.MessageId(-1, 5, 6, -1),
        real_topic="persistent://a/b/c",
        subscription="s",
        letter=False,
    )
    kept = {letters.REPLAY_ID, letters.REPLAYED_FROM} & set(said)
    assert given_ == {name: said[name] for name in kept} | {
        "colour": "red",
        letters.REAL_TOPIC: "persistent://a/b/c",
        letters.REAL_SUBSCRIPTION: "s",
        letters.ORIGIN_MESSAGE_ID: "5:6:-1",
        letters.ORIGIN_MESSAGE_ID_LEGACY: "5:6:-1",
    }


@pytest.mark.parametrize(
    ("topic", "changed", "expected"),
    [
        ("persistent://a/b/c", {}, True),
        ("persistent://a/b/c-partition-2", {}, True),
        ("persistent://a/b/other", {}, False),  # copied along by a pipeline
        ("persistent://a/b/c", {letters.REAL_SUBSCRIPTION: "other"}, False),
        ("persistent://a/b/c", {letters.REPLAY_ID: None}, False),
        ("persistent://a/b/c", {letters.REAL_TOPIC: None}, False),
        ("persistent://a/b/c-s-RETRY", {letters.REPLAY_ID: None}, True),
        ("persistent://a/b/c-s-RETRY-partition-1", {letters.REPLAY_ID: None}, True),
        ("persistent://a/b/c-other-RETRY", {letters.REPLAY_ID: None}, False),
    ],
)
def test_whose_letter_it_is(topic: str, changed: dict[str, str | None], expected: bool) -> None:
    said = {
        letters.REPLAY_ID: "r",
        letters.REAL_TOPIC: "persistent://a/b/c-partition-1",
        letters.REAL_SUBSCRIPTION: "s",
        **changed,
    }
    properties = {name: value for name, value in said.items() if value is not None}
    assert is_letter(properties, topic, "s") is expected


@pytest.mark.parametrize(
    ("times", "again", "counted"),
    [
        (None, None, 2),
        (None, "1", 0),  # a Java consumer reconsumed it, and copied what was not its own
        ("1", "1", 2),
        ("1", "2", 0),
    ],
)
def test_parked_looks_are_of_the_parked_letter_alone(
    times: str | None, again: str | None, counted: int
) -> None:
    properties = {letters.PARKED_LOOKS: "2", letters.PARKED_TIMES: times or "0"}
    if again is not None:
        properties[letters.RECONSUME_TIMES] = again
    assert parked_attempts(properties) == counted


@given(st.binary(max_size=40))
def test_keys_of_bytes_are_told_by_their_padding(key: bytes) -> None:
    text = base64.b64encode(key).decode()
    assert reads_as_bytes(text) is bool(len(key) % 3)


@pytest.mark.parametrize(
    "key", ["", "=", "==", "k", "key=", "a=b=", "abc==", "order-17", "user", "a b=", "ab==\n", "é="]
)
def test_ordinary_keys_are_not_taken_for_bytes(key: str) -> None:
    assert not reads_as_bytes(key)


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        (encore.MessageId(-1, 6, 0), "6:0:-1"),
        (encore.MessageId(0, 37, 0), "37:0:0"),
        (encore.MessageId(-1, 6, 1, 2, batch_size=3), "6:1:-1:2"),
        (encore.MessageId(-1, 6, 1, 0, batch_size=1), "6:1:-1"),  # a batch of one is none
        (encore.MessageId(-1, 6, 9, first_chunk=encore.MessageId(-1, 6, 5)), "6:5:-1;6:9:-1"),
    ],
)
def test_ids_as_java_writes_them(message_id: encore.MessageId, text: str) -> None:
    assert id_text(message_id) == text


def test_no_name_means_two_things() -> None:
    values = [
        value for name, value in vars(letters).items() if name.isupper() and isinstance(value, str)
    ]
    assert len(values) == len(set(values))
    assert set(values) == letters.RESERVED
    assert letters.COUNTERS <= letters.RESERVED
    assert letters.EVIDENCE <= letters.RESERVED


# Names


@pytest.mark.parametrize(
    ("given_", "base"),
    [
        (["t"], "persistent://public/default/t"),
        (["ten/ns/t"], "persistent://ten/ns/t"),
        (["b", "a"], "persistent://public/default/a"),
        # First by the strings as given: "persistent://..." comes before "zebra".
        (["zebra", "persistent://x/y/zz"], "persistent://x/y/zz"),
        (["t-partition-3"], "persistent://public/default/t"),
        (["t-partition-x"], "persistent://public/default/t-partition-x"),
        (["non-persistent://public/default/t"], "non-persistent://public/default/t"),
    ],
)
def test_names_after_the_first_topic(given_: list[str], base: str) -> None:
    assert topic_names.retry_topic_of(given_, "s") == f"{base}-s-RETRY"
    assert topic_names.dead_topic_of(given_, "s") == f"{base}-s-DLQ"


@given(st.lists(names, min_size=1, max_size=5), names)
def test_names_do_not_depend_on_the_order_of_topics(given_: list[str], subscription: str) -> None:
    assert topic_names.retry_topic_of(given_, subscription) == topic_names.retry_topic_of(
        reversed(given_), subscription
    )


@given(names, st.integers(0, 10_000))
def test_a_partition_is_taken_off_once(name: str, partition: int) -> None:
    assert topic_names.base_name(f"{name}-partition-{partition}") == name


# Evidence


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


@given(st.integers(), st.integers(0), st.text("abcdef", min_size=1), st.text("xyz \n"))
def test_like_failures_have_one_fingerprint(number: int, address: int, one: str, two: str) -> None:
    """Numbers, addresses and quoted values differ from one failure to the next of a kind."""

    def failure(number: int, address: int, value: str) -> str:
        text = f"order {number} at 0x{address:x}: bad value '{value}'"
        return evidence_of(raised(ValueError(text)), "nack").fingerprint

    assert failure(abs(number), address, one) == failure(7, 0xDEADBEEF, two)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8))
def test_unlike_failures_have_not(words: list[str]) -> None:
    text = " ".join(words)
    prints = {
        evidence_of(raised(ValueError(text)), "nack").fingerprint,
        evidence_of(raised(KeyError(text)), "nack").fingerprint,
        evidence_of(raised(ValueError(f"{text} also")), "nack").fingerprint,
        evidence_of(elsewhere(text), "nack").fingerprint,
        evidence_of(text, "nack").fingerprint,
        evidence_of(None, "nack").fingerprint,
        evidence_of(None, "ack timeout").fingerprint,
    }
    assert len(prints) == 7


def elsewhere(text: str) -> BaseException:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


@given(st.text(st.characters(), max_size=5000))
def test_evidence_fits_into_properties_whatever_it_says(text: str) -> None:
    """Lone surrogates, controls and 5,000 characters: it can be written as UTF-8, and is small."""
    for error in (ValueError(text), text):
        properties = evidence_of(error, "nack").properties()
        assert set(properties) <= letters.EVIDENCE
        assert all(value.encode() for value in properties.values())
        assert len(properties.get(letters.ERROR_MESSAGE, "")) <= 1000


def test_evidence_of_a_deep_failure_is_capped() -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise RuntimeError("x" * 100_000)

    with pytest.raises(RuntimeError) as caught:
        deep(100)
    properties = evidence_of(caught.value, "nack").properties()
    assert len(properties[letters.ERROR_STACK].splitlines()) == 12
    assert "/" not in properties[letters.ERROR_STACK]
    assert sum(map(len, properties.values())) < 6_000


def test_evidence_of_an_error_that_cannot_be_printed() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    found = evidence_of(Broken(), "nack")
    assert found.error_class.endswith("Broken")
    assert found.error_message


def test_evidence_names_class_place_and_text() -> None:
    found = evidence_of(raised(encore.ClosedError("gone")), "reconsume_later")
    assert found.error_class == "pulsar_encore.errors.ClosedError"
    assert found.error_message == "gone"
    assert found.error_stack.startswith("test_letter_rules.py:")
    assert found.reason == "reconsume_later"
    assert evidence_of(ValueError("x"), "nack").error_class == "ValueError"
