"""A broker in a few lines: a log, the holder of each message, and two pipes per connection.

It does everything that a broker may do by `docs/notes/wire-protocol.md`, and leaves every choice to
its caller: which consumer an entry goes to, when a pipe moves, which state is forgotten. Pipes are
first in, first out; a rewind does not empty them, a lost connection does.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from enum import Enum
from typing import Any, Literal, TypeAlias

from pulsar_encore.core.entry import EntryKey
from pulsar_encore.errors import TransportError
from pulsar_encore.transport.interface import AckPlan, Capabilities, Delivery

TOPIC = "persistent://public/default/t"

Mode: TypeAlias = Literal["shared", "exclusive", "failover"]
Spot: TypeAlias = tuple[EntryKey, int]


class Line(Enum):
    """A consumer's connection, and the events that the consumer has received about it."""

    UP = "connected"
    CUT = "lost, and nobody knows here"
    DOWN = "lost"
    BACK = "subscribed again, and nobody knows here"


class Race(Enum):
    """The state of the race between a rewind and a read of the broker.

    `docs/notes/wire-protocol.md#rewind-during-a-read`
    """

    NONE = 0
    ARMED = 1
    OPEN = 2  # the lowest unacked entry was sent: a rewind always begins there
    SKIPPING = 3  # one block after each rewind


class Stored:
    """One entry of the log.

    Attributes:
        acked: Batch indexes that the broker takes as acked.
        kept: Those of them that a crash does not undo.
        holder: Who has it, on Shared.
        count: Its redelivery count.
    """

    __slots__ = ("acked", "count", "holder", "kept", "key", "size")

    def __init__(self, key: EntryKey, size: int) -> None:
        self.key = key
        self.size = size
        self.acked: set[int] = set()
        self.kept: set[int] = set()
        self.holder: str | None = None
        self.count = 0

    @property
    def done(self) -> bool:
        return len(self.acked) == self.size

    def freeze(self) -> tuple[Any, ...]:
        return frozenset(self.acked), frozenset(self.kept), self.holder, self.count > 0


class Connection:
    """`TransportConsumer`: the pipes between one consumer and the broker."""

    def __init__(self, name: str, capabilities: Capabilities) -> None:
        self.name = self.consumer_name = name
        self.capabilities = capabilities
        self.topic = TOPIC
        self.subscription_name = "s"
        self.line = Line.UP
        self.seeking = False
        self.up: list[tuple[str, Any]] = []
        self.down: list[Delivery] = []
        self.listener: Any = None
        self.plans: list[AckPlan] = []  # handed over since the last check
        self.delivered = self.returned = 0  # messages, and room given back for them

    def start(self, listener: Any) -> None:
        self.listener = listener

    def topic_numbers(self) -> range:
        return range(1)

    def topic_of(self, topic_number: int) -> tuple[str, int]:
        return TOPIC, -1

    def topic_number_of(self, topic: str, partition: int, ledger: int = -1) -> int:
        return 0

    def is_connected(self) -> bool:
        return self.can_ack(0)

    def consumed(self, topic_number: int, messages: int) -> None:
        self.returned += messages

    def can_ack(self, topic_number: int) -> bool:
        return self.line is not Line.DOWN and not self.seeking

    def ack(self, plan: AckPlan) -> None:
        if not self.can_ack(plan.topic_number):
            raise TransportError("not connected", result="NotConnected", retryable=True)
        self.plans.append(plan)
        self._send("ack", plan)

    def redeliver(self, topic_number: int, groups: Sequence[tuple[int, Sequence[int]]]) -> None:
        keys = [(ledger, number) for ledger, numbers in groups for number in numbers]
        self._send("redeliver", keys)

    def redeliver_all(self, topic_number: int | None = None) -> None:
        self._send("redeliver all", None)

    def _send(self, command: str, details: Any) -> None:
        if self.line in (Line.UP, Line.BACK):  # else it goes nowhere
            self.up.append((command, details))


