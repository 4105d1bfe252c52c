"""Messages of one key go to one consumer: with sticky ranges, and with auto-split ranges."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
RUN = uuid.uuid4().hex[:8]
KEYS = [f"key{number}" for number in range(12)]


async def collect(consumer, found):
    while True:
        msg = await consumer.receive()
        found.append((msg.partition_key(), msg.data().decode()))
        await consumer.acknowledge(msg)


async def share(client, name, policies):
    topic = f"shared-{name}-{RUN}"
    consumers = [
        await client.subscribe(
            topic, "keys", pulsar.ConsumerType.KeyShared, key_shared_policy=policy
        )
        for policy in policies
    ]
    producer = await client.create_producer(topic, batching_type=pulsar.BatchingType.KeyBased)
    found = [[] for _ in consumers]
    tasks = [asyncio.create_task(collect(*pair)) for pair in zip(consumers, found, strict=True)]
    for turn in range(3):
        await asyncio.gather(
            *(producer.send(str(turn).encode(), partition_key=key) for key in KEYS)
        )
    for _ in range(400):
        if sum(map(len, found)) == 3 * len(KEYS):
            break
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    owned = [{key for key, _ in each} for each in found]
    print(name, "all:", set().union(*owned) == set(KEYS), "apart:", not set.intersection(*owned))
    print(
        name,
        "in order:",
        all(
            [v for k, v in each if k == key] == ["0", "1", "2"]
            for each in found
            for key in {k for k, _ in each}
        ),
    )
    if name == "sticky":
        print(name, [sorted(each) for each in owned])
    for consumer in consumers:
        await consumer.close()


async def main():
    client = Client(URL)
    sticky = pulsar.KeySharedMode.Sticky
    await share(
        client,
        "sticky",
        [
            pulsar.ConsumerKeySharedPolicy(sticky, sticky_ranges=[(0, 32767)]),
            pulsar.ConsumerKeySharedPolicy(key_shared_mode=sticky, sticky_ranges=[(32768, 65535)]),
        ],
    )
    automatic = pulsar.ConsumerKeySharedPolicy(
        key_shared_mode=pulsar.KeySharedMode.AutoSplit, allow_out_of_order_delivery=False
    )
    print(automatic.key_shared_mode, automatic.allow_out_of_order_delivery, automatic.sticky_ranges)
    await share(client, "automatic", [automatic, automatic])
    await client.close()


asyncio.run(main())
