"""Play a workload on a client and record the events.

`play` publishes, runs the consumers with their handlers and the actions, ends when everything is
settled or after a silence, and lets a witness read the backlog. It judges nothing, and knows only
enough to end. Silence is counted in steps of `TURN_S`, and a stalled step counts once, so a slow
machine makes a run longer and never shorter.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final

from . import event_record as r
from .brokers import Broker
from .clients import (
    SUBSCRIPTION,
    CannotError,
    ClientName,
    Member,
    ReceivedMessage,
    dead_topic,
    open_member,
    retry_topic,
)
from .proxy import Proxy
from .witness import Produced, drain, publish, watch_letters
from .workload import Action, Decision, Segment, Workload, decide

TURN_S: Final = 0.05
SILENCE_S: Final = 5.0  # with no message due or held and all consumers connected
SILENCE_RESTARTED_S: Final = 15.0  # a restarted broker reads old entries after about 5 s
NUDGE_S: Final = 0.8  # after this silence the next action begins early
LINGER_S: Final = 0.4  # acks are sent within 0.2 s, and redeliveries arrive
LIMIT_S: Final = 75.0
DRAIN_S: Final = 2.5
LAG_S: Final = 0.03
YIELD_EACH: Final = 32


async def play(workload: Workload, broker: Broker, client: ClientName, name: str) -> r.Recorder:
    """Play a workload once on topics named after `name`; return its history."""
    player = _Player(workload, broker, client, name)
    try:
        await player.run()
    finally:
        await player.end()
    return player.recorder


class _RunningMember:
    """One consumer of the run."""

    def __init__(self, who: int, member: Member) -> None:
        self.who = who
        self.member = member
        self.open = asyncio.Event()  # clear while paused
        self.open.set()
        self.loop_task: asyncio.Task[None] | None = None
        self.handlers: set[asyncio.Task[None]] = set()
        self.ack_list: list[ReceivedMessage] = []
        self.first_nacked: dict[
            str, int
        ] = {}  # topic -> a nacked message that no cumulative ack may cover
        self.unacked: dict[str, list[ReceivedMessage]] = {}
        self.was_connected = True
        self.epoch = 0


class _Player:
    def __init__(self, workload: Workload, broker: Broker, client: ClientName, name: str) -> None:
        self.recorder = r.Recorder()
        self._workload = workload
        self._broker = broker
        self._client = client
        self._base = f"persistent://{broker.namespace}/{name}"
        self._topics = [f"{self._base}-{at}" for at in range(workload.topics)]
        self._deleted: set[str] = set()
        self._members: dict[int, _RunningMember] = {}
        self._proxies: dict[int, Proxy] = {}
        self._chunker: Proxy | None = None
        self._attempts: Counter[int] = Counter()
        self._settled: set[int] = set()
        self._origins: dict[int, tuple[str, r.Position]] = {}
        self._received = 0
        self._activity = 0
        self._due = 0.0  # all nacked messages are due by then
        self._action: Action | None = None  # the current or the next action
        self._is_acting = False
        self._calls = 0  # pending calls that settle messages
        self._nudged = False
        self._wake = asyncio.Event()
        self._produced_event = asyncio.Event()
        self._publishing = 0
        self._letters_stop = threading.Event()
        self._background: list[asyncio.Task[Any]] = []
        self._failure: BaseException | None = None

    # The run

    async def run(self) -> None:
        workload, loop = self._workload, asyncio.get_running_loop()
        for topic in self._topics:
            await self._broker.create(topic, workload.partitions)
        if workload.max_redeliver:
            await self._broker.create(dead_topic(self._base), 0)
            await self._broker.create(retry_topic(self._base), 0)
            self._spawn(self._letters())
        for who in range(workload.members):
            if workload.proxied(who):
                self._proxies[who] = Proxy(self._broker.url)
                await self._proxies[who].start()
        if workload.chunk:
            self._chunker = Proxy(self._broker.url, max_message_size=workload.chunk)
            await self._chunker.start()
        await self._create_subscription()
        first = 0
        later: list[tuple[Segment, int]] = []
        for segment in workload.segments:
            if segment.per_second:
                later.append((segment, first))
            else:
                await self._publish(segment, first)
            first += segment.messages
        self._expected = range(first)
        for who in range(workload.consumers):
            await self._join(who)
        for segment, start in later:
            self._publishing += 1
            self._spawn(self._publish_in_background(segment, start))
        self._spawn(self._run_actions())
        began = loop.time()
        quiet = 0.0
        seen = -1
        while True:
            turn = loop.time()
            await asyncio.sleep(TURN_S)
            late = loop.time() - turn - TURN_S
            if late > LAG_S:
                self.recorder.add(r.LAG, delay=late)
            if self._failure is not None:
                raise self._failure
            self._poll_connections()
            quiet = quiet + TURN_S if seen == self._activity else 0.0
            seen = self._activity
            if self._action is not None or self._publishing:
                if quiet >= NUDGE_S:
                    self._nudged = True
                    self._wake.set()
                if loop.time() - began < LIMIT_S:
                    continue
            if quiet > TURN_S and self._done():
                self.recorder.add(r.WORK_ENDED, note="done")
                break
            waits = self.recorder.now() < self._due + TURN_S or self._working()
            if waits:
                quiet = 0.0
            if quiet >= (SILENCE_RESTARTED_S if workload.breaks_broker else SILENCE_S):
                self.recorder.add(r.WORK_ENDED, note="silence")
                break
            if loop.time() - began > LIMIT_S:
                self.recorder.add(r.WORK_ENDED, note="limit")
                break
        await asyncio.sleep(LINGER_S)
        await self._close_members()
        await self._check_backlog()

    def _done(self) -> bool:
        if self._working():
            return False
        return all(
            number in self._settled or self._origins[number][0] in self._deleted
            for number in self._expected
        )

    def _working(self) -> bool:
        return self._calls > 0 or any(running.handlers for running in self._members.values())

    async def end(self) -> None:
        """Release everything, even after a failure."""
        for task in self._background:
            task.cancel()
        self._letters_stop.set()
        for running in list(self._members.values()):
            self._cancel_tasks(running)
            with contextlib.suppress(Exception):
                async with asyncio.timeout(10):
                    await running.member.close()
        self._members.clear()
        await asyncio.gather(*self._background, return_exceptions=True)
        for proxy in [*self._proxies.values(), *([self._chunker] if self._chunker else [])]:
            await proxy.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.append(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    # Publishing and letters

    async def _create_subscription(self) -> None:
        """Subscribe before publishing, so that no message is trimmed before the first consumer."""
        url = self._broker.url
        await asyncio.to_thread(drain, url, self._workload, self._topics, _ignore, 0.0)

    async def _publish(self, segment: Segment, first: int) -> None:
        url = self._chunker.url if self._chunker else self._broker.url
        loop = asyncio.get_running_loop()

        def report(sent: list[Produced]) -> None:
            loop.call_soon_threadsafe(self._produced, sent)

        await asyncio.to_thread(publish, url, self._workload, self._topics, segment, first, report)

    def _produced(self, sent: list[Produced]) -> None:
        for number, topic, position, key in sent:
            self._origins[number] = (topic, position)
            self.recorder.add(r.PRODUCED, number=number, topic=topic, position=position, key=key)
        self._activity += 1
        self._produced_event.set()

    async def _publish_in_background(self, segment: Segment, first: int) -> None:
        try:
            await self._publish(segment, first)
        finally:
            self._publishing -= 1

    async def _letters(self) -> None:
        loop = asyncio.get_running_loop()

        def found(number: int) -> None:
            loop.call_soon_threadsafe(self._letter, number)

        topic = dead_topic(self._base)
        await asyncio.to_thread(watch_letters, self._broker.url, topic, found, self._letters_stop)

    def _letter(self, number: int) -> None:
        self.recorder.add(r.LETTER, number=number)
        self._settled.add(number)
        self._activity += 1

    # Consumers

    async def _join(self, who: int) -> None:
        proxy = self._proxies.get(who)
        url = proxy.url if proxy else self._broker.url
        name = f"consumer-{who}"
        existing = [topic for topic in self._topics if topic not in self._deleted]
        member = await open_member(self._client, url, self._workload, self._base, existing, name)
        running = self._members[who] = _RunningMember(who, member)
        self.recorder.add(r.JOINED, who=who)
        running.loop_task = asyncio.ensure_future(self._consume(running))
        running.loop_task.add_done_callback(self._on_task_done)

    async def _consume(self, running: _RunningMember) -> None:
        recorder, who = self.recorder, running.who
        slots = asyncio.Semaphore(self._workload.settling.workers)
        since = began = recorder.now()
        number = 0
        while True:
            await running.open.wait()
            try:
                messages = await running.member.receive(0.25)
            except Exception as e:
                recorder.add(r.FAILED, who=who, note=f"receive: {type(e).__name__}: {e}")
                return
            if not messages:
                recorder.add(r.IDLE, who=who, delay=recorder.now() - since)
                since = recorder.now()
                await self._settle_gathered(running)
                await asyncio.sleep(0)
                continue
            for received in messages:  # without a yield, because a batch is delivered as a whole
                self._activity += 1
                self._received += 1
                recorder.add(
                    r.RECEIVED,
                    who=who,
                    number=received.number,
                    topic=received.topic,
                    count=received.count,
                )
            for received in messages:
                self._attempts[received.number] += 1
                decision = decide(self._workload, received.number, self._attempts[received.number])
                if decision.work or decision.hold:
                    if not decision.hold:
                        await slots.acquire()
                    task = asyncio.ensure_future(self._handle(running, received, decision, slots))
                    running.handlers.add(task)
                    task.add_done_callback(running.handlers.discard)
                    task.add_done_callback(self._on_task_done)
                    if self._workload.settling.ack == "cumulative":
                        await task  # in order, or an ack would cover a message in progress
                else:
                    await self._settle(running, received, decision)
                number += 1
                await self._pace(number, began)
            since = recorder.now()

    async def _pace(self, number: int, began: float) -> None:
        """Keep to the workload's rate, yield, and let an action begin at its message."""
        acting, rate = self._action, self._workload.settling.rate
        if acting is not None and not self._is_acting and self._received >= acting.after:
            self._wake.set()
            await asyncio.sleep(0)
        elif number % YIELD_EACH == 0:
            ahead = began + number / rate - self.recorder.now() if rate else 0.0
            await asyncio.sleep(max(0.0, ahead))

    async def _handle(
        self,
        running: _RunningMember,
        received: ReceivedMessage,
        decision: Decision,
        slots: asyncio.Semaphore,
    ) -> None:
        try:
            await asyncio.sleep(decision.work + decision.hold)
            await self._settle(running, received, decision)
        finally:
            if not decision.hold:
                slots.release()

    async def _settle(
        self, running: _RunningMember, received: ReceivedMessage, decision: Decision
    ) -> None:
        self._activity += 1
        self._calls += 1
        try:
            await self._settle_as(running, received, decision)
        finally:
            self._calls -= 1

    async def _settle_as(
        self, running: _RunningMember, received: ReceivedMessage, decision: Decision
    ) -> None:
        if decision.end == "nothing":
            self._due = max(self._due, self.recorder.now() + self._workload.ack_timeout * 2)
        elif decision.end == "nack":
            await self._nack(running, received, decision)
        elif decision.end == "reconsume":
            await self._reconsume(running, received, decision)
        elif self._workload.settling.ack == "cumulative" and await self._is_original(received):
            await self._ack_later(running, received)
        elif self._workload.settling.ack == "list":
            running.ack_list.append(received)
            if len(running.ack_list) >= self._workload.settling.group:
                await self._settle_gathered(running)
        else:
            await self._ack(running, [received])

    async def _ack(self, running: _RunningMember, messages: list[ReceivedMessage]) -> None:
        try:
            await running.member.ack(messages)
        except asyncio.CancelledError:
            # The ack was made; the cancellation hit its yield.
            self._record_acked(running, messages)
            raise
        except Exception as e:
            if len(messages) > 1:  # a part of the list was acked: single acks show which
                for received in messages:
                    await self._ack(running, [received])
            else:
                self._refused(running, messages, "ack", e)
            return
        self._record_acked(running, messages)

    def _record_acked(self, running: _RunningMember, messages: list[ReceivedMessage]) -> None:
        for received in messages:
            self.recorder.add(r.ACKED, who=running.who, number=received.number)
            self._settled.add(received.number)

    async def _settle_gathered(self, running: _RunningMember) -> None:
        if running.ack_list:
            messages, running.ack_list = running.ack_list, []
            await self._ack(running, messages)
        for topic in list(running.unacked):
            await self._ack_through_last(running, topic)

    async def _is_original(self, received: ReceivedMessage) -> bool:
        """True if the delivery is no letter. Letters are acked one by one, because the retry letter
        topic is subscribed as Shared.
        """
        while received.number not in self._origins:  # its receipt is not recorded yet
            self._produced_event.clear()
            await self._produced_event.wait()
        return received.topic == self._origins[received.number][0]

    async def _ack_later(self, running: _RunningMember, received: ReceivedMessage) -> None:
        """Ack cumulatively after each `group` messages of a topic, and never past a nacked one."""
        topic = received.topic
        failed = running.first_nacked.get(topic)
        if failed is not None:
            if self._origins[received.number][1] > self._origins[failed][1]:
                return  # redelivered after the nacked message
            if received.number == failed:
                del running.first_nacked[topic]
        running.unacked.setdefault(topic, []).append(received)
        if len(running.unacked[topic]) >= self._workload.settling.group:
            await self._ack_through_last(running, topic)

    async def _ack_through_last(self, running: _RunningMember, topic: str) -> None:
        messages = running.unacked.pop(topic)
        if not messages:
            return
        last = messages[-1]
        try:
            await running.member.ack_cumulative(last)
        except asyncio.CancelledError:
            self._record_acked_cumulative(running, last)
            raise
        except Exception as e:
            self._refused(running, [last], "cumulative ack", e)
            return
        self._record_acked_cumulative(running, last)

    def _record_acked_cumulative(self, running: _RunningMember, last: ReceivedMessage) -> None:
        self.recorder.add(r.ACKED_CUMULATIVE, who=running.who, number=last.number)
        upto = self._origins[last.number]
        self._settled.update(
            number
            for number, (where, position) in self._origins.items()
            if where == upto[0] and position <= upto[1]
        )

    async def _nack(
        self, running: _RunningMember, received: ReceivedMessage, decision: Decision
    ) -> None:
        at, delay = self.recorder.now(), decision.delay
        if self._workload.settling.ack == "cumulative":
            before = running.unacked.pop(received.topic, [])
            if before:
                running.unacked[received.topic] = before
                await self._ack_through_last(running, received.topic)
            running.first_nacked.setdefault(received.topic, received.number)
        try:
            await running.member.nack(received, delay, by_id=decision.by_id)
        except Exception as e:
            self._refused(running, [received], "nack", e)
            return
        least = self._least_delay(delay)
        note = "by id" if decision.by_id else ""
        self.recorder.add(
            r.NACKED, at=at, who=running.who, number=received.number, delay=least, note=note
        )
        self._due = max(self._due, at + self._most_delay(delay))

    def _least_delay(self, delay: float | None) -> float:
        if self._client == "stock":
            return 0.0  # the stock client promises no delay
        if delay is not None:
            return delay
        return self._workload.backoff[0] if self._workload.backoff else self._workload.nack_delay

    def _most_delay(self, delay: float | None) -> float:
        if self._client == "stock":
            return self._workload.nack_delay * 2
        if delay is not None:
            return delay
        return self._workload.backoff[1] if self._workload.backoff else self._workload.nack_delay

    async def _reconsume(
        self, running: _RunningMember, received: ReceivedMessage, decision: Decision
    ) -> None:
        at, delay = self.recorder.now(), decision.delay or 0.0
        try:
            await running.member.reconsume(received, delay)
        except Exception as e:
            self._refused(running, [received], "reconsume_later", e)
            return
        self.recorder.add(r.RECONSUMED, at=at, who=running.who, number=received.number, delay=delay)
        self._activity += 1
        # the broker's timer for delays has a resolution of 1 s
        self._due = max(self._due, at + delay + 2.0)

    def _refused(
        self, running: _RunningMember, messages: list[ReceivedMessage], call: str, error: Exception
    ) -> None:
        if isinstance(error, CannotError):
            raise error
        for received in messages:
            note = f"{call}: {type(error).__name__}: {error}"
            self.recorder.add(r.REFUSED, who=running.who, number=received.number, note=note)

    def _cancel_tasks(self, running: _RunningMember) -> None:
        for task in [*running.handlers, running.loop_task]:
            if task is not None:
                task.cancel()

    def _poll_connections(self) -> None:
        for running in self._members.values():
            now = running.member.connected()
            if now != running.was_connected:
                running.was_connected = now
                self.recorder.add(r.CONNECTED if now else r.DISCONNECTED, who=running.who)

    # Actions

    async def _run_actions(self) -> None:
        """Run the actions in order, each after enough deliveries, or when no more arrive."""
        actions = sorted(self._workload.actions, key=lambda action: action.after)
        self._action = actions[0] if actions else None
        for at, action in enumerate(actions):
            self._action = action
            while self._received < action.after and not self._nudged:
                self._wake.clear()
                await self._wake.wait()
            self._is_acting = True
            await _ACTIONS[action.do](self, action)
            self._is_acting = self._nudged = False
            self._activity += 1
            if at + 1 == len(actions):
                self._action = None

    async def _do_join(self, action: Action) -> None:
        if action.who not in self._members:
            await self._join(action.who)

    async def _do_close(self, action: Action) -> None:
        running = self._members.pop(action.who, None)
        if running is not None:
            self._cancel_tasks(running)
            await running.member.close()
            self.recorder.add(r.CLOSED, who=action.who)

    async def _do_crash(self, action: Action) -> None:
        running = self._members.pop(action.who, None)
        if running is not None:
            self._proxies[action.who].cut()
            self.recorder.add(r.CRASHED, who=action.who)
            self._cancel_tasks(running)
            await asyncio.to_thread(running.member.crash)

    async def _do_cut(self, action: Action) -> None:
        proxy = self._proxies[action.who]
        self.recorder.add(r.FAULT, who=action.who, note="cut")
        proxy.cut()
        await asyncio.sleep(action.seconds)
        proxy.heal()
        await self._reconnected([action.who])
        self.recorder.add(r.HEALED, who=action.who, note="cut")

    async def _reconnected(self, members: list[int]) -> None:
        """Wait at most 20 s for the members to reconnect. The C++ client's backoff grows to a
        minute.
        """
        for _ in range(round(20 / TURN_S)):
            running = [self._members[who] for who in members if who in self._members]
            if all(each.member.connected() for each in running):
                return
            await asyncio.sleep(TURN_S)

    async def _do_pause(self, action: Action) -> None:
        running = self._members.get(action.who)
        if running is not None:
            running.open.clear()
            self.recorder.add(r.PAUSED, who=action.who)
            await asyncio.sleep(action.seconds)
            running.open.set()
            self.recorder.add(r.RESUMED, who=action.who)

    async def _do_redeliver_all(self, action: Action) -> None:
        running = self._members.get(action.who)
        if running is not None:
            # Recorded first, because redeliveries may arrive from now on.
            self.recorder.add(r.REDELIVER_ALL, who=action.who)
            running.unacked.clear()
            running.first_nacked.clear()
            await running.member.redeliver_all()

    async def _do_seek(self, action: Action) -> None:
        running = self._members.get(action.who)
        if running is None:
            return
        for each in self._members.values():
            each.open.clear()
        while handlers := [task for each in self._members.values() for task in each.handlers]:
            await asyncio.wait(handlers)
        await asyncio.sleep(LINGER_S)
        for each in self._members.values():
            each.ack_list.clear()
            each.unacked.clear()
            each.first_nacked.clear()
        self.recorder.add(r.SEEK, who=action.who)
        self._settled.clear()
        await running.member.seek(None)
        await self._reconnected(list(self._members))
        self.recorder.add(r.HEALED, who=action.who, note="seek")
        for each in self._members.values():
            each.open.set()

    async def _do_unload(self, action: Action) -> None:
        topic = self._topics[action.who % len(self._topics)]
        self.recorder.add(r.FAULT, topic=topic, note="unload")
        await self._broker.unload(topic)
        await self._reconnected(list(self._members))
        self.recorder.add(r.HEALED, topic=topic, note="unload")

    async def _do_delete(self, action: Action) -> None:
        topic = self._topics[action.who % len(self._topics)]
        self._deleted.add(topic)
        self.recorder.add(r.FAULT, topic=topic, note="delete")
        await self._broker.delete(topic)

    async def _do_stop(self, action: Action) -> None:
        self.recorder.add(r.FAULT, note="stop")
        await self._broker.stop()
        await self._restart(action)

    async def _do_kill(self, action: Action) -> None:
        self.recorder.add(r.FAULT, note="kill")
        await self._broker.kill()
        await self._restart(action)

    async def _restart(self, action: Action) -> None:
        await asyncio.sleep(action.seconds)
        await self._broker.start()
        await self._reconnected(list(self._members))
        self.recorder.add(r.HEALED, note=action.do)

    # The end

    async def _close_members(self) -> None:
        for who, running in self._members.items():
            counts = running.member.statistics()
            if counts:
                self.recorder.add(r.STATISTICS, who=who, counts=counts)
        # all of them, before a closing member's messages go to another
        for running in self._members.values():
            self._cancel_tasks(running)
        for who, running in list(self._members.items()):
            try:
                async with asyncio.timeout(20):
                    await running.member.close()
            except Exception as e:
                self.recorder.add(r.FAILED, who=who, note=f"close: {type(e).__name__}: {e}")
            self.recorder.add(r.CLOSED, who=who)
        self._members.clear()

    async def _check_backlog(self) -> None:
        """Record the broker's backlog. If it is not empty, a witness reads it."""
        existing = [topic for topic in self._topics if topic not in self._deleted]
        left = 0
        for _ in range(20):
            left = sum([await self._backlog(topic) for topic in existing])
            if not left:
                break
            await asyncio.sleep(0.1)
        self.recorder.add(r.BACKLOG, count=left)
        if not left:
            return
        loop = asyncio.get_running_loop()

        def on_message(number: int, topic: str, count: int) -> None:
            loop.call_soon_threadsafe(self._drained, number, topic, count)

        await asyncio.to_thread(
            drain, self._broker.url, self._workload, existing, on_message, DRAIN_S
        )
        await asyncio.sleep(0)

    async def _backlog(self, topic: str) -> int:
        partitions = self._workload.partitions
        names = [f"{topic}-partition-{at}" for at in range(partitions)] or [topic]
        return sum([await self._broker.backlog(name, SUBSCRIPTION) for name in names])

    def _drained(self, number: int, topic: str, count: int) -> None:
        self.recorder.add(r.RECEIVED, who=r.DRAINER, number=number, topic=topic, count=count)


def _ignore(number: int, topic: str, count: int) -> None:
    pass


_ACTIONS: Final = {
    "join": _Player._do_join,
    "close": _Player._do_close,
    "crash": _Player._do_crash,
    "cut": _Player._do_cut,
    "pause": _Player._do_pause,
    "redeliver_all": _Player._do_redeliver_all,
    "seek": _Player._do_seek,
    "unload": _Player._do_unload,
    "delete": _Player._do_delete,
    "stop": _Player._do_stop,
    "kill": _Player._do_kill,
}
