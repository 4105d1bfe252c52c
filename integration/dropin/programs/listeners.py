"""Message listeners: one acks, one nacks the first delivery, one replies with a producer."""

import asyncio
import os
import uuid

import pulsar_encore as pulsar

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"listened-{uuid.uuid4().hex[:8]}"
heard = []
refused = []


def listener(consumer, message):
    heard.append(message.data().decode())
    consumer.acknowledge(message)


def picky(consumer, message):
    refused.append((message.data().decode(), message.redelivery_count()))
    if message.redelivery_count() == 0 and message.data() == b"no":
        consumer.negative_acknowledge(message)
    else:
        consumer.acknowledge(message.message_id())


async def main():
    client = pulsar.Client(URL)
    await client.subscribe(TOPIC, "listens", message_listener=listener)
    await client.subscribe(
        TOPIC,
        "picky",
        consumer_type=pulsar.ConsumerType.Shared,
        message_listener=picky,
        negative_ack_redelivery_delay_ms=300,
    )
    producer = await client.create_producer(TOPIC, batching_enabled=False)
    for text in (b"yes", b"no", b"maybe"):
        await producer.send(text)
    for _ in range(200):
        if len(heard) == 3 and len(refused) == 4:
            break
        await asyncio.sleep(0.05)
    print(heard)
    print(sorted(refused))
    await asyncio.sleep(0.5)
    await client.close()

    # Acked messages are not redelivered.
    client = pulsar.Client(URL)
    for name in ("listens", "picky"):
        consumer = await client.subscribe(TOPIC, name, consumer_type=pulsar.ConsumerType.Shared)
        try:
            print(name, "got again", (await consumer.receive(500)).data())
        except pulsar.Timeout:
            print(name, "has nothing left")
    await client.close()


asyncio.run(main())
