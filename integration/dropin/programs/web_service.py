"""A web service: hooks at startup and shutdown, a consumer in the background, a graceful stop."""

import asyncio
import contextlib
import json
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
TOPIC = f"orders-{uuid.uuid4().hex[:8]}"


class App:
    """A minimal web framework."""

    def __init__(self, lifespan):
        self.lifespan = lifespan
        self.routes = {}
        self.state = {}

    def route(self, method, path):
        return lambda handler: self.routes.setdefault((method, path), handler)

    async def request(self, method, path, body=None):
        return await self.routes[method, path](self, body)


@contextlib.asynccontextmanager
async def lifespan(app):
    client = Client(URL)
    app.state["producer"] = await client.create_producer(TOPIC)
    app.state["orders"] = {}
    app.state["change"] = asyncio.Condition()
    consumer = await client.subscribe(
        TOPIC,
        "orders",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    background = asyncio.create_task(store_orders(app, consumer))
    print("started")
    yield
    background.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await background
    await consumer.close()
    await client.close()
    print("stopped")


async def store_orders(app, consumer):
    while True:
        msg = await consumer.receive()
        order = json.loads(msg.data())
        async with app.state["change"]:
            app.state["orders"][order["id"]] = order["item"]
            app.state["change"].notify_all()
        await consumer.acknowledge(msg)


app = App(lifespan)


@app.route("POST", "/orders")
async def place(app, body):
    await app.state["producer"].send(json.dumps(body).encode(), partition_key=str(body["id"]))
    return 202, {"accepted": body["id"]}


@app.route("GET", "/orders")
async def listing(app, count):
    async with app.state["change"], asyncio.timeout(20):
        await app.state["change"].wait_for(lambda: len(app.state["orders"]) >= count)
    return 200, dict(sorted(app.state["orders"].items()))


async def serve(numbers):
    async with app.lifespan(app):
        answers = await asyncio.gather(
            *(app.request("POST", "/orders", {"id": n, "item": f"book {n}"}) for n in numbers)
        )
        print(answers)
        print(await app.request("GET", "/orders", len(numbers)))


async def main():
    await serve(range(5))
    await serve(range(5, 8))  # the second start: messages of the first are not redelivered


asyncio.run(main())
