"""Readers from earliest, latest and an id; has_message_available; seek by id and time; a stored
id.
"""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"log-{uuid.uuid4().hex[:8]}"


async def rest(reader):
    found = []
    while await reader.has_message_available():
        found.append((await reader.read_next()).data().decode())
    return " ".join(found)


async def main():
    client = Client(URL)
    producer = await client.create_producer(TOPIC, batching_enabled=False)
    ids = [await producer.send(f"line{number}".encode()) for number in range(4)]
    await asyncio.sleep(0.05)

    reader = await client.create_reader(TOPIC, pulsar.MessageId.earliest)
    print(reader.is_connected(), reader.topic().endswith(TOPIC), await rest(reader))
    newest = await client.create_reader(topic=TOPIC, start_message_id=pulsar.MessageId.latest)
    print("newest:", await newest.has_message_available())
    await producer.send(b"line4")
    print("newest:", await newest.has_message_available(), await rest(newest))
    first = await client.create_reader(TOPIC, pulsar.MessageId.earliest)
    message = await first.read_next()
    print(
        message.data(),
        message.message_id().serialize() == ids[0].serialize(),
        message.publish_timestamp() > 0,
    )

    after = await client.create_reader(TOPIC, ids[1])
    print("after an id:", await rest(after))
    at = await client.create_reader(TOPIC, ids[1], start_message_id_inclusive=True)
    print("from an id:", await rest(at))
    stored = pulsar.MessageId.deserialize(ids[2].serialize())
    resumed = await client.create_reader(TOPIC, stored)
    print("after a stored id:", await rest(resumed))

    await reader.seek(ids[0])
    print("sought an id:", await rest(reader))
    await reader.seek(0)
    print("sought the beginning of time:", await rest(reader))
    await reader.seek(message.publish_timestamp())
    print("sought a time:", await rest(reader))
    await reader.seek(ids[3])
    print("sought the last but one:", await rest(reader))

    last = await client.create_reader(
        TOPIC, pulsar.MessageId.latest, start_message_id_inclusive=True
    )
    print("the last one:", await rest(last))
    for each in (reader, newest, first, after, at, resumed, last):
        await each.close()
        assert not each.is_connected()
    await client.close()


asyncio.run(main())
