"""Random histories of workers in virtual time, and the rules that each history must keep.

A history has a seed. The seed chooses the options, the result of each handler call, the faults and
the disruptions, so that a failed history can be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import selectors
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pulsar_encore as encore
from pulsar_encore import Client, Message, MessageId, SubscribeOptions, Worker
from pulsar_encore.devbroker import Fault, FaultPlan
from pulsar_encore.testing import MemoryTransport, run
from pulsar_encore.worker.outcome import Outcome

TOPIC = "persistent://public/default/orders"
SUBSCRIPTION = "billing"
DEAD = f"{TOPIC}-{SUBSCRIPTION}-DLQ"
RESULTS = "persistent://public/default/invoices"
_NUMBER = re.compile(rb"#(\d+)#")
_LONGEST_S = 200_000.0
_PATIENCE_S = 0.003
_FAILURES = ("raise", "outage", "retry", "uncounted", "hang", "cancel itself", "task fails")
_SETTLING = ("ack", "ack and fail", "reject itself", "reject itself and fail")
_UNORDERED = ("nack itself", "detach", "detach and leave", "detach and fail")


def _numbers(data: bytes) -> list[int]:
    return [int(each) for each in _NUMBER.findall(data)]


@dataclass(eq=False)
class Call:
    """One call of a handler.

    Attributes:
        delivered: The topic and id of the received message: a retry letter has another one.
        commands: Number of commands that the broker had received when it began.
        ended: How it ended; None while it runs.
    """

    worker: int
    number: int
    delivered: str
    attempt: int
    commands: int
    behaviour: str
    ended: str | None = None


@dataclass(eq=False)
class Published:
    """One message of the history.

    Attributes:
        done_at: Numbers of commands that the broker had received when the message may be acked.
        final: True if it is settled for good by a handler or a worker.
        counted: Failed attempts that count.
        counted_by: The same by worker, because attempts in place count in one worker only.
    """

    number: int
    group: str | None
    topic: str
    poison: bool = False
    calls: list[Call] = field(default_factory=list)
    done_at: list[int] = field(default_factory=list)
    final: bool = False
    successes: int = 0
    counted: int = 0
    counted_by: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    uncertain: bool = False
    letter_reasons: list[str] = field(default_factory=list)


class _PatientSelector(selectors.DefaultSelector):
    """Advances the loop's clock, and gives the threads of a state real time before."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(10 if timeout is None else min(timeout, _PATIENCE_S))
        if timeout is not None and not events:
            self.now_s += timeout
        return events


class PatientLoop(asyncio.SelectorEventLoop):
    """Virtual time for histories with a `RocksState`."""

    def __init__(self) -> None:
        self._clock = _PatientSelector()
        self._began_s = time.time()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s

    def wall_time(self) -> float:
        return self._began_s + self._clock.now_s

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        # From Python 3.12 on, the runner passes 300 s, which would elapse at once in virtual time.
        await super().shutdown_default_executor()


class BrokenRuleError(AssertionError):
    """A history broke a rule."""


