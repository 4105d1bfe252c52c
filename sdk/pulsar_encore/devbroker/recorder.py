"""Record the commands of all connections, for assertions in tests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Protocol

from ..errors import ConfigurationError
from ..wire import pulsar_pb2 as pb
from ..wire.checksum import Data


@dataclass(slots=True)
class Recorded:
    """One recorded command.

    Args:
        at_ms: Monotonic ms, with a fraction.
        connection: Number of the connection, from 1.
        direction: ``"in"`` from the client, ``"out"`` from the broker.
        type: Type name of the command, such as ``"ACK"``.
    """

    at_ms: float
    connection: int
    direction: str
    type: str
    _content: pb.BaseCommand | bytes = field(repr=False)

    @property
    def command(self) -> pb.BaseCommand:
        if isinstance(self._content, bytes):
            self._content = pb.BaseCommand.FromString(self._content)
        return self._content


def check_command(name: str) -> None:
    """Raise ConfigurationError unless the protocol has a command of that name."""
    if name not in pb.BaseCommand.Type.keys():
        near = ", ".join(get_close_matches(str(name).upper(), pb.BaseCommand.Type.keys()))
        hint = f"; there is {near}" if near else ", such as ACK or FLOW"
        raise ConfigurationError(f"{name!r} is not a command of the protocol{hint}")


class RecordedCommands(Protocol):
    """Receives every command."""

    def add(
        self,
        at_ms: float,
        connection: int,
        direction: str,
        name: str,
        content: pb.BaseCommand | bytes,
        body: Data,
    ) -> None:
        """Receive one command and its body; see `Recorded`."""


class Recorder:
    """The last `limit` commands (`RecordedCommands`)."""

    def __init__(self, limit: int) -> None:
        self._commands: deque[Recorded] = deque(maxlen=limit)

    def add(
        self,
        at_ms: float,
        connection: int,
        direction: str,
        name: str,
        content: pb.BaseCommand | bytes,
        body: Data,
    ) -> None:
        """Record a command without its body."""
        self._commands.append(Recorded(at_ms, connection, direction, name, content))

    def find(self, name: str | None = None, direction: str | None = None) -> list[Recorded]:
        return [
            one
            for one in self._commands
            if (name is None or one.type == name)
            and (direction is None or one.direction == direction)
        ]

    def clear(self) -> None:
        self._commands.clear()
