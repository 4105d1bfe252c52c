"""A worker for production, with a probe of its health and its counts on a port.

python examples/production_worker.py service_url port (runs until SIGTERM or Ctrl+C)
"""

import asyncio
import sys
from dataclasses import dataclass

import pulsar_encore as encore

# The application


@dataclass
class Order:
    number: int
    total: int


ORDERS = encore.Json(Order)
AWAY = encore.Breaker(on=(ConnectionError,))  # the payment gateway is away


async def charge(order: Order) -> None:
    await asyncio.sleep(0.01)  # stands for the call of a payment gateway
    print(f"charged {order.total} for order {order.number}", flush=True)


async def bill(order: Order) -> None:
    if order.total < 0:
        raise encore.Reject("negative total")  # dead letter now
    await charge(order)  # an error: again after a backoff, and after six attempts a dead letter


# The worker: one order of a key at a time, time-outs, retries, dead letters, a pause while the
# gateway is away, a drain at SIGTERM, and a probe of health and counts


async def main(url: str, port: str) -> None:
    async def probe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        status = 200 if worker.health().ready else 503
        writer.write(f"HTTP/1.0 {status} \r\n\r\n{worker.health()}\n{worker.report()}".encode())
        writer.close()

    async with encore.Client(url) as client, await asyncio.start_server(probe, port=port):
        worker = encore.Worker(
            client, "orders", "billing", bill, schema=ORDERS, order="key", timeout=60, breaker=AWAY
        )
        await encore.run(worker)


asyncio.run(main(*sys.argv[1:]))
