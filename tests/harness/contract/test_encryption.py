"""Encrypted entries: `wire` reads entries of the stock client, and the stock client reads ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pulsar_encore.wire import compress, decode_batch, decode_body, decompress, encode_batch, pb
from pulsar_encore.wire.chunk_assembler import Chunk, ChunkAssembler, is_chunk
from pulsar_encore.wire.entry_encryption import DataKeys, Encryptor, PublicKey, is_encrypted
from pulsar_encore.wire.frames import Frame

from .cluster import Cluster
from .frame_client import FrameClient

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
NAME = "recipient"
TEXT = b"some text " * 30


class Keys:
    """A recipient's key pair in files, as the stock client wants it."""

    def __init__(self, folder: Path) -> None:
        key = rsa.generate_private_key(65537, 2048)
        self.private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self.public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        public, private = folder / "public.pem", folder / "private.pem"
        public.write_bytes(self.public)
        private.write_bytes(self.private)
        self.reader = pulsar.CryptoKeyReader(str(public), str(private))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def stock_client(cluster: Cluster) -> Iterator[pulsar.Client]:
    client = pulsar.Client(cluster.url, logger=QUIET)
    yield client
    client.close()


class Reading:
    """Decrypts the entries of a topic with `wire`."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._data_keys = DataKeys()
        self._assembler = ChunkAssembler()
        self.chunks = 0

    def payloads(self, frame: Frame) -> list[bytes]:
        """Return the messages that an entry contains or completes."""
        assert frame.body is not None
        metadata, payload, _ = decode_body(frame.body)
        assert is_encrypted(metadata)
        data = self._data_keys.decrypt(metadata, payload, lambda name, _: self._keys.private)
        if is_chunk(metadata):
            assembled = self._assemble(frame.command.message.message_id, metadata, data)
            if assembled is None:
                return []
            data = assembled
        clear = decompress(metadata.compression, data, metadata.uncompressed_size, 1 << 24)
        if not metadata.HasField("num_messages_in_batch"):
            return [bytes(clear)]
        return [bytes(each) for _, each in decode_batch(clear, metadata.num_messages_in_batch)]

    def _assemble(
        self, message_id_data: pb.MessageIdData, metadata: pb.MessageMetadata, payload: bytes
    ) -> bytes | None:
        self.chunks += 1
        chunk = Chunk(
            metadata.uuid,
            metadata.chunk_id,
            metadata.num_chunks_from_msg,
            metadata.total_chunk_msg_size,
            (message_id_data.ledgerId, message_id_data.entryId),
            payload,
        )
        arrival = self._assembler.add(chunk, now_ms=0)
        assert arrival.discarded == ()
        return arrival.joined.payload if arrival.joined else None


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, [TEXT]),
        ({"batching_enabled": True}, [TEXT, b"", b"x"]),
        ({"batching_enabled": True, "compression_type": pulsar.CompressionType.LZ4}, [TEXT] * 3),
        ({"compression_type": pulsar.CompressionType.ZLib}, [TEXT]),
        ({"chunking_enabled": True}, [bytes(range(256)) * 25_000]),
    ],
    ids=["plain", "batch", "LZ4 batch", "ZLIB", "chunks"],
)
async def test_entries_encrypted_by_the_stock_client_are_decrypted(
    cluster: Cluster,
    topic: str,
    stock_client: pulsar.Client,
    keys: Keys,
    options: dict[str, object],
    sent: list[bytes],
) -> None:
    async with FrameClient(cluster.url) as connection:
        await connection.subscribe(topic, pb.CommandSubscribe.Shared)
        connection.send(connection.flow(100))
        producer = await asyncio.to_thread(
            stock_client.create_producer,
            topic,
            encryption_key=NAME,
            crypto_key_reader=keys.reader,
            **options,
        )
        for payload in sent:
            producer.send_async(payload, None)
        await asyncio.to_thread(producer.flush)
        reading, got = Reading(keys), list[bytes]()
        while len(got) < len(sent):
            got += reading.payloads(await connection.entry())
        assert got == sent
        assert reading.chunks == (2 if "chunking_enabled" in options else 0)


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("codec", [pb.NONE, pb.ZSTD])
async def test_the_stock_client_decrypts_our_encrypted_entries(
    cluster: Cluster,
    topic: str,
    stock_client: pulsar.Client,
    keys: Keys,
    codec: pb.CompressionType.ValueType,
    batch: int,
) -> None:
    consumer = await asyncio.to_thread(
        stock_client.subscribe, topic, "s", crypto_key_reader=keys.reader, consumer_name="c"
    )
    encryptor = Encryptor({NAME: PublicKey(keys.public)}, now_ms=0)
    metadata = pb.MessageMetadata(
        producer_name="ours", sequence_id=0, publish_time=int(time.time() * 1000)
    )
    payload = TEXT
    if batch:
        metadata.num_messages_in_batch = batch
        payload = encode_batch([(pb.SingleMessageMetadata(), TEXT)] * batch)
    metadata.compression = codec
    metadata.uncompressed_size = len(payload)
    payload = encryptor.encrypt(metadata, compress(codec, payload), now_ms=0)
    async with FrameClient(cluster.url) as connection:
        await connection.produce(topic)
        await connection.store_entry(metadata, payload)
    for _ in range(batch or 1):
        message = await asyncio.to_thread(consumer.receive, 5000)
        assert message.data() == TEXT
