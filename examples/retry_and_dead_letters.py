"""Retry with a delay, and dead-letter a message that keeps failing.

python examples/retry_and_dead_letters.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import letters, testing


def bill(order: str) -> None:
    if order == "poison":
        raise ValueError("no price for 'poison'")


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            "example-letters",
            "billing",
            consumer_type=encore.ConsumerType.Shared,
            retry_enable=True,
            dead_letter_policy=encore.DeadLetterPolicy(max_redeliver_count=2),
        )
        producer = await client.create_producer("example-letters")
        await producer.send(b"poison")

        for attempt in range(1, 4):
            msg = await consumer.receive(timeout=10)
            try:
                bill(msg.data().decode())
            except ValueError as error:
                print(f"attempt {attempt}: {error}")
                # Sent to the retry letter topic, or to the dead letter topic after attempt 3.
                await consumer.reconsume_later(msg, delay=0.2, error=error)

        dead = "example-letters-billing-DLQ"
        reader = await client.create_reader(dead, encore.MessageId.earliest)
        letter = await reader.read_next(timeout_millis=10_000)
        properties = letter.properties()
        attempts, error_class = properties[letters.ATTEMPTS], properties[letters.ERROR_CLASS]
        print(f"dead-lettered after {attempts} attempts: {error_class}")
        print(properties[letters.ERROR_STACK].splitlines()[0].rpartition(" ")[2], "raised it")


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
