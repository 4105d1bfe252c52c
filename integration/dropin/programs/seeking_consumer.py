"""A consumer seeks back by id and by time, and forward to the end."""

import asyncio
import os
import time
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"replayed-{uuid.uuid4().hex[:8]}"


async def take(consumer, count):
    found = []
    for _ in range(count):
        msg = await consumer.receive()
        found.append(msg.data().decode())
        await consumer.acknowledge(msg)
    return found


async def main():
    client = Client(URL)
    consumer = await client.subscribe(
        TOPIC, "rewinder", initial_position=pulsar.InitialPosition.Earliest
    )
    producer = await client.create_producer(TOPIC, batching_enabled=False)
    ids = [await producer.send(b"%d" % number) for number in range(3)]
    await asyncio.sleep(0.05)
    noon = int(time.time() * 1000)
    await asyncio.sleep(0.05)
    ids += [await producer.send(b"%d" % number) for number in range(3, 6)]
    print(await take(consumer, 6))

    last = await consumer.get_last_message_id()
    print(last.entry_id(), last.ledger_id() == ids[-1].ledger_id())
    await consumer.seek(ids[1])
    print("after 1:", await take(consumer, 4))
    await consumer.seek(noon)
    print("since noon:", await take(consumer, 3))
    await consumer.seek(0)
    print("all:", await take(consumer, 6))
    await consumer.seek(ids[5])
    await producer.send(b"new")
    print("from the end:", await take(consumer, 1))
    await consumer.close()

    inclusive = await client.subscribe(TOPIC, "inclusive", start_message_id_inclusive=True)
    await inclusive.seek(ids[4])
    print("from 4:", await take(inclusive, 3))
    await inclusive.unsubscribe()
    await client.close()


asyncio.run(main())
