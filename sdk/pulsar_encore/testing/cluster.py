"""The imaginary cluster below the transport in memory: topics, connections, commands, deliveries.

Owns `MemoryCluster`. What a subscription delivers, holds, counts and blocks is decided by the same
pure code that the development broker runs; this module moves deliveries to the consumers, records
every command, and makes connections fail: by hand (`disconnect`, `reconnect`) or by step
(`FaultPlan`). Of consumers, producers and readers it knows what they are told, and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..devbroker.rules.catalogue import Catalogue, TopicState
from ..devbroker.rules.faults import Direction, Fault, FaultPlan
from ..devbroker.rules.names import parse
from ..devbroker.rules.refusal import Refusal
from ..devbroker.rules.subscriptions import Subscription
from ..devbroker.settings import BrokerSettings
from ..exceptions import NotConnected, named
from ..options import ConsumerOptions
from ..timer import now_ms, wall_now_ms
from ..transport.base import Capabilities
from .commands import Command, MemoryMessage, StoredEntry

CAPABILITIES = Capabilities(name="memory")
RECONNECT_S = 0.1

_PASS_ENTRIES = 1000
_NON_PERSISTENT = "non-persistent://"
_STAND_IN = "persistent://volatile-"


class ClusterConsumer(Protocol):
    """A consumer, and what the cluster tells it."""

    @property
    def topic(self) -> str: ...
    def attach_again(self, wall_now_ms: int) -> None: ...
    def detach(self, wall_now_ms: int) -> None: ...
    def tell_disconnected(self) -> None: ...
    def topics_changed(self) -> None: ...
    def hand_over(self) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def drop(self) -> None: ...


class ClusterProducer(Protocol):
    """A producer, and what the cluster tells it."""

    def send_again(self) -> None: ...
    def drop(self) -> None: ...


class ClusterReader(Protocol):
    """A reader, and what the cluster tells it."""

    def wake(self) -> None: ...
    def drop(self) -> None: ...


class MemoryCluster:
    """Topics and subscriptions, and who is connected to them.

    Args:
        settings: The broker rules to obey; when None Pulsar's defaults, with rewinds that nothing
            overtakes (`rewind_overtaken`).
        faults: What goes wrong at which command. Closed connections come back after 0.1 s.
    """

    capabilities: Capabilities = CAPABILITIES

    def __init__(
        self, settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
    ) -> None:
        self.settings: BrokerSettings = settings or BrokerSettings(
            namespaces=None, rewind_overtaken=0
        )
        self.faults = faults
        self.commands: list[Command] = []
        self.connected: bool = True
        self.catalogue: Catalogue = Catalogue(
            self.settings.topic_rules(),
            self.settings.rules(),
            itertools.count(1).__next__,
            self._topic_created,
        )
        self.links: list[ClusterConsumer] = []
        self.producers: list[ClusterProducer] = []
        # Of the connections: what is on its way on an old one never arrives.
        self.generation: int = 0
        self.readers: list[ClusterReader] = []
        self._awake: dict[Subscription, None] = {}
        self._scheduled = False
        self._handing = False
        self._timers: dict[Subscription, asyncio.TimerHandle] = {}
        self._wall_offset_ms: int | None = None

    # Topics

    def store(
        self,
        topic: str,
        messages: Sequence[MemoryMessage],
        *,
        batched: bool = False,
        key: str = "",
        deliver_at_ms: int = 0,
        chunks: tuple[int, int] | None = None,
    ) -> StoredEntry:
        """Append an entry and wake who waits for it."""
        state = self.state(topic)
        name = topic if _volatile(topic) else state.name
        now_ms = self.wall_ms()
        for message in messages:
            message.topic = name
            message.publish_ms = now_ms
        entry = StoredEntry(
            body=b"",
            batch=len(messages) if batched else 0,
            publish_ms=now_ms,
            deliver_at_ms=deliver_at_ms,
            key=key.encode(),
            content=messages,
            chunks=chunks,
        )
        state.log.append(entry)
        for subscription in state.subscriptions.values():
            self.wake(subscription)
        for reader in self.readers:
            reader.wake()
        return entry

    def state(self, topic: str, *, create: bool = True) -> TopicState:
        """A topic or partition of the catalogue; a non-persistent name has a stand-in there."""
        name = topic.replace(_NON_PERSISTENT, _STAND_IN, 1)
        return self.catalogue.topic(name, create=create)

    def names_of(self, options: ConsumerOptions) -> list[str]:
        """The topics and partitions that a consumer is to read now."""
        if options.pattern is None:
            return [name for topic in options.topics for name in self.parts_of(topic)]
        # As every client: in full, against the name without its domain and partition.
        wanted = re.compile(options.pattern.rpartition("://")[2])
        names = (parse(name) for name in self.catalogue.topics if not name.startswith(_STAND_IN))
        return [name.full for name in names if wanted.fullmatch(name.base.partition("://")[2])]

    def parts_of(self, topic: str) -> list[str]:
        """The partitions of a topic, or the topic that has none."""
        if _volatile(topic):
            return [topic]
        try:
            count = self.catalogue.partitions(topic, create=True)
            full = self.catalogue.name(topic).full
        except Refusal as error:
            raise named(error.code, error.message) from error
        return [f"{full}-partition-{each}" for each in range(count)] or [full]

    def _topic_created(self) -> None:
        for link in self.links:
            link.topics_changed()

    # Connections

    def disconnect(self) -> None:
        """Lose every connection, until `reconnect`. What was held is to be delivered again."""
        if not self.connected:
            return
        self.connected = False
        self.generation += 1
        for link in self.links:
            link.detach(self.wall_ms())
        for link in list(self.links):
            link.tell_disconnected()

    def reconnect(self, *, keep_ack_sets: bool = True) -> None:
        """Connect again; each consumer's acks go before its deliveries, and each producer sends
        again what was not answered.

        Args:
            keep_ack_sets: False for what an unload or an orderly stop of a broker does: partial
                acks are forgotten.
        """
        if self.connected:
            return
        if not keep_ack_sets:
            for state in self.catalogue.topics.values():
                for subscription in state.subscriptions.values():
                    subscription.cursor.forget_partial()
        self.connected = True
        for link in list(self.links):
            link.attach_again(self.wall_ms())
        for producer in list(self.producers):
            producer.send_again()

    def check_connected(self) -> None:
        """Raises NotConnected while connections are lost."""
        if not self.connected:
            raise NotConnected("not connected")

    # Commands and their faults

    def command(
        self,
        name: str,
        topic: str,
        subscription: str,
        details: Any,
        carry_out: Callable[[], None],
        *,
        direction: Direction = "in",
    ) -> None:
        """Record a command and carry it out, as the fault plan lets it.

        Raises:
            PulsarException: The plan refuses it.
        """
        loop = asyncio.get_running_loop()
        self.commands.append(Command(name, int(loop.time() * 1000), topic, subscription, details))
        faults = self.faults.step(direction, name, topic) if self.faults is not None else []
        for fault in faults:
            if self._instead(fault, carry_out, loop):
                return
        carry_out()
        for fault in faults:
            if fault.kind == "duplicate":
                carry_out()
            elif fault.kind == "close_after":
                loop.call_soon(self._lose, RECONNECT_S)

    def _instead(
        self, fault: Fault, carry_out: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> bool:
        """Whether something else happens than carrying the command out."""
        if fault.kind == "drop":
            return True
        if fault.kind == "delay":
            loop.call_later(fault.delay_ms / 1000, carry_out)
            return True
        if fault.kind == "close_before":
            loop.call_soon(self._lose, RECONNECT_S)
            return True
        if fault.kind == "outage":
            loop.call_soon(self._lose, fault.outage_s)
            return True
        if fault.kind == "refuse":
            raise named(fault.error, f"refused by the fault plan: {fault.command}")
        return False

    def _lose(self, seconds: float) -> None:
        if self.connected:
            self.disconnect()
            asyncio.get_running_loop().call_later(seconds, self.reconnect)

    # Delivering

    def wall_ms(self) -> int:
        """Ms since the epoch on a clock that goes as the loop's does."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # before any loop runs
            return time.time_ns() // 1_000_000
        if hasattr(loop, "wall_time"):
            return wall_now_ms(loop)
        loop_ms = now_ms(loop)
        if self._wall_offset_ms is None:
            self._wall_offset_ms = time.time_ns() // 1_000_000 - loop_ms
        return loop_ms + self._wall_offset_ms

    def wake(self, subscription: Subscription) -> None:
        """Something may be deliverable."""
        self._awake[subscription] = None
        if not self._scheduled and subscription.consumers:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        awake, self._awake = self._awake, {}
        now_ms = self.wall_ms()
        for subscription in awake:
            deliveries = subscription.dispatch(now_ms, _PASS_ENTRIES)
            for consumer, entry, count, mask in deliveries:
                consumer.owner.deliver(entry, count, mask)
            if len(deliveries) >= _PASS_ENTRIES:
                self.wake(subscription)
                continue
            timer = self._timers.pop(subscription, None)
            if timer is not None:
                timer.cancel()
            wake_ms = subscription.wake_ms(now_ms)
            if wake_ms is not None:
                delay_s = max(wake_ms - now_ms, 1) / 1000
                loop = asyncio.get_running_loop()
                self._timers[subscription] = loop.call_later(delay_s, self.wake, subscription)
        self._hand_over()

    def hand_over_soon(self) -> None:
        """A delivery arrived that no pass of `_deliver` will hand over: a delayed one."""
        if not self._handing:
            self._handing = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._handing = False
        for link in list(self.links):
            link.hand_over()


def _volatile(topic: str) -> bool:
    return topic.startswith(_NON_PERSISTENT)
