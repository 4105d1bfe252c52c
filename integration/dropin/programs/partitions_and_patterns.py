"""Partitioned topics by key, several topics in a list, and all topics of a pattern."""

import asyncio
import os
import urllib.request
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
ADMIN = os.environ.get("PULSAR_ADMIN_URL", "http://localhost:8080")
RUN = uuid.uuid4().hex[:8]


def make_partitioned(topic, partitions):
    url = f"{ADMIN}/admin/v2/persistent/public/default/{topic}/partitions"
    headers = {"Content-Type": "application/json"}
    put = urllib.request.Request(url, str(partitions).encode(), headers, method="PUT")
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(put).close()


async def take(consumer, count):
    found = []
    for _ in range(count):
        msg = await consumer.receive()
        found.append(
            (
                msg.data().decode(),
                msg.topic_name().rpartition("/")[2].replace(RUN, "RUN"),
                msg.message_id().partition(),
            )
        )
        await consumer.acknowledge(msg)
    return sorted(found)


async def main():
    client = Client(URL)
    topics = [f"plain-{RUN}", f"wide-{RUN}", f"other-{RUN}"]
    make_partitioned(topics[1], 3)
    names = await client.get_topic_partitions(topics[1])
    print(
        [name.replace(RUN, "RUN") for name in names],
        len(await client.get_topic_partitions(topics[0])),
    )

    producers = [
        await client.create_producer(
            topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
        )
        for topic in topics
    ]
    listed = await client.subscribe(topics[:2], "list", pulsar.ConsumerType.Shared)
    for key in "abcdef":
        await producers[1].send(f"key {key}".encode(), partition_key=key)
    await producers[0].send(b"unkeyed")
    await producers[2].send(b"elsewhere")
    for found in await take(listed, 7):
        print("list", *found)

    routed = await client.create_producer(
        topics[1],
        message_routing_mode=pulsar.PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, partitions: int(message.properties()["to"]) % partitions,
    )
    for number in (1, 2, 4):
        await routed.send(b"routed", properties={"to": str(number)})
    print("routed", await take(listed, 3))

    one = await client.subscribe(names[2], "one", initial_position=pulsar.InitialPosition.Earliest)
    print("one partition", len(await take(one, 2)))
    pattern = await client.subscribe(
        f"persistent://public/default/.*-{RUN}",
        "pattern",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        is_pattern_topic=True,
    )
    for found in await take(pattern, 11):
        print("pattern", *found[:2])
    await client.close()


asyncio.run(main())
