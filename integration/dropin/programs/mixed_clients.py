"""One program with both stock clients: the blocking client sets up and checks, the asyncio client
works.

For this package only the asyncio client's import line changes. Enums, ids, schemas, policies and
exceptions of the blocking package are passed to this package and returned by it.
"""

import asyncio
import os
import uuid

import pulsar as blocking
from pulsar.asyncio import Client as AsyncClient
from pulsar.asyncio import PulsarException

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"mixed-{uuid.uuid4().hex[:8]}"


class Order(blocking.schema.Record):
    number = blocking.schema.Integer()


SCHEMA = blocking.schema.JsonSchema(Order)


async def work():
    client = AsyncClient(URL, logger=blocking.ConsoleLogger(blocking.LoggerLevel.Error))
    consumer = await client.subscribe(
        TOPIC,
        "worker",
        consumer_type=blocking.ConsumerType.Shared,
        initial_position=blocking.InitialPosition.Earliest,
        schema=SCHEMA,
        negative_ack_redelivery_delay_ms=300,
        dead_letter_policy=blocking.ConsumerDeadLetterPolicy(5, f"{TOPIC}-dead"),
    )
    numbers = []
    for _ in range(4):
        msg = await consumer.receive()
        if msg.value().number == 1 and msg.redelivery_count() == 0:
            await consumer.negative_acknowledge(msg)
            continue
        numbers.append(msg.value().number)
        stored = blocking.MessageId.deserialize(msg.message_id().serialize())
        await consumer.acknowledge(stored)
    print(numbers)
    reader = await client.create_reader(TOPIC, blocking.MessageId.earliest, schema=SCHEMA)
    print((await reader.read_next()).value())
    producer = await client.create_producer(
        TOPIC, schema=SCHEMA, compression_type=blocking.CompressionType.ZSTD
    )
    sent = await producer.send(Order(number=9))
    await producer.close()
    try:
        await producer.send(Order(number=10))
    except PulsarException as error:
        print(error.error() == blocking.Result.AlreadyClosed)
    await asyncio.sleep(0.2)
    await client.close()
    return sent.serialize()


def main():
    client = blocking.Client(URL)
    producer = client.create_producer(TOPIC, schema=SCHEMA)
    for number in range(3):
        producer.send(Order(number=number))
    sent = asyncio.run(work())
    consumer = client.subscribe(TOPIC, "worker", blocking.ConsumerType.Shared, schema=SCHEMA)
    msg = consumer.receive(10000)
    print(msg.value().number, msg.message_id().serialize()[:4] == sent[:4])
    consumer.acknowledge(msg)
    try:
        consumer.receive(300)
    except blocking.Timeout:
        print("nothing left")
    client.close()


main()
