"""A service as a user would write it. It runs, and passes mypy --strict and strict pyright.

python service.py SERVICE_URL
"""

# pyright: strict

import asyncio
import sys
from datetime import timedelta
from enum import Enum

import pulsar_encore as encore
from pulsar_encore import otel, prometheus, schema


class Size(Enum):
    SMALL = 1
    LARGE = 2


class Address(schema.Record):
    street = schema.String()
    zip_code = schema.Integer()


class Order(schema.Record):
    _avro_namespace = "shop"
    _sorted_fields = True

    id = schema.Integer(required=True)
    type = schema.String(default="plain")
    customer = schema.String(required=True)
    weight = schema.Double()
    gift = schema.Boolean()
    label = schema.Bytes()
    placed_ms = schema.Long()
    size = schema.CustomEnum(Size)
    address = Address()
    lines = schema.Array(schema.String())
    stops = schema.Array(Address())
    prices = schema.Map(schema.Float())


class Failures(encore.Observer):
    """Overrides one method; the others do nothing."""

    count = 0

    def handler_ended(self, call: encore.HandlerCall, end: encore.HandlerEnd) -> None:
        self.count += end.result == "failure"


def total(order: Order) -> float:
    prices: dict[str, float] = order.prices or {}
    return sum(prices.values())


def label(order: Order) -> str:
    number: int | None = order.id
    street: str | None = order.address.street if order.address is not None else None
    streets: list[str | None] = [stop.street for stop in order.stops or []]
    gift: bool = order.gift
    size: Size | None = order.size
    words: list[str] = order.lines or []
    return f"{number} {order.customer} {street} {streets} {gift} {size} {words}"


class Busy(Exception):
    pass


def bill(order: Order, attempt: int) -> None:
    if order.customer == "busy" and attempt < 2:
        raise Busy
    if order.customer == "poison":
        raise ValueError("no price")


async def handle(consumer: encore.Consumer, message: encore.Message) -> bool:
    order: Order = message.value()
    try:
        bill(order, message.redelivery_count() + 1)
    except Busy:
        await consumer.negative_acknowledge(message, delay=0.1)
        return False
    except ValueError as error:
        await consumer.reconsume_later(message, delay=timedelta(milliseconds=100), error=error)
        return False
    await consumer.acknowledge(message)
    return True


def heard(event: encore.ConsumerEvent) -> None:
    match event:
        case encore.Retrying(topic, error, attempts, elapsed):
            print(f"{topic}: {attempts} attempts in {elapsed:.0f} s, {error}")
        case encore.Failed(topic, error, component):
            print(f"the {component} of {topic} has ended: {error}")
        case _:
            pass


def heard_of_producer(event: encore.ProducerEvent) -> None:
    heard(event)


async def produce(client: encore.Client, topic: str) -> encore.MessageId:
    async with await client.create_producer(
        topic,
        event_listener=heard_of_producer,
        schema=schema.JsonSchema(Order),
        compression_type=encore.CompressionType.ZLib,
        batching_type=encore.BatchingType.KeyBased,
    ) as producer:
        sends = [
            producer.send(
                Order(id=number, customer=customer, lines=["one"], prices={"one": 1.5}),
                partition_key=customer,
                properties={"attempt": "first"},
            )
            for number, customer in enumerate(("Ada", "busy", "poison"))
        ]
        ids = await asyncio.gather(*sends)
        await producer.flush()
        return ids[0]


async def consume(client: encore.Client, topic: str) -> None:
    async with await client.subscribe(
        topic,
        "billing",
        consumer_type=encore.ConsumerType.Shared,
        schema=schema.JsonSchema(Order),
        initial_position=encore.InitialPosition.Earliest,
        negative_ack_redelivery_backoff=encore.Backoff(min_delay=0.1, max_delay=1),
        dead_letter_policy=encore.DeadLetterPolicy(
            max_redeliver_count=1, initial_subscription_name="triage"
        ),
        retry_enable=True,
        event_listener=heard,
    ) as consumer:
        handled = looks = 0
        # one delivery of Ada's, and two each of the busy and the poison message, in any order
        while looks < 5:
            try:
                message = await consumer.receive(timeout_millis=5000)
            except encore.ReceiveTimeout:
                break
            looks += 1
            handled += await handle(consumer, message)
        statistics: encore.Statistics = consumer.statistics()
        print(f"{handled} handled, {statistics.queued} queued at {consumer.topic()}")


async def dead_letters(client: encore.Client, topic: str) -> None:
    consumer = await client.subscribe(f"{topic}-billing-DLQ", "triage")
    async for letter in consumer:
        print(letter.properties()["REAL_TOPIC"], letter.partition_key(), letter.data()[:1])
        await consumer.acknowledge_cumulative(letter.message_id())
        break
    await consumer.close()


async def listen(client: encore.Client, topic: str) -> None:
    seen: asyncio.Queue[int | None] = asyncio.Queue()

    async def listener(consumer: encore.Consumer, message: encore.Message) -> None:
        order: Order = message.value()
        seen.put_nowait(order.id)
        await consumer.acknowledge(message)

    def plain(consumer: encore.Consumer, message: encore.Message) -> None:
        order: Order = message.value()
        seen.put_nowait(order.id)
        consumer.acknowledge(message)

    for name, each in (("listening", listener), ("plainly", plain)):
        async with client.subscribe(
            topic,
            name,
            schema=schema.JsonSchema(Order),
            initial_position=encore.InitialPosition.Earliest,
            message_listener=each,
        ):
            print(name, "to", [await seen.get() for _ in range(3)])


async def settle(consumer: encore.Consumer) -> None:
    messages = [await consumer.receive() for _ in range(3)]
    consumer.negative_acknowledge(messages[0], delay=0.1)
    task = asyncio.create_task(consumer.acknowledge(messages[1]))
    await asyncio.gather(task, consumer.acknowledge(messages[2]))
    await asyncio.wait_for(consumer.acknowledge(await consumer.receive()), 5)


async def read(client: encore.Client, topic: str) -> None:
    reader = await client.create_reader(
        topic, encore.MessageId.earliest, schema=schema.JsonSchema(Order)
    )
    async with reader:
        orders: list[Order] = []
        while await reader.has_message_available():
            message = await reader.read_next()
            orders.append(message.value())
    print("read", [label(order) for order in orders], total(orders[0]))


async def main(url: str) -> None:
    topic = "persistent://public/default/typed-service"
    try:
        observers = [Failures(), prometheus.Metrics(), otel.Metrics(), otel.Tracing()]
        async with encore.Client(url, operation_timeout_seconds=10, observers=observers) as client:
            first = await produce(client, topic)
            print("first is", encore.MessageId.deserialize(first.serialize()) == first)
            await consume(client, topic)
            await dead_letters(client, topic)
            await listen(client, topic)
            async with client.subscribe(
                topic, "settling", initial_position=encore.InitialPosition.Earliest
            ) as consumer:
                await settle(consumer)
            await read(client, topic)
    except encore.TransportError as error:
        print(error.result, error.retryable, file=sys.stderr)
        raise


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
