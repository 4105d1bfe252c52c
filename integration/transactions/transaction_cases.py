"""Cases of one transaction that goes wrong, which run with any client (see client_sides)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pulsar_encore import (
    Client,
    ConsumerType,
    InitialPosition,
    MessageId,
    TxnId,
)
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Broker

from .client_sides import OK, OPERATION_TIMEOUT_S, Side
from .faulty_link import FaultyLink, Loss

LONG_S: Final = 60.0
QUIET_S: Final = 0.7
_ASSIGN_TOPIC: Final = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"


@dataclass
class World:
    """The broker of all cases, and the clients that look at it without a proxy."""

    broker: Broker
    other: Client
    reader: Client  # of another implementation than both sides
    deduplicating: str = ""

    def __post_init__(self) -> None:
        self.admin = Admin(self.broker.admin_url)


@dataclass
class Run:
    """One case with one client."""

    world: World
    side: Side
    link: FaultyLink
    namespace: str = "public/default"
    kind: str = "Shared"
    reports: list[str] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = f"persistent://{self.namespace}/beside-{uuid.uuid4().hex[:10]}"
        self.input = f"{self.topic}-in"

    async def start(self, *values: str, batched: bool = False, take: int = 0) -> None:
        """Connect, publish the input, and receive `take` values of it, by default all."""
        async with self.world.other.create_producer(
            self.input, batching_enabled=batched, batching_max_publish_delay_ms=200
        ) as producer:
            await asyncio.gather(*(producer.send(each.encode()) for each in values))
        await self.side.open(self.link.url)
        await self.side.create_producer(self.topic)
        await self.side.subscribe(self.input, self.kind)
        got = await self.side.receive(take or len(values), 10)
        assert got == list(values[: take or len(values)])

    async def call(self, name: str, call: Awaitable[str]) -> str:
        """Note the report of a call that did not return "ok"."""
        report = await call
        if report != OK:
            self.reports.append(f"{name}: {report}")
        return report

    async def end(self, action: str, name: str = "t") -> None:
        """Commit or abort, and note the report."""
        report = await getattr(self.side, action)(name)
        self.reports.append(f"{action}: {report}")

    async def begin(self, name: str = "t", timeout_s: float = LONG_S) -> TxnId:
        return TxnId.parse(await self.side.begin(name, timeout_s))

    async def plain(self, value: str = "plain") -> None:
        """Publish a plain message to the output topic."""
        await self._publish(self.topic, value)

    async def _publish(self, topic: str, value: str) -> None:
        async with self.world.other.create_producer(topic) as producer:
            await producer.send(value.encode())

    async def visible(self) -> tuple[str, ...]:
        """Read the output topic to its end. "hidden" stands for messages that stay invisible."""
        await self.plain("end")
        values: list[str] = []
        async with self.world.reader.create_reader(self.topic, MessageId.earliest) as reader:
            try:
                async with asyncio.timeout(8):
                    while (value := (await reader.read_next()).data().decode()) != "end":
                        values.append(value)
            except TimeoutError:
                values.append("hidden")
        return tuple(values)

    async def left(self) -> tuple[str, ...]:
        """Receive the unacked input. The client of the case must be closed."""
        await self._publish(self.input, "end")
        kind = ConsumerType[self.kind.replace("_", "")]
        async with self.world.reader.subscribe(
            self.input, "s", kind, initial_position=InitialPosition.Earliest
        ) as consumer:
            message = await consumer.receive(timeout=15)
            values = [message.data().decode()]
            try:
                while True:
                    # On a shared subscription, redelivered messages may come behind the end.
                    message = await consumer.receive(timeout=QUIET_S if "end" in values else 15)
                    values.append(message.data().decode())
            except TimeoutError:
                values.remove("end")
                return tuple(sorted(values))


Play: TypeAlias = Callable[[Run], Awaitable[None]]
"""Makes the calls of a case and notes their reports."""


def around(
    command: str, loss: Loss, end: str = "commit", *, output: bool = True, acks: bool = True
) -> Play:
    """Lose one command of a transaction that sends "x" and acks "in"."""

    async def play(run: Run) -> None:
        await run.start("in")
        run.link.lose(command, loss)
        begun = await run.side.begin("t", 15 if command == "NEW_TXN" else LONG_S)
        if not begun.startswith("("):
            run.reports.append(f"begin: {begun}")
            return
        if output:
            await run.call("send", run.side.send("t", "x"))
        if acks:
            await run.call("ack", run.side.ack("t", "in"))
        await run.end(end)
        assert run.link.hit.is_set(), "nothing was lost"

    return play


async def commit_twice(run: Run) -> None:
    await around("END_TXN", "swallow")(run)
    await run.end("commit")


async def answer_lost_until_the_timeout(run: Run, *, output: bool) -> None:
    await run.start("in")
    await run.begin(timeout_s=5)
    if output:
        await run.side.send("t", "x")
    await run.side.ack("t", "in")
    run.link.lose("END_TXN", "swallow", times=1000)
    await run.end("commit")


async def commit_lost_until_the_timeout(run: Run, *, output: bool) -> None:
    await run.start("in")
    await run.begin(timeout_s=OPERATION_TIMEOUT_S + 3)
    if output:
        await run.side.send("t", "x")
        await run.plain()
    await run.side.ack("t", "in")
    run.link.lose("END_TXN", "before")
    ending = asyncio.ensure_future(run.end("commit"))
    await run.link.hit.wait()
    run.link.refuse()
    await asyncio.sleep(OPERATION_TIMEOUT_S + 4)
    run.link.accept()
    await ending


async def timeout_passes(run: Run) -> None:
    await run.start("in")
    await run.begin(timeout_s=4)
    await run.side.send("t", "x")
    await run.side.ack("t", "in")
    await asyncio.sleep(5)
    await run.call("late send", run.side.send("t", "late"))
    await run.end("commit")


async def abort_with_five(run: Run) -> None:
    """Ack two of five messages, abort, and note the next deliveries."""
    await run.start(*"abcde", take=2)
    await run.begin()
    for value in "ab":
        await run.call("ack", run.side.ack("t", value))
    await run.end("abort")
    run.delivered = await run.side.receive(20, 2)
    if run.kind in ("Shared", "Key_Shared"):
        run.delivered.sort()


async def cumulative_abort(run: Run) -> None:
    """Abort a cumulative ack, go on, and commit the next one."""
    await run.start(*"abcde", take=3)
    await run.begin("1")
    await run.call("ack", run.side.ack_cumulative("1", "c"))
    await run.end("abort", "1")
    run.delivered = await run.side.receive(1, 5)
    await run.begin("2")
    await run.call("ack", run.side.ack_cumulative("2", run.delivered[0]))
    await run.end("commit", "2")


def ended_by_id(by_id: str, then: str, *, acks: bool = True, behind: bool = True) -> Play:
    """Another client ends the transaction before its owner does."""

    async def play(run: Run) -> None:
        await run.start("in")
        txn = await run.begin()
        await run.side.send("t", "x")
        if acks:
            await run.side.ack("t", "in")
        await by_other(run, by_id, txn)
        if behind:
            await run.plain()
        await run.end(then)

    return play


async def by_other(run: Run, action: str, txn: TxnId) -> None:
    other = run.world.other
    await (other.commit_transaction if action == "commit" else other.abort_transaction)(txn)


def late_send(by_id: str) -> Play:
    async def play(run: Run) -> None:
        await run.start("in")
        txn = await run.begin()
        await run.side.send("t", "x")
        await by_other(run, by_id, txn)
        await run.plain()
        await run.call("late send", run.side.send("t", "late"))
        await run.end("commit")

    return play


async def late_ack(run: Run) -> None:
    await run.start("in", "late")
    txn = await run.begin()
    await run.side.send("t", "x")
    await run.side.ack("t", "in")
    await by_other(run, "commit", txn)
    await run.call("late ack", run.side.ack("t", "late"))
    await run.end("commit")


def held_send(by_id: str) -> Play:
    """Another client ends the transaction while a message of it is on its way."""

    async def play(run: Run) -> None:
        await run.start("in")
        txn = await run.begin()
        await run.side.send("t", "x")
        run.link.lose("SEND", "hold")
        sending = asyncio.ensure_future(run.call("held send", run.side.send("t", "late")))
        await run.link.hit.wait()
        await by_other(run, by_id, txn)
        await run.plain()
        run.link.release()
        await sending
        await run.end("commit")

    return play


async def abort_lost_and_acks_by_id(run: Run) -> None:
    """The first COMMIT is lost, and meanwhile another client aborts. There are only acks."""
    await run.start("in")
    txn = await run.begin()
    await run.side.ack("t", "in")
    run.link.lose("END_TXN", "before")
    ending = asyncio.ensure_future(run.end("commit"))
    await run.link.hit.wait()
    run.link.refuse()
    await by_other(run, "abort", txn)
    run.link.accept()
    await ending


async def hidden_by_another(run: Run) -> None:
    """The answer to COMMIT is lost while an older transaction of a stranger hides the topic."""
    await run.start("in")
    async with (
        run.world.other.create_producer(run.topic) as producer,
        run.world.other.transaction() as older,
    ):
        await producer.send(b"older", txn=older)
        await run.begin()
        await run.side.send("t", "x")
        await run.side.ack("t", "in")
        run.link.lose("END_TXN", "after")
        await run.end("commit")


async def conflict(run: Run) -> None:
    """Two transactions ack one message. The second one also sends "x"."""
    await run.start("in")
    await run.begin("1")
    await run.begin("2")
    await run.call("ack 1", run.side.ack("1", "in"))
    await run.side.send("2", "x")
    await run.call("ack 2", run.side.ack("2", "in"))
    await run.end("commit", "2")
    await run.end("commit", "1")


async def acked_twice(run: Run) -> None:
    """One transaction acks a message twice."""
    await run.start("in")
    await run.begin()
    await run.side.send("t", "x")
    for _ in range(2):
        await run.call("ack", run.side.ack("t", "in"))
    await run.end("commit")


async def batch_acked_again(run: Run) -> None:
    """All messages of a batch are pending in two transactions. A third one acks one again."""
    await run.start(*"abc", batched=True)
    for name in "123":
        await run.begin(name)
    await run.call("ack", run.side.ack("1", "a"))
    for value in "bc":
        await run.call("ack", run.side.ack("2", value))
    await run.side.send("3", "x")
    await run.call("ack again", run.side.ack("3", "a"))
    for name in "123":
        await run.end("commit", name)


async def batch_in_two_transactions(run: Run) -> None:
    """One transaction of two that ack parts of a batch is aborted."""
    await run.start(*"abc", batched=True)
    for name in "12":
        await run.begin(name)
    await run.call("ack", run.side.ack("1", "a"))
    for value in "bc":
        await run.call("ack", run.side.ack("2", value))
    await run.end("abort", "1")
    await run.end("commit", "2")


def unloaded(*names: str) -> Play:
    """Unload topics between the messages and the commit."""

    async def play(run: Run) -> None:
        await run.start("in")
        await run.begin()
        await run.side.send("t", "x")
        await run.side.ack("t", "in")
        topics = {"output": run.topic, "input": run.input, "coordinator": _ASSIGN_TOPIC}
        for name in names:
            await asyncio.to_thread(run.world.admin.unload, topics[name])
        await run.end("commit")

    return play


async def sweep(run: Run) -> tuple[str, ...]:
    """Return the input that comes again after another ack was committed.

    A late ack is pending until then, and until older transactions of the coordinator have ended.
    """
    other = run.world.other
    async with (
        other.create_producer(run.input) as producer,
        other.subscribe(run.input, "s", ConsumerType.Shared) as consumer,
        asyncio.timeout(25),
    ):
        while True:
            await producer.send(b"sweep")
            message = await consumer.receive(timeout=5)
            if message.data() != b"sweep":
                return (message.data().decode(),)
            async with other.transaction(timeout=5) as txn:
                await consumer.acknowledge(message, txn=txn)
            await asyncio.sleep(0.2)
