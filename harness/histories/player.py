"""Plays a workload on a client, and records what happens.

Owns `play`: publishing, the consumers and their handlers, the actions in between, the end (all
settled, or silence), and the witness that reads what is left. It judges nothing; it only knows as
much as it needs to end. Silence is counted in turns of the loop, and a stalled turn counts as one,
so a slow machine makes a run longer, never shorter.
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
    Look,
    Member,
    dead_topic,
    open_member,
    retry_topic,
)
from .proxy import Proxy
from .witness import Produced, drain, publish, watch_letters
from .workload import Action, Decision, Segment, Workload, decide

TURN_S: Final = 0.05
SILENCE_S: Final = 5.0  # with nothing due, nothing held and nobody away
SILENCE_RESTARTED_S: Final = 15.0  # a broker that was restarted reads old entries after 5 s or so
NUDGE_S: Final = 0.8  # after so much silence the next action comes early
LINGER_S: Final = 0.4  # acks leave within 0.2 s; what comes again shows
LIMIT_S: Final = 75.0
DRAIN_S: Final = 2.5
LAG_S: Final = 0.03
YIELD_EACH: Final = 32


async def play(workload: Workload, broker: Broker, client: ClientName, name: str) -> r.Recorder:
    """Run it once on topics named after `name`; returns its history."""
    player = _Player(workload, broker, client, name)
    try:
        await player.run()
    finally:
        await player.end()
    return player.recorder


class _Playing:
    """One consumer of the run."""

    def __init__(self, who: int, member: Member) -> None:
        self.who = who
        self.member = member
        self.open = asyncio.Event()  # clear while paused
        self.open.set()
        self.loop_task: asyncio.Task[None] | None = None
        self.handlers: set[asyncio.Task[None]] = set()
        self.gathered: list[Look] = []
        self.blocked: dict[str, int] = {}  # topic -> a nacked number no cumulative ack may cover
        self.unacked: dict[str, list[Look]] = {}
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
        self._gone: set[str] = set()
        self._members: dict[int, _Playing] = {}
        self._proxies: dict[int, Proxy] = {}
        self._chunker: Proxy | None = None
        self._looks: Counter[int] = Counter()
        self._settled: set[int] = set()
        self._home: dict[int, tuple[str, r.Position]] = {}
        self._received = 0
        self._activity = 0
        self._due = 0.0  # nothing that was nacked comes later than this
        self._acting: Action | None = None  # under way, or the next
        self._acts = False
        self._calls = 0  # to settle, under way
        self._nudged = False
        self._wake = asyncio.Event()
        self._told = asyncio.Event()
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
            self._spawn(self._publish_beside(segment, start))
        self._spawn(self._conduct())
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
            self._look_at_connections()
            quiet = quiet + TURN_S if seen == self._activity else 0.0
            seen = self._activity
            if self._acting is not None or self._publishing:
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
        await self._quiet_point()
        await self._look_at_rest()

    def _done(self) -> bool:
        if self._working():
            return False
        return all(
            number in self._settled or self._home[number][0] in self._gone
            for number in self._expected
        )

    def _working(self) -> bool:
        return self._calls > 0 or any(playing.handlers for playing in self._members.values())

    async def end(self) -> None:
        """Free everything, whatever happened."""
        for task in self._background:
            task.cancel()
        self._letters_stop.set()
        for playing in list(self._members.values()):
            self._silence(playing)
            with contextlib.suppress(Exception):
                async with asyncio.timeout(10):
                    await playing.member.close()
        self._members.clear()
        await asyncio.gather(*self._background, return_exceptions=True)
        for proxy in [*self._proxies.values(), *([self._chunker] if self._chunker else [])]:
            await proxy.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._failure = task.exception()

    # Publishing and letters

    async def _create_subscription(self) -> None:
        """Before publishing, so that nothing is trimmed before the first consumer."""
        url = self._broker.url
        await asyncio.to_thread(drain, url, self._workload, self._topics, _nothing, 0.0)

    async def _publish(self, segment: Segment, first: int) -> None:
        url = self._chunker.url if self._chunker else self._broker.url
        loop = asyncio.get_running_loop()

        def said(sent: list[Produced]) -> None:
            loop.call_soon_threadsafe(self._produced, sent)

        await asyncio.to_thread(publish, url, self._workload, self._topics, segment, first, said)

    def _produced(self, sent: list[Produced]) -> None:
        for number, topic, position, key in sent:
            self._home[number] = (topic, position)
            self.recorder.add(r.PRODUCED, number=number, topic=topic, position=position, key=key)
        self._activity += 1
        self._told.set()

    async def _publish_beside(self, segment: Segment, first: int) -> None:
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
        alive = [topic for topic in self._topics if topic not in self._gone]
        member = await open_member(self._client, url, self._workload, self._base, alive, name)
        playing = self._members[who] = _Playing(who, member)
        self.recorder.add(r.JOINED, who=who)
        playing.loop_task = asyncio.ensure_future(self._consume(playing))
        playing.loop_task.add_done_callback(self._ended)

    async def _consume(self, playing: _Playing) -> None:
        recorder, who = self.recorder, playing.who
        slots = asyncio.Semaphore(self._workload.settling.workers)
        since = began = recorder.now()
        number = 0
        while True:
            await playing.open.wait()
            try:
                looks = await playing.member.receive(0.25)
            except Exception as e:
                recorder.add(r.FAILED, who=who, note=f"receive: {type(e).__name__}: {e}")
                return
            if not looks:
                recorder.add(r.IDLE, who=who, delay=recorder.now() - since)
                since = recorder.now()
                await self._settle_gathered(playing)
                await asyncio.sleep(0)
                continue
            for look in looks:  # as one step: a batch is handed over as a whole
                self._activity += 1
                self._received += 1
                recorder.add(
                    r.RECEIVED, who=who, number=look.number, topic=look.topic, count=look.count
                )
            for look in looks:
                self._looks[look.number] += 1
                decision = decide(self._workload, look.number, self._looks[look.number])
                if decision.work or decision.hold:
                    if not decision.hold:
                        await slots.acquire()
                    task = asyncio.ensure_future(self._handle(playing, look, decision, slots))
                    playing.handlers.add(task)
                    task.add_done_callback(playing.handlers.discard)
                    task.add_done_callback(self._ended)
                    if self._workload.settling.ack == "cumulative":
                        await task  # in order, or an ack would cover what is still worked on
                else:
                    await self._settle(playing, look, decision)
                number += 1
                await self._breathe(number, began)
            since = recorder.now()

    async def _breathe(self, number: int, began: float) -> None:
        """Keep to the pace, let others run, and let an action begin at its message."""
        acting, rate = self._acting, self._workload.settling.rate
        if acting is not None and not self._acts and self._received >= acting.after:
            self._wake.set()
            await asyncio.sleep(0)
        elif number % YIELD_EACH == 0:
            ahead = began + number / rate - self.recorder.now() if rate else 0.0
            await asyncio.sleep(max(0.0, ahead))

    async def _handle(
        self, playing: _Playing, look: Look, decision: Decision, slots: asyncio.Semaphore
    ) -> None:
        try:
            await asyncio.sleep(decision.work + decision.hold)
            await self._settle(playing, look, decision)
        finally:
            if not decision.hold:
                slots.release()

    async def _settle(self, playing: _Playing, look: Look, decision: Decision) -> None:
        self._activity += 1
        self._calls += 1
        try:
            await self._settle_as(playing, look, decision)
        finally:
            self._calls -= 1

    async def _settle_as(self, playing: _Playing, look: Look, decision: Decision) -> None:
        if decision.end == "nothing":
            self._due = max(self._due, self.recorder.now() + self._workload.ack_timeout * 2)
        elif decision.end == "nack":
            await self._nack(playing, look, decision)
        elif decision.end == "reconsume":
            await self._reconsume(playing, look, decision)
        elif self._workload.settling.ack == "cumulative" and await self._at_home(look):
            await self._ack_later(playing, look)
        elif self._workload.settling.ack == "list":
            playing.gathered.append(look)
            if len(playing.gathered) >= self._workload.settling.group:
                await self._settle_gathered(playing)
        else:
            await self._ack(playing, [look])

    async def _ack(self, playing: _Playing, looks: list[Look]) -> None:
        try:
            await playing.member.ack(looks)
        except asyncio.CancelledError:
            self._record_acked(playing, looks)  # what is cancelled while it lets others run is done
            raise
        except Exception as e:
            if len(looks) > 1:  # part of the list was acked: which, is found by asking again
                for look in looks:
                    await self._ack(playing, [look])
            else:
                self._refused(playing, looks, "ack", e)
            return
        self._record_acked(playing, looks)

    def _record_acked(self, playing: _Playing, looks: list[Look]) -> None:
        for look in looks:
            self.recorder.add(r.ACKED, who=playing.who, number=look.number)
            self._settled.add(look.number)

    async def _settle_gathered(self, playing: _Playing) -> None:
        if playing.gathered:
            looks, playing.gathered = playing.gathered, []
            await self._ack(playing, looks)
        for topic in list(playing.unacked):
            await self._ack_up_to_here(playing, topic)

    async def _at_home(self, look: Look) -> bool:
        """Whether it is no letter; those are of a topic subscribed Shared, and acked one by one."""
        while look.number not in self._home:  # its receipt is on the way
            self._told.clear()
            await self._told.wait()
        return look.topic == self._home[look.number][0]

    async def _ack_later(self, playing: _Playing, look: Look) -> None:
        """Cumulative: each `group` messages of a topic, and never past one that failed."""
        topic = look.topic
        failed = playing.blocked.get(topic)
        if failed is not None:
            if self._home[look.number][1] > self._home[failed][1]:
                return  # it comes again after the failed one
            if look.number == failed:
                del playing.blocked[topic]
        playing.unacked.setdefault(topic, []).append(look)
        if len(playing.unacked[topic]) >= self._workload.settling.group:
            await self._ack_up_to_here(playing, topic)

    async def _ack_up_to_here(self, playing: _Playing, topic: str) -> None:
        looks = playing.unacked.pop(topic)
        if not looks:
            return
        last = looks[-1]
        try:
            await playing.member.ack_cumulative(last)
        except asyncio.CancelledError:
            self._record_acked_cumulative(playing, last)
            raise
        except Exception as e:
            self._refused(playing, [last], "cumulative ack", e)
            return
        self._record_acked_cumulative(playing, last)

    def _record_acked_cumulative(self, playing: _Playing, last: Look) -> None:
        self.recorder.add(r.ACKED_CUMULATIVE, who=playing.who, number=last.number)
        upto = self._home[last.number]
        self._settled.update(
            number
            for number, (where, position) in self._home.items()
            if where == upto[0] and position <= upto[1]
        )

    async def _nack(self, playing: _Playing, look: Look, decision: Decision) -> None:
        at, delay = self.recorder.now(), decision.delay
        if self._workload.settling.ack == "cumulative":
            before = playing.unacked.pop(look.topic, [])
            if before:
                playing.unacked[look.topic] = before
                await self._ack_up_to_here(playing, look.topic)
            playing.blocked.setdefault(look.topic, look.number)
        try:
            await playing.member.nack(look, delay, by_id=decision.by_id)
        except Exception as e:
            self._refused(playing, [look], "nack", e)
            return
        least = self._least_delay(delay)
        note = "by id" if decision.by_id else ""
        self.recorder.add(
            r.NACKED, at=at, who=playing.who, number=look.number, delay=least, note=note
        )
        self._due = max(self._due, at + self._most_delay(delay))

    def _least_delay(self, delay: float | None) -> float:
        if self._client == "stock":
            return 0.0  # it promises none
        if delay is not None:
            return delay
        return self._workload.backoff[0] if self._workload.backoff else self._workload.nack_delay

    def _most_delay(self, delay: float | None) -> float:
        if self._client == "stock":
            return self._workload.nack_delay * 2
        if delay is not None:
            return delay
        return self._workload.backoff[1] if self._workload.backoff else self._workload.nack_delay

    async def _reconsume(self, playing: _Playing, look: Look, decision: Decision) -> None:
        at, delay = self.recorder.now(), decision.delay or 0.0
        try:
            await playing.member.reconsume(look, delay)
        except Exception as e:
            self._refused(playing, [look], "reconsume_later", e)
            return
        self.recorder.add(r.RECONSUMED, at=at, who=playing.who, number=look.number, delay=delay)
        self._activity += 1
        self._due = max(self._due, at + delay + 2.0)  # the broker's own clock ticks once a second

    def _refused(self, playing: _Playing, looks: list[Look], call: str, error: Exception) -> None:
        if isinstance(error, CannotError):
            raise error
        for look in looks:
            note = f"{call}: {type(error).__name__}: {error}"
            self.recorder.add(r.REFUSED, who=playing.who, number=look.number, note=note)

    def _silence(self, playing: _Playing) -> None:
        for task in [*playing.handlers, playing.loop_task]:
            if task is not None:
                task.cancel()

    def _look_at_connections(self) -> None:
        for playing in self._members.values():
            now = playing.member.connected()
            if now != playing.was_connected:
                playing.was_connected = now
                self.recorder.add(r.CONNECTED if now else r.DISCONNECTED, who=playing.who)

    # Actions

    async def _conduct(self) -> None:
        """The actions in order, each when enough was received, or when nothing more comes."""
        actions = sorted(self._workload.actions, key=lambda action: action.after)
        self._acting = actions[0] if actions else None
        for at, action in enumerate(actions):
            self._acting = action
            while self._received < action.after and not self._nudged:
                self._wake.clear()
                await self._wake.wait()
            self._acts = True
            await _ACTIONS[action.do](self, action)
            self._acts = self._nudged = False
            self._activity += 1
            if at + 1 == len(actions):
                self._acting = None

    async def _do_join(self, action: Action) -> None:
        if action.who not in self._members:
            await self._join(action.who)

    async def _do_close(self, action: Action) -> None:
        playing = self._members.pop(action.who, None)
        if playing is not None:
            self._silence(playing)
            await playing.member.close()
            self.recorder.add(r.CLOSED, who=action.who)

    async def _do_crash(self, action: Action) -> None:
        playing = self._members.pop(action.who, None)
        if playing is not None:
            self._proxies[action.who].cut()
            self.recorder.add(r.CRASHED, who=action.who)
            self._silence(playing)
            await asyncio.to_thread(playing.member.crash)

    async def _do_cut(self, action: Action) -> None:
        proxy = self._proxies[action.who]
        self.recorder.add(r.FAULT, who=action.who, note="cut")
        proxy.cut()
        await asyncio.sleep(action.seconds)
        proxy.heal()
        await self._reconnected([action.who])
        self.recorder.add(r.HEALED, who=action.who, note="cut")

    async def _reconnected(self, members: list[int]) -> None:
        """The engine's backoff grows to a minute; wait as long as it may take, not longer."""
        for _ in range(round(20 / TURN_S)):
            playing = [self._members[who] for who in members if who in self._members]
            if all(each.member.connected() for each in playing):
                return
            await asyncio.sleep(TURN_S)

    async def _do_pause(self, action: Action) -> None:
        playing = self._members.get(action.who)
        if playing is not None:
            playing.open.clear()
            self.recorder.add(r.PAUSED, who=action.who)
            await asyncio.sleep(action.seconds)
            playing.open.set()
            self.recorder.add(r.RESUMED, who=action.who)

    async def _do_redeliver_all(self, action: Action) -> None:
        playing = self._members.get(action.who)
        if playing is not None:
            # Recorded first: what comes from now on may come again.
            self.recorder.add(r.REDELIVER_ALL, who=action.who)
            playing.unacked.clear()
            playing.blocked.clear()
            await playing.member.redeliver_all()

    async def _do_seek(self, action: Action) -> None:
        playing = self._members.get(action.who)
        if playing is None:
            return
        for each in self._members.values():
            each.open.clear()
        while handlers := [task for each in self._members.values() for task in each.handlers]:
            await asyncio.wait(handlers)
        await asyncio.sleep(LINGER_S)
        for each in self._members.values():
            each.gathered.clear()
            each.unacked.clear()
            each.blocked.clear()
        self.recorder.add(r.SEEK, who=action.who)
        self._settled.clear()
        await playing.member.seek(None)
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
        self._gone.add(topic)
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

    async def _quiet_point(self) -> None:
        for who, playing in self._members.items():
            counts = playing.member.statistics()
            if counts:
                self.recorder.add(r.STATISTICS, who=who, counts=counts)
        for playing in self._members.values():  # all, before what one gives back goes to another
            self._silence(playing)
        for who, playing in list(self._members.items()):
            try:
                async with asyncio.timeout(20):
                    await playing.member.close()
            except Exception as e:
                self.recorder.add(r.FAILED, who=who, note=f"close: {type(e).__name__}: {e}")
            self.recorder.add(r.CLOSED, who=who)
        self._members.clear()

    async def _look_at_rest(self) -> None:
        """What the broker says is left; if anything is, a witness reads it."""
        alive = [topic for topic in self._topics if topic not in self._gone]
        left = 0
        for _ in range(20):
            left = sum([await self._backlog(topic) for topic in alive])
            if not left:
                break
            await asyncio.sleep(0.1)
        self.recorder.add(r.BACKLOG, count=left)
        if not left:
            return
        loop = asyncio.get_running_loop()

        def got(number: int, topic: str, count: int) -> None:
            loop.call_soon_threadsafe(self._drained, number, topic, count)

        await asyncio.to_thread(drain, self._broker.url, self._workload, alive, got, DRAIN_S)
        await asyncio.sleep(0)

    async def _backlog(self, topic: str) -> int:
        partitions = self._workload.partitions
        names = [f"{topic}-partition-{at}" for at in range(partitions)] or [topic]
        return sum([await self._broker.backlog(name, SUBSCRIPTION) for name in names])

    def _drained(self, number: int, topic: str, count: int) -> None:
        self.recorder.add(r.RECEIVED, who=r.DRAINER, number=number, topic=topic, count=count)


def _nothing(number: int, topic: str, count: int) -> None:
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
