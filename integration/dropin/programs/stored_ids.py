"""Message ids stored as bytes in a database: read, compared, sorted, and used for acks and
nacks.
"""

import asyncio
import os
import sqlite3
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"ids-{uuid.uuid4().hex[:8]}"


async def main():
    client = Client(URL)
    consumer = await client.subscribe(TOPIC, "keeps", pulsar.ConsumerType.Shared)
    producer = await client.create_producer(TOPIC, batching_enabled=False)
    sent = [await producer.send(b"%d" % number) for number in range(6)]
    messages = [await consumer.receive() for _ in range(6)]

    print([pulsar.MessageId.wrap(m.message_id()) == s for m, s in zip(messages, sent, strict=True)])
    print(
        sent[0] == sent[0],
        sent[0] != sent[1],
        sent[0] < sent[1] <= sent[1],
        sent[3] > sent[2] >= sent[2],
    )
    print(
        sorted([*sent[3:], *sent[:3]]) == sent,
        max(sent) == sent[5],
        len({s.serialize() for s in sent + sent}),
    )
    print(pulsar.MessageId.earliest.entry_id(), pulsar.MessageId.latest.entry_id())
    print((sent[0].partition(), sent[0].batch_index()))  # the texts differ
    rebuilt = pulsar.MessageId(-1, sent[2].ledger_id(), sent[2].entry_id(), -1)
    print(rebuilt == sent[2], rebuilt == pulsar.MessageId.wrap(messages[2].message_id()))

    database = sqlite3.connect(":memory:")
    database.execute("create table progress (number integer, id blob)")
    database.executemany(
        "insert into progress values (?, ?)",
        [(int(m.data()), m.message_id().serialize()) for m in messages],
    )
    for number, blob in database.execute("select number, id from progress where number % 2 = 0"):
        stored = pulsar.MessageId.deserialize(blob)
        print(number, pulsar.MessageId.wrap(stored) == sent[number], stored.serialize() == blob)
        await consumer.acknowledge(stored)
    await asyncio.sleep(0.3)
    await consumer.close()

    again = await client.subscribe(TOPIC, "keeps", pulsar.ConsumerType.Shared)
    print(sorted([(await again.receive()).data() for _ in range(3)]))
    by_topic = pulsar.MessageId.deserialize(sent[5].serialize(), topic=producer.topic())
    print(pulsar.MessageId.wrap(by_topic) == sent[5])
    for special in (pulsar.MessageId.earliest, pulsar.MessageId.latest):
        print(pulsar.MessageId.deserialize(special.serialize()) == special, special.ledger_id())
    await client.close()


asyncio.run(main())
