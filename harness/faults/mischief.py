"""What goes wrong on a connection, frame by frame. Pure: bytes in, steps out.

Owns `WireFault`, `Mischief` (the faults of one client, counted over all its connections) and
`Stream` (one direction of one connection). Only what a network or a broken peer can do, and what a
receiver can notice: commands have no checksum, so a changed one that still parses is not among it.
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
    "cut after",  # it ends behind the command
    "cut inside",  # it ends when a part of the command has arrived
    "delay",  # the command, and all behind it, comes late
    "split",  # the command comes in small pieces
    "stall",  # from here on nothing arrives any more, either way, and nobody is told
    "payload",  # a bit behind the command is flipped
    "size",  # one of the two sizes is another
    "command",  # the bytes of the command are none
    "garbage",  # bytes that nobody sent come before the command
]

#: Commands with something behind them that a checksum protects.
WITH_PAYLOAD: Final = ("MESSAGE", "SEND")
_NAMES: Final[dict[int, str]] = {int(each): name for name, each in pb.BaseCommand.Type.items()}
_TYPE_TAG: Final = 0x08  # the first byte of every command; its type is the next
_NO_TAG: Final = 0x07  # no tag of protobuf's: there is no wire type 7
_PIECES: Final = 40


class End(Enum):
    """How a connection goes on after a fault."""

    CUT = "cut"
    STALL = "stall"


Step = bytes | float | End
"""Bytes to pass on, seconds to wait before what follows, or the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WireFault:
    """One thing that goes wrong.

    Args:
        kind: What.
        direction: From whom the command comes.
        command: Its type, such as ``"ACK"``.
        nth: Which one of that type, from 1, counted over all connections.
        seconds: Of a delay.
    """

    kind: Kind
    direction: Direction
    command: str
    nth: int = 1
    seconds: float = 0.0


class Mischief:
    """The faults of one client.

    Args:
        faults: What goes wrong.
        rng: Where within a frame, and which bytes.
        broker_url: What a broker is called in answers to lookups; None leaves them as they are.

    Attributes:
        fired: Those that happened.
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
        """Count one command; what happens to it."""
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
        mischief: Of its client.
        direction: From whom its bytes come.
    """

    def __init__(self, mischief: Mischief, direction: Direction) -> None:
        self._mischief = mischief
        self._direction = direction
        self._rest = bytearray()
        self._over = False

    def feed(self, data: bytes) -> list[Step]:
        """What becomes of bytes that were written; whole frames only are passed on."""
        self._rest += data
        steps: list[Step] = []
        start = 0
        while not self._over and len(self._rest) - start >= 4:
            end = start + 4 + int.from_bytes(self._rest[start : start + 4])
            if end > len(self._rest):
                break
            steps += self._frame(bytes(self._rest[start:end]))
            start = end
        del self._rest[:start]
        return _joined(steps)

    def _frame(self, frame: bytes) -> list[Step]:
        command = _NAMES.get(frame[9], "") if frame[8:9] == bytes((_TYPE_TAG,)) else ""
        if command == "LOOKUP_RESPONSE" and self._mischief.broker_url is not None:
            frame = _renamed(frame, self._mischief.broker_url)
        fault = self._mischief.step(self._direction, command)
        if fault is None:
            return [frame]
        steps = _changed(frame, fault, self._mischief.rng)
        self._over = isinstance(steps[-1], End)
        return steps


def _changed(frame: bytes, fault: WireFault, rng: Random) -> list[Step]:
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
            return _pieces(frame, rng)
        case "stall":
            return [End.STALL]
        case "garbage":
            return [rng.randbytes(rng.randrange(4, 64)), frame]
        case "command":
            return [frame[:8] + bytes((_NO_TAG,)) + frame[9:]]
        case "size":
            return [_resized(frame, rng)]
        case "payload":
            start = 8 + int.from_bytes(frame[4:8])
            changed = bytearray(frame)
            changed[rng.randrange(start, len(frame))] ^= 1 << rng.randrange(8)
            return [bytes(changed)]


def _pieces(frame: bytes, rng: Random) -> list[Step]:
    cuts = sorted(rng.choices(range(1, len(frame)), k=min(_PIECES, len(frame) - 1)))
    steps: list[Step] = []
    for start, end in zip([0, *cuts], [*cuts, len(frame)], strict=True):
        steps += [frame[start:end], 0.001]
    return steps


def _resized(frame: bytes, rng: Random) -> bytes:
    """Another size of the frame or of its command, such that what follows makes no sense."""
    at = rng.choice((0, 4))
    size = int.from_bytes(frame[at : at + 4])
    others = (size + rng.randrange(1, 4), size - rng.randrange(1, 4), 0, size + 4000, 1 << 31)
    other = rng.choice([each for each in others if each != size])
    return frame[:at] + other.to_bytes(4) + frame[at + 4 :]


def _renamed(frame: bytes, url: str) -> bytes:
    command = pb.BaseCommand.FromString(frame[8:])
    if command.lookupTopicResponse.brokerServiceUrl:
        command.lookupTopicResponse.brokerServiceUrl = url
    return frames.encode(command)


def _joined(steps: Sequence[Step]) -> list[Step]:
    """Frames that follow each other are passed on at once, as they were written."""
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
