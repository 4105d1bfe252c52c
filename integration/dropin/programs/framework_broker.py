"""A small messaging framework on top of the client: handlers by decorator, and ack policies."""

import asyncio
import enum
import json
import logging
import os
import uuid

import pulsar
from pulsar.asyncio import Client, Consumer, PulsarException

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
RUN = uuid.uuid4().hex[:8]


class AckPolicy(enum.Enum):
    ACK_FIRST = enum.auto()
    REJECT_ON_ERROR = enum.auto()
    NACK_ON_ERROR = enum.auto()
    MANUAL = enum.auto()


class Delivered:
    """The argument of a manual handler: the message and its settlement methods."""

    def __init__(self, consumer: Consumer, raw: pulsar.Message) -> None:
        self.consumer = consumer
        self.raw = raw
        self.body = json.loads(raw.data())

    async def ack(self) -> None:
        await self.consumer.acknowledge(self.raw)

    async def nack(self) -> None:
        await self.consumer.negative_acknowledge(self.raw)


class Broker:
    def __init__(self, url: str, **options) -> None:
        self._url = url
        self._options = options
        self._handlers = []
        self._producers = {}
        self._tasks = []
        self._client = None

    def subscriber(
        self, topic: str, subscription: str = "app", policy=AckPolicy.NACK_ON_ERROR, **options
    ):
        def register(handler):
            self._handlers.append((topic, subscription, policy, options, handler))
            return handler

        return register

    async def connect(self) -> None:
        if self._client is None:
            self._client = Client(self._url, **self._options)

    async def start(self) -> None:
        await self.connect()
        for topic, subscription, policy, options, handler in self._handlers:
            consumer = await self._client.subscribe(
                topic, subscription, **{"consumer_type": pulsar.ConsumerType.Shared, **options}
            )
            self._tasks.append(asyncio.create_task(self._consume(consumer, policy, handler)))

    async def _consume(self, consumer: Consumer, policy: AckPolicy, handler) -> None:
        while True:
            try:
                raw = await consumer.receive()
            except PulsarException as error:
                print("consumer ended", error.error())
                return
            if policy is AckPolicy.ACK_FIRST:
                await consumer.acknowledge(raw)
            try:
                result = await handler(Delivered(consumer, raw))
            except Exception as error:
                if policy is AckPolicy.NACK_ON_ERROR:
                    await consumer.negative_acknowledge(raw)
                elif policy is AckPolicy.REJECT_ON_ERROR:
                    await consumer.acknowledge(raw)
                logging.debug("handler failed", exc_info=error)
            else:
                if policy in (AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR):
                    await consumer.acknowledge(raw)
                if result is not None and "reply_to" in raw.properties():
                    await self.publish(result, raw.properties()["reply_to"])

    async def publish(self, body, topic: str, reply_to: str | None = None) -> pulsar.MessageId:
        await self.connect()
        if topic not in self._producers:
            self._producers[topic] = await self._client.create_producer(topic)
        properties = {"content-type": "application/json"}
        if reply_to is not None:
            properties["reply_to"] = reply_to
        return await self._producers[topic].send(json.dumps(body).encode(), properties=properties)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for producer in self._producers.values():
            await producer.flush()
        await self._client.close()


broker = Broker(URL, operation_timeout_seconds=20)
seen: dict[str, list] = {"nack": [], "reject": [], "first": [], "manual": [], "replies": []}
NACK = {"negative_ack_redelivery_delay_ms": 300}


@broker.subscriber(f"nack-{RUN}", **NACK)
async def fails_once(message):
    seen["nack"].append((message.body, message.raw.redelivery_count()))
    if message.raw.redelivery_count() == 0:
        raise RuntimeError("not yet")
    return {"done": message.body}


@broker.subscriber(f"reject-{RUN}", policy=AckPolicy.REJECT_ON_ERROR, **NACK)
async def always_fails(message):
    seen["reject"].append(message.body)
    raise RuntimeError("never")


@broker.subscriber(f"first-{RUN}", policy=AckPolicy.ACK_FIRST, **NACK)
async def fails_after_ack(message):
    seen["first"].append(message.body)
    raise RuntimeError("too late")


@broker.subscriber(f"manual-{RUN}", policy=AckPolicy.MANUAL, **NACK)
async def decides(message):
    seen["manual"].append((message.body, message.raw.redelivery_count()))
    await (message.ack() if message.raw.redelivery_count() else message.nack())


@broker.subscriber(f"replies-{RUN}")
async def replied(message):
    seen["replies"].append(message.body)


async def main():
    await broker.start()
    published = await broker.publish({"n": 1}, f"nack-{RUN}", reply_to=f"replies-{RUN}")
    print(isinstance(published, pulsar.MessageId), published.entry_id())
    for name in ("reject", "first", "manual"):
        await broker.publish({"n": name}, f"{name}-{RUN}")
    for _ in range(200):
        if seen["replies"] and len(seen["manual"]) == 2:
            break
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.6)  # time for unexpected redeliveries
    await broker.stop()
    for name, what in seen.items():
        print(name, what)


asyncio.run(main())
