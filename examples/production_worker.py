"""A worker for production, with probes of its health and its counts on a port.

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
# gateway is away, a drain at SIGTERM, and probes of health with counts


async def main(url: str, port: str) -> None:
    async with encore.Client(url) as client:
        worker = encore.Worker(
            client, "orders", "billing", bill, schema=ORDERS, order="key", timeout=60, breaker=AWAY
        )
        async with encore.health.serve(worker, port=int(port)):
            await encore.run(worker)


asyncio.run(main(*sys.argv[1:]))