class Broker:
    """The log and one subscription of it.

    Args:
        mode: Subscription type.
        sizes: Messages in each entry; those above 1 are batches.
        connections: The consumers' connections, by name.
        tells: Deliveries carry the ack set, and leave acked indexes out.
        split: A batch is delivered message by message, as some transports do.
    """

    def __init__(
        self,
        mode: Mode,
        sizes: Sequence[int],
        connections: dict[str, Connection],
        *,
        tells: bool,
        split: bool,
    ) -> None:
        self.shared = mode == "shared"
        self.log = [Stored((1, number), size) for number, size in enumerate(sizes)]
        self.connections = connections
        self.tells = tells
        self.split = split
        self.active: str | None = next(iter(connections))  # Exclusive and Failover
        self.position = 0  # there: the entry to be read next
        self.race = Race.NONE
        self.farthest = 0  # entries sent to the active consumer so far
        self.elected = False  # a moment ago, and nothing was sent yet

    def find(self, key: EntryKey) -> Stored:
        return self.log[key[1]]

    def freeze(self) -> tuple[Any, ...]:
        log = tuple(each.freeze() for each in self.log)
        if self.shared:
            return log
        return log, self.active, self.position, self.race, self.farthest, self.elected

    # Deliveries

    def can_send(self, name: str) -> list[Stored]:
        """Entries that may go to this consumer next."""
        if self.connections[name].line not in (Line.UP, Line.BACK):
            return []
        if self.shared:
            return [each for each in self.log if each.holder is None and not each.done]
        if name != self.active:
            return []
        ahead = [each for each in self.log[self.position :] if not each.done]
        return ahead[:1]

    def send(self, name: str, stored: Stored) -> None:
        if self.shared:
            stored.holder = name
        else:
            self.position = stored.key[1] + 1
            self.farthest = max(self.farthest, self.position)
            self.elected = False
            if self.race is Race.ARMED:
                self.race = Race.OPEN
            elif self.race is Race.SKIPPING:
                self.race = Race.NONE
        undelivered = [at for at in range(stored.size) if not (self.tells and at in stored.acked)]
        mask = -1
        if self.tells and stored.acked:
            mask = sum(1 << at for at in undelivered)
        parts = [[at] for at in undelivered] if self.split else [undelivered]
        for part in parts:
            messages: Any = [(stored.key, at) for at in part]
            size = stored.size if stored.size > 1 else 0
            delivery = Delivery(0, *stored.key, size, stored.count, part, messages, mask)
            self.connections[name].down.append(delivery)

    def can_skip(self) -> bool:
        """Not the end of the log, unless it was sent before: nothing else would show that."""
        ahead = [each.key[1] for each in self.log[self.position :] if not each.done]
        if self.active is None or self.race not in (Race.OPEN, Race.SKIPPING):
            return False
        return len(ahead) > 1 or (bool(ahead) and ahead[0] < self.farthest)

    def has_skipped(self, stored: Stored) -> bool:
        """Whether an entry waits for the next rewind, and one to come will show that."""
        number = stored.key[1]
        coming = [
            each.entry for connection in self.connections.values() for each in connection.down
        ]
        coming += [each.key[1] for each in self.log[self.position :] if not each.done]
        return number < self.position and any(number < each for each in coming)

    def skip(self) -> None:
        """A read that met the rewind ends, and moves the position past an entry not sent."""
        self.position = self.can_send(str(self.active))[0].key[1] + 1
        self.race = Race.SKIPPING

    # Commands

    def hear(self, name: str) -> str:
        """Process the first command of a consumer's pipe, and return it."""
        command, details = self.connections[name].up.pop(0)
        if command == "ack":
            self._acked(details)
        elif not self.shared:
            if name == self.active:
                self._rewind(races=True)
        else:
            for stored in self.log:
                named = command == "redeliver all" or stored.key in details
                if named and stored.holder == name and not stored.done:
                    stored.holder = None
                    stored.count += 1
        return str(command)

    def _acked(self, plan: AckPlan) -> None:
        if plan.cumulative is not None:
            ledger, number, _, mask = plan.cumulative
            for stored in self.log:
                if stored.key < (ledger, number):
                    self._ack(stored, 0)
                elif stored.key == (ledger, number):
                    self._ack(stored, 0 if mask == -1 else mask)
        for key in plan.entries:
            self._ack(self.find(key), 0)
        for ledger, number, _, mask in plan.partial:
            self._ack(self.find((ledger, number)), mask)

    def _ack(self, stored: Stored, mask: int) -> None:
        acked = {at for at in range(stored.size) if not mask >> at & 1}
        stored.acked |= acked
        stored.count = 0
        if stored.done:
            stored.holder = None

    def _rewind(self, *, races: bool) -> None:
        self.position = next((each.key[1] for each in self.log if not each.done), len(self.log))
        self.race = Race.ARMED if races else Race.NONE

    # Connections

    def lost(self, name: str) -> bool:
        """A connection is gone; True when another consumer became the active one for that."""
        for stored in self.log:
            if stored.holder == name:
                stored.holder = None
        if self.active == name:
            self.active = None
            self._elect(self.connections)
            return self.active is not None
        return False

    def subscribed(self, name: str) -> None:
        if self.active is None:
            self._elect((name,))

    def switch(self) -> None:
        """Failover: the other consumer becomes the active one, and both stay connected."""
        self._elect([name for name in self.connections if name != self.active])

    def _elect(self, names: Container[str]) -> None:
        for name, connection in self.connections.items():
            if name in names and connection.line in (Line.UP, Line.BACK):
                self.active = name
                self.elected = True
                self.farthest = 0
                self._rewind(races=False)
                return

    def crash(self) -> None:
        """Undo unpersisted state: acks of the last moment, partial acks, counts."""
        for stored in self.log:
            stored.acked = set(stored.kept) if len(stored.kept) == stored.size else set()
            stored.count = 0

    def persist(self) -> None:
        for stored in self.log:
            stored.kept = set(stored.acked)

    def seek(self) -> None:
        """Back to the start."""
        for stored in self.log:
            stored.acked, stored.kept = set(), set()
            stored.holder, stored.count = None, 0
        self.farthest = 0
        self._rewind(races=False)
