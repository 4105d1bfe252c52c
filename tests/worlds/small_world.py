"""A world small enough to walk through: consumers, their applications, and the abstract broker.

The consumers are real, except for their event loop, which has a stopped clock, and their due
indexes, which are plain dicts (the real ones have a model of their own). `events` are all that can
happen next, `apply` makes one happen and raises `Violation` when an application can see something
wrong; `next_alone` is what happens when the world is left alone.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from abstract_broker import TOPIC, Broker, Connection, Line, Mode, Spot, Stored
from frozen import freeze

from pulsar_encore.consumer.consumer import Consumer
from pulsar_encore.consumer.consumer_factory import assemble
from pulsar_encore.core.entry import EntryKey
from pulsar_encore.core.message_key import DueBatch, MessageKey
from pulsar_encore.core.message_states import ACKED, AWAY, FORWARDING, HELD, NACKED, QUEUED
from pulsar_encore.core.topic_state import TopicState
from pulsar_encore.errors import MessageNotHeldError
from pulsar_encore.message import Message, held
from pulsar_encore.options import ConsumerOptions
from pulsar_encore.options.enums import ConsumerType
from pulsar_encore.transport.interface import AckPlan, Capabilities

Event: TypeAlias = tuple[Any, ...]
"""(what, consumer, details...)"""

TYPES = {
    "shared": ConsumerType.Shared,
    "exclusive": ConsumerType.Exclusive,
    "failover": ConsumerType.Failover,
}
_FAR_MS = 1 << 40  # when nacks are due; the world does not wait for that
_BEGIN_S = 1_000.0
_QUIET_S = 40.0  # longer than anything waits for an answer


class Violation(AssertionError):
    """Something an application can see, and should not."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The parts of a world, and limits on events that could otherwise repeat for ever.

    Attributes:
        mode: Subscription type.
        sizes: Messages in each entry.
        names: The consumers.
        budget: How often each of `LIMITED` may happen in all.
        tells: The broker's deliveries carry ack sets.
        split: Batches are delivered message by message.
        stock: The transport cannot ack parts of batches it has not delivered.
        brisk: Pipes are always empty and all sides know at once who is connected: fewer states,
            for longer stories.
        start: Events that have happened before.
    """

    mode: Mode
    sizes: tuple[int, ...]
    names: tuple[str, ...]
    budget: dict[str, int] = field(default_factory=dict)
    tells: bool = True
    split: bool = False
    stock: bool = False
    brisk: bool = False
    start: tuple[Event, ...] = ()


class Timer:
    """A `TimerHandle` of the still loop."""

    __slots__ = ("at", "callback", "loop")

    def __init__(self, loop: StillLoop, at: float, callback: Callable[..., Any]) -> None:
        self.loop = loop
        self.at = at
        self.callback = callback

    def cancel(self) -> None:
        if self in self.loop.timers:
            self.loop.timers.remove(self)


class StillLoop:
    """As much of an event loop as a consumer needs. Time passes when told."""

    def __init__(self) -> None:
        self.now = _BEGIN_S
        self.timers: list[Timer] = []
        self.hook = self.first_step  # kept: the loop never stops running in this thread

    def first_step(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Do nothing. The loops of asyncio have such a hook, and `Place` looks for it."""

    def time(self) -> float:
        return self.now

    def get_debug(self) -> bool:
        return False

    def call_at(self, at: float, callback: Callable[..., Any], *args: Any) -> Timer:
        timer = Timer(self, at, callback)
        self.timers.append(timer)
        return timer

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        return self.call_at(self.now + delay, callback, *args)


