"""Close in every order: exit stacks, context managers, client first, concurrently, not at all."""

import asyncio
import contextlib
import os
import uuid

import pulsar
from pulsar.asyncio import Client, PulsarException

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
RUN = uuid.uuid4().hex[:8]


@contextlib.asynccontextmanager
async def closing(thing):
    try:
        yield thing
    finally:
        await thing.close()


async def made(client, name):
    topic = f"closing-{name}-{RUN}"
    return (
        await client.create_producer(topic),
        await client.subscribe(topic, "closing"),
        await client.create_reader(topic, pulsar.MessageId.earliest),
    )


async def main():
    async with contextlib.AsyncExitStack() as stack:
        client = Client(URL)
        stack.push_async_callback(client.close)
        for each in await made(client, "stack"):
            stack.push_async_callback(each.close)
    print("stack")

    async with (
        closing(Client(URL)) as client,
        closing(await client.subscribe(f"closing-managers-{RUN}", "closing")) as consumer,
        closing(await client.create_producer(consumer.topic())) as producer,
    ):
        await producer.send(b"hello")
        print((await consumer.receive()).data())
    print(producer.is_connected())

    client = Client(URL)
    things = await made(client, "client first")
    await client.close()
    for each in things:
        with contextlib.suppress(PulsarException):
            await each.close()
    print("client first", things[0].is_connected(), things[2].is_connected())

    client = Client(URL)
    things = await made(client, "at once")
    await asyncio.gather(*(each.close() for each in things))
    await client.close()
    print("at once")

    client = Client(URL)
    producer, consumer, _ = await made(client, "shut down")
    await producer.send(b"kept")
    client.shutdown()
    try:
        await producer.send(b"lost")
    except PulsarException as error:
        print("shut down", error.error() == pulsar.Result.AlreadyClosed)

    client = Client(URL)
    producer, _, _ = await made(client, "never")
    await producer.send(b"kept")
    print("never")


asyncio.run(main())
