"""Keys of text and of bytes: read as either, and copied in the form in which they were sent."""

from __future__ import annotations

from typing import Any

import pytest
from forwarding_kit import DEAD, TOPIC, Act, handle_all, nack, open_consumer, read_out, reconsume

import pulsar_encore as encore
from pulsar_encore.consumer.forwarding.copy_options import Destination, producer_options
from pulsar_encore.letters.letter_form import LetterForm


@pytest.mark.parametrize(
    ("key", "text", "raw"),
    [
        ("k", "k", b"k"),
        (b"k", "aw==", b"k"),
        (b"\xff\x00", "/wA=", b"\xff\x00"),
        (None, "", None),
    ],
)
async def test_a_partition_key_is_readable_as_text_and_as_bytes(
    client: encore.Client, key: str | bytes | None, text: str, raw: bytes | None
) -> None:
    producer = await client.create_producer(TOPIC)
    await producer.send(b"x", partition_key=key)
    (got,) = await read_out(client, TOPIC)
    assert (got.partition_key(), got.partition_key_bytes()) == (text, raw)
    assert (got.ordering_key(), got.ordering_key_bytes()) == ("", None)


async def test_an_ordering_key_that_is_no_text_reads_as_base64(client: encore.Client) -> None:
    producer = await client.create_producer(TOPIC)
    for key in ("o", b"o", b"\xff"):
        await producer.send(b"x", ordering_key=key)
    got = await read_out(client, TOPIC)
    assert [each.ordering_key() for each in got] == ["o", "o", "/w=="]
    assert [each.ordering_key_bytes() for each in got] == [b"o", b"o", b"\xff"]


@pytest.mark.parametrize("act", [nack, reconsume])
@pytest.mark.parametrize("key", ["AAEC/w==", b"\x00\x01\x02\xff", b"abc"])
async def test_a_text_key_is_copied_as_text_and_a_bytes_key_as_bytes(
    client: encore.Client, act: Act, key: str | bytes
) -> None:
    """Text that reads as base64 stays text, and bytes stay bytes; no need to say which they are."""
    producer = await client.create_producer(TOPIC)
    await producer.send(b"x", partition_key=key, ordering_key=b"\xff")
    (sent,) = await read_out(client, TOPIC)
    async with await open_consumer(client, most=1) as consumer:
        await handle_all(consumer, act, quiet_s=5)
    (letter,) = await read_out(client, DEAD)
    assert letter.partition_key() == sent.partition_key()
    assert letter.partition_key_bytes() == sent.partition_key_bytes()
    assert letter.ordering_key_bytes() == b"\xff"


@pytest.mark.parametrize("byte_keys", [True, False])
async def test_key_value_letters_need_a_transport_with_bytes_keys(byte_keys: bool) -> None:
    """Their keys are bytes, with the schema that gives them a meaning."""
    pairs: Any = encore.schema.BytesSchema()
    pairs.key_value = True

    async def schema_of(topic: str, version: int) -> Any:
        return pairs

    dead = Destination(DEAD, LetterForm(TOPIC, 0, keyed=True))
    if byte_keys:
        options = await producer_options(dead, schema_of, None, byte_keys=True)
        assert options.schema is pairs
    else:
        with pytest.raises(encore.NotSupportedError, match="key-value pairs"):
            await producer_options(dead, schema_of, None, byte_keys=False)
