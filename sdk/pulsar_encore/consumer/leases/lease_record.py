"""One lease, as it was granted, and what its face asks of who keeps it.

Owns `LeaseRecord`, of a message that is here, and what it has in common with one that was granted
before a restart (`inherited`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from ...core.entry import HELD
from ...core.topic_state import TopicState
from ...errors import ConfigurationError, LeaseLostError
from ...message import Held, Message
from ...values.backoff import seconds_of
from ...values.message_id import MessageId

#: A time beyond is a mistake of units; RocketMQ's longest is 12 hours.
LONGEST: Final = timedelta(days=30)
BITS: Final = 6  # buckets of 64 ms: so late may a lease expire


class LeaseKeeper(Protocol):
    """Who is told when a lease is lost, and when its end moves."""

    def lost(self) -> None: ...
    def moved(self) -> None: ...


class LeaseRecord:
    """One lease.

    Attributes:
        message: What it is on.
        held: The hand-over that it is of.
        number: Tells it from all others of its consumer.
        length_ms: What it was granted for.
        due_ms: When it ends, on the loop's clock.
        armed: The edge of the bucket it is in.
        over: Why it is out no more; None while it is.
        acked: Whether that was its own ack.
        keeper: Told when it is lost and when its end moves, if there is one.
        handle: Its text, once somebody asked.
    """

    __slots__ = (
        "acked",
        "armed",
        "due_ms",
        "handle",
        "held",
        "keeper",
        "length_ms",
        "message",
        "number",
        "over",
    )

    def __init__(
        self, message: Message, held: Held, number: int, length_ms: int, due_ms: int
    ) -> None:
        self.message: Message = message
        self.held: Held = held
        self.number: int = number
        self.length_ms: int = length_ms
        self.due_ms: int = due_ms
        self.armed: int = 0
        self.over: str | None = None
        self.acked: bool = False
        self.keeper: LeaseKeeper | None = None
        self.handle: str | None = None

    @property
    def holds(self) -> bool:
        """Whether the message is still held by this hand-over."""
        entry, index, _, hand_over = self.held
        state: TopicState = entry.source
        return entry.state[index] == HELD and state.holds(entry, index, hand_over)

    @property
    def message_id(self) -> MessageId:
        """Of what it is on."""
        return self.message.message_id()

    @property
    def attempt(self) -> int:
        """Times the message was handed over, this one included."""
        return self.held.failed + 1


class LeasedMessage(Protocol):
    """What the face of a lease asks of it; see `LeaseRecord`."""

    length_ms: int
    due_ms: int
    over: str | None
    keeper: LeaseKeeper | None

    @property
    def message(self) -> Message: ...
    @property
    def message_id(self) -> MessageId: ...
    @property
    def attempt(self) -> int: ...


_G = TypeVar("_G", contravariant=True)


class LeaseGranter(Protocol[_G]):
    """And of who keeps it; see `LeaseTable`."""

    def handle(self, record: _G) -> str: ...
    def check(self, record: _G) -> None: ...
    def extend(self, record: _G, length_ms: int) -> None: ...
    def ack(self, record: _G) -> Sequence[asyncio.Future[None]]: ...
    def nack(
        self,
        record: _G,
        delay: float | timedelta | None,
        error: BaseException | str | None = None,
    ) -> None: ...


def lost(record: LeasedMessage) -> LeaseLostError:
    """The error of a lease that is over."""
    return LeaseLostError(
        f"the lease on {record.message_id!r} is over: {record.over}; stop work on it"
    )


def length_ms(length: float | timedelta, name: str) -> int:
    """A time above 0 in ms.

    Raises:
        ConfigurationError: It is none, below 1 ms, or longer than `LONGEST`.
    """
    found_s = seconds_of(length, name)
    if not 0.001 <= found_s <= LONGEST.total_seconds():
        raise ConfigurationError(f"{name} must be from 1 ms to {LONGEST.days} days, got {length!r}")
    return round(found_s * 1000)
