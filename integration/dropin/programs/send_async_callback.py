"""Batches with `send_async` and a callback, and `flush` at the end."""

import asyncio
import os
import uuid

import pulsar_encore as pulsar

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"batched-{uuid.uuid4().hex[:8]}"
stored = []


def callback(result, message_id):
    stored.append((result, message_id))


async def main():
    client = pulsar.Client(URL)
    consumer = await client.subscribe(TOPIC, "batches")
    producer = await client.create_producer(
        TOPIC, batching_enabled=True, batching_max_messages=4, batching_max_publish_delay_ms=10000
    )
    for number in range(10):
        producer.send_async(b"%d" % number, callback, properties={"n": str(number)})
    producer.send_async(b"without a callback", None)
    await producer.flush()
    for _ in range(100):
        if len(stored) == 10:
            break
        await asyncio.sleep(0.05)
    print([result == pulsar.Result.Ok for result, _ in stored])
    print([message_id.batch_index() for _, message_id in stored])
    print(len({(m.ledger_id(), m.entry_id()) for _, m in stored}), "batches")
    for _ in range(11):
        msg = await consumer.receive(10000)
        print(msg.data().decode(), msg.properties(), msg.message_id().batch_index())
        await consumer.acknowledge(msg)

    producer.send_async(b"x" * 6 * 1024 * 1024, callback)
    for _ in range(100):
        if len(stored) == 11:
            break
        await asyncio.sleep(0.05)
    print(stored[-1][0], stored[-1][0] == pulsar.Result.MessageTooBig)
    producer.send_async(b"after it", callback)
    await producer.flush()
    print((await consumer.receive(10000)).data())
    await producer.close()
    await client.close()


asyncio.run(main())
