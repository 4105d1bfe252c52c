"""A worker that a user of Pulsar wrote after reading the documentation: it bills orders by key."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import pulsar_encore as encore


@dataclass
class Order:
    number: int
    customer: str
    total: int


@dataclass
class Invoice:
    order: int
    receipt: str


ORDERS = encore.Json(Order)
INVOICES = encore.Json(Invoice)


async def charge(order: Order) -> str:
    await asyncio.sleep(0.01)
    return f"receipt-{order.number}"


async def bill(order: Order, msg: encore.Message[Order]) -> encore.Out:
    if order.total < 0:
        raise encore.Reject("negative total")
    receipt = await charge(order)
    msg.publish(f"billed {order.number}".encode(), topic="audit")
    return encore.Out(Invoice(order.number, receipt), key=order.customer)


def make_worker(client: encore.Client, **options: Any) -> encore.Worker[Order]:
    defaults: dict[str, Any] = {
        "schema": ORDERS,
        "order": "key",
        "timeout": 5,
        "retry": encore.RetryPolicy(attempts=4, backoff=[10, 60, 600]),
        "breaker": encore.Breaker(on=(ConnectionError,)),
        "publish": encore.PublishTo("invoices", INVOICES),
        "initial_position": encore.InitialPosition.Earliest,
    }
    return encore.Worker(client, "orders", "billing", bill, **defaults | options)


async def main(url: str) -> None:
    async with encore.Client(url) as client:
        await encore.run(make_worker(client))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
