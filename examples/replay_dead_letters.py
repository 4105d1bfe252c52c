"""Group dead letters by failure, and replay one group after the fix.

python examples/replay_dead_letters.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import letters, testing
from pulsar_encore.deadletters import DeadLetters, Selection


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            "example-replay",
            "billing",
            consumer_type=encore.ConsumerType.Shared,
            dead_letter_policy=encore.DeadLetterPolicy(max_redeliver_count=1),
        )
        producer = await client.create_producer("example-replay")
        for order in range(3):
            await producer.send(f"order {order}".encode())

        for _ in range(6):  # two delivery attempts for each message
            msg = await consumer.receive(timeout=10)
            name = KeyError if msg.data() == b"order 1" else TimeoutError
            await consumer.negative_acknowledge(msg, delay=0.1, error=name("prices"))

        topic = "example-replay-billing-DLQ"
        reader = await client.create_reader(topic, encore.MessageId.earliest)
        for _ in range(3):
            await reader.read_next(timeout_millis=10_000)  # wait for all three

        dead = DeadLetters(client, topic)
        groups = await dead.list()
        for group in groups:
            print(f"{group.count} x {group.error_class}: {group.error_message}")

        outage = Selection(fingerprints=[groups[0].fingerprint])
        report = await dead.replay(outage, replay_id="after-the-outage")
        print(f"{report.replayed} replayed, {report.passed} not selected")
        for _ in range(2):
            msg = await consumer.receive(timeout=10)
            print(f"{msg.data().decode()} replayed, {msg.properties()[letters.REPLAY_ID]}")
            await consumer.acknowledge(msg)


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
