"""A model of one batch, a broker and several consumers, for the rules of dead-lettering.

Owns `FleetWorld` and `walk`. Each consumer is a real `TopicState` with real `Verdicts`; the broker
counts redeliveries of the entry and resets the count at every partial ack, as Pulsar does.
Acks and requests arrive at once. `walk` tries every order of events; `play` one random order, for
worlds that are too large to walk. A consumer may be slow: messages may wait in its
queue, or be held, while other consumers get the entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias

from small_world import PlainIndex

from pulsar_encore.core.entry import Entry
from pulsar_encore.core.message_key import DueBatch
from pulsar_encore.core.message_states import ACKED, HELD, NACKED, QUEUED
from pulsar_encore.core.nack_verdicts import DeadLetter, Verdicts
from pulsar_encore.core.topic_state import TopicState

Event: TypeAlias = tuple[Any, ...]
"""(name of the event, number of the consumer, batch index where there is one)"""

KEY = (1, 0)
TOPIC = "persistent://public/default/t"
POISON = math.inf


class Violation(AssertionError):
    """A message was dead-lettered that should not have been."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A batch and its consumers.

    Attributes:
        failing: For each message of the batch, how many attempts at it fail, at any consumer.
        consumers: Number of consumers.
        most: `max_redeliver_count`.
        failure: How an attempt fails.
        together: True if all nacks of a consumer are due at one time, else in any order.
        prompt: True if a consumer tries all delivered messages before any other event.
        crashes: How often a consumer may lose its connection and subscribe again.
    """

    failing: tuple[float, ...]
    consumers: int
    most: int
    failure: Literal["nack", "timeout"] = "nack"
    together: bool = False
    prompt: bool = False
    crashes: int = 0


@dataclass
class Attempt:
    """A message that an application holds.

    Attributes:
        number: Number of this attempt, counted over all consumers.
        failed: Redelivery count of the message at its delivery.
    """

    number: int
    failed: int


@dataclass
class Consumer:
    """One consumer and its application."""

    state: TopicState
    queue: list[int] = field(default_factory=list)
    held: dict[int, Attempt] = field(default_factory=dict)

    def entry(self) -> Entry | None:
        return self.state.find(KEY)


class FleetWorld:
    """The state of the broker and all consumers.

    Attributes:
        attempts: Number of attempts at each message, at all consumers.
        dead: Number of dead letters of each message.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.size = len(fleet.failing)
        self.verdicts = Verdicts(lambda failed: 0, fleet.most)
        self.consumers = [Consumer(self._new_state()) for _ in range(fleet.consumers)]
        self.holder: int | None = None
        self.redelivery_count = 0
        self.acked: set[int] = set()
        self.attempts = [0] * self.size
        self.dead = [0] * self.size
        self.failures = [0] * self.size
        self.redeliveries = 0  # of the entry, without the resets of the broker
        self.crashes = 0

    def _new_state(self) -> TopicState:
        nacks: Any = PlainIndex()
        timeouts: Any = PlainIndex()
        return TopicState(
            object(), 0, TOPIC, -1, shared=True, nacks=nacks, timeouts=timeouts, remembers=True
        )

    def freeze(self) -> Any:
        """Return the part of the state that determines the next events."""
        consumers = []
        for each in self.consumers:
            entry, attempts = each.entry(), each.state.attempts
            batch = attempts.batches.get(KEY)
            consumers.append(
                (
                    None if entry is None else (bytes(entry.state), entry.redelivered),
                    () if entry is None else tuple(sorted((entry.failed or {}).items())),
                    sorted((key, known.attempts) for key, known in attempts.failures.items()),
                    None
                    if batch is None
                    else (
                        batch.count,
                        batch.increases - batch.requests,
                        batch.increases - batch.deliveries,
                        batch.by_others,
                    ),
                    tuple(each.queue),
                    tuple((at, it.number, it.failed) for at, it in sorted(each.held.items())),
                )
            )
        # Consumers that are alike are not told apart.
        alike = sorted(repr((each, number == self.holder)) for number, each in enumerate(consumers))
        return (
            tuple(alike),
            self.redelivery_count,
            min(self.redeliveries, self.fleet.most),
            tuple(sorted(self.acked)),
            tuple(self.attempts),
            tuple(min(count, 2) for count in self.failures),
            tuple(self.dead),
            self.crashes,
        )

    def events(self) -> Iterator[Event]:
        """Yield the possible next events."""
        busy = [number for number, each in enumerate(self.consumers) if each.queue or each.held]
        for number, each in enumerate(self.consumers):
            if self.fleet.prompt and busy and number != busy[0]:
                continue
            idle = not (self.fleet.prompt and busy)
            if idle and self.holder is None and len(self.acked) < self.size:
                yield ("deliver", number)
            if each.queue:
                yield ("take", number)
            for index in each.held:
                yield ("end", number, index)
            entry = each.entry()
            waiting = [] if entry is None else [i for i, s in enumerate(entry.state) if s == NACKED]
            if not idle:
                continue
            if waiting and self.fleet.together:
                yield ("due", number, *waiting)
            elif waiting:
                yield from (("due", number, index) for index in waiting)
            if self.holder == number and self.crashes < self.fleet.crashes:
                yield ("cut", number)

    def apply(self, event: Event) -> None:
        what, number, *indexes = event
        each = self.consumers[number]
        if what == "deliver":
            self._deliver(number, each)
        elif what == "take":
            self._take(each)
        elif what == "end":
            self._end(number, each, indexes[0])
        elif what == "due":
            for index in indexes:
                each.state.nacks.discard((*KEY, index))
            self._ask(number, each, indexes)
        else:
            self._cut(each)

    def _deliver(self, number: int, each: Consumer) -> None:
        self.holder = number
        left = [index for index in range(self.size) if index not in self.acked]
        ack_set = sum(1 << index for index in left) if self.acked else -1
        state = each.state
        entry, positions = state.arrive(KEY, self.size, self.redelivery_count, left, ack_set)
        for index in (left[position] for position in positions):
            assert entry is not None
            count = state.attempts.count(entry, index)
            tried_here = state.attempts.tried_here(entry, index)
            if self.verdicts.on_arrival(count, tried_here=tried_here) is not None:
                self._dies(each, entry, index)
            else:
                each.queue.append(index)
        self._send_acks(each)

    def _take(self, each: Consumer) -> None:
        index, entry = each.queue.pop(0), each.entry()
        if entry is None or entry.state[index] != QUEUED:
            return
        entry.deliver(index)
        self.attempts[index] += 1
        count = each.state.attempts.count(entry, index)
        each.held[index] = Attempt(self.attempts[index], count)

    def _end(self, number: int, each: Consumer, index: int) -> None:
        attempt, entry, state = each.held.pop(index), each.entry(), each.state
        if entry is None or entry.state[index] != HELD:
            return
        if attempt.number > self.fleet.failing[index]:
            state.ack(entry, index)
            self._send_acks(each)
            return
        self.failures[index] += 1
        if self.fleet.failure == "nack":
            if isinstance(self.verdicts.on_nack(attempt.failed, 0, 0), DeadLetter):
                self._dies(each, entry, index)
                return
            state.attempts.remember((*KEY, index), 0, None)
            state.nack(entry, index, 0, 0)
        else:
            if self.verdicts.is_last(state.attempts.count(entry, index)):
                self._dies(each, entry, index)
                return
            state.attempts.remember((*KEY, index), 0, None)
            self._ask(number, each, [index])

    def _ask(self, number: int, each: Consumer, indexes: Sequence[int]) -> None:
        mask = sum(1 << index for index in indexes)
        if each.state.release(DueBatch([], [(*KEY, mask)])) and self.holder == number:
            self.holder = None
            self.redelivery_count += 1
            self.redeliveries += 1

    def _dies(self, each: Consumer, entry: Entry, index: int) -> None:
        """Store a dead letter of the message, and ack the original."""
        self.dead[index] += 1
        if self.fleet.failing[index] != POISON and index not in self.acked:
            if not self.failures[index]:
                raise Violation(f"healthy message {index} was dead-lettered and never failed")
            if self.failures[index] == 1 and self.redeliveries < self.fleet.most:
                raise Violation(
                    f"healthy message {index} was dead-lettered at its first failure, after "
                    f"{self.redeliveries} redeliveries of its entry"
                )
        entry.begin_forwarding(index)
        each.state.ack(entry, index)
        self._send_acks(each)

    def _send_acks(self, each: Consumer) -> None:
        unsent = each.state.acks.take(0)
        for key in unsent.whole:
            assert key == KEY
            self.acked = set(range(self.size))
        for part in unsent.parts:
            self.acked |= {index for index, state in enumerate(part.state) if state == ACKED}
        if unsent.whole or unsent.parts:
            self.redelivery_count = 0
        if len(self.acked) == self.size:
            self.holder = None

    def _cut(self, each: Consumer) -> None:
        """Lose a connection. The broker counts no redelivery while other consumers stay."""
        self.crashes += 1
        self.holder = None
        each.queue.clear()
        each.state.disconnected()
        each.state.reconnected()


