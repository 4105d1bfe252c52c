"""Evidence groups like failures, and fits into properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.letters.evidence import evidence_of


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


@given(st.integers(), st.integers(0), st.text("abcdef", min_size=1), st.text("xyz \n"))
def test_errors_that_differ_in_numbers_and_quoted_values_have_one_fingerprint(
    number: int, address: int, one: str, two: str
) -> None:
    """Numbers, addresses and quoted values differ from one failure to the next of a kind."""

    def failure(number: int, address: int, value: str) -> str:
        text = f"order {number} at 0x{address:x}: bad value '{value}'"
        return evidence_of(raised(ValueError(text)), "nack").fingerprint

    assert failure(abs(number), address, one) == failure(7, 0xDEADBEEF, two)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8))
def test_errors_of_other_class_text_place_or_reason_have_other_fingerprints(
    words: list[str],
) -> None:
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
def test_evidence_of_any_text_is_valid_and_short_in_properties(text: str) -> None:
    """Lone surrogates, controls and 5,000 characters: it can be written as UTF-8, and is small."""
    for error in (ValueError(text), text):
        properties = evidence_of(error, "nack").properties()
        assert set(properties) <= letters.EVIDENCE
        assert all(value.encode() for value in properties.values())
        assert len(properties.get(letters.ERROR_MESSAGE, "")) <= 1000


def test_evidence_of_a_deep_stack_and_a_long_message_is_shortened() -> None:
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


def test_an_error_whose_text_raises_still_gives_evidence() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    found = evidence_of(Broken(), "nack")
    assert found.error_class.endswith("Broken")
    assert found.error_message


def test_evidence_has_the_class_the_place_and_the_text_of_an_error() -> None:
    found = evidence_of(raised(encore.ClosedError("gone")), "reconsume_later")
    assert found.error_class == "pulsar_encore.errors.ClosedError"
    assert found.error_message == "gone"
    assert found.error_stack.startswith("test_letter_evidence.py:")
    assert found.reason == "reconsume_later"
    assert evidence_of(ValueError("x"), "nack").error_class == "ValueError"
