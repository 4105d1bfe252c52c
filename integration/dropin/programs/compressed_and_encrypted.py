"""Every compression, and messages that need the private key."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
KEYS = os.environ.get("KEYS", ".")  # has public.pem and private.pem
RUN = uuid.uuid4().hex[:8]
TEXT = b"so say we all. " * 200


async def main():
    client = Client(URL)
    for kind in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"):
        topic = f"packed-{kind}-{RUN}"
        consumer = await client.subscribe(topic, "unpacks")
        producer = await client.create_producer(
            topic, compression_type=getattr(pulsar.CompressionType, kind)
        )
        await producer.send(TEXT)
        msg = await consumer.receive()
        print(kind, msg.data() == TEXT, msg.encryption_context())
        await consumer.close()

    reader = pulsar.CryptoKeyReader(f"{KEYS}/public.pem", f"{KEYS}/private.pem")
    topic = f"secret-{RUN}"
    consumer = await client.subscribe(topic, "knows", crypto_key_reader=reader)
    blind = await client.subscribe(
        topic,
        "does not know",
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    producer = await client.create_producer(
        topic,
        encryption_key="key-1",
        crypto_key_reader=reader,
        compression_type=pulsar.CompressionType.LZ4,
        batching_enabled=False,
    )
    await producer.send(TEXT)
    msg = await consumer.receive()
    context = msg.encryption_context()
    print(msg.data() == TEXT, isinstance(context, pulsar.EncryptionContext))
    print([key.key for key in context.keys()], context.is_decryption_failed(), len(context.param()))
    print(
        context.algorithm(),
        context.compression_type(),
        context.uncompressed_message_size() == len(TEXT),
    )
    raw = await blind.receive()
    print(raw.data() == TEXT, raw.encryption_context().is_decryption_failed())
    reading = await client.create_reader(topic, pulsar.MessageId.earliest, crypto_key_reader=reader)
    print((await reading.read_next()).value() == TEXT)
    await client.close()


asyncio.run(main())
