"""Encrypted messages from end to end: read, told of, and what becomes of what cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import pulsar_encore as encore
from pulsar_encore import CompressionType, ConsumerCryptoFailureAction
from pulsar_encore.wire import decompress, pb
from pulsar_encore.wire.entry_encryption import DataKeys

from .cluster import ENGINES, Cluster, Engine
from .contract_kit import SUBSCRIPTION, before_marker, data, eventually, publish, subscribe, take

NAME = "recipient"
TEXT = b"some text " * 30
LARGE = bytes(range(256)) * 25_000  # two chunks, on a broker with its defaults

# Options of the producer, and what it sends.
FORMS: dict[str, tuple[dict[str, Any], list[bytes]]] = {
    "plain": ({}, [TEXT, b""]),
    "compressed": ({"compression_type": CompressionType.ZSTD}, [TEXT]),
    "batch": ({"batching_enabled": True}, [TEXT, b"", b"x"]),
    "LZ4 batch": (
        {"batching_enabled": True, "compression_type": CompressionType.LZ4},
        [TEXT] * 3,
    ),
    "chunks": ({"chunking_enabled": True}, [LARGE]),
    "LZ4 chunks": ({"chunking_enabled": True, "compression_type": CompressionType.LZ4}, [LARGE]),
}


class Pair:
    """A pair of keys in files."""

    def __init__(self, folder: Path) -> None:
        key = rsa.generate_private_key(65537, 2048)
        self.private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        for name, content in (("public", public), ("private", self.private)):
            (folder / f"{name}.pem").write_bytes(content)
        self.reader = encore.CryptoKeyReader(
            str(folder / "public.pem"), str(folder / "private.pem")
        )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Of the recipient."""
    return Pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Of somebody else."""
    return Pair(tmp_path_factory.mktemp("other"))


@pytest.fixture(params=ENGINES, ids=lambda engine: f"by {engine.name}")
def writer(request: pytest.FixtureRequest) -> Engine:
    """The transport that publishes; `engine` reads."""
    made: Engine = request.param
    return made


async def encrypt(client: encore.Client, topic: str, pair: Pair, form: str) -> list[bytes]:
    """Publish a form's messages, encrypted; returns them."""
    options, sent = FORMS[form]
    options = {"batching_enabled": False, "batching_max_publish_delay_ms": 60_000} | options
    async with await client.create_producer(
        topic, encryption_key=NAME, crypto_key_reader=pair.reader, **options
    ) as producer:
        sends = [asyncio.ensure_future(producer.send(payload)) for payload in sent]
        await asyncio.sleep(0)
        await producer.flush()
        await asyncio.gather(*sends)
    return sent


def told(message: encore.Message) -> encore.EncryptionContext:
    """How it was encrypted."""
    context = message.encryption_context()
    assert context is not None
    return context


@pytest.mark.parametrize("form", FORMS)
async def test_an_encrypted_message_is_read_and_tells_how_it_was_encrypted(
    cluster: Cluster, engine: Engine, writer: Engine, topic: str, pair: Pair, form: str
) -> None:
    options, _ = FORMS[form]
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        sent = await encrypt(writing, topic, pair, form)
        async with await subscribe(reading, topic, crypto_key_reader=pair.reader) as consumer:
            got = await take(consumer, len(sent))
            assert data(got) == sent
            for context in map(told, got):
                assert not context.is_decryption_failed()
                assert {key.key for key in context.keys()} == {NAME}
                assert all(len(key.value) == 256 for key in context.keys())
                assert len(context.param()) == 12
                codec = options.get("compression_type", CompressionType.NONE)
                assert context.compression_type() == codec
                assert (context.uncompressed_message_size() > 0) is (codec != CompressionType.NONE)
                assert context.batch_size() == (len(sent) if "batch" in form else -1)


async def test_a_message_in_clear_tells_of_no_encryption(client: encore.Client, topic: str) -> None:
    await publish(client, topic, [b"a"])
    await publish(client, topic, [b"b", b"c"], batch=2)
    got = await take(await subscribe(client, topic), 3)
    assert [message.encryption_context() for message in got] == [None] * 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["none", "another"])