class PlainIndex:
    """A `DueIndex` with keys that become due when the world decides it."""

    def __init__(self) -> None:
        self.keys: dict[MessageKey, bool] = {}

    def add(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        known = key in self.keys
        self.keys.setdefault(key, False)
        return not known

    def move(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        known = key in self.keys
        self.keys[key] = False
        return known

    def discard(self, key: MessageKey) -> bool:
        return self.keys.pop(key, None) is not None

    def discard_entry(self, ledger: int, entry: int) -> int:
        return self._discard([key for key in self.keys if key[:2] == (ledger, entry)])

    def discard_through(self, ledger: int, entry: int) -> int:
        return self._discard([key for key in self.keys if key[:2] <= (ledger, entry)])

    def _discard(self, keys: list[MessageKey]) -> int:
        for key in keys:
            del self.keys[key]
        return len(keys)

    def pop_due(self, now_ms: int, /, limit: int | None = None) -> DueBatch:
        batch = DueBatch()
        for key in [key for key, due in self.keys.items() if due]:
            del self.keys[key]
            ledger, entry, index = key
            if index < 0:
                batch.entries.append((ledger, [entry]))
            else:
                batch.indexes.append((ledger, entry, 1 << index))
        return batch

    def done(self, batch: DueBatch, /) -> None: ...

    def due_of(self, key: MessageKey) -> int | None:
        return _FAR_MS if key in self.keys else None

    def soonest(self, limit: int) -> list[tuple[int, MessageKey]]:
        return [(_FAR_MS, key) for key in sorted(self.keys)][:limit]

    def next_due(self) -> int | None:
        return _FAR_MS if self.keys else None

    def clear(self) -> None:
        self.keys.clear()

    def __contains__(self, key: MessageKey) -> bool:
        return key in self.keys

    def __len__(self) -> int:
        return len(self.keys)

    def _check(self) -> None: ...


class ReceivedMessage:
    """One hand-over of a message to an application.

    Attributes:
        number: Which of the message's hand-overs to this application.
        nacked: The application is done with it.
        leaving: A copy of it is on its way.
        current: It was not given back since.
        void: From before a seek.
    """

    __slots__ = ("current", "leaving", "message", "nacked", "number", "spot", "void")

    def __init__(self, message: Message, spot: Spot, number: int) -> None:
        self.message = message
        self.spot = spot
        self.number = number
        self.nacked = self.leaving = self.void = False
        self.current = True

    @property
    def in_hand(self) -> bool:
        return self.current and not self.nacked and not self.leaving


class App:
    """One process: a consumer and the application that uses it."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.name = name
        self.loop = StillLoop()
        capabilities = Capabilities(name="model", ack_unseen_index=not plan.stock)
        self.connection = Connection(name, capabilities)
        options = _options(plan)
        asyncio._set_running_loop(self.loop)  # type: ignore[arg-type]
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self.loop.hook)
        try:
            parts = assemble(self.connection, options, new_index=PlainIndex)  # type: ignore[arg-type]
            self.consumer = Consumer(parts)
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)
        self.consumer._fair_yield.clock = lambda: -math.inf  # no call ever has to let a loop run
        self.topic_state: TopicState = parts.topic_states.by_number[0]
        nacks, timeouts = self.topic_state.nacks, self.topic_state.timeouts
        assert isinstance(nacks, PlainIndex) and isinstance(timeouts, PlainIndex)
        self.nacks, self.timeouts = nacks, timeouts
        self.queue, self.acks = parts.queue, parts.acks
        self.redelivery, self.rewinds = parts.redelivery, parts.rewinds
        self.settlement = parts.settlement
        self.received: list[ReceivedMessage] = []
        self.acked: set[Spot] = set()  # by this application, since the last seek
        self.may_ack: set[Spot] = set()  # messages that an ack of this consumer may cover
        self.seen: set[Spot] = set()  # handed over, since the last seek
        self.may_repeat: set[Spot] = set()  # by the rules, though it acks them
        self.numbers: dict[Spot, int] = {}

    def find(self, spot: Spot, number: int) -> ReceivedMessage:
        return next(each for each in self.received if (each.spot, each.number) == (spot, number))

    def has_queued(self) -> bool:
        """Whether there is something to take, though it may be settled by now."""
        return any(cursor.at < cursor.end for cursor in self.queue._deliveries)

    def queued(self) -> list[Spot]:
        return [
            (entry.key, index)
            for cursor in self.queue._deliveries
            for entry, index in map(cursor.entry_at, range(cursor.at, cursor.end))
            if entry.state[index] == QUEUED and entry.live
        ]


_OPTIONS: dict[tuple[str, bool], ConsumerOptions] = {}


def _options(plan: Plan) -> ConsumerOptions:
    times_out = plan.budget.get("time out", 0) > 0
    options = _OPTIONS.get((plan.mode, times_out))
    if options is None:
        options = _OPTIONS[plan.mode, times_out] = ConsumerOptions(
            topics=(TOPIC,),
            pattern=None,
            subscription_name="s",
            consumer_type=TYPES[plan.mode],
            negative_ack_redelivery_delay_ms=60_000,
            unacked_messages_timeout_ms=60_000 if times_out else None,
        )
    return options


# Events counted against `Plan.budget`; all others may happen whenever they can.
LIMITED = (
    "nack",
    "nack by id",
    "ack by id",
    "ack all up to",
    "time out",
    "redeliver all",
    "seek",
    "cut",
    "flap",
    "crash",
    "switch",
    "skip",
    "leave",
    "quiet",
    "release",
    "fail in place",
)


class World:
    """Everything there is."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now = _BEGIN_S
        self.apps = {name: App(name, plan) for name in plan.names}
        connections = {name: app.connection for name, app in self.apps.items()}
        self.broker = Broker(plan.mode, plan.sizes, connections, tells=plan.tells, split=plan.split)
        self.spots = [(each.key, at) for each in self.broker.log for at in range(each.size)]
        self.left = {what: plan.budget.get(what, 0) for what in LIMITED}
        self.frozen: dict[str, int] = {}  # of the apps that were not touched since
        for event in plan.start:
            self.apply(event)

    def freeze(self) -> Any:
        """Return all state that affects later events, as one hashable value."""
        for name, app in self.apps.items():
            if name not in self.frozen:
                self.frozen[name] = hash(freeze(app, self.now))
        apps = tuple(self.frozen[name] for name in self.apps)
        return apps, self.broker.freeze(), tuple(self.left.values())

    # Possible events

    def events(self) -> Iterator[Event]:
        for name, app in self.apps.items():
            yield from self._connection_events(name, app)
            yield from self._app_events(name, app)
        if self.left["crash"] and any(app.connection.line is Line.UP for app in self.apps.values()):
            yield ("crash", "broker")
        if self.left["switch"] and len(self._connected()) > 1:
            yield ("switch", "broker")
        if self.left["skip"] and self.broker.can_skip():
            yield ("skip", "broker")
        if self.left["quiet"] and self._is_still():
            yield ("quiet", "all")

    def _connection_events(self, name: str, app: App) -> Iterator[Event]:
        connection, left = app.connection, self.left
        line = connection.line
        if connection.up:
            yield ("hear", name)
        if connection.down and line in (Line.UP, Line.CUT) and not connection.seeking:
            yield ("arrive", name)
        for stored in self._can_send(name):
            yield ("send", name, stored.key)
        if line is Line.UP and not connection.seeking:
            if left["cut"]:
                yield ("cut", name)
            if left["flap"]:
                yield ("flap", name)
            if left["seek"]:
                yield ("seek", name)
        elif line is Line.CUT:
            yield ("notice", name)
        elif line is Line.DOWN:
            yield ("subscribe", name)
        elif line is Line.BACK:
            yield ("tell", name)
        if connection.seeking:
            yield ("sought", name)

    def _app_events(self, name: str, app: App) -> Iterator[Event]:
        left = self.left
        if app.has_queued():
            yield ("take", name)
        for received in app.received:
            which = (received.spot, received.number)
            if received.leaving:
                yield ("forwarded", name, *which)
                yield ("copy failed", name, *which)
            yield ("ack", name, *which)
            if left["ack by id"]:
                yield ("ack by id", name, *which)
            if left["ack all up to"] and not received.void:
                yield ("ack all up to", name, *which)
            if not (received.nacked or received.leaving):
                if left["nack"]:
                    yield ("nack", name, *which)
                if left["nack by id"] and received.current:
                    yield ("nack by id", name, *which)
                if left["leave"] and received.current:
                    yield ("leave", name, *which)
                if received.current and not received.void:
                    if left["release"]:
                        yield ("release", name, *which)
                    if left["fail in place"]:
                        yield ("fail in place", name, *which)
        for key in app.nacks.keys:
            yield ("due", name, key)
        if left["time out"]:
            for key in app.timeouts.keys:
                yield ("time out", name, key)
        if left["redeliver all"]:
            yield ("redeliver all", name)
        if len(app.topic_state.acks) and app.connection.can_ack(0):
            yield ("flush", name)

    def _can_send(self, name: str) -> list[Stored]:
        if self.broker.elected:  # a new active consumer waits for a second; acks take a tenth
            for app in self.apps.values():
                if app.connection.up or (
                    app.connection.line is Line.UP and len(app.topic_state.acks)
                ):
                    return []
        return self.broker.can_send(name)

    def _connected(self) -> list[str]:
        return [
            name for name, app in self.apps.items() if app.connection.line in (Line.UP, Line.BACK)
        ]

    def _is_still(self) -> bool:
        """Nothing is on its way, nor waits to be sent: time may pass."""
        return all(
            app.connection.line is Line.UP
            and not (
                app.connection.up
                or app.connection.down
                or app.connection.seeking
                or len(app.topic_state.acks)
            )
            for app in self.apps.values()
        )

    def next_alone(self, *, nacks: bool) -> Event | None:
        """Return the next event of a world left alone: spontaneous events come first.

        Applications settle the messages they hold: they ack, or nack while the budget lasts.
        """
        apps = self.apps.items()
        for name, app in apps:
            connection = app.connection
            if connection.seeking:
                return ("sought", name)
            if connection.line is not Line.UP:
                mending = {Line.CUT: "notice", Line.DOWN: "subscribe", Line.BACK: "tell"}
                return (mending[connection.line], name)
        for name, app in apps:
            if app.connection.up:
                return ("hear", name)
            if app.connection.down:
                return ("arrive", name)
            if app.has_queued():
                return ("take", name)
            for received in app.received:
                if received.leaving:
                    return ("forwarded", name, received.spot, received.number)
                if received.in_hand:
                    what = "nack" if nacks and self.left["nack"] else "ack"
                    return (what, name, received.spot, received.number)
        for name, app in apps:
            if len(app.topic_state.acks):
                return ("flush", name)
        for name in reversed(self.apps):
            for stored in self._can_send(name):
                return ("send", name, stored.key)
        for name, app in apps:
            for key in app.nacks.keys:
                return ("due", name, key)
        return None

    def ends_well(self) -> bool:
        """Whether everything is settled, as the broker sees it."""
        return all(stored.done for stored in self.broker.log)

    def has_timers(self) -> bool:
        return bool(self._quiet_timers())

    # What happens

    def apply(self, event: Event, *, counted: bool = True) -> None:
        what, name, *details = event
        if counted and what in self.left:
            self.left[what] -= 1
        if name in self.apps:
            self.frozen.pop(name, None)
            _APPLY[what](self, self.apps[name], *details)
        else:
            self.frozen.clear()
            _APPLY[what](self)
        if self.plan.brisk:
            self._hurry()
        self._look_at_acks()

    def _hurry(self) -> None:
        for app in self.apps.values():
            if app.connection.line is Line.CUT:
                self._notice(app)
            elif app.connection.line is Line.BACK:
                self._tell(app)
            while app.connection.up or (app.connection.down and not app.connection.seeking):
                if app.connection.up:
                    self._hear(app)
                else:
                    self._arrive(app)

    def _hear(self, app: App) -> None:
        self.broker.hear(app.name)

    def _arrive(self, app: App) -> None:
        delivery = app.connection.down.pop(0)
        app.connection.delivered += len(delivery.indexes)
        app.connection.listener.on_deliveries([delivery])

    def _send(self, app: App, key: EntryKey) -> None:
        self.broker.send(app.name, self.broker.find(key))

    def _skip(self) -> None:
        self.broker.skip()

    def _switch(self) -> None:
        self.broker.switch()
        self._elected()

    def _elected(self) -> None:
        """A consumer that is active again gets no notice: its acks may cross new deliveries."""
        active = self.broker.active
        if active is not None:
            self._may_repeat(self.apps[active])

    def _may_repeat(self, app: App) -> None:
        self.frozen.pop(app.name, None)
        app.may_repeat.update(
            spot for spot in self.spots if spot[1] not in self.broker.find(spot[0]).acked
        )

    def _cut(self, app: App) -> None:
        app.connection.line = Line.CUT
        app.connection.up.clear()
        if self.broker.lost(app.name):
            self._elected()

    def _notice(self, app: App) -> None:
        app.connection.line = Line.DOWN
        app.connection.down.clear()
        app.connection.listener.on_disconnected()

    def _subscribe(self, app: App) -> None:
        app.connection.line = Line.BACK
        self.broker.subscribed(app.name)

    def _tell(self, app: App) -> None:
        app.connection.line = Line.UP
        app.connection.listener.on_connected()

    def _flap(self, app: App) -> None:
        """Lost and back again before the other side checks the connection."""
        self._cut(app)
        app.connection.down.clear()
        app.connection.line = Line.UP
        self.broker.subscribed(app.name)
        self._may_repeat(app)

    def _crash(self) -> None:
        for app in self.apps.values():
            if app.connection.line is Line.UP:
                self._cut(app)
            elif app.connection.line is Line.BACK:
                app.connection.line = Line.DOWN
                app.connection.up.clear()
                app.connection.down.clear()
                self.broker.lost(app.name)
        self.broker.crash()

    def _seek(self, app: App) -> None:
        """Acks made so far are sent first; acks made before the seek completes are void."""
        app.acks.flush()
        while app.connection.up:
            self.broker.hear(app.name)
        app.connection.seeking = True

    def _sought(self, app: App) -> None:
        app.connection.seeking = False
        app.connection.up.clear()
        app.connection.down.clear()
        self.broker.seek()
        app.connection.listener.on_seek()
        app.acked.clear()
        app.seen.clear()
        for received in app.received:
            received.void, received.current, received.leaving = True, False, False

    def _flush(self, app: App) -> None:
        app.acks.flush()

    def _quiet(self) -> None:
        """Wait until all commands have arrived and are persisted, and every timer has fired."""
        self.broker.persist()
        until = self.now + _QUIET_S
        while timers := [each for each in self._quiet_timers() if each.at <= until]:
            timer = min(timers, key=lambda each: each.at)
            timer.cancel()
            self._pass(max(self.now, timer.at))
            timer.callback()
            if not self._is_still():
                return
        self._pass(until)

    def _pass(self, until: float) -> None:
        self.now = until
        for app in self.apps.values():
            app.loop.now = until

    def _quiet_timers(self) -> list[Timer]:
        """Return all timers except those of due messages, which the world fires itself."""
        timers = [timer for app in self.apps.values() for timer in app.loop.timers]
        return [each for each in timers if each.callback.__name__ != "_ring"]

    # Applications

    def _take(self, app: App) -> None:
        queued = app.queued()
        message = app.queue.take()
        if message is None:
            if queued:
                raise Violation(f"{app.name} is handed nothing, though a message is queued for it")
            return  # the queued messages are settled
        spot: Any = message._raw
        self._check_taken(app, spot)
        number = app.numbers[spot] = app.numbers.get(spot, 0) + 1
        app.received.append(ReceivedMessage(message, spot, number))
        app.seen.add(spot)

    def _check_taken(self, app: App, spot: Spot) -> None:
        shown = f"{_spot(spot)} is handed to {app.name}"
        if spot in app.acked and spot not in app.may_repeat:
            raise Violation(f"{shown}, who acked it: no rule allows that")
        for received in app.received:
            if received.spot == spot and received.current:
                if not received.nacked:
                    raise Violation(f"{shown}, who holds it already")
                if self.broker.shared:
                    raise Violation(f"{shown} before its nack is due")
                received.current = False  # on Exclusive and Failover a rewind brings it at once
        if self.broker.shared:
            return
        for before in self.spots[: self.spots.index(spot)]:
            if not self._is_accounted(app, before):
                raise Violation(f"{shown} past a hole: {_spot(before)} was not, since its rewind")

    def _is_accounted(self, app: App, spot: Spot) -> bool:
        if spot[1] in self.broker.find(spot[0]).acked or spot in app.acked:
            return True
        return any(received.spot == spot and received.current for received in app.received)

    def _ack(self, app: App, spot: Spot, number: int, *, by_id: bool = False) -> None:
        received = app.find(spot, number)
        item: Any = received.message.message_id() if by_id else received.message
        app.may_ack.add(spot)
        try:
            _drive(app.consumer.acknowledge(item))
        except MessageNotHeldError:  # says that it will come again
            app.received.remove(received)
            return
        if not received.void or self._has_acked(app, spot):
            app.acked.add(spot)
        app.received = [each for each in app.received if each.spot != spot]

    def _has_acked(self, app: App, spot: Spot) -> bool:
        entry = app.topic_state.find(spot[0])
        if entry is not None:
            return entry.state[spot[1]] == ACKED
        return app.topic_state.acks.covers(spot[0])

    def _ack_by_id(self, app: App, spot: Spot, number: int) -> None:
        self._ack(app, spot, number, by_id=True)

    def _ack_cumulative(self, app: App, spot: Spot, number: int) -> None:
        covered = self.spots[: self.spots.index(spot) + 1]
        for each in covered:
            if each not in app.seen and not self._is_accounted(app, each):
                raise Violation(f"{app.name} acks {_spot(each)} and was never handed it")
        app.may_ack.update(covered)
        _drive(app.consumer.acknowledge_cumulative(app.find(spot, number).message))
        app.acked.update(covered)
        app.received = [each for each in app.received if each.spot not in covered]

    def _nack(self, app: App, spot: Spot, number: int) -> None:
        received = app.find(spot, number)
        _drive(app.consumer.negative_acknowledge(received.message))
        received.nacked = True
        if not received.current:
            app.received.remove(received)

    def _nack_by_id(self, app: App, spot: Spot, number: int) -> None:
        received = app.find(spot, number)
        _drive(app.consumer.negative_acknowledge(received.message.message_id()))
        received.nacked = True

    def _leave(self, app: App, spot: Spot, number: int) -> None:
        received = app.find(spot, number)
        app.settlement.begin_forwarding(received.message, cumulative=False)
        received.leaving = True

    def _forwarded(self, app: App, spot: Spot, number: int) -> None:
        self._ack(app, spot, number)

    def _copy_failed(self, app: App, spot: Spot, number: int) -> None:
        received = app.find(spot, number)
        of_message = held(received.message)
        assert of_message is not None
        app.settlement.not_forwarded(of_message, 60_000, None)
        received.leaving, received.nacked = False, True

    def _release(self, app: App, spot: Spot, number: int) -> None:
        received = app.find(spot, number)
        app.consumer.release(received.message)
        app.received.remove(received)
        if spot not in app.queued():
            raise Violation(f"{app.name} released {_spot(spot)}, which is not queued for it")

    def _fail_in_place(self, app: App, spot: Spot, number: int) -> None:
        received = app.find(spot, number)
        before = received.message.redelivery_count()
        failed, received.message = received.message, app.consumer.fail_in_place(received.message)
        if app.consumer.holds(failed):
            raise Violation(f"{app.name} failed {_spot(spot)}, and holds its old delivery still")
        if received.message.redelivery_count() != before + 1:
            raise Violation(f"{app.name} failed {_spot(spot)} in place, which was not counted")

    def _redeliver_all(self, app: App) -> None:
        app.consumer.redeliver_unacknowledged_messages()
        self._given_back(app, app.received)

    def _due(self, app: App, key: MessageKey) -> None:
        app.nacks.keys[key] = True
        self._fire(app, key)

    def _time_out(self, app: App, key: MessageKey) -> None:
        app.timeouts.keys[key] = app.topic_state.special = True
        self._fire(app, key)

    def _fire(self, app: App, key: MessageKey) -> None:
        if app.redelivery._alarm._handle is None:
            raise Violation(f"{app.name} has set no alarm for what is due")
        app.redelivery._alarm._ring()
        spot = (key[:2], max(key[2], 0))
        given_back = [each for each in app.received if each.spot == spot or not self.broker.shared]
        self._given_back(app, given_back)

    def _given_back(self, app: App, messages: list[ReceivedMessage]) -> None:
        for received in messages:
            if not received.leaving:
                received.current = False
        app.received = [each for each in app.received if each.current or not each.nacked]

    # Invariants

    def _look_at_acks(self) -> None:
        for app in self.apps.values():
            for plan in app.connection.plans:
                for spot in self._covered(plan):
                    # A broker that sends ack sets may have reported another consumer's ack.
                    if not any(spot in each.may_ack for each in self.apps.values()):
                        raise Violation(
                            f"an ack of {app.name} covers {_spot(spot)}, which nobody acked"
                        )
            app.connection.plans.clear()

    def _covered(self, plan: AckPlan) -> Iterator[Spot]:
        if plan.cumulative is not None:
            ledger, number, _, mask = plan.cumulative
            last = (ledger, number)
            for key, at in self.spots:
                if key < last or (key == last and (mask == -1 or not mask >> at & 1)):
                    yield key, at
        whole = set(plan.entries)
        yield from ((key, at) for key, at in self.spots if key in whole)
        for ledger, number, size, mask in plan.partial:
            yield from (((ledger, number), at) for at in range(size) if not mask >> at & 1)

    def check(self) -> None:
        """Each message is somewhere, and every consumer's books are in order."""
        for app in self.apps.values():
            app.topic_state._check()
            if app.topic_state.rewind is not None:
                app.topic_state.rewind._check()
            for received in app.received if self.plan.budget.get("release") else ():
                holds = received.in_hand and not received.void
                if app.consumer.holds(received.message) is not holds:
                    raise Violation(f"{app.name} holds {_spot(received.spot)}: {not holds}")
            if app.topic_state.count(QUEUED) != len(app.queued()):
                raise Violation(f"{app.name}: what is marked as queued is not what is queued")
            acks = app.acks
            idle = acks._timer is None and acks._retry is None
            if len(app.topic_state.acks) and app.connection.can_ack(0) and idle:
                raise Violation(f"acks wait at {app.name}, and nothing will send them")
        for spot in self.spots:
            if not self.where(spot):
                raise Violation(f"{_spot(spot)} is nowhere")

    def where(self, spot: Spot) -> list[str]:
        """All places where a message is now."""
        stored = self.broker.find(spot[0])
        if spot[1] in stored.acked:
            return ["acked"]
        places = []
        for name, app in self.apps.items():
            places += [f"{place} at {name}" for place in self._where_at(app, spot)]
        if self.broker.shared:
            if stored.holder is None:
                places.append("with the broker")
        elif self.broker.active is None or self.broker.position <= stored.key[1]:
            places.append("with the broker")
        elif self.broker.has_skipped(stored):
            places.append("skipped")
        return places

    def _where_at(self, app: App, spot: Spot) -> Iterator[str]:
        key, index = spot
        topic_state, connection = app.topic_state, app.connection
        entry = topic_state.find(key)
        words = {QUEUED: "queued", NACKED: "waiting", ACKED: "acked", FORWARDING: "leaving"}
        if entry is not None:
            state = entry.state[index]
            if state in words:
                yield words[state]
            elif state == HELD and any(each.spot == spot and each.in_hand for each in app.received):
                yield "held"
            elif (
                state == AWAY and topic_state.rewind is not None and topic_state.rewind.outstanding
            ):
                yield "owed"
        elif (*key, -1) in topic_state.nacks:
            yield "waiting"
        elif topic_state.acks.covers(key) or spot in app.acked:
            yield "acked"
        elif topic_state.rewind is not None and topic_state.rewind.outstanding:
            yield "owed"
        if any(
            (each.ledger, each.entry) == key and index in each.indexes for each in connection.down
        ):
            yield "on its way"
        for command, details in connection.up:
            if command == "ack":
                if spot in self._covered(details):
                    yield "acked"
            elif command == "redeliver all" or key in details:
                yield "asked for"

    def check_the_end(self) -> None:
        """With everything settled and the world at rest, nothing is left over."""
        for name, app in self.apps.items():
            connection = app.connection
            if app.queue.take() is not None:
                raise Violation(f"{name} has something queued that is settled")
            if app.topic_state.unacked:
                raise Violation(
                    f"{name} counts {app.topic_state.unacked} messages as unacked for ever"
                )
            if connection.returned != connection.delivered:
                raise Violation(
                    f"{name} was delivered {connection.delivered} messages and gave back room for "
                    f"{connection.returned}"
                )

    def report(self) -> str:
        return "\n".join(
            f"  {_spot(spot)}: {', '.join(self.where(spot)) or 'nowhere'}" for spot in self.spots
        )


_APPLY: dict[str, Callable[..., None]] = {
    "ack": World._ack,
    "ack all up to": World._ack_cumulative,
    "ack by id": World._ack_by_id,
    "arrive": World._arrive,
    "copy failed": World._copy_failed,
    "crash": World._crash,
    "cut": World._cut,
    "due": World._due,
    "flap": World._flap,
    "fail in place": World._fail_in_place,
    "flush": World._flush,
    "forwarded": World._forwarded,
    "hear": World._hear,
    "leave": World._leave,
    "nack": World._nack,
    "nack by id": World._nack_by_id,
    "notice": World._notice,
    "quiet": World._quiet,
    "redeliver all": World._redeliver_all,
    "release": World._release,
    "seek": World._seek,
    "send": World._send,
    "skip": World._skip,
    "sought": World._sought,
    "subscribe": World._subscribe,
    "switch": World._switch,
    "take": World._take,
    "tell": World._tell,
    "time out": World._time_out,
}


def _drive(call: Coroutine[Any, Any, Any]) -> None:
    """Run a call that waits for nothing."""
    try:
        while True:
            assert call.send(None) is None, "it waits for something"
    except StopIteration:
        pass


def _spot(spot: Spot) -> str:
    (_, number), index = spot
    return f"m{number}.{index}"


def sentence(event: Event) -> str:
    """An event, as one reads it."""
    what, name, *details = event
    if what in ("due", "time out"):
        (_, number, index) = details[0]
        return f"{name}: {what} m{number}.{max(index, 0)}"
    if what == "send":
        return f"broker: send entry {details[0][1]} to {name}"
    if what == "hear":
        return f"broker: hear {name}'s next command"
    if details:
        spot, number = details
        again = f" (hand-over {number})" if number > 1 else ""
        return f"{name}: {what} {_spot(spot)}{again}"
    return f"{name}: {what}"
