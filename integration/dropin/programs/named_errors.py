"""Catch the blocking client's exceptions by their names."""

import asyncio
import os
import uuid

import pulsar_encore as pulsar
from pulsar_encore import AlreadyClosed, PulsarException

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"named-{uuid.uuid4().hex[:8]}"


async def main():
    client = pulsar.Client(URL, operation_timeout_seconds=5)
    consumer = await client.subscribe(TOPIC, "alone")
    try:
        await client.subscribe(TOPIC, "alone")
    except pulsar.ConsumerBusy as error:
        print("ConsumerBusy", isinstance(error, PulsarException))
    try:
        await client.create_producer("no-tenant/no-namespace/topic")
    except pulsar.TopicNotFound as error:
        print("TopicNotFound", isinstance(error, PulsarException))
    producer = await client.create_producer(TOPIC, producer_name="same")
    try:
        await client.create_producer(TOPIC, producer_name="same")
    except pulsar.ProducerBusy:
        print("ProducerBusy")
    try:
        await producer.send(b"x" * 6 * 1024 * 1024)
    except pulsar.MessageTooBig:
        print("MessageTooBig")
    try:
        await consumer.receive(timeout_millis=50)
    except (pulsar.Timeout, pulsar.ConnectError) as error:
        print(type(error).__name__ in ("Timeout", "ReceiveTimeout"))
    try:
        await producer.send("text")
    except TypeError:
        print("TypeError")
    for wrong in ({"properties": "text"}, {"partition_key": 5}, {"deliver_at": "soon"}):
        try:
            await producer.send(b"", **wrong)
        except (ValueError, TypeError):
            print("refused", *wrong)
    await consumer.close()
    try:
        await consumer.receive(timeout_millis=100)
    except AlreadyClosed as error:
        print("AlreadyClosed", isinstance(error, PulsarException))
    await client.close()
    try:
        await client.create_producer(TOPIC)
    except PulsarException as error:
        print("closed", isinstance(error, pulsar.AlreadyClosed))
    nowhere = pulsar.Client("pulsar://127.0.0.1:1", operation_timeout_seconds=2)
    try:
        await nowhere.create_producer(TOPIC)
    except (pulsar.ConnectError, pulsar.Timeout):
        print("nowhere")
    await nowhere.close()


asyncio.run(main())
