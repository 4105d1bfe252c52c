"""A chat room: each member has a subscription; one joins late and reads the history."""

import asyncio
import os
import uuid

import pulsar
from pulsar.asyncio import Client

URL = os.environ.get("PULSAR_URL", "pulsar://localhost:6650")
ROOM = f"persistent://public/default/room-{uuid.uuid4().hex[:8]}"


class Member:
    def __init__(self, client, name):
        self.client = client
        self.name = name
        self.heard = []

    async def join(self, history=False):
        position = pulsar.InitialPosition.Earliest if history else pulsar.InitialPosition.Latest
        self.consumer = await self.client.subscribe(
            topic=ROOM,
            subscription_name=f"chat-{self.name}",
            consumer_name=self.name,
            initial_position=position,
            properties={"member": self.name},
        )
        self.producer = await self.client.create_producer(ROOM, producer_name=f"{self.name}-writes")
        self.listening = asyncio.create_task(self.listen())

    async def listen(self):
        while True:
            msg = await self.consumer.receive()
            self.heard.append(f"{msg.properties()['from']}: {msg.value().decode()}")
            await self.consumer.acknowledge(msg)

    async def say(self, text):
        await self.producer.send(text.encode(), properties={"from": self.name})

    async def leave(self, for_good=False):
        self.listening.cancel()
        if for_good:
            await self.consumer.unsubscribe()
        else:
            await self.consumer.close()
        await self.producer.close()


async def until(condition):
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise SystemExit("nothing heard")


async def main():
    client = Client(URL)
    ada, grace, edsger = (Member(client, name) for name in ("ada", "grace", "edsger"))
    await ada.join()
    await grace.join()
    print(ada.consumer.consumer_name(), ada.producer.producer_name())
    await ada.say("hello")
    await grace.say("hello, Ada")
    await until(lambda: len(ada.heard) == len(grace.heard) == 2)
    await grace.leave()
    await ada.say("she left")
    await edsger.join(history=True)
    await grace.join()  # receives the messages sent meanwhile
    await ada.say("good bye")
    await until(lambda: len(edsger.heard) == 4 and len(grace.heard) == 4)
    for member in (ada, grace, edsger):
        print(member.name, member.heard)
        await member.leave(for_good=True)
    await client.close()


asyncio.run(main())
