"""Frames without a receipt, in order. Some of them are on the wire.

Receipts come in the order of the frames, so a receipt for a later frame means that something was
lost. The broker may still answer a frame that has failed, for example by the send timeout. Such a
frame stays known, without its bytes, until that answer or the end of the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

from ....errors import ProtocolError
from ....values.message_id import MessageId
from ....values.outgoing_message import MessageTransaction

Waiter: TypeAlias = asyncio.Future[MessageId]


class OutOfStepError(ProtocolError):
    """A receipt named a later frame than the first."""


@dataclass(slots=True, eq=False)
class SendFrame:
    """One SEND frame that the broker has not confirmed.

    Attributes:
        data: The same bytes each time it is sent; b"" once no caller waits for it.
        waiters: Futures of its messages; for a chunked message, only at the last chunk.
        since: Loop time in s when it was packed.
        batched: True if its messages have batch indexes.
        first_chunk: The first chunk, for a later chunk of a message.
        stored: For a first chunk, its position (ledger, entry).
        txn: The transaction of its messages, or None.
        may_be_stored: It was on a connection that was lost.
    """

    data: bytes
    sequence_id: int
    waiters: list[Waiter]
    _: KW_ONLY
    since: float
    last: int
    slots: int = 1
    batched: bool = False
    first_chunk: SendFrame | None = None
    stored: tuple[int, int] | None = None
    txn: MessageTransaction | None = None
    may_be_stored: bool = False


class UnconfirmedFrames:
    """The frames of one topic or partition. `unanswered` counts frames on the wire without a
    waiting caller."""

    __slots__ = ("_on_wire", "_unwritten", "unanswered")

    def __init__(self) -> None:
        self._on_wire: deque[SendFrame] = deque()
        self._unwritten: deque[SendFrame] = deque()
        self.unanswered: int = 0

    @property
    def oldest(self) -> SendFrame | None:
        for each in self._on_wire:
            if each.data:
                return each
        return self._unwritten[0] if self._unwritten else None

    def all(self) -> list[SendFrame]:
        return [*(each for each in self._on_wire if each.data), *self._unwritten]

    def add(self, frames: Sequence[SendFrame]) -> None:
        self._unwritten += frames

    @property
    def has_unwritten(self) -> bool:
        return bool(self._unwritten)

    def to_write(self, most_bytes: int, most_frames: int) -> list[bytes]:
        """Return the next frames up to either limit, and count them as written."""
        frames: list[bytes] = []
        unwritten = self._unwritten
        while unwritten and most_bytes > 0 and len(frames) < most_frames:
            frame = unwritten.popleft()
            self._on_wire.append(frame)
            frames.append(frame.data)
            most_bytes -= len(frame.data)
        return frames

    def disconnected(self) -> None:
        """Have the frames on the wire written again."""
        again = deque(each for each in self._on_wire if each.data)
        for each in again:
            each.may_be_stored = True
        again += self._unwritten
        self._unwritten = again
        self._on_wire.clear()
        self.unanswered = 0

    def receipt(self, sequence_id: int) -> SendFrame | None:
        """Return the frame that a receipt is for; None if no caller waits for it.

        Raises:
            OutOfStepError: if a caller waits for an earlier frame.
        """
        on_wire = self._on_wire
        if not on_wire or on_wire[0].sequence_id != sequence_id:
            if all(each.sequence_id != sequence_id for each in on_wire):
                return None  # a duplicate receipt
            while on_wire[0].sequence_id != sequence_id:
                if on_wire[0].data:
                    raise OutOfStepError(
                        f"a receipt for message {sequence_id}, where {on_wire[0].sequence_id} is "
                        "the first without one"
                    )
                on_wire.popleft()  # never answered, and no caller waits for it
                self.unanswered -= 1
        frame = on_wire.popleft()
        if frame.data:
            return frame
        self.unanswered -= 1
        return None

    def unwritten_of(self, txn: MessageTransaction) -> list[SendFrame]:
        return [each for each in self._unwritten if each.txn is txn]

    def refused(self, sequence_id: int) -> SendFrame | None:
        """Remove the frame that the broker refused, and return it; None if no caller waits for it.

        SEND_ERROR names the last sequence id of a batch, SEND_RECEIPT the first one.
        """
        for at, frame in enumerate(self._on_wire):
            if sequence_id in (frame.sequence_id, frame.last):
                del self._on_wire[at]
                if frame.data:
                    return frame
                self.unanswered -= 1
                return None
        return None

    def on_wire(self, sequence_id: int) -> SendFrame | None:
        for each in self._on_wire:
            if sequence_id in (each.sequence_id, each.last) and each.data:
                return each
        return None

    def drop(self, of: Iterable[SendFrame]) -> None:
        """Stop waiting for these frames. Those on the wire may still be answered."""
        dropped = set(of)
        self._unwritten = deque(each for each in self._unwritten if each not in dropped)
        self.unanswered += sum(each in dropped for each in self._on_wire)
        self._on_wire = deque(
            _without_data(each) if each in dropped else each for each in self._on_wire
        )

    def drop_all(self) -> list[SendFrame]:
        """Stop waiting for every frame; return them, in order.

        Frames on the wire lose their bytes in place: to make 45,000 more objects would be a long
        step of the event loop.
        """
        dropped = self.all()
        self._unwritten = deque()
        self.unanswered = len(self._on_wire)
        for each in self._on_wire:
            each.data = b""
        return dropped


def _without_data(frame: SendFrame) -> SendFrame:
    return SendFrame(b"", frame.sequence_id, [], since=frame.since, last=frame.last)