class History:
    """One history. `play` runs it and raises `BrokenRuleError` at the first broken rule.

    Args:
        directory: For `RocksState`.
    """

    def __init__(self, seed: int, directory: Path) -> None:
        self.seed: int = seed
        self._directory = directory
        rng = self._rng = Random(seed)
        self.order: str = rng.choice(("none", "key", "partition"))
        self._partitions = rng.choice((0, 0, 3))
        self._attempts = rng.randint(1, 4)
        self._has_breaker = rng.random() < 0.5
        self._has_state = rng.random() < 0.2
        self._most_workers = 1 if self._has_state else rng.choice((1, 1, 2, 3))
        self._publishes = rng.random() < 0.4
        self._has_letters = rng.random() < 0.8
        self._disruptions = rng.sample(
            ("seek", "rewind", "cancel", "broker away", "faults"), rng.choice((0, 0, 1, 2, 5))
        )
        self._behaviours = [
            *rng.sample(_FAILURES, rng.randint(1, len(_FAILURES))),
            *rng.sample(_SETTLING, rng.randint(0, 2)),
            *(rng.sample(_UNORDERED, rng.randint(0, 2)) if self.order == "none" else ()),
            *(("reject",) if rng.random() < 0.4 else ()),
            *(("swallow",) if rng.random() < 0.2 else ()),
        ]
        self._failing = rng.choice((0.1, 0.3, 0.6))
        self._options: dict[str, Any] = {
            "order": self.order,
            "concurrency": rng.randint(1, 6),
            "prefetch": rng.choice((None, 1, 3, 20)),
            "max_bytes": rng.choice((64 * 1024 * 1024, 300)),
            "timeout": rng.choice((5, 30)),
            "drain": rng.choice((0, 4, 20)),
            "reject_limit": rng.choice((None, 2, 20)),
            "retry": encore.RetryPolicy(
                attempts=self._attempts,
                backoff=rng.choice(([0], [1], [1, 20], [5, 1200])),
                letters_after=rng.choice((None, 2, 600)),
                dead_letters=self._has_letters,
            ),
            "breaker": encore.Breaker(
                on=ConnectionError, failures=rng.randint(1, 4), pause=rng.choice((1, 10))
            )
            if self._has_breaker
            else None,
            "publish": RESULTS if self._publishes else None,
            "initial_position": encore.InitialPosition.Earliest,
        }
        self.messages: list[Published] = []
        self.log: list[str] = []
        self._by_id: dict[tuple[str, int, int], list[int]] = {}
        self._entry_sizes: dict[tuple[str, int, int], int] = {}
        self._running: dict[Call, None] = {}
        self._is_calm = True  # no message was lost or redelivered yet
        self._is_outage = False
        self._is_healed = False
        self._started = 0
        self._workers: dict[int, tuple[Worker, asyncio.Task[Any]]] = {}
        self._applications: set[asyncio.Task[None]] = set()
        self._loop_errors: list[dict[str, Any]] = []

    def describe(self) -> str:
        return (
            f"seed {self.seed}: {self._options}, partitions {self._partitions}, "
            f"state {self._has_state}, workers {self._most_workers}, "
            f"disruptions {self._disruptions}, behaviours {self._behaviours}"
        )

    def _broken(self, rule: str) -> None:
        raise BrokenRuleError(f"{rule}\n{self.describe()}\n" + "\n".join(self.log[-400:]))

    def _note(self, text: str) -> None:
        self.log.append(f"{asyncio.get_running_loop().time():.3f} {text}")

    def _disrupt(self, kind: str) -> None:
        self._is_calm = False
        self._note(f"disruption: {kind}")

    # The run

    def run(self) -> None:
        """Run the history in virtual time."""
        if self._has_state:
            with asyncio.Runner(loop_factory=PatientLoop) as runner:
                runner.run(self._play())
        else:
            run(self._play())

    async def _play(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._loop_errors.append(context))
        self.transport = MemoryTransport()
        if self._partitions:
            self.transport.catalogue.create_partitioned(TOPIC, self._partitions)
        async with Client("pulsar://nowhere:6650", transport=self.transport) as self.client:
            self._broke: asyncio.Future[None] = loop.create_future()
            for _ in range(self._rng.randint(0, 20)):
                self._put()
            await self._start()
            for _ in range(self._rng.randint(10, 60)):
                await self._step()
                self._check_now()
            await self._heal()
            await self._finish()
        if not self._broke.done():
            self._broke.cancel()
        for _ in range(5):
            await asyncio.sleep(0.01)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            self._broken(f"tasks are left: {left}")
        if self._loop_errors:
            self._broken(f"the event loop reported {self._loop_errors}")
        self._check_acks()
        self._check_ends()

    def _check_now(self) -> None:
        if self._broke.done():
            self._broke.result()
        for index, (worker, task) in list(self._workers.items()):
            if task.done():
                del self._workers[index]
                if not task.cancelled() and task.exception() is not None:
                    self._broken(f"worker {index} {worker} failed: {task.exception()!r}")

    async def _step(self) -> None:
        rng = self._rng
        choice = rng.random()
        if choice < 0.35:
            for _ in range(rng.randint(1, 5)):
                self._put()
        elif choice < 0.42 and len(self._workers) < self._most_workers:
            await self._start()
        elif choice < 0.50 and self._workers:
            await self._stop(rng.choice(list(self._workers)))
        elif choice < 0.56 and self._workers:
            worker = rng.choice(list(self._workers.values()))[0]
            self._note(f"pause {worker}")
            worker.pause()
            await asyncio.sleep(rng.uniform(0, 50))
            worker.resume()
            self._note(f"resume {worker}")
        elif choice < 0.62:
            self._is_outage = not self._is_outage
            self._note(f"outage of the dependency: {self._is_outage}")
        elif choice < 0.75 and self._disruptions:
            await self._disruption(rng.choice(self._disruptions))
        await asyncio.sleep(rng.choice((0, 0, 0.01, 0.3, 3, 30)) * rng.random())
        if not self._workers:
            await self._start()

    async def _disruption(self, kind: str) -> None:
        rng = self._rng
        worker, task = rng.choice(list(self._workers.values()) or [(None, None)])
        if worker is None or task is None:
            return
        self._disrupt(kind)
        if kind == "cancel":
            task.cancel()
            await asyncio.wait((task,))
        elif kind == "broker away":
            self.transport.disconnect()
            await asyncio.sleep(rng.choice((0, 1, 40)))
            self.transport.reconnect(keep_ack_sets=rng.random() < 0.5)
        elif kind == "faults":
            self.transport.faults = self._fault_plan()
        else:
            try:
                consumer = worker.consumer
                if kind == "rewind":
                    consumer.redeliver_unacknowledged_messages()
                else:
                    await consumer.seek(MessageId.earliest)
            except (encore.ConfigurationError, encore.EncoreError) as error:
                self._note(f"{kind} refused: {error!r}")

    def _fault_plan(self) -> FaultPlan:
        rng = self._rng
        faults = []
        for _ in range(rng.randint(1, 4)):
            kind: Any = rng.choice(("refuse", "close_before", "close_after", "delay", "outage"))
            topic = None
            if kind == "refuse":
                command = rng.choice(("SEND", "PRODUCER", "LOOKUP"))
                topic = rng.choice((DEAD, f"{TOPIC}-{SUBSCRIPTION}-RETRY", RESULTS))
            else:
                command = rng.choice(
                    ("ACK", "SEND", "SEND_RECEIPT", "ACK_RESPONSE", "PRODUCER")
                    if kind == "delay"
                    else ("ACK", "SEND", "SEND_RECEIPT", "FLOW", "MESSAGE", "SUBSCRIBE")
                )
            faults.append(
                Fault(
                    kind=kind,
                    command=command,
                    nth=rng.randint(1, 5),
                    times=rng.randint(1, 4),
                    delay_ms=rng.choice((10, 1000, 40_000)) if kind == "delay" else 0,
                    error="PersistenceError" if kind == "refuse" else "ServiceNotReady",
                    outage_s=rng.choice((0.5, 40)),
                    topic=topic,
                )
            )
        self._note(f"faults {faults}")
        return FaultPlan(faults)

    async def _heal(self) -> None:
        """Let everything succeed from here on."""
        self.transport.faults = None
        self.transport.reconnect()
        self._is_outage, self._is_healed = False, True
        self._note("healed")
        for worker, _ in self._workers.values():
            worker.resume()
        if not self._workers:
            await self._start()
        loop = asyncio.get_running_loop()
        ends = loop.time() + _LONGEST_S
        while not self._is_done():
            self._check_now()
            if not self._workers:
                await self._start()
            if loop.time() > ends:
                statistics = []
                for worker, _ in self._workers.values():
                    with contextlib.suppress(encore.ConfigurationError):
                        statistics.append(worker.consumer.statistics())
                self._broken(
                    f"messages are left: {self._backlogs()}, "
                    f"{[worker.health() for worker, _ in self._workers.values()]}, {statistics}"
                )
            await asyncio.sleep(20)

    async def _finish(self) -> None:
        for index in list(self._workers):
            await self._stop(index)
        if self._applications:
            await asyncio.wait(self._applications)
        self._check_now()

    def _backlogs(self) -> dict[str, int]:
        return {
            name: self.transport.backlog(name, SUBSCRIPTION)
            for name, state in self.transport.catalogue.topics.items()
            if SUBSCRIPTION in state.subscriptions
        }

    def _is_done(self) -> bool:
        backlogs = self._backlogs()
        read = sum(name.startswith(TOPIC) and "-RETRY" not in name for name in backlogs)
        return (
            read >= max(1, self._partitions)
            and not any(backlogs.values())
            and not any(worker.held for worker, _ in self._workers.values())
        )

    # Messages and workers

    def _put(self) -> None:
        rng = self._rng
        topic = (
            f"{TOPIC}-partition-{rng.randrange(self._partitions)}" if self._partitions else TOPIC
        )
        key = rng.choice(("", "a", "b", "c", "d")) if self.order == "key" else ""
        count = rng.choice((1, 1, 1, 3))
        payloads, numbers = [], []
        for _ in range(count):
            number = len(self.messages)
            group = {"none": None, "key": f"{topic} {key}" if key else None, "partition": topic}
            poison = self._has_letters and rng.random() < 0.05
            self.messages.append(Published(number, group[self.order], topic, poison))
            numbers.append(number)
            payloads.append(b"#%d#" % number + bytes(rng.choice((0, 100, 500))))
        first = self.transport.put(topic, *payloads, key=key)[0]
        where = (topic, first.ledger_id(), first.entry_id())
        self._by_id[where] = numbers
        self._note(f"put {numbers} key {key!r} {where}")

    async def _start(self) -> None:
        index, self._started = self._started, self._started + 1
        options = dict(self._options)
        if self._has_state:
            options["state"] = encore.RocksState(self._directory)
        name = f"{self._rng.choice('abcdef')}{index}"
        options["options"] = SubscribeOptions(consumer_name=name)
        worker = Worker(
            self.client,
            TOPIC,
            SUBSCRIPTION,
            self._handler_of(index),
            name=f"worker {index}",
            **options,
        )
        worker.watch_outcomes(lambda outcome: self._guard(self._on_outcome, index, outcome))
        self._note(f"start worker {index} as {name}")
        self._workers[index] = worker, asyncio.ensure_future(worker.serve())
        if self._rng.random() < 0.7:
            await asyncio.sleep(0.01)
        if self._most_workers > 1 and self.order != "none":
            self._is_calm = False  # a new consumer takes over keys or partitions

    async def _stop(self, index: int) -> None:
        worker, task = self._workers[index]
        self._note(f"stop worker {index}")
        worker.stop()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.wait((task,))
        took_s = loop.time() - began_s
        if took_s > worker.drain + 0.5 and not self._has_state:
            self._broken(f"worker {index} drained for {took_s} s of {worker.drain} s")
        for call in [each for each in self._running if each.worker == index]:
            if call.behaviour != "swallow":
                self._broken(f"{call} runs after the end of its worker")
        self._check_now()

    def _handler_of(self, index: int) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def handler(value: bytes, message: Message) -> Any:
            (number,) = _numbers(value)
            call = self._begin(index, number, message)
            try:
                result = await self._behave(call, message)
            except BaseException as error:
                self._end(call, repr(error))
                raise
            self._end(call, "returned")
            return result

        return handler

    def _guard(self, check: Callable[..., Any], *arguments: Any) -> Any:
        """Keep the first broken rule: the caller would swallow it."""
        try:
            return check(*arguments)
        except BrokenRuleError as error:
            if not self._broke.done():
                self._broke.set_exception(error)
            raise

    def _begin(self, index: int, number: int, message: Message) -> Call:
        published = self.messages[number]
        rng = Random(f"{self.seed} {number} {len(published.calls)}")
        behaviour = "return"
        if self._is_healed:
            pass
        elif published.poison:
            behaviour = "raise"
        elif self._is_outage and rng.random() < 0.7:
            behaviour = "outage"
        elif rng.random() < self._failing:
            behaviour = rng.choice(self._behaviours)
        commands = len(self.transport.commands)
        delivered = f"{message.topic_name()} {message.message_id()}"
        call = Call(index, number, delivered, message.attempt, commands, behaviour)
        self._note(f"worker {index} begins {number} attempt {message.attempt}: {behaviour}")
        self._guard(self._check_begin, published, call)
        published.calls.append(call)
        self._running[call] = None
        return call

    def _end(self, call: Call, how: str) -> None:
        self._note(f"worker {call.worker} ends {call.number}: {how}")
        call.ended = how
        self._running.pop(call, None)
        if how == "returned":
            self._may_ack(call.number)

    def _may_ack(self, number: int) -> None:
        self.messages[number].done_at.append(len(self.transport.commands))

    # Handlers

    async def _behave(self, call: Call, message: Message) -> Any:
        rng = Random(f"{self.seed} {call.number} {len(self.messages[call.number].calls)} x")
        number = call.number
        await asyncio.sleep(rng.choice((0, 0, 0.01, 1, 4)) * rng.random())
        match call.behaviour:
            case "raise":
                raise ValueError("a bug")
            case "outage":
                raise ConnectionError("refused")
            case "retry":
                raise encore.Retry(delay=rng.choice((None, 0, 3, 700)))
            case "uncounted":
                raise encore.Retry(delay=rng.choice((None, 0, 3, 700)), count=False)
            case "reject":
                raise encore.Reject("negative total")
            case "hang":
                await asyncio.sleep(1000)
            case "swallow":
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    await asyncio.sleep(rng.choice((0, 1, 30)))
            case "cancel itself":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1)
            case "task fails":
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(1000))
                    group.create_task(_fail())
            case "ack" | "ack and fail":
                self._may_ack(number)
                self.messages[number].final = True
                await message.ack()
                self._note(f"{number} acked by its handler")
                if call.behaviour == "ack and fail":
                    raise ValueError("after the ack")
                await asyncio.sleep(rng.choice((0, 20)))
            case "reject itself" | "reject itself and fail":
                # Also if the handler is cancelled meanwhile: the letter is sent all the same.
                self.messages[number].letter_reasons.append("itself")
                try:
                    await message.reject("rejected by itself")
                except encore.EncoreError as error:
                    self._note(f"{number} not rejected by its handler: {error!r}")
                    raise
                self._note(f"{number} rejected by its handler")
                self.messages[number].final = True
                if call.behaviour.endswith("fail"):
                    raise ValueError("after the reject")
            case "nack itself":
                self._redeliver_batch(number)
                await message.nack(delay=rng.choice((0, 5)))
            case "detach" | "detach and leave" | "detach and fail":
                self._redeliver_batch(number)
                lease = message.detach(lease=20)
                self._note(f"{number} detached")
                if call.behaviour != "detach and leave":
                    task = asyncio.ensure_future(self._ack_lease(number, lease, rng))
                    self._applications.add(task)
                    task.add_done_callback(self._applications.discard)
                if call.behaviour == "detach and fail":
                    raise ValueError("after the detach")
        if self._publishes:
            if rng.random() < 0.3:
                message.publish(b"extra #%d#" % number)
            return b"result #%d#" % number
        return None

    def _redeliver_batch(self, number: int) -> None:
        """A nack by the handler, or of its lease, redelivers the whole batch."""
        for each in next(each for each in self._by_id.values() if number in each):
            self.messages[each].uncertain = True

    async def _ack_lease(self, number: int, lease: Any, rng: Random) -> None:
        await asyncio.sleep(rng.choice((0, 5, 30)))
        self._may_ack(number)
        try:
            await lease.ack()
        except encore.EncoreError as error:
            self._note(f"lease of {number} not acked: {error!r}")
        else:
            self._note(f"lease of {number} acked")
            self.messages[number].final = True

    # Rules

    def _check_begin(self, published: Published, call: Call) -> None:
        others = [each for each in self._running if each.worker == call.worker]
        if len(others) >= self._options["concurrency"]:
            self._broken(f"{call} begins beside {others}")
        for each in others:
            if each.delivered == call.delivered and each.behaviour != "swallow":
                self._broken(f"{call} begins while {each} runs")
            group = self.messages[each.number].group
            if group is not None and group == published.group:
                self._broken(f"{call} begins while {each} of its group runs")
        if self._is_calm and not published.uncertain:
            if published.final:
                self._broken(f"{call} begins after the message was settled")
            if call.attempt > 1 + published.counted:
                self._broken(f"{call} is not attempt {1 + published.counted}")
            failed = published.counted if self._has_state else published.counted_by[call.worker]
            if failed >= self._attempts:
                self._broken(f"{call} begins after {failed} failed attempts")
            if published.group is not None:
                for each_message in self.messages[: call.number]:
                    if each_message.group == published.group and not each_message.final:
                        self._broken(f"{call} begins before {each_message} was settled")

    def _on_outcome(self, index: int, outcome: Outcome) -> None:
        (number,) = _numbers(outcome.message.data())
        published = self.messages[number]
        self._note(
            f"worker {index} outcome of {number}: {outcome.settlement} counted {outcome.counted} "
            f"delay {outcome.delay} {outcome.reason} {outcome.error!r}"
        )
        if outcome.attempt > self._attempts and self._is_calm and not published.uncertain:
            self._broken(f"attempt {outcome.attempt} of {number}")
        match outcome.settlement:
            case "ack":
                published.successes += 1
                if self._is_calm and not published.uncertain and published.final:
                    self._broken(f"{number} is acked after it was settled")
                if not published.calls[-1].ended == "returned" and self._is_calm:
                    self._broken(f"{number} is acked after {published.calls[-1]}")
                published.final = True
            case "retry":
                published.counted += outcome.counted
                published.counted_by[index] += outcome.counted
            case "dead letter" | "discard":
                published.counted += 1
                published.letter_reasons.append(outcome.reason)
                published.final = True
                if not outcome.reason.startswith("rejected") and not published.uncertain:
                    if self._is_calm and published.counted < self._attempts:
                        self._broken(f"{number}: {outcome} after {published.counted} attempts")
                if outcome.settlement == "discard":
                    self._may_ack(number)

    def _check_acks(self) -> None:
        """Each ack has a reason that came before it."""
        letters: dict[int, int] = {}
        for at, command in enumerate(self.transport.commands):
            if command.name == "SEND" and command.topic.endswith(("-DLQ", "-RETRY")):
                for number in _numbers(bytes(command.details.payload)):
                    letters.setdefault(number, at)
            elif command.name == "ACK" and command.topic.startswith(TOPIC):
                if command.topic.endswith(("-DLQ", "-RETRY")):
                    continue
                plan = command.details
                if plan.cumulative is not None:
                    self._broken(f"a cumulative ack {plan}")
                acked = [(each, -1) for each in plan.entries]
                acked += [((each[0], each[1]), each[3]) for each in plan.partial]
                for (ledger, entry), unacked in acked:
                    numbers = self._by_id[command.topic, ledger, entry]
                    for bit, number in enumerate(numbers):
                        if unacked != -1 and unacked >> bit & 1:
                            continue
                        done = self.messages[number].done_at
                        if (done and done[0] <= at) or letters.get(number, at) < at:
                            continue
                        if self._has_letters or not self._is_spent(self.messages[number]):
                            self._broken(f"{number} is acked by {command} without a reason")

    def _check_ends(self) -> None:
        dead = self._stored(DEAD)
        results = self._stored(RESULTS)
        for each in self.messages:
            number = each.number
            is_done = bool(each.done_at) or (not self._has_letters and self._is_spent(each))
            if not is_done and number not in dead:
                self._broken(f"{each} is lost")
            if number in dead and not each.letter_reasons and not self._is_spent(each):
                self._broken(f"{each} is a dead letter without a reason")
            if self._publishes and each.successes and number not in results:
                self._broken(f"{each} is acked and its result is not stored")

    def _is_spent(self, published: Published) -> bool:
        """Return True if a state may count all attempts of a message as used up.

        The worker then dead-letters or discards it without another call.
        """
        used_up = len(published.calls) >= self._attempts
        return self._has_state and (used_up or not self._is_calm)

    def _stored(self, topic: str) -> dict[int, int]:
        found: dict[int, int] = defaultdict(int)
        state = self.transport.catalogue.topics.get(topic)
        if state is not None:
            for command in self.transport.commands:
                if command.name == "SEND" and command.topic == topic:
                    for number in _numbers(bytes(command.details.payload)):
                        found[number] += 1
        return found


async def _fail() -> None:
    raise ValueError("in a task")
