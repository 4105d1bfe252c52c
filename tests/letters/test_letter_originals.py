"""The fields of a message that can be copied, and the errors for those that cannot."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from original_kit import Row

from pulsar_encore import NotSupportedError, UnreadableError
from pulsar_encore.letters.letter_form import PLAIN, LetterForm, form_of
from pulsar_encore.letters.original_message import keys_of, reads_as_bytes
from pulsar_encore.values.outgoing_message import key_bytes


@given(st.binary(max_size=40))
def test_keys_of_bytes_are_told_by_their_padding(key: bytes) -> None:
    text = base64.b64encode(key).decode()
    assert reads_as_bytes(text) is bool(len(key) % 3)


@pytest.mark.parametrize(
    "key", ["", "=", "==", "k", "key=", "a=b=", "abc==", "order-17", "user", "a b=", "ab==\n", "é="]
)
def test_ordinary_keys_are_not_taken_for_bytes(key: str) -> None:
    assert not reads_as_bytes(key)


def test_keys_that_cannot_be_read_are_an_error_by_name() -> None:
    for unreadable in (Row(key=None), Row(ordering=None)):
        with pytest.raises(UnreadableError, match="raw bytes"):
            keys_of(unreadable, refuse_byte_keys=False)
    with pytest.raises(UnreadableError):
        form_of(Row(key=None, schema_version=1))


def test_keys_that_may_be_bytes_are_copied_only_where_they_are_known_to_be_text() -> None:
    row = Row(key="AAE=", ordering="o", tells_bytes=False)
    assert keys_of(row, refuse_byte_keys=False) == ("AAE=", "o")
    with pytest.raises(NotSupportedError, match="'AAE='"):
        keys_of(row, refuse_byte_keys=True)


@given(st.text() | st.binary(), st.binary())
def test_where_bytes_are_known_each_key_is_copied_as_what_it_was_sent_as(
    key: str | bytes, ordering: bytes
) -> None:
    copied, ordering_key = keys_of(Row(key=key, ordering=ordering), refuse_byte_keys=False)
    assert copied == (key or None)
    assert (b"" if ordering_key is None else key_bytes(ordering_key)) == ordering


def test_a_form_is_what_copies_are_written_with() -> None:
    row = Row(topic="persistent://a/b/c-partition-1", schema_version=4)
    assert form_of(replace(row, schema_version=-1)) == PLAIN
    assert form_of(row) == LetterForm("persistent://a/b/c", 4)
    assert form_of(replace(row, key="k")) == LetterForm("persistent://a/b/c", 4, keyed=True)
    encrypted = replace(row, schema_version=-1, encrypted_with=("b", "a"))
    assert form_of(encrypted) == LetterForm(secrets=("a", "b"))
    with pytest.raises(NotSupportedError, match="was not decrypted"):
        form_of(replace(encrypted, decrypted=False))
