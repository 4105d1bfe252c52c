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
def test_a_bytes_key_is_recognized_by_its_base64_padding(key: bytes) -> None:
    text = base64.b64encode(key).decode()
    assert reads_as_bytes(text) is bool(len(key) % 3)


@pytest.mark.parametrize(
    "key", ["", "=", "==", "k", "key=", "a=b=", "abc==", "order-17", "user", "a b=", "ab==\n", "é="]
)
def test_a_text_key_without_valid_base64_padding_does_not_read_as_bytes(key: str) -> None:
    assert not reads_as_bytes(key)


def test_copying_an_unreadable_key_raises_unreadable_error() -> None:
    for unreadable in (Row(key=None), Row(ordering=None)):
        with pytest.raises(UnreadableError, match="raw bytes"):
            keys_of(unreadable, refuse_byte_keys=False)
    with pytest.raises(UnreadableError):
        form_of(Row(key=None, schema_version=1))


def test_a_key_that_may_be_bytes_is_refused_unless_keys_are_known_to_be_text() -> None:
    row = Row(key="AAE=", ordering="o", tells_bytes=False)
    assert keys_of(row, refuse_byte_keys=False) == ("AAE=", "o")
    with pytest.raises(NotSupportedError, match="'AAE='"):
        keys_of(row, refuse_byte_keys=True)


@given(st.text() | st.binary(), st.binary())
def test_with_bytes_keys_known_each_key_is_copied_in_its_original_form(
    key: str | bytes, ordering: bytes
) -> None:
    copied, ordering_key = keys_of(Row(key=key, ordering=ordering), refuse_byte_keys=False)
    assert copied == (key or None)
    assert (b"" if ordering_key is None else key_bytes(ordering_key)) == ordering


def test_the_letter_form_has_the_topic_schema_version_and_encryption_keys() -> None:
    row = Row(topic="persistent://a/b/c-partition-1", schema_version=4)
    assert form_of(replace(row, schema_version=-1)) == PLAIN
    assert form_of(row) == LetterForm("persistent://a/b/c", 4)
    assert form_of(replace(row, key="k")) == LetterForm("persistent://a/b/c", 4, keyed=True)
    encrypted = replace(row, schema_version=-1, encrypted_with=("b", "a"))
    assert form_of(encrypted) == LetterForm(secrets=("a", "b"))
    with pytest.raises(NotSupportedError, match="was not decrypted"):
        form_of(replace(encrypted, decrypted=False))
