"""Send, receive and ack ten messages, with no backlog left: page one of any guide."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"hello-{uuid.uuid4().hex[:8]}"


async def main():
    client = Client(URL, operation_timeout_seconds=20)
    consumer = await client.subscribe(TOPIC, "greeter", consumer_type=pulsar.ConsumerType.Shared)
    producer = await client.create_producer(TOPIC)
    print("to", producer.topic().replace(TOPIC, "TOPIC"), "from", consumer.subscription_name())

    for number in range(10):
        await producer.send(f"hello {number}".encode(), properties={"number": str(number)})
    print("last sequence id", producer.last_sequence_id())

    for _ in range(10):
        msg = await consumer.receive()
        print(
            msg.data().decode(),
            msg.properties(),
            repr(msg.partition_key()),
            msg.topic_name()[-8:] == TOPIC[-8:],
        )
        await consumer.acknowledge(msg)
    await consumer.close()

    again = await client.subscribe(TOPIC, "greeter", consumer_type=pulsar.ConsumerType.Shared)
    await producer.send(b"only this one is left")
    print((await again.receive()).data().decode())
    await client.close()


asyncio.run(main())
