"""The producers of one topic: names and access modes.

An exclusive producer is the only ready one. A fenced producer gets no notice: its next SEND closes
the connection (wire-protocol.md 7.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from .refusal import Refusal


class AccessMode(IntEnum):
    """Access modes, with the protocol's numbers."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT = 2
    FENCING = 3


@dataclass(slots=True, eq=False)
class Publisher:
    """A producer of a topic.

    Args:
        key: Identifies the producer on one connection.
        epoch: Raised by the client with every reconnect.
        request_id: Request id of PRODUCER; a waiting producer is answered later with it.
    """

    key: tuple[int, int]
    name: str
    access: AccessMode = AccessMode.SHARED
    epoch: int = 0
    request_id: int = 0
    owner: Any = None
    ready: bool = True
    fenced: bool = False
    schema_version: bytes = b""


class Producers:
    def __init__(self) -> None:
        self.ready: dict[str, Publisher] = {}
        self.waiting: list[Publisher] = []
        self.topic_epoch: int | None = None

    def holder(self, publisher: Publisher) -> Publisher | None:
        """Return the producer that blocks another one, by name or exclusively."""
        same = self.ready.get(publisher.name)
        if same is not None:
            return same
        exclusive = next(
            (p for p in self.ready.values() if p.access is not AccessMode.SHARED), None
        )
        if exclusive is not None and publisher.access is AccessMode.SHARED:
            return exclusive
        return None

    def add(self, publisher: Publisher, topic_epoch: int | None = None) -> None:
        """Admit a producer now, or (`ready` False) when the exclusive producer has left."""
        exclusive = publisher.access is not AccessMode.SHARED
        if topic_epoch is not None and exclusive and topic_epoch < (self.topic_epoch or 0):
            raise Refusal("ProducerFenced", "another exclusive producer has taken the topic")
        same = self.ready.get(publisher.name)
        if same is not None:
            if same.key != publisher.key or publisher.epoch <= same.epoch:
                raise Refusal("ProducerBusy", f"producer name {publisher.name!r} is in use")
            del self.ready[same.name]
        holder = self.holder(publisher)
        if holder is not None:
            raise Refusal("ProducerBusy", f"{holder.name!r} is the exclusive producer")
        if exclusive and self.ready:
            if publisher.access is AccessMode.EXCLUSIVE:
                raise Refusal("ProducerFenced", "the topic has other producers")
            if publisher.access is AccessMode.WAIT:
                publisher.ready = False
                self.waiting.append(publisher)
                return
            for other in self.ready.values():
                other.fenced = True
            self.ready.clear()
        self._admit(publisher)

    def _admit(self, publisher: Publisher) -> None:
        if publisher.access is not AccessMode.SHARED:
            self.topic_epoch = 0 if self.topic_epoch is None else self.topic_epoch + 1
        publisher.ready = True
        self.ready[publisher.name] = publisher

    def remove(self, publisher: Publisher) -> Publisher | None:
        """Remove a producer; return its successor, if any."""
        if publisher in self.waiting:
            self.waiting.remove(publisher)
        if self.ready.get(publisher.name) is publisher:
            del self.ready[publisher.name]
        if self.ready or not self.waiting:
            return None
        successor = self.waiting.pop(0)
        self._admit(successor)
        return successor
