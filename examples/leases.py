"""Lease messages: renew a lease, ack by its handle, and let a lease expire.

python examples/leases.py [service_url]
"""

import asyncio
import sys

import pulsar_encore as encore
from pulsar_encore import testing


async def long_job(lease: encore.Lease) -> None:
    async with lease.kept():  # renews the lease; cancels the block if it is lost
        await asyncio.sleep(1.5)  # longer than the lease
    await lease.ack()
    print(f"{lease.message.data().decode()} took longer than its lease, and is done")


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        consumer = await client.subscribe(
            "example-leases",
            "worker",
            consumer_type=encore.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=200,
        )
        producer = await client.create_producer("example-leases")
        for job in (b"a long job", b"a job for later", b"a job that hangs"):
            await producer.send(job)

        handles = []
        for _ in range(3):
            [lease] = await consumer.pop(1, lease=1)
            if lease.message.data() == b"a long job":
                working = asyncio.create_task(long_job(lease))
            elif lease.message.data() == b"a job for later":
                handles.append(lease.handle)  # text, which can be stored in a database

        later = await consumer.lease(handles.pop())
        await later.ack()
        print("a job for later was acked by its handle")

        [retry] = await consumer.pop(wait=10)
        print(f"{retry.message.data().decode()} was redelivered, attempt {retry.attempt}")
        await retry.ack()
        await working


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
