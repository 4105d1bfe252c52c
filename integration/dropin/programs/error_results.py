"""Tell errors apart by `error()` and `pulsar.Result`."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client, PulsarException
from pulsar.schema import AvroSchema, Integer, Record, String

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"errors-{uuid.uuid4().hex[:8]}"
R = pulsar.Result
# The transports log a refused schema in different words.
SILENT = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


class One(Record):
    field = String(required=True)


class Two(Record):
    field = Integer(required=True)


async def expect(result, awaitable):
    try:
        await awaitable
    except PulsarException as error:
        named = f"{error.error().name} {error.error().value}"
        print(named, error.error() == result, error.error() in {result}, bool(str(error)))
    except ValueError:
        print("a ValueError instead of", result.name)
    else:
        print("no", result.name)


async def main():
    client = Client(URL, operation_timeout_seconds=5, logger=SILENT)
    print(R.Ok.name, R.Ok == R.Ok, R.Timeout != R.Ok)
    await expect(R.TopicNotFound, client.create_producer("no-tenant/no-namespace/topic"))
    await expect(R.TopicNotFound, client.subscribe("no-tenant/no-namespace/topic", "sub"))
    alone = await client.subscribe(TOPIC, "alone")
    await expect(R.ConsumerBusy, client.subscribe(TOPIC, "alone"))
    same = await client.create_producer(TOPIC, producer_name="same")
    await expect(R.ProducerBusy, client.create_producer(TOPIC, producer_name="same"))
    producer = await client.create_producer(TOPIC)
    await expect(R.MessageTooBig, producer.send(b"x" * 6 * 1024 * 1024))
    await producer.close()
    await expect(R.AlreadyClosed, producer.send(b"too late"))

    typed = f"{TOPIC}-typed"
    first = await client.create_producer(typed, schema=AvroSchema(One))
    await expect(R.IncompatibleSchema, client.create_producer(typed, schema=AvroSchema(Two)))
    await expect(R.IncompatibleSchema, client.subscribe(typed, "two", schema=AvroSchema(Two)))

    print(alone.consumer_name() != "", same.producer_name(), first.is_connected())
    consumer = await client.subscribe(TOPIC, "shared", pulsar.ConsumerType.Shared)
    waiting = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0.1)
    await consumer.close()
    await expect(R.AlreadyClosed, waiting)
    await expect(R.AlreadyClosed, consumer.receive())
    reader = await client.create_reader(TOPIC, pulsar.MessageId.earliest)
    await reader.close()
    await expect(R.AlreadyClosed, reader.read_next())
    await client.close()
    await expect(R.AlreadyClosed, client.create_producer(TOPIC))
    await expect(R.AlreadyClosed, client.subscribe(TOPIC, "late"))
    await expect(R.AlreadyClosed, client.create_reader(TOPIC, pulsar.MessageId.earliest))

    nowhere = Client("pulsar://127.0.0.1:1", operation_timeout_seconds=2, connection_timeout_ms=500)
    try:
        await nowhere.create_producer(TOPIC)
    except PulsarException as error:
        print(error.error() in (R.ConnectError, R.Timeout))
    await nowhere.close()


asyncio.run(main())