async def test_what_cannot_be_decrypted_is_handed_on_with_what_decrypts_it(
    cluster: Cluster,
    engine: Engine,
    writer: Engine,
    topic: str,
    pair: Pair,
    other: Pair,
    form: str,
    key: str,
) -> None:
    chunked = "chunks" in form
    if chunked and not engine.sealed_chunks:
        return
    handed_on: dict[str, Any] = {"crypto_failure_action": ConsumerCryptoFailureAction.CONSUME}
    if key == "another":
        handed_on["crypto_key_reader"] = other.reader
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        sent = await encrypt(writing, topic, pair, form)
        entries = 1 if "batch" in form else len(sent)
        async with await subscribe(reading, topic, **handed_on) as consumer:
            got = await take(consumer, entries)
            assert all(told(message).is_decryption_failed() for message in got)
            assert [told(message).batch_size() for message in got] == [
                len(sent) if "batch" in form else -1
            ] * entries
            if chunked:
                # Each chunk was encrypted for itself: the whole has to be read with the keys.
                assert len(got[0].data()) > (0 if "LZ4" in form else len(LARGE))
            elif "batch" not in form:
                assert [_opened(message, pair) for message in got] == sent
            for message in got:
                await consumer.acknowledge(message)
        await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 0)


def _opened(message: encore.Message, pair: Pair) -> bytes:
    """What a message has that was handed on, decrypted by what it tells of itself."""
    context = told(message)
    metadata = pb.MessageMetadata(encryption_param=context.param())
    for key in context.keys():
        metadata.encryption_keys.add(key=key.key, value=key.value)
    compressed = DataKeys().decrypt(metadata, message.data(), lambda name, _: pair.private)
    codec = pb.CompressionType.Name(context.compression_type().value)
    size = context.uncompressed_message_size() or len(compressed)
    return bytes(decompress(pb.CompressionType.Value(codec), compressed, size, 1 << 20))


@pytest.mark.parametrize("form", ["plain", "batch", "chunks"])
async def test_what_cannot_be_decrypted_and_is_discarded_is_acked(
    cluster: Cluster, client: encore.Client, topic: str, pair: Pair, other: Pair, form: str
) -> None:
    async with await subscribe(
        client,
        topic,
        crypto_key_reader=other.reader,
        crypto_failure_action=ConsumerCryptoFailureAction.DISCARD,
    ) as consumer:
        await encrypt(client, topic, pair, form)
        assert await before_marker(client, topic, consumer) == []
        await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 0)


@pytest.mark.parametrize("form", ["plain", "batch", "chunks"])
async def test_what_cannot_be_decrypted_stays_for_whoever_can(
    cluster: Cluster, client: encore.Client, topic: str, pair: Pair, other: Pair, form: str
) -> None:
    async with await subscribe(client, topic, crypto_key_reader=other.reader) as consumer:
        sent = await encrypt(client, topic, pair, form)
        assert await before_marker(client, topic, consumer) == []
    async with await subscribe(client, topic, crypto_key_reader=pair.reader) as consumer:
        assert data(await take(consumer, len(sent))) == sent


@pytest.mark.parametrize(
    ("gives", "why"),
    [
        (lambda: None, "no private key of the name"),
        (lambda: "text", "must give bytes, gave str"),
        (lambda: {}["missing"], "raised KeyError"),
    ],
    ids=["none", "text", "an error"],
)
async def test_a_key_reader_that_gives_no_key_costs_what_it_was_asked_for(
    cluster: Cluster,
    topic: str,
    pair: Pair,
    gives: Callable[[], Any],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The stock library asks no key reader of one's own."""

    class Own(encore.CryptoKeyReader):
        def private_key(self, name: str, metadata: Any) -> bytes:
            made: bytes = gives()
            return made

    [native] = [engine for engine in ENGINES if engine.name == "native"]
    async with native.client(cluster.url) as client:
        async with await subscribe(client, topic, crypto_key_reader=Own("", "")) as consumer:
            await encrypt(client, topic, pair, "plain")
            assert await before_marker(client, topic, consumer) == []
        assert why in caplog.text
        async with await subscribe(client, topic, crypto_key_reader=pair.reader) as consumer:
            assert data(await take(consumer, 2)) == FORMS["plain"][1]
