"""Request and reply, with a correlation id and the reply topic in the properties."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client, Consumer, Producer

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
RUN = uuid.uuid4().hex[:8]
REQUESTS = f"rpc-requests-{RUN}"


class Server:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.reply_to: dict[str, Producer] = {}

    async def serve(self) -> None:
        consumer = await self.client.subscribe(
            REQUESTS,
            "server",
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        while True:
            request = await consumer.receive()
            topic = request.properties()["reply-to"]
            if topic not in self.reply_to:
                self.reply_to[topic] = await self.client.create_producer(topic)
            try:
                answer = {"result": str(int(request.data()) ** 2)}
            except ValueError as error:
                answer = {"error": type(error).__name__}
            correlation = {"correlation-id": request.properties()["correlation-id"]}
            await self.reply_to[topic].send(b"", properties=answer | correlation)
            await consumer.acknowledge(request)


class Caller:
    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future] = {}

    async def start(self, client: Client) -> None:
        topic = f"rpc-replies-{uuid.uuid4().hex[:8]}"
        self.requests = await client.create_producer(REQUESTS)
        self.replies: Consumer = await client.subscribe(topic, "caller")
        self.topic = topic
        self.listening = asyncio.create_task(self.listen())

    async def listen(self) -> None:
        while True:
            reply = await self.replies.receive()
            await self.replies.acknowledge(reply)
            self.waiting.pop(reply.properties()["correlation-id"]).set_result(reply.properties())

    async def call(self, argument: bytes) -> str:
        key = uuid.uuid4().hex
        self.waiting[key] = asyncio.get_running_loop().create_future()
        answer = self.waiting[key]
        await self.requests.send(
            argument, properties={"reply-to": self.topic, "correlation-id": key}
        )
        properties = await asyncio.wait_for(answer, 20)
        return properties.get("result") or "failed: " + properties["error"]


async def main():
    client = Client(URL)
    serving = asyncio.create_task(Server(client).serve())
    callers = [Caller(), Caller()]
    for caller in callers:
        await caller.start(client)
    print(await callers[0].call(b"12"), await callers[1].call(b"9"))
    print(await callers[0].call(b"twelve"))
    print(await asyncio.gather(*(callers[n % 2].call(str(n).encode()) for n in range(10))))
    for task in (serving, *(caller.listening for caller in callers)):
        task.cancel()
    await client.close()


asyncio.run(main())
