"""Mistakes with typed messages: a checker reports each line that ends in `# wrong`, no other."""

# pyright: strict

from dataclasses import dataclass

import pulsar_encore as encore


@dataclass
class Order:
    id: int


@dataclass
class Invoice:
    id: int


class Half:
    def encode(self, value: str) -> bytes:
        return value.encode()


def bill(message: encore.Message[Invoice]) -> None:
    print(message.value().id)


async def consume(client: encore.Client) -> None:
    consumer = await client.subscribe("orders", "billing", schema=encore.Json(Order))
    message = await consumer.receive()
    print(message.value().total)  # wrong
    bill(message)  # wrong
    nullable = await client.subscribe("orders", "billing", schema=encore.Json(Order, null=True))
    print((await nullable.receive()).value().id)  # wrong
    await client.subscribe("orders", "billing", schema=Half())  # wrong
    await client.subscribe("orders", "billing", schema="Order")  # wrong
    await client.subscribe("orders", "billing", schema=Order)  # wrong
    encore.Json(Order(1))  # wrong
    encore.KeyValue(encore.Json(Order), encore.Json(Order), encoding="both")  # wrong
    encore.KeyValue(Order, encore.Json(Order))  # wrong
    encore.Json(Order, null="yes")  # wrong


async def produce(client: encore.Client) -> None:
    producer = await client.create_producer("orders", schema=encore.Json(Order))
    await producer.send(Invoice(1))  # wrong
    await producer.send(b"{}")  # wrong


async def charge(invoice: Invoice) -> None: ...


async def charge_all(invoices: list[Invoice]) -> None: ...


def work(client: encore.Client) -> None:
    orders = encore.Json(Order)
    encore.Worker(client, "orders", "billing", charge, schema=orders)  # wrong
    encore.BatchWorker(client, "orders", "billing", charge_all, schema=orders)  # wrong
    encore.BatchWorker(client, "invoices", "billing", charge, schema=encore.Json(Invoice))  # wrong