@dataclass
class Walked:
    """The result of a walk.

    Attributes:
        states: Number of different states.
        attempts: Most attempts at a poison message, in any order of events.
        healthy_dead: True if a healthy message was dead-lettered in some order.
        events: The order with the most attempts.
    """

    states: int = 0
    attempts: int = 0
    healthy_dead: bool = False
    events: tuple[Event, ...] = ()

    def check(self, world: FleetWorld, events: Sequence[Event]) -> None:
        for index, failing in enumerate(world.fleet.failing):
            if failing == POISON and world.attempts[index] > self.attempts:
                self.attempts, self.events = world.attempts[index], tuple(events)
            self.healthy_dead |= failing != POISON and world.dead[index] > 0


def walk(fleet: Fleet, *, new: Callable[[Fleet], FleetWorld] = FleetWorld) -> Walked:
    """Try every order of events.

    Raises:
        Violation: A healthy message was dead-lettered without a reason.
    """
    walked = Walked()
    first = new(fleet)
    seen = {hash(first.freeze())}
    ahead: list[tuple[tuple[Event, ...], list[Event]]] = [((), list(first.events()))]
    while ahead:
        events, following = ahead.pop()
        for event in following:
            world = reached(fleet, events, new)
            world.apply(event)
            state = hash(world.freeze())
            if state in seen:
                continue
            seen.add(state)
            walked.states += 1
            walked.check(world, (*events, event))
            ahead.append(((*events, event), list(world.events())))
    return walked


def reached(
    fleet: Fleet, events: Sequence[Event], new: Callable[[Fleet], FleetWorld] = FleetWorld
) -> FleetWorld:
    """Return the world after these events."""
    world = new(fleet)
    for event in events:
        world.apply(event)
    return world


def play(fleet: Fleet, rng: Random, weights: dict[str, float] | None = None) -> FleetWorld:
    """Play one random order of events to its end.

    Args:
        fleet: The batch and its consumers.
        rng: Chooses the events.
        weights: Relative probability of each event, by its name. The default is 1.
    """
    world = FleetWorld(fleet)
    weights = weights or {}
    while following := list(world.events()):
        chances = [weights.get(event[0], 1.0) for event in following]
        world.apply(rng.choices(following, chances)[0])
    return world
