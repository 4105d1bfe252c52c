"""Send a message over the broker's limit in chunks, read its id, and fail without chunking."""

import asyncio
import hashlib
import os
import uuid

import pulsar
from pulsar.asyncio import Client, PulsarException

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"big-{uuid.uuid4().hex[:8]}"
BIG = bytes(range(256)) * 4 * 1024 * 11  # 11 MiB


async def main():
    client = Client(URL)
    consumer = await client.subscribe(
        TOPIC,
        "big",
        max_pending_chunked_message=4,
        auto_ack_oldest_chunked_message_on_queue_full=True,
    )
    plain = await client.create_producer(TOPIC)
    try:
        await plain.send(BIG)
    except PulsarException as error:
        print(error.error() == pulsar.Result.MessageTooBig)
    producer = await client.create_producer(TOPIC, chunking_enabled=True, batching_enabled=False)
    sent = await producer.send(BIG, properties={"name": "big"})
    await producer.send(b"small")
    msg = await consumer.receive()
    print(
        len(msg.data()),
        hashlib.md5(msg.data()).hexdigest(),
        msg.properties(),
        msg.message_id().entry_id() >= sent.entry_id(),
    )
    await consumer.acknowledge(msg)
    small = await consumer.receive()
    print(small.data())
    await consumer.acknowledge(small)
    await consumer.close()

    again = await client.subscribe(TOPIC, "big")
    await producer.send(b"next")
    print((await again.receive()).data())
    try:
        await client.create_producer(TOPIC, chunking_enabled=True, batching_enabled=True)
    except ValueError:
        print("not with batching")
    await client.close()


asyncio.run(main())
