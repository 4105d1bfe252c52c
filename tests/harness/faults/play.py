"""Play a case and check what happened.

However the connections of a client fail:
- Every message ends acked or dead-lettered, and the broker's backlog agrees.
- A consumer never receives a message that it acked or holds.
- On Exclusive and Failover, no first delivery skips an earlier message.
- The queue never holds more than the receiver queue allows.
- No call fails, no callback raises, and nothing hangs.
- Closing ends all tasks here, and all consumers and producers at the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import pulsar_encore as encore

from .cases import Case
from .mischief import Mischief, WireFault
from .networks import MOST_BYTES, Left, Network

SUBSCRIPTION: Final = "s"
_KEYS: Final = 7
_FAILING_SHARE: Final = 0.08  # share of messages that are dead-lettered
_FORWARDED_SHARE: Final = 0.15  # share of first deliveries that end in `reconsume_later`
_MAX_REDELIVER: Final = 2
_POLL_S: Final = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """Time limits, in s.

    Attributes:
        stuck: Longest time without progress.
        closing: Longest time from `close` until the broker has removed the consumer.
    """

    stuck: float
    closing: float


#: A silent connection is closed after a minute, and a lookup may take up to another minute.
VIRTUAL: Final = Patience(stuck=400.0, closing=200.0)
REAL: Final = Patience(stuck=150.0, closing=60.0)


@dataclass(kw_only=True, slots=True)
class Verdict:
    """The result of a case.

    Attributes:
        case: The case.
        findings: Broken rules.
        withheld: Messages that Pulsar does not deliver to consumers with permits.
        fired: Faults that happened.
        deliveries: Deliveries.
        events: The history, for finding the cause.
    """

    case: Case
    findings: list[str] = field(default_factory=list)
    withheld: str = ""
    fired: list[WireFault] = field(default_factory=list)
    deliveries: int = 0
    events: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = "; ".join(self.findings[:3]) or "no finding"
        more = len(self.findings) - 3
        return f"{found}; and {more} more" if more > 0 else found


async def play(case: Case, network: Network, name: str, patience: Patience) -> Verdict:
    """Play a case on topics named after `name`. The network is closed at the end."""
    verdict = Verdict(case=case)
    before = asyncio.all_tasks()
    player = _Player(case, network, network.topic(name), patience, verdict)
    async with _collect_exceptions(verdict.findings):
        try:
            await player.run()
        except Exception:
            verdict.findings.append(f"failed: {traceback.format_exc()}")
        if await network.connections() is not None:
            left = [task for task in asyncio.all_tasks() - before if not task.done()]
            verdict.findings += [f"task left: {task.get_coro()}" for task in left]
        await network.close()
    verdict.fired = player.mischief.fired
    return verdict


@contextlib.asynccontextmanager
async def _collect_exceptions(findings: list[str]) -> AsyncIterator[None]:
    """Record exceptions of callbacks and tasks, and logged exceptions, as findings."""
    loop = asyncio.get_running_loop()

    class Logged(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                findings.append(f"logged: {record.getMessage()}: {record.exc_info[1]!r}")

    def raised(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        findings.append(f"raised in a callback: {context['message']}: {context.get('exception')!r}")

    logger, logged = logging.getLogger("pulsar_encore"), Logged()
    before = loop.get_exception_handler()
    logger.addHandler(logged)
    loop.set_exception_handler(raised)
    try:
        yield
    finally:
        loop.set_exception_handler(before)
        logger.removeHandler(logged)


class _Member:
    """One consumer and the messages of its application."""

    def __init__(self, who: int, client: encore.Client, consumer: encore.Consumer) -> None:
        self.who = who
        self.client = client
        self.consumer = consumer
        self.ack_list: list[encore.Message] = []
        self.held: set[str] = set()
        self.acked: set[str] = set()
        self.task: asyncio.Task[None] | None = None


class _Player:
    def __init__(
        self, case: Case, network: Network, topic: str, patience: Patience, verdict: Verdict
    ) -> None:
        self._case = case
        self._network = network
        self._topic = topic
        self._retry = f"{topic}-retry"
        self._dead = f"{topic}-dead"
        self._patience = patience
        self._verdict = verdict
        self._loop = asyncio.get_running_loop()
        self._deliveries: Counter[int] = Counter()
        self._seen: set[int] = set()  # of the topic, since the last seek
        self._settled: set[int] = set()
        self._last_progress = self._loop.time()
        self._received = 0
        self._forwarded = 0
        rng = Random(f"decisions {case.seed}")
        failing = case.letters and not case.seek
        share = _FAILING_SHARE if failing else 0.0
        self._failing = {each for each in range(case.messages) if rng.random() < share}
        self.mischief = Mischief(case.faults, Random(f"bytes {case.seed}"))

    # The run

    async def run(self) -> None:
        case = self._case
        clean = await self._network.client()
        await self._publish(clean)
        watcher = await self._network.client(Mischief((), Random(0))) if case.letters else None
        watch_task = await self._watch(watcher) if watcher else None
        members = [await self._join(0, await self._network.client(self.mischief))]
        if case.second:
            members.append(await self._join(1, await self._network.client(Mischief((), Random(0)))))
        for member in members:
            member.task = asyncio.create_task(self._consume(member))
        try:
            await self._until_settled(members)
        finally:
            tasks = [each for each in (watch_task, *(m.task for m in members)) if each is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._close(members, [clean, *([watcher] if watcher else [])])

    async def _publish(self, client: encore.Client) -> None:
        case = self._case
        options: dict[str, Any] = {"batching_enabled": case.batch > 0}
        if case.batch:
            options |= {
                "batching_max_messages": case.batch,
                "batching_max_publish_delay_ms": 50,
                "batching_type": encore.BatchingType.KeyBased
                if case.kind == "KeyShared"
                else encore.BatchingType.Default,
            }
        elif case.content == "chunks":
            options["chunking_enabled"] = True
        rng = Random(f"content {case.seed}")
        async with await client.create_producer(self._topic, **options) as producer:
            sends = []
            for number in range(case.messages):
                size = rng.randrange(10, 3 * MOST_BYTES) if case.content == "chunks" else 20
                key = f"k{number % _KEYS}" if case.kind == "KeyShared" else None
                body = b"%d;" % number + rng.randbytes(size)
                sends.append(asyncio.ensure_future(producer.send(body, partition_key=key)))
            await asyncio.sleep(0)
            await producer.flush()
            await asyncio.gather(*sends)

    async def _watch(self, client: encore.Client) -> asyncio.Task[None]:
        letters = await client.subscribe(
            self._dead, "watch", initial_position=encore.InitialPosition.Earliest
        )

        async def watch() -> None:
            while True:
                message = await letters.receive()
                self._settle(_number(message))
                await letters.acknowledge(message)

        return asyncio.create_task(watch())

    async def _join(self, who: int, client: encore.Client) -> _Member:
        case = self._case
        options: dict[str, Any] = {}
        if case.letters:
            policy = encore.DeadLetterPolicy(_MAX_REDELIVER, self._dead, self._retry)
            options |= {"dead_letter_policy": policy, "retry_enable": True}
        end = self._loop.time() + self._patience.stuck
        while True:
            try:
                consumer = await client.subscribe(
                    self._topic,
                    SUBSCRIPTION,
                    consumer_type=encore.ConsumerType[case.kind],
                    consumer_name=f"c{who}",
                    initial_position=encore.InitialPosition.Earliest,
                    receiver_queue_size=case.queue,
                    negative_ack_redelivery_delay_ms=200,
                    batch_index_ack_enabled=True,
                    max_pending_chunked_message=100,
                    ack_group_time_ms=20,
                    ack_receipt_enabled=case.receipts,
                    **options,
                )
            except encore.TransportError as error:
                # The first subscribe has a time limit, and a dead connection of this client may
                # hold the name.
                if not error.retryable or self._loop.time() > end:
                    raise
                self._verdict.events.append(f"{self._loop.time():9.3f} {who} not joined: {error}")
                await asyncio.sleep(1.0)
                continue
            self._last_progress = self._loop.time()
            return _Member(who, client, consumer)

    async def _until_settled(self, members: list[_Member]) -> None:
        """Wait until everything is settled here and at the broker."""
        topics = [self._topic, self._retry] if self._case.letters else [self._topic]
        while True:
            await asyncio.sleep(_POLL_S)
            for member in members:
                if member.task is not None and member.task.done():
                    member.task.result()
            unsettled = set(range(self._case.messages)) - self._settled
            stuck = self._loop.time() - self._last_progress > self._patience.stuck
            if unsettled and not stuck:
                continue
            left = [await self._network.left(each, SUBSCRIPTION) for each in topics]
            backlog = sum(each.backlog for each in left)
            if not unsettled and not backlog:
                return
            if stuck:
                what = (
                    f"never settled: {sorted(unsettled)[:9]}" if unsettled else f"{backlog} unacked"
                )
                counts = [member.consumer.statistics() for member in members]
                self._stuck(f"stuck: {what}; at the broker: {left}; {counts}", left)
                return

    def _stuck(self, text: str, left: list[Left]) -> None:
        """Report a stuck case, unless Pulsar withholds the messages.

        On Key_Shared, Pulsar sometimes stops delivery to every client (docs/broker-limits.md). Its
        statistics tell this case from permits that we did not send.
        """
        if self._case.kind == "KeyShared" and all(each.withheld for each in left if each.backlog):
            self._verdict.withheld = text
        else:
            self._report(text)

    async def _close(self, members: list[_Member], others: list[encore.Client]) -> None:
        try:
            async with asyncio.timeout(self._patience.closing):
                for member in members:
                    await member.consumer.close()
                    await member.client.close()
        except TimeoutError:
            self._report("close hangs")
        end = self._loop.time() + self._patience.closing
        while True:
            now = await self._network.left(self._topic, SUBSCRIPTION)
            if not now.consumers and not now.producers:
                break
            if self._loop.time() > end:
                self._report(f"still at the broker: {now}")
                break
            await asyncio.sleep(_POLL_S)
        for client in others:
            await client.close()
        await asyncio.sleep(_POLL_S)
        connections = await self._network.connections()
        if connections:
            self._report(f"{connections} connections are left")

    # The application

    async def _consume(self, member: _Member) -> None:
        case, consumer = self._case, member.consumer
        has_sought = has_rewound = False
        while True:
            try:
                message = await consumer.receive(timeout=0.5)
            except encore.ReceiveTimeout:
                await self._ack_listed(member)
                continue
            self._check_delivery(member, message)
            await self._decide(member, message)
            if case.seek and not has_sought and self._received >= case.seek:
                has_sought = True
                await self._seek(member)
            if case.rewind and not has_rewound and self._received >= case.rewind and not member.who:
                has_rewound = True
                self._event("redeliver all", member)
                member.ack_list.clear()
                member.held.clear()
                consumer.redeliver_unacknowledged_messages()

    def _check_delivery(self, member: _Member, message: encore.Message) -> None:
        case, key, number = self._case, _key(message), _number(message)
        self._received += 1
        self._verdict.deliveries += 1
        self._last_progress = self._loop.time()
        self._deliveries[number] += 1
        self._event("received", member, message)
        if key in member.acked:
            self._report(f"acked again: {number} ({key})")
        rewinds = case.kind in ("Exclusive", "Failover") and case.nacks > 0
        if key in member.held and not rewinds:
            self._report(f"delivered while held: {number} ({key})")
        if case.kind in ("Exclusive", "Failover") and not case.second and number not in self._seen:
            before = set(range(number)) - self._seen
            if before:
                self._report(f"gap: {number} before {sorted(before)[:5]}")
        self._seen.add(number)
        member.held.add(key)
        queued = member.consumer.statistics().queued
        limit = self._most_queued()
        if queued > limit:
            self._report(f"{queued} queued, more than the limit of {limit}")

    def _most_queued(self) -> int:
        """Return the largest queue allowed. Pulsar counts messages on Shared, and entries of a read
        on the other types.
        """
        case = self._case
        queue = case.queue * (1 if case.kind == "Shared" else max(1, case.batch))
        limit = queue + max(1, case.batch)
        # Letters that arrive before their due time are kept in the consumer until then.
        return 2 * limit + self._forwarded if case.letters else limit + case.batch

    async def _decide(self, member: _Member, message: encore.Message) -> None:
        case, number = self._case, _number(message)
        attempt = self._deliveries[number]
        rng = Random(f"{case.seed} {number} {attempt}")
        chance = rng.random()
        if number in self._failing:
            await self._nack(member, message, 0.1)
        elif attempt < 4 and chance < case.nacks:
            await self._nack(member, message, rng.choice((0.0, 0.05, 0.5)))
        elif case.letters and attempt == 1 and chance > 1 - _FORWARDED_SHARE:
            await self._forward(member, message, rng.choice((0.0, 0.5)))
        elif case.acking == "single":
            await self._ack(member, [message])
        else:
            member.ack_list.append(message)
            if len(member.ack_list) >= case.group:
                await self._ack_listed(member)

    async def _nack(self, member: _Member, message: encore.Message, delay: float) -> None:
        self._event(f"nack {delay}", member, message)
        if self._case.kind in ("Exclusive", "Failover"):
            await self._ack_listed(member)
            member.held.clear()  # the messages after it are rewound
        member.held.discard(_key(message))
        await member.consumer.negative_acknowledge(message, delay)

    async def _forward(self, member: _Member, message: encore.Message, delay: float) -> None:
        self._event("forward", member, message)
        try:
            await member.consumer.reconsume_later(message, delay)
        except encore.TransportError as error:
            self._event(f"not forwarded: {error}", member, message)
            await self._nack(member, message, 0.1)
            return
        self._forwarded += 1
        member.held.discard(_key(message))
        member.acked.add(_key(message))

    async def _ack_listed(self, member: _Member) -> None:
        messages, member.ack_list = member.ack_list, []
        if not messages:
            return
        if self._case.acking == "cumulative":
            self._event("ack up to", member, messages[-1])
            await member.consumer.acknowledge_cumulative(messages[-1])
            self._acked(member, messages)
        else:
            await self._ack(member, messages)

    async def _ack(self, member: _Member, messages: list[encore.Message]) -> None:
        for each in messages:
            self._event("ack", member, each)
        await member.consumer.acknowledge(messages if len(messages) > 1 else messages[0])
        self._acked(member, messages)

    def _acked(self, member: _Member, messages: list[encore.Message]) -> None:
        for message in messages:
            member.held.discard(_key(message))
            member.acked.add(_key(message))
            self._settle(_number(message))

    async def _seek(self, member: _Member) -> None:
        await self._ack_listed(member)
        self._event("seek", member)
        while True:
            try:
                await member.consumer.seek(encore.MessageId.earliest)
                break
            except encore.TransportError as error:
                self._event(f"seek failed: {error}", member)
                self._last_progress = self._loop.time()
        member.held.clear()
        member.acked.clear()
        self._seen.clear()
        self._settled.clear()
        self._event("sought", member)

    def _settle(self, number: int) -> None:
        if number not in self._settled:
            self._last_progress = self._loop.time()
        self._settled.add(number)

    def _report(self, text: str) -> None:
        self._verdict.findings.append(text)
        self._verdict.events.append(f"{self._loop.time():9.3f} FOUND {text}")

    def _event(self, what: str, member: _Member, message: encore.Message | None = None) -> None:
        suffix = "" if message is None else f" {_number(message)} ({_key(message)})"
        self._verdict.events.append(f"{self._loop.time():9.3f} {member.who} {what}{suffix}")


def _number(message: encore.Message) -> int:
    return int(message.data().partition(b";")[0])


def _key(message: encore.Message) -> str:
    message_id = message.message_id()
    position = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.batch_index()}"
    return f"{message.topic_name().rpartition('/')[2]} {position}"
