"""A test suite: one client for the session, a new event loop for each test (pytest-asyncio)."""

import asyncio
import os
import sys
import uuid

import pulsar
import pytest
import pytest_asyncio
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")


@pytest.fixture(scope="session")
def client():
    client = Client(URL)
    yield client
    asyncio.run(client.close())
    print("client closed")


@pytest.fixture
def topic():
    return f"suite-{uuid.uuid4().hex[:8]}"


@pytest_asyncio.fixture
async def consumer(client, topic):
    consumer = await client.subscribe(topic, "suite", pulsar.ConsumerType.Shared)
    yield consumer
    await consumer.close()


@pytest_asyncio.fixture
async def producer(client, topic):
    producer = await client.create_producer(topic)
    yield producer
    await producer.close()


@pytest.mark.asyncio
async def test_one_message(producer, consumer):
    await producer.send(b"one")
    msg = await consumer.receive()
    await consumer.acknowledge(msg)
    assert msg.data() == b"one"
    print("one message")


@pytest.mark.asyncio
@pytest.mark.parametrize("count", [1, 5])
async def test_many_messages(producer, consumer, count):
    for number in range(count):
        await producer.send(str(number).encode())
    found = [int((await consumer.receive()).data()) for _ in range(count)]
    assert found == list(range(count))
    print(count, "messages")


@pytest.mark.asyncio
async def test_the_client_is_the_same_and_the_loop_is_not(client, topic):
    assert asyncio.get_running_loop() is not getattr(sys, "last_loop_of_this_suite", None)
    sys.last_loop_of_this_suite = asyncio.get_running_loop()
    assert await client.get_topic_partitions(topic)
    print("partitions")


if __name__ == "__main__":
    # Quiet, because the output of the tests is compared.
    plain = ["-p", "no:terminal", "-p", "no:randomly", "-p", "no:cacheprovider", "-s"]
    failed = pytest.main(
        [__file__, "-c", os.devnull, "--rootdir", os.path.dirname(__file__), *plain]
    )
    print("failed" if failed else "passed", int(failed))
