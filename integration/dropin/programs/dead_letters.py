"""Messages that always fail reach the dead letter topic, by nack and by redelivery."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
RUN = uuid.uuid4().hex[:8]


async def until_dead(client, name, fail, **options):
    topic, dead = f"failing-{name}-{RUN}", f"dead-{name}-{RUN}"
    policy = pulsar.ConsumerDeadLetterPolicy(
        max_redeliver_count=2, dead_letter_topic=dead, initial_subscription_name="undertaker"
    )
    print(policy.max_redeliver_count, policy.initial_subscription_name)
    graveyard = await client.subscribe(dead, "undertaker", pulsar.ConsumerType.Shared)
    consumer = await client.subscribe(
        topic, "fails", pulsar.ConsumerType.Shared, dead_letter_policy=policy, **options
    )
    producer = await client.create_producer(topic, batching_enabled=False)
    await producer.send(b"good")
    await producer.send(b"poison", properties={"colour": "green"}, partition_key="k")
    seen = []

    async def work():
        while True:
            msg = await consumer.receive()
            seen.append((msg.data().decode(), msg.redelivery_count()))
            if msg.data() == b"good":
                await consumer.acknowledge(msg)
            else:
                await fail(consumer, msg)

    working = asyncio.create_task(work())
    letter = await asyncio.wait_for(graveyard.receive(), 20)
    print(name, seen)
    print(letter.data(), letter.properties()["colour"], letter.partition_key())
    await graveyard.acknowledge(letter)
    working.cancel()
    await consumer.close()
    await graveyard.close()


async def nack(consumer, msg):
    await consumer.negative_acknowledge(msg)


async def redeliver(consumer, msg):
    await asyncio.sleep(0.2)
    consumer.redeliver_unacknowledged_messages()


async def main():
    client = Client(URL)
    await until_dead(client, "nack", nack, negative_ack_redelivery_delay_ms=200)
    await until_dead(client, "redeliver", redeliver)
    await client.close()


asyncio.run(main())
