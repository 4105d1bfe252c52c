"""Message ids as Java's letters write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_encore as encore
from pulsar_encore.letters.id_text import id_text, parse_id
from pulsar_encore.values.message_id import MessageId


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
def test_origin_ids_have_the_text_of_java(message_id: encore.MessageId, text: str) -> None:
    assert id_text(message_id) == text


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(-1, 999))
def test_origin_ids_are_read_as_they_were_written(ledger: int, entry: int, partition: int) -> None:
    plain = MessageId(partition, ledger, entry)
    assert parse_id(id_text(plain)) == plain
    member = MessageId(partition, ledger, entry, 3, batch_size=7)
    assert parse_id(id_text(member)) == member
    chunked = MessageId(partition, ledger, entry, first_chunk=MessageId(partition, ledger, 0))
    assert parse_id(id_text(chunked)).first_chunk == chunked.first_chunk
