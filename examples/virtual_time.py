"""Test without a broker, in virtual time: a delay of an hour takes milliseconds.

python examples/virtual_time.py
"""

import asyncio

import pulsar_encore as encore
from pulsar_encore import testing


async def work(consumer: encore.Consumer) -> str:
    """The code under test: nack the first delivery for an hour."""
    msg = await consumer.receive()
    if msg.redelivery_count() == 0:
        await consumer.negative_acknowledge(msg, delay=3600)
        return "nacked"
    await consumer.acknowledge(msg)
    return "done"


async def main() -> None:
    clock = asyncio.get_running_loop()
    transport = testing.MemoryTransport()  # topics and subscriptions, without a network
    async with encore.Client("memory://", transport=transport) as client:
        consumer = await client.subscribe("jobs", "worker", encore.ConsumerType.Shared)
        transport.put("jobs", b"nightly report")
        started = clock.time()
        print(await work(consumer))
        print(f"{await work(consumer)} after {(clock.time() - started) / 60:.0f} minutes")
        await consumer.close()  # sends the pending acks
        assert transport.backlog("jobs", "worker") == 0
        requests = transport.recorded("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        print(f"{len(requests)} request for redelivery")


if __name__ == "__main__":
    testing.run(main())
