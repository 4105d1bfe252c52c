"""The state of a lease, and the interfaces of `Lease` to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from ...core.message_states import HELD
from ...core.topic_state import TopicState
from ...errors import LeaseLostError
from ...message import Held, Message
from ...values.message_id import MessageId

BITS: Final = 6  # buckets of 64 ms, by which a lease may expire late


class LeaseKeeper(Protocol):
    def lost(self) -> None: ...
    def moved(self) -> None: ...


@dataclass(eq=False, slots=True)
class LeaseRecord:
    """The state of one lease.

    Attributes:
        length_ms: Length of the lease as granted, in ms.
        due_ms: End of the lease, in ms on the loop's clock.
        armed: Edge of its bucket in `LeaseTable`.
        over: Why the lease is over; None while it is active.
        acked: True if the holder of the lease acked the message.
    """

    message: Message
    held: Held
    number: int
    length_ms: int
    due_ms: int
    armed: int = 0
    over: str | None = None
    acked: bool = False
    keeper: LeaseKeeper | None = None
    handle: str | None = None

    @property
    def holds(self) -> bool:
        entry, index, _, delivery_number = self.held
        state: TopicState = entry.topic_state
        return entry.state[index] == HELD and state.is_latest_delivery(
            entry, index, delivery_number
        )

    @property
    def message_id(self) -> MessageId:
        return self.message.message_id()

    @property
    def attempt(self) -> int:
        return self.held.failed + 1


class LeasedMessage(Protocol):
    """A `LeaseRecord` or a `RestoredLease`."""

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
    """A `LeaseTable` or `RestoredLeases`."""

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
    return LeaseLostError(
        f"the lease on {record.message_id!r} is over: {record.over}; stop work on it"
    )
