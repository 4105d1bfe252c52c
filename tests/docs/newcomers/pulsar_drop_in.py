"""A blocking program for `pulsar-client`, after the first step of the migration page."""

from __future__ import annotations

import pulsar_encore as pulsar
from pulsar_encore.schema import Integer, JsonSchema, Record, String


class Order(Record):
    number = Integer()
    customer = String()
    total = Integer()


async def main(url: str) -> tuple[list[tuple[int, int]], pulsar.Message]:
    """Publish three orders and bill them; return the calls, and the dead letter of the second."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    calls = []

    def listener(consumer: pulsar.Consumer, msg: pulsar.Message) -> None:
        order = msg.value()
        calls.append((order.number, msg.redelivery_count()))
        if order.total < 0:
            consumer.negative_acknowledge(msg)
        else:
            consumer.acknowledge(msg)

    await client.subscribe(
        "orders",
        "billing",
        consumer_type=pulsar.ConsumerType.Shared,
        schema=JsonSchema(Order),
        negative_ack_redelivery_delay_ms=100,
        message_listener=listener,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
            3, initial_subscription_name="encore-replay"
        ),
    )
    producer = await client.create_producer("orders", schema=JsonSchema(Order))
    for number, total in enumerate([20, -1, 30]):
        order = Order(number=number, customer=f"customer-{number}", total=total)
        await producer.send(order, partition_key=order.customer)
    letters = await client.subscribe(
        "orders-billing-DLQ",
        "letters",
        initial_position=pulsar.InitialPosition.Earliest,
        schema=JsonSchema(Order),
    )
    letter = await letters.receive(timeout_millis=30_000)
    await client.close()
    return calls, letter
