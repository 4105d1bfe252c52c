"""Play a plan in virtual time, and record what happened.

The application here is the one of `docs/transactions.md`: it never looks into the output topic. An
input whose transaction was not committed is redelivered, or given back if it is still held.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import pulsar_encore as encore
from pulsar_encore.testing import FaultPlan, run

from .transfer_checker import Attempt, Output, Record
from .transfer_network import INPUT, OUTPUT, SUBSCRIPTION, Network, Process
from .transfer_plan import Moment, Plan, TimedAction, Turn

#: Longest time to the end with a healthy broker, in s.
_PATIENCE_S: Final = 1800.0
_POLL_S: Final = 1.0
#: Longer than any timeout of a transaction.
_TIMEOUTS_S: Final = 60.0
_RETRY_S: Final = 0.5


class _Abort(Exception):
    """Raised by the application in a transaction."""


def play(plan: Plan) -> Record:
    """Play a plan and return its record."""
    return run(_Player(plan).play())


class _Player:
    def __init__(self, plan: Plan) -> None:
        self.plan: Plan = plan
        self.record: Record = Record(
            inputs=plan.inputs,
            keys=plan.keys,
            ordered=plan.ordered,
            finished=not plan.stops_early,
        )

    async def play(self) -> Record:
        plan = self.plan
        self.loop = asyncio.get_running_loop()
        self.network = network = Network(plan.seed, plan.rewinds_overtaken)
        self.clean = Process(network, 30.0, "clean").client
        if plan.partitions:
            network.service.catalogue.create_partitioned(INPUT, plan.partitions)
        await self._publish()
        network.service.faults = FaultPlan(plan.faults)
        self.workers = [_Worker(self, who, turns) for who, turns in enumerate(plan.turns)]
        tasks = [asyncio.create_task(each.run()) for each in self.workers]
        tasks += [asyncio.create_task(self._act(each)) for each in plan.actions]
        await asyncio.sleep(plan.faulty_s)
        network.heal()
        if not plan.stops_early:
            await self._finish(tasks)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                self.record.problems.append(f"{result!r} ended a task")
        network.heal()
        for worker in self.workers:
            await worker.close()
        await asyncio.sleep(_TIMEOUTS_S)  # transactions of processes that were killed
        await self._look()
        await self.clean.close()
        return self.record

    async def _publish(self) -> None:
        plan = self.plan
        options: dict[str, Any] = {"batching_enabled": plan.batch > 0}
        if plan.batch:
            options["batching_max_messages"] = plan.batch
            if plan.kind == "KeyShared":
                options["batching_type"] = encore.BatchingType.KeyBased
        async with await self.clean.create_producer(INPUT, **options) as producer:
            sends = [
                producer.send(b"%d" % number, partition_key=f"k{number % plan.keys}")
                for number in range(plan.inputs)
            ]
            await asyncio.gather(*sends)

    async def _act(self, action: TimedAction) -> None:
        await asyncio.sleep(action.at_s)
        network = self.network
        match action.do:
            case "cut":
                self.workers[action.who].cut()
            case "outage":
                await network.outage(action.seconds)
            case "kill broker":
                await network.kill_broker(action.seconds)
            case "unload input":
                network.unload(INPUT)
            case "unload output":
                network.unload(OUTPUT)
            case "unload coordinator":
                await network.unload_coordinator(action.seconds)

    async def _finish(self, tasks: list[asyncio.Task[None]]) -> None:
        end_s = self.loop.time() + _PATIENCE_S
        while self.network.backlog() and self.loop.time() < end_s:
            unload_s = end_s - _PATIENCE_S / 2
            if not (self.plan.ordered or self.record.unloads) and self.loop.time() > unload_s:
                self.record.unloads += 1
                self.network.unload(INPUT)
            if any(task.done() and not task.cancelled() and task.exception() for task in tasks):
                return
            await asyncio.sleep(_POLL_S)

    async def _look(self) -> None:
        """Record the visible outputs, and the inputs that are not acked."""
        async with self.clean.create_reader(OUTPUT, encore.MessageId.earliest) as reader:
            while await reader.has_message_available():
                message = await reader.read_next(timeout_millis=20_000)
                number, attempt = map(int, message.data().split())
                self.record.outputs.append(Output(number, attempt))
        async with self.clean.subscribe(
            INPUT,
            SUBSCRIPTION,
            encore.ConsumerType[self.plan.kind],
            initial_position=encore.InitialPosition.Earliest,
        ) as consumer:
            with contextlib.suppress(encore.ReceiveTimeout):
                while True:
                    message = await consumer.receive(timeout=10.0)
                    self.record.left.append(int(message.data()))


class _Worker:
    """One process of the application, which starts again after each end."""

    def __init__(self, player: _Player, who: int, turns: tuple[Turn, ...]) -> None:
        self._player = player
        self._plan = player.plan
        self._who = who
        self._turns = iter(turns)
        self._process: Process | None = None
        self._former: list[Process] = []
        self._stored: tuple[encore.TxnId, Attempt] | None = None  # the last transaction
        self._kept: list[encore.Message[bytes]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def cut(self) -> None:
        if self._process is not None:
            self._process.cut()

    async def close(self) -> None:
        for each in (*self._former, self._process):
            if each is not None:
                await each.client.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def run(self) -> None:
        for life in itertools.count():
            name = f"c{self._who}-{life}"
            self._kept = []
            self._process = Process(self._player.network, self._plan.operation_timeout_s, name)
            restart_s = await self._live(self._process.client, name)
            self._former.append(self._process)
            self._process = None
            await asyncio.sleep(restart_s)

    async def _live(self, client: encore.Client, name: str) -> float:
        """Take turns until the process ends. Return how long it is away."""
        plan = self._plan
        if plan.fences:
            await self._fence(client)
        producer: encore.Producer[bytes] = await _until_done(
            lambda: client.create_producer(
                OUTPUT, batching_enabled=plan.batched_outputs, block_if_queue_full=True
            )
        )
        consumer: encore.Consumer[bytes] = await _until_done(
            lambda: client.subscribe(
                INPUT,
                SUBSCRIPTION,
                encore.ConsumerType[plan.kind],
                consumer_name=name,
                initial_position=encore.InitialPosition.Earliest,
                receiver_queue_size=plan.queue,
                unacked_messages_timeout_ms=int(plan.ack_timeout_s * 1000) or None,
                batch_index_ack_enabled=plan.batch_index_acks,
            )
        )
        plain = Turn(acks="cumulative" if plan.cumulative else "list")
        while True:
            turn = next(self._turns, plain)
            group = await self._take(consumer, turn)
            if group and await self._play(client, producer, consumer, turn, group):
                return turn.restart_s

    async def _fence(self, client: encore.Client) -> None:
        """Abort the transaction of the previous life."""
        if self._stored is None:
            return
        txn_id, attempt = self._stored

        async def abort() -> None:
            # Both say that it has ended.
            with contextlib.suppress(encore.TransactionNotFound, encore.TransactionOutcomeUnknown):
                await client.abort_transaction(txn_id)

        await _until_done(abort)
        attempt.ended_s = self._player.loop.time()

    async def _take(
        self, consumer: encore.Consumer[bytes], turn: Turn
    ) -> dict[int, tuple[encore.Message[bytes], float]]:
        """Receive a group: the latest delivery of each input, and its time."""
        group: dict[int, tuple[encore.Message[bytes], float]] = {}
        for message in self._kept:
            group[int(message.data())] = (message, self._player.loop.time())
        self._kept = []
        with contextlib.suppress(encore.ReceiveTimeout):
            while len(group) < turn.take:
                message = await consumer.receive(timeout=turn.linger_s if group else 5.0)
                number = int(message.data())
                group.pop(number, None)
                group[number] = (message, self._player.loop.time())
        return group

    async def _play(
        self,
        client: encore.Client,
        producer: encore.Producer[bytes],
        consumer: encore.Consumer[bytes],
        turn: Turn,
        group: dict[int, tuple[encore.Message[bytes], float]],
    ) -> bool:
        """Play a turn, and return True if the process has to start again."""
        record = self._player.record
        attempt = Attempt(
            number=len(record.attempts),
            process=self._who,
            received={number: received_s for number, (_, received_s) in group.items()},
        )
        record.attempts.append(attempt)
        messages = [message for message, _ in group.values()]
        handler = _Handler(client, producer, consumer, turn, messages, attempt)
        working = asyncio.create_task(handler.transact())
        self._tasks.append(working)
        process = self._process
        assert process is not None
        if turn.end in ("cancel", "close", "kill", "isolate"):
            await _pass(turn, working)
        if turn.end == "cancel":
            working.cancel()
        elif turn.end == "kill":
            handler.is_killed = True
            process.kill()
            working.cancel()
        elif turn.end == "isolate":
            process.isolate()
            self._tasks.append(asyncio.create_task(_rejoin(process, turn, working)))
        elif turn.end == "close":
            await client.close()
        if turn.end not in ("kill", "isolate"):
            await asyncio.wait((working,))
            if not working.cancelled():
                working.result()
        if handler.txn is not None:
            self._stored = handler.txn.id, attempt
        if turn.end in ("close", "kill", "isolate"):
            return True
        await self._give_back(handler)
        return False

    async def _give_back(self, handler: _Handler) -> None:
        """Have the inputs that are still held redelivered, or keep them for the next group."""
        consumer, turn, ordered = handler.consumer, handler.turn, self._plan.ordered
        held = [each for each in handler.messages if consumer.holds(each)]
        # On Exclusive and Failover, inputs of an aborted transaction come before those held here.
        if turn.keeps and not (ordered and handler.has_acked):
            self._kept = held
        elif held and ordered:
            # A nack takes effect later, and later inputs of its key would come before.
            consumer.redeliver_unacknowledged_messages()
        else:
            for each in held:
                await consumer.negative_acknowledge(each, turn.nack_delay_s)


class _Handler:
    """One turn: the transaction of a group."""

    def __init__(
        self,
        client: encore.Client,
        producer: encore.Producer[bytes],
        consumer: encore.Consumer[bytes],
        turn: Turn,
        messages: list[encore.Message[bytes]],
        attempt: Attempt,
    ) -> None:
        self._client = client
        self._producer = producer
        self.consumer: encore.Consumer[bytes] = consumer
        self.turn: Turn = turn
        self.messages: list[encore.Message[bytes]] = messages
        self.attempt: Attempt = attempt
        self.txn: encore.Transaction | None = None
        self.has_acked: bool = False
        self.is_killed: bool = False

    async def transact(self) -> None:
        attempt, unknown = self.attempt, False
        try:
            async with await self._client.transaction(timeout=self.turn.timeout_s) as self.txn:
                await self._work(self.txn)
        except encore.TransactionOutcomeUnknown:
            unknown = True
        except encore.TransactionAbortedError:
            if not self.is_killed:
                attempt.outcome = "aborted"  # for good, even if nobody has answered yet
        except (_Abort, encore.EncoreError):
            pass
        finally:
            state = encore.TxnState.ABORTED if self.txn is None else self.txn.state
            has_ended = state in (encore.TxnState.COMMITTED, encore.TxnState.ABORTED)
            if has_ended and not unknown and not self.is_killed:
                is_committed = state is encore.TxnState.COMMITTED
                attempt.outcome = "committed" if is_committed else "aborted"
                attempt.ended_s = asyncio.get_running_loop().time()

    async def _work(self, txn: encore.Transaction) -> None:
        turn, messages = self.turn, self.messages
        chosen = messages[: max(1, len(messages) - turn.left_out)]
        await asyncio.sleep(turn.pauses_s[0])
        steps = [partial(self._send, txn, chosen), partial(self._ack, txn, chosen)]
        if turn.acks_first:
            steps.reverse()
        await steps[0]()
        await asyncio.sleep(turn.pauses_s[1])
        await steps[1]()
        await self._request(turn, chosen, "after")
        await asyncio.sleep(turn.pauses_s[2])
        if turn.end == "abort":
            raise _Abort
        if turn.end == "timeout":
            await asyncio.sleep(turn.timeout_s + 1.0)

    async def _send(self, txn: encore.Transaction, messages: list[encore.Message[bytes]]) -> None:
        turn, producer = self.turn, self._producer
        sends = []
        self.attempt.sent = {int(each.data()) for each in messages}
        for message in messages:
            body = b"%d %d" % (int(message.data()), self.attempt.number)
            key = message.partition_key()
            if turn.sends == "one by one":
                await producer.send(body, partition_key=key, txn=txn)
            elif turn.sends == "at once":
                sends.append(producer.send(body, partition_key=key, txn=txn))
            else:
                producer.send_async(body, None, partition_key=key, txn=txn)
        await asyncio.gather(*sends)

    async def _request(
        self, turn: Turn, messages: list[encore.Message[bytes]], moment: Moment
    ) -> None:
        # An ack that was refused leaves the message held. A nack would let later ones pass.
        lets_pass = moment == "after" and self.consumer.holds(messages[-1])
        if turn.nacks == moment and not lets_pass:
            await self.consumer.negative_acknowledge(messages[-1], turn.nack_delay_s)
        if turn.redelivers == moment:
            self.consumer.redeliver_unacknowledged_messages()

    async def _ack(self, txn: encore.Transaction, messages: list[encore.Message[bytes]]) -> None:
        turn, consumer = self.turn, self.consumer
        await self._request(turn, messages, "before")
        self.has_acked = True
        acks: list[Awaitable[None]] = []
        if turn.acks == "cumulative":
            last = {message.topic_name(): message for message in messages}
            acks += [consumer.acknowledge_cumulative(each, txn=txn) for each in last.values()]
        else:
            items = [each.message_id() if turn.by_id else each for each in messages]
            if turn.acks == "list":
                acks.append(consumer.acknowledge(items, txn=txn))
            else:
                acks += [consumer.acknowledge(each, txn=txn) for each in items]
        if turn.acks_awaited:
            await asyncio.gather(*acks)


async def _pass(turn: Turn, working: asyncio.Task[None]) -> None:
    """Let some passes of the loop and some time go by, unless the work ends before."""
    for _ in range(turn.passes):
        if working.done():
            return
        await asyncio.sleep(0)
    if turn.seconds:
        await asyncio.wait((working,), timeout=turn.seconds)


async def _rejoin(process: Process, turn: Turn, working: asyncio.Task[None]) -> None:
    """End the isolation of a process, and the process after its turn."""
    await asyncio.sleep(turn.isolated_s)
    process.rejoin()
    await asyncio.wait((working,))
    process.kill()


async def _until_done(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call while it fails for a reason that passes."""
    while True:
        try:
            return await call()
        except (encore.TransportError, encore.ConsumerBusy):
            await asyncio.sleep(_RETRY_S)
