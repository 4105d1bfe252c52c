"""Random histories of releases, failures in place, rejections and lost connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
from consumer_kit import TOPIC, settle

from pulsar_encore import (
    Client,
    Consumer,
    ConsumerType,
    DeadLetterPolicy,
    InitialPosition,
    Message,
    MessageId,
    ReceiveTimeout,
    TransportError,
)
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport

DEAD = f"{TOPIC}-s-DLQ"
UNSHARED = (ConsumerType.Exclusive, ConsumerType.Failover)


class Application:
    """One consumer, and an application that does something random with each message.

    Attributes:
        held: The held messages by number.
        failures: Failed attempts by number.
    """

    def __init__(
        self, rng: Random, transport: MemoryTransport, consumer: Consumer, *, nacks: bool
    ) -> None:
        self.rng = rng
        self.transport = transport
        self.consumer = consumer
        self.nacks = nacks
        self.held: dict[int, Message] = {}
        self.failures: Counter[int] = Counter()
        self.acked: set[int] = set()
        self.rejected: set[int] = set()
        self.deliveries = 0
        self.waiting: set[int] = set()  # nacked

    @property
    def settled(self) -> set[int]:
        return self.acked | self.rejected

    async def receive(self, *, ordered: bool, timeout: float = 0.5) -> bool:
        try:
            message = await self.consumer.receive(timeout=timeout)
        except ReceiveTimeout:
            return False
        self.deliveries += 1
        number = int(message.data())
        assert number not in self.settled, f"{number} was delivered after it was settled"
        if number in self.held:
            assert not self.consumer.holds(self.held[number]), f"{number} is held twice"
        self.held[number] = message
        self.waiting.discard(number)
        assert message.attempt == self.failures[number] + 1, number
        if ordered:
            before = set(range(number)) - self.settled - set(self.held)
            assert not before, f"{number} was delivered before {min(before)}"
        return True

    async def act(self) -> None:
        """Do something with a held message."""
        self.held = {at: each for at, each in self.held.items() if self.consumer.holds(each)}
        if not self.held:
            return
        number = self.rng.choice(list(self.held))
        message = self.held[number]
        what = self.rng.choice(["ack", "ack", "release", "fail", "reject", *["nack"] * self.nacks])
        if what == "ack":
            await message.ack()
            del self.held[number]
            self.acked.add(number)
        elif what == "release":
            self.consumer.release(message)
            del self.held[number]
        elif what == "fail":
            self.held[number] = self.consumer.fail_in_place(message)
            self.failures[number] += 1
        elif what == "nack":
            await message.nack(self.rng.choice([0, 0.3, 2]))
            self.failures[number] += 1
            del self.held[number]
            self.waiting.add(number)
        else:
            await self.reject(number)

    async def reject(self, number: int) -> None:
        try:
            await self.consumer.reject(self.held[number], "no", keep=True)
        except TransportError:
            assert self.consumer.holds(self.held[number])
        else:
            del self.held[number]
            self.rejected.add(number)

    async def lose_connection(self) -> None:
        self.transport.disconnect()
        for _ in range(self.rng.randrange(3)):
            await self.act_quietly()
        await settle()
        self.transport.reconnect()

    async def act_quietly(self) -> None:
        """Release or fail a message while disconnected: nothing that waits for the broker."""
        self.held = {at: each for at, each in self.held.items() if self.consumer.holds(each)}
        if self.held:
            number = self.rng.choice(list(self.held))
            if self.rng.random() < 0.5:
                self.consumer.release(self.held.pop(number))
            else:
                self.held[number] = self.consumer.fail_in_place(self.held[number])
                self.failures[number] += 1


@pytest.mark.parametrize("kind", list(ConsumerType))
@pytest.mark.parametrize("nacks", [False, True])
@pytest.mark.parametrize("seed", range(25))
async def test_every_message_ends_once(
    transport: MemoryTransport,
    client: Client,
    kind: ConsumerType,
    nacks: bool,
    seed: int,
) -> None:
    rng = Random(f"{seed}/{kind}/{nacks}")
    total = 0
    for _ in range(rng.randrange(1, 12)):
        size = rng.choice([1, 1, 2, 5])
        transport.put(TOPIC, *(b"%d" % (total + at) for at in range(size)))
        total += size
    if rng.random() < 0.3:
        transport.faults = FaultPlan(
            [Fault(kind="refuse", command="SEND", topic=DEAD, times=rng.randrange(1, 6))]
        )
    consumer = await client.subscribe(
        TOPIC,
        "s",
        kind,
        initial_position=InitialPosition.Earliest,
        dead_letter_policy=DeadLetterPolicy(2**31 - 1, DEAD),
        receiver_queue_size=rng.choice([1, 3, 1000]),
        batch_index_ack_enabled=True,
    )
    app = Application(rng, transport, consumer, nacks=nacks)
    ordered = kind in UNSHARED and not nacks
    for _ in range(120):
        chance = rng.random()
        if chance < 0.5:
            await app.receive(ordered=ordered)
        elif chance < 0.97:
            await app.act()
        else:
            await app.lose_connection()
    transport.faults = None
    await asyncio.sleep(100)
    while len(app.settled) < total:  # the application ends its work
        for number, message in list(app.held.items()):
            if consumer.holds(message):
                await message.ack()
                app.acked.add(number)
            del app.held[number]
        if len(app.settled) < total:
            assert await app.receive(ordered=ordered, timeout=1000), app.settled
    await consumer.flush()
    assert transport.backlog(TOPIC, "s") == 0
    assert consumer.statistics().unacked == 0
    counters = consumer.counters()
    assert (counters.received, counters.acked) == (app.deliveries, len(app.acked))
    assert counters.rejected == counters.dead_letters == len(app.rejected)
    async with await client.create_reader(DEAD, MessageId.earliest) as reader:
        letters = []
        while await reader.has_message_available():
            letters.append(int((await reader.read_next()).data()))
    assert sorted(letters) == sorted(app.rejected)
