"""Faults on a connection, frame by frame. Pure: bytes in, steps out.

`Mischief` holds the faults of one client, counted over all its connections. `Stream` is one
direction of one connection. The faults are those of a network or a broken peer that a receiver can
notice. Commands have no checksum, so a changed command that still parses is not among the faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final, Literal

from pulsar_encore.wire import frames, pb

Direction = Literal["in", "out"]
"""From the client, or from the broker."""

Kind = Literal[
    "cut before",  # the connection ends instead of the command
    "cut after",  # it ends after the command
    "cut inside",  # it ends after a part of the command
    "delay",  # the command and everything after it are late
    "split",  # the command arrives in small pieces
    "stall",  # nothing arrives any more in either direction, and the connection stays open
    "payload",  # a bit after the command is flipped
    "size",  # one of the two sizes is wrong
    "command",  # the command does not parse
    "garbage",  # random bytes arrive before the command
]

#: Commands that are followed by a payload with a checksum.
WITH_PAYLOAD: Final = ("MESSAGE", "SEND")
_NAMES: Final[dict[int, str]] = {int(each): name for name, each in pb.BaseCommand.Type.items()}
_TYPE_TAG: Final = 0x08  # the first byte of every command; its type is the next
_NO_TAG: Final = 0x07  # not a protobuf tag: there is no wire type 7
_PIECES: Final = 40


class End(Enum):
    """The state of a connection after a fault."""

    CUT = "cut"
    STALL = "stall"


Step = bytes | float | End
"""Bytes to pass on, seconds to wait before what follows, or the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WireFault:
    """One fault.

    Args:
        kind: Kind of fault.
        direction: Direction of the command.
        command: Type of the command, such as ``"ACK"``.
        nth: Number of the command of that type, from 1, over all connections.
        seconds: Length of a delay.
    """

    kind: Kind
    direction: Direction
    command: str
    nth: int = 1
    seconds: float = 0.0


class Mischief:
    """The faults of one client.

    Args:
        faults: The faults to inject.
        rng: Chooses positions and bytes within a frame.
        broker_url: Broker URL to put into answers to lookups; None leaves them unchanged.

    Attributes:
        fired: The faults that happened.
    """

    def __init__(
        self, faults: Sequence[WireFault], rng: Random, *, broker_url: str | None = None
    ) -> None:
        self._faults = list(faults)
        self._seen: Counter[tuple[Direction, str]] = Counter()
        self.rng: Random = rng
        self.broker_url: str | None = broker_url
        self.fired: list[WireFault] = []

    def step(self, direction: Direction, command: str) -> WireFault | None:
        """Count one command. Return its fault, or None."""
        self._seen[direction, command] += 1
        nth = self._seen[direction, command]
        for fault in self._faults:
            if (fault.direction, fault.command, fault.nth) == (direction, command, nth):
                self.fired.append(fault)
                return fault
        return None


class Stream:
    """One direction of one connection.

    Args:
        mischief: The faults of the client.
        direction: Direction of the bytes.
    """

    def __init__(self, mischief: Mischief, direction: Direction) -> None:
        self._mischief = mischief
        self._direction = direction
        self._partial_frame = bytearray()
        self._ended = False

    def feed(self, data: bytes) -> list[Step]:
        """Return the steps for bytes that were written. Only whole frames are passed on."""
        self._partial_frame += data
        steps: list[Step] = []
        start = 0
        while not self._ended and len(self._partial_frame) - start >= 4:
            end = start + 4 + int.from_bytes(self._partial_frame[start : start + 4])
            if end > len(self._partial_frame):
                break
            steps += self._frame(bytes(self._partial_frame[start:end]))
            start = end
        del self._partial_frame[:start]
        return _merge_frames(steps)

    def _frame(self, frame: bytes) -> list[Step]:
        command = _NAMES.get(frame[9], "") if frame[8:9] == bytes((_TYPE_TAG,)) else ""
        if command == "LOOKUP_RESPONSE" and self._mischief.broker_url is not None:
            frame = _with_broker_url(frame, self._mischief.broker_url)
        fault = self._mischief.step(self._direction, command)
        if fault is None:
            return [frame]
        steps = _apply(frame, fault, self._mischief.rng)
        self._ended = isinstance(steps[-1], End)
        return steps


def _apply(frame: bytes, fault: WireFault, rng: Random) -> list[Step]:
    match fault.kind:
        case "cut before":
            return [End.CUT]
        case "cut after":
            return [frame, End.CUT]
        case "cut inside":
            return [frame[: rng.randrange(1, len(frame))], End.CUT]
        case "delay":
            return [fault.seconds, frame]
        case "split":
            return _split_frame(frame, rng)
        case "stall":
            return [End.STALL]
        case "garbage":
            return [rng.randbytes(rng.randrange(4, 64)), frame]
        case "command":
            return [frame[:8] + bytes((_NO_TAG,)) + frame[9:]]
        case "size":
            return [_with_wrong_size(frame, rng)]
        case "payload":
            start = 8 + int.from_bytes(frame[4:8])
            changed = bytearray(frame)
            changed[rng.randrange(start, len(frame))] ^= 1 << rng.randrange(8)
            return [bytes(changed)]


def _split_frame(frame: bytes, rng: Random) -> list[Step]:
    cuts = sorted(rng.choices(range(1, len(frame)), k=min(_PIECES, len(frame) - 1)))
    steps: list[Step] = []
    for start, end in zip([0, *cuts], [*cuts, len(frame)], strict=True):
        steps += [frame[start:end], 0.001]
    return steps


def _with_wrong_size(frame: bytes, rng: Random) -> bytes:
    """Change the size of a frame or of its command so that the rest makes no sense."""
    at = rng.choice((0, 4))
    size = int.from_bytes(frame[at : at + 4])
    others = (size + rng.randrange(1, 4), size - rng.randrange(1, 4), 0, size + 4000, 1 << 31)
    other = rng.choice([each for each in others if each != size])
    return frame[:at] + other.to_bytes(4) + frame[at + 4 :]


def _with_broker_url(frame: bytes, url: str) -> bytes:
    command = pb.BaseCommand.FromString(frame[8:])
    if command.lookupTopicResponse.brokerServiceUrl:
        command.lookupTopicResponse.brokerServiceUrl = url
    return frames.encode(command)


def _merge_frames(steps: Sequence[Step]) -> list[Step]:
    """Join consecutive frames, so that they are passed on at once, as they were written."""
    joined: list[Step] = []
    run: list[bytes] = []
    for step in steps:
        if isinstance(step, bytes):
            run.append(step)
            continue
        if run:
            joined.append(b"".join(run))
            run = []
        joined.append(step)
    if run:
        joined.append(b"".join(run))
    return joined
