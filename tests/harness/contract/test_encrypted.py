"""Encrypted messages from end to end: decrypted, with their context, and undecryptable ones."""

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

# Options of the producer, and the payloads.
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
    """A key pair in files."""

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
    """The recipient's key pair."""
    return Pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Another key pair."""
    return Pair(tmp_path_factory.mktemp("other"))


@pytest.fixture(params=ENGINES, ids=lambda engine: f"by {engine.name}")
def writer(request: pytest.FixtureRequest) -> Engine:
    """The transport that publishes; `engine` reads."""
    made: Engine = request.param
    return made


async def encrypt(client: encore.Client, topic: str, pair: Pair, form: str) -> list[bytes]:
    """Publish the messages of a form, encrypted, and return their payloads."""
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


def context_of(message: encore.Message) -> encore.EncryptionContext:
    """Return the message's encryption context."""
    context = message.encryption_context()
    assert context is not None
    return context


@pytest.mark.parametrize("form", FORMS)
async def test_an_encrypted_message_is_decrypted_and_has_an_encryption_context(
    cluster: Cluster, engine: Engine, writer: Engine, topic: str, pair: Pair, form: str
) -> None:
    options, _ = FORMS[form]
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        sent = await encrypt(writing, topic, pair, form)
        async with await subscribe(reading, topic, crypto_key_reader=pair.reader) as consumer:
            got = await take(consumer, len(sent))
            assert data(got) == sent
            for context in map(context_of, got):
                assert not context.is_decryption_failed()
                assert {key.key for key in context.keys()} == {NAME}
                assert all(len(key.value) == 256 for key in context.keys())
                assert len(context.param()) == 12
                codec = options.get("compression_type", CompressionType.NONE)
                assert context.compression_type() == codec
                assert (context.uncompressed_message_size() > 0) is (codec != CompressionType.NONE)
                assert context.batch_size() == (len(sent) if "batch" in form else -1)


async def test_an_unencrypted_message_has_no_encryption_context(
    client: encore.Client, topic: str
) -> None:
    await publish(client, topic, [b"a"])
    await publish(client, topic, [b"b", b"c"], batch=2)
    got = await take(await subscribe(client, topic), 3)
    assert [message.encryption_context() for message in got] == [None] * 3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["none", "another"])
async def test_consume_delivers_an_undecryptable_message_with_its_encryption_context(
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
    options_of_consumer: dict[str, Any] = {
        "crypto_failure_action": ConsumerCryptoFailureAction.CONSUME
    }
    if key == "another":
        options_of_consumer["crypto_key_reader"] = other.reader
    async with engine.client(cluster.url) as reading, writer.client(cluster.url) as writing:
        sent = await encrypt(writing, topic, pair, form)
        entries = 1 if "batch" in form else len(sent)
        async with await subscribe(reading, topic, **options_of_consumer) as consumer:
            got = await take(consumer, entries)
            assert all(context_of(message).is_decryption_failed() for message in got)
            assert [context_of(message).batch_size() for message in got] == [
                len(sent) if "batch" in form else -1
            ] * entries
            if chunked:
                # Each chunk was encrypted separately, so the assembled payload cannot be decrypted
                # as a whole.
                assert len(got[0].data()) > (0 if "LZ4" in form else len(LARGE))
            elif "batch" not in form:
                assert [_decrypt_with_context(message, pair) for message in got] == sent
            for message in got:
                await consumer.acknowledge(message)
        await eventually(lambda: cluster.backlog(topic, SUBSCRIPTION), 0)


def _decrypt_with_context(message: encore.Message, pair: Pair) -> bytes:
    """Decrypt an undecrypted payload with its encryption context."""
    context = context_of(message)
    metadata = pb.MessageMetadata(encryption_param=context.param())
    for key in context.keys():
        metadata.encryption_keys.add(key=key.key, value=key.value)
    compressed = DataKeys().decrypt(metadata, message.data(), lambda name, _: pair.private)
    codec = pb.CompressionType.Name(context.compression_type().value)
    size = context.uncompressed_message_size() or len(compressed)
    return bytes(decompress(pb.CompressionType.Value(codec), compressed, size, 1 << 20))


@pytest.mark.parametrize("form", ["plain", "batch", "chunks"])
async def test_discard_acks_an_undecryptable_message(
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
async def test_fail_leaves_an_undecryptable_message_for_a_consumer_with_the_key(
    cluster: Cluster, client: encore.Client, topic: str, pair: Pair, other: Pair, form: str
) -> None:
    async with await subscribe(client, topic, crypto_key_reader=other.reader) as consumer:
        sent = await encrypt(client, topic, pair, form)
        assert await before_marker(client, topic, consumer) == []
    async with await subscribe(client, topic, crypto_key_reader=pair.reader) as consumer:
        assert data(await take(consumer, len(sent))) == sent


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (lambda: None, "no private key of the name"),
        (lambda: "text", "must give bytes, gave str"),
        (lambda: {}["missing"], "raised KeyError"),
    ],
    ids=["none", "text", "an error"],
)
async def test_a_failing_key_reader_fails_only_the_messages_it_was_called_for(
    cluster: Cluster,
    topic: str,
    pair: Pair,
    result: Callable[[], Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Native transport only: the C++ client does not call subclasses of CryptoKeyReader."""

    class FailingKeyReader(encore.CryptoKeyReader):
        def private_key(self, name: str, metadata: Any) -> bytes:
            made: bytes = result()
            return made

    [native] = [engine for engine in ENGINES if engine.name == "native"]
    async with native.client(cluster.url) as client:
        async with await subscribe(
            client, topic, crypto_key_reader=FailingKeyReader("", "")
        ) as consumer:
            await encrypt(client, topic, pair, "plain")
            assert await before_marker(client, topic, consumer) == []
        assert reason in caplog.text
        async with await subscribe(client, topic, crypto_key_reader=pair.reader) as consumer:
            assert data(await take(consumer, 2)) == FORMS["plain"][1]
