"""Objects of a running loop, used from another loop, raise an error and do nothing."""

import asyncio
import os
import threading
import uuid

import pulsar_encore as pulsar

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"loops-{uuid.uuid4().hex[:8]}"
client = pulsar.Client(URL)
home = asyncio.new_event_loop()
thread = threading.Thread(target=home.run_forever)
thread.start()


def at_home(coroutine):
    return asyncio.run_coroutine_threadsafe(coroutine, home).result(20)


async def make():
    producer = await client.create_producer(TOPIC)
    consumer = await client.subscribe(TOPIC, "loops", pulsar.ConsumerType.Shared)
    reader = await client.create_reader(TOPIC, pulsar.MessageId.earliest)
    await producer.send(b"first")
    return producer, consumer, reader, await consumer.receive()


async def call(function):
    try:
        await function()
    except pulsar.WrongLoopError as error:
        return isinstance(error, ValueError), "loop" in str(error)
    return "no error"


async def go_on():
    await producer.send(b"second")
    second = await consumer.receive(timeout_millis=10000)
    return second.data(), [(await reader.read_next(timeout_millis=10000)).data() for _ in range(2)]


async def close():
    await client.close()


producer, consumer, reader, message = at_home(make())
print("send", asyncio.run(call(lambda: producer.send(b"never sent"))))
print("flush", asyncio.run(call(producer.flush)))
print("receive", asyncio.run(call(lambda: consumer.receive(timeout_millis=500))))
print("acknowledge", asyncio.run(call(lambda: consumer.acknowledge(message))))
print("negative_acknowledge", asyncio.run(call(lambda: consumer.negative_acknowledge(message))))
print("seek", asyncio.run(call(lambda: consumer.seek(pulsar.MessageId.earliest))))
print("read_next", asyncio.run(call(lambda: reader.read_next(timeout_millis=500))))
print("at home:", at_home(go_on()))
print("made here, awaited there:", at_home(consumer.acknowledge(message)))
at_home(close())
home.call_soon_threadsafe(home.stop)
thread.join(20)
home.close()
