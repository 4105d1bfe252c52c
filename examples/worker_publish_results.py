"""Publish results: one message in, many out, all stored before the message is acked.

python examples/worker_publish_results.py [service_url]
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pulsar_encore as encore
from pulsar_encore import testing


@dataclass
class Parcel:
    item: str


PARCELS = encore.Json(Parcel)


async def ship(order: bytes, msg: encore.Message[bytes]) -> AsyncIterator[encore.Out]:
    items = order.decode().split(",")
    for item in items:
        yield encore.Out(Parcel(item), key=msg.key)  # or the value alone, without a key
    msg.publish(f"{len(items)} parcels".encode(), topic="example-audit")


async def main(url: str) -> None:
    results = encore.PublishTo("example-parcels", PARCELS)
    async with (
        encore.Client(url) as client,
        client.subscribe("example-parcels", "demo", schema=PARCELS) as parcels,
        client.subscribe("example-audit", "demo") as audit,
        encore.Worker(client, "example-shop", "shipping", ship, publish=results),
        client.create_producer("example-shop") as producer,
    ):
        await producer.send(b"lamp,chair", partition_key="Ada")
        for _ in range(2):
            msg = await parcels.receive(timeout=10)
            print(f"{msg.value().item} for {msg.key}")
        print((await audit.receive(timeout=10)).value().decode())


async def start() -> None:
    if len(sys.argv) > 1:
        await main(sys.argv[1])
    else:
        async with testing.broker() as url:
            await main(url)


if __name__ == "__main__":
    asyncio.run(start())
