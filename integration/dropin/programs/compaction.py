"""A table as a compacted topic: the last value of each key, and a null value that deletes one."""

import asyncio
import json
import os
import urllib.request
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
ADMIN = os.environ.get("PULSAR_ADMIN_URL", "http://localhost:8080")
TOPIC = f"table-{uuid.uuid4().hex[:8]}"


def compaction(method):
    url = f"{ADMIN}/admin/v2/persistent/public/default/{TOPIC}/compaction"
    request = urllib.request.Request(
        url, headers={"Content-Type": "application/json"}, method=method
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        body = answer.read()
    return json.loads(body) if body else None


async def compact():
    await asyncio.to_thread(compaction, "PUT")
    for _ in range(200):
        state = await asyncio.to_thread(compaction, "GET")
        if state["status"] != "RUNNING":
            return state["status"]
        await asyncio.sleep(0.1)
    return "still running"


async def read(client, compacted):
    reader = await client.create_reader(
        TOPIC, pulsar.MessageId.earliest, is_read_compacted=compacted
    )
    found = []
    while await reader.has_message_available():
        msg = await reader.read_next()
        found.append((msg.partition_key(), msg.data().decode(), msg.has_null_value()))
    await reader.close()
    return found


async def main():
    client = Client(URL)
    producer = await client.create_producer(TOPIC, batching_enabled=False)
    for key, value in (("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b"2")):
        await producer.send(value, partition_key=key)
    await producer.send(b"", partition_key="c")  # deletes c
    print("all", await read(client, compacted=False))
    print(await compact())
    expected = 2
    for _ in range(50):  # the broker needs a moment to read from the compacted ledger
        if len(await read(client, compacted=True)) == expected:
            break
        await asyncio.sleep(0.1)
    print("table", await read(client, compacted=True))
    consumer = await client.subscribe(
        TOPIC, "table", is_read_compacted=True, initial_position=pulsar.InitialPosition.Earliest
    )
    print("consumer", [(await consumer.receive()).data() for _ in range(expected)])
    await client.close()


asyncio.run(main())
