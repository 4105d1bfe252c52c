"""The poll loop of the blocking client: `receive(timeout_millis=)`, `except pulsar.Timeout`."""

import asyncio
import os
import uuid

import pulsar_encore as pulsar

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"polled-{uuid.uuid4().hex[:8]}"


async def main():
    client = pulsar.Client(URL)
    consumer = await client.subscribe(TOPIC, "poller", consumer_type=pulsar.ConsumerType.Shared)
    producer = await client.create_producer(TOPIC)
    await producer.send(b"first")
    await producer.send(b"second", properties={"last": "yes"})
    idle = 0
    while idle < 2:
        try:
            msg = await consumer.receive(timeout_millis=300)
        except pulsar.Timeout as error:
            idle += 1
            print("nothing", isinstance(error, pulsar.PulsarException))
            continue
        print(msg.data().decode(), msg.properties())
        await consumer.acknowledge(msg)
    try:
        await consumer.receive(50)
    except pulsar.PulsarException as error:
        print("still nothing", isinstance(error, pulsar.Timeout), type(error).__mro__[-2].__name__)
    await producer.send(b"third")
    print((await consumer.receive(10000)).data())

    reader = await client.create_reader(TOPIC, pulsar.MessageId.earliest)
    print(
        (await reader.read_next(timeout_millis=10000)).data(), await reader.has_message_available()
    )
    for _ in range(2):
        await reader.read_next(10000)
    try:
        await reader.read_next(100)
    except pulsar.Timeout:
        print("read all")
    await client.close()


asyncio.run(main())
