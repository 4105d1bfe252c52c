"""What was handed in as frames and has no receipt: in order, of which some is on the wire.

Owns `PendingSend` and `PendingSends`; pure. Receipts come in the order of the frames, so one that
names another than the first says that the connection lost its step. Frames leave by a receipt, by a
failure of their own, or all together. Of what failed for lack of an answer the broker may still
send one: it stays known until then, without its bytes, or until the connection is gone.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from ....errors import ProtocolError

W = TypeVar("W")


class OutOfStepError(ProtocolError):
    """A receipt named a later frame than the first: something in between got lost."""


class PendingSend(Generic[W]):
    """One SEND frame that the broker has not confirmed.

    Attributes:
        frame: Its bytes, the same each time it is sent; b"" of what stands for one that nobody
            waits for any more.
        sequence_id: What the receipt names.
        last: Sequence id of the last message in it.
        room: How many places of the queue it takes.
        waiters: Who is told; of a cut message, with its last chunk.
        since: When it was handed in, on the caller's monotonic clock in seconds.
        batched: Whether its messages have places in a batch.
        first_chunk: Of the later chunks of a cut message, the first one.
        stored: Of a first chunk, where it was stored (ledger, entry).
    """

    __slots__ = (
        "batched",
        "first_chunk",
        "frame",
        "last",
        "room",
        "sequence_id",
        "since",
        "stored",
        "waiters",
    )

    def __init__(
        self,
        frame: bytes,
        sequence_id: int,
        waiters: list[W],
        *,
        since: float,
        last: int | None = None,
        room: int = 1,
        batched: bool = False,
        first_chunk: PendingSend[W] | None = None,
    ) -> None:
        self.frame: bytes = frame
        self.sequence_id: int = sequence_id
        self.last: int = sequence_id if last is None else last
        self.room: int = room
        self.waiters: list[W] = waiters
        self.since: float = since
        self.batched: bool = batched
        self.first_chunk: PendingSend[W] | None = first_chunk
        self.stored: tuple[int, int] | None = None


class PendingSends(Generic[W]):
    """The frames of one producer on one topic."""

    __slots__ = ("_on_wire", "_unanswered", "_unwritten")

    def __init__(self) -> None:
        self._on_wire: deque[PendingSend[W]] = deque()
        self._unwritten: deque[PendingSend[W]] = deque()
        self._unanswered = 0  # of those on the wire, how many nobody waits for any more

    def __len__(self) -> int:
        """Frames that somebody waits for."""
        return len(self._on_wire) + len(self._unwritten) - self._unanswered

    @property
    def unanswered(self) -> int:
        """Frames on the wire that nobody waits for any more."""
        return self._unanswered

    @property
    def oldest(self) -> PendingSend[W] | None:
        """The first frame that somebody waits for."""
        for each in self._on_wire:
            if each.frame:
                return each
        return self._unwritten[0] if self._unwritten else None

    def all(self) -> list[PendingSend[W]]:
        """Every frame that somebody waits for, in order."""
        return [*(each for each in self._on_wire if each.frame), *self._unwritten]

    def add(self, sending: PendingSend[W]) -> None:
        """One more, behind all others."""
        self._unwritten.append(sending)

    @property
    def waits(self) -> bool:
        """Whether there is something to write."""
        return bool(self._unwritten)

    def to_write(self, most: int, most_frames: int = sys.maxsize) -> list[bytes]:
        """Frames to write now, in order; they count as written.

        Args:
            most: Bytes after which the rest is left for another time.
            most_frames: Frames after which it is.
        """
        frames: list[bytes] = []
        unwritten = self._unwritten
        while unwritten and most > 0 and len(frames) < most_frames:
            sending = unwritten.popleft()
            self._on_wire.append(sending)
            frames.append(sending.frame)
            most -= len(sending.frame)
        return frames

    def disconnected(self) -> None:
        """The connection is gone, and what was on the wire has to be written again."""
        again = deque(each for each in self._on_wire if each.frame)
        again += self._unwritten
        self._unwritten = again
        self._on_wire.clear()
        self._unanswered = 0

    def receipt(self, sequence_id: int) -> PendingSend[W] | None:
        """A receipt came: the frame it is for, None when nobody waits for it.

        Raises:
            OutOfStepError: It is for a frame behind the first that somebody waits for.
        """
        on_wire = self._on_wire
        if not on_wire or on_wire[0].sequence_id != sequence_id:
            if all(each.sequence_id != sequence_id for each in on_wire):
                return None  # given twice
            while on_wire[0].sequence_id != sequence_id:
                if on_wire[0].frame:
                    raise OutOfStepError(
                        f"a receipt for message {sequence_id}, where {on_wire[0].sequence_id} is "
                        "the first without one"
                    )
                on_wire.popleft()  # never answered, and nobody misses it
                self._unanswered -= 1
        sending = on_wire.popleft()
        if sending.frame:
            return sending
        self._unanswered -= 1
        return None

    def refused(self, sequence_id: int) -> PendingSend[W] | None:
        """The broker refused one frame: it leaves. None when nobody waits for it.

        Args:
            sequence_id: As brokers name it: of a batch its last message's, where a receipt has the
                first one's.
        """
        for at, sending in enumerate(self._on_wire):
            if sequence_id in (sending.sequence_id, sending.last):
                del self._on_wire[at]
                if sending.frame:
                    return sending
                self._unanswered -= 1
                return None
        return None

    def on_wire(self, sequence_id: int) -> PendingSend[W] | None:
        """The first frame on the wire that a refusal names and that somebody waits for."""
        for each in self._on_wire:
            if sequence_id in (each.sequence_id, each.last) and each.frame:
                return each
        return None

    def drop(self, of: Iterable[PendingSend[W]]) -> None:
        """Nobody waits any more for these frames; those on the wire may still be answered."""
        dropped = set(of)
        self._unwritten = deque(each for each in self._unwritten if each not in dropped)
        self._unanswered += sum(each in dropped for each in self._on_wire)
        self._on_wire = deque(
            _without_frame(each) if each in dropped else each for each in self._on_wire
        )

    def drop_all(self) -> list[PendingSend[W]]:
        """`drop` of every frame that somebody waits for; returns them, in order.

        Those on the wire lose their bytes and stand for themselves: 45,000 objects more would be a
        long step of the event loop.
        """
        dropped = self.all()
        self._unwritten = deque()
        self._unanswered = len(self._on_wire)
        for each in self._on_wire:
            each.frame = b""
        return dropped


def _without_frame(sending: PendingSend[W]) -> PendingSend[W]:
    return PendingSend(b"", sending.sequence_id, [], since=sending.since, last=sending.last)
