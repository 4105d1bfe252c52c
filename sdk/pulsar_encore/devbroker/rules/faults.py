"""Fault plans: faults for the n-th command of a type.

A plan counts the commands of each type and direction over all connections.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from ...errors import ConfigurationError
from ...wire import pulsar_pb2 as pb

Direction = Literal["in", "out"]
Kind = Literal["drop", "delay", "duplicate", "close_before", "close_after", "refuse", "outage"]

_REFUSABLE = ("PRODUCER", "SUBSCRIBE", "LOOKUP", "PARTITIONED_METADATA", "CONNECT", "SEND", "SEEK")
_FROM_BROKER = ("CONNECTED", "SUCCESS", "ERROR", "MESSAGE", "SEND_RECEIPT", "SEND_ERROR")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A fault on the n-th command of a type.

    Args:
        kind: ``"drop"``, ``"delay"`` (by `delay_ms`; later commands overtake it) or ``"duplicate"``
            the command, ``"close_before"`` or ``"close_after"`` close the connection, ``"refuse"``
            answers with `error`, ``"outage"`` drops the command and starts an outage of `outage_s`
            seconds.
        command: Type name of the command, such as ``"ACK"``.
        nth: First command of that type and direction, counted from 1.
        times: Number of commands in a row.
        direction: ``"in"`` from the client, ``"out"`` from the broker; None derives it from the
            command.
        topic: Count only commands of this topic, given by its full name.

    Raises:
        ConfigurationError: if a value is invalid, so that the fault could never fire.

    Example:
        Drop the second ack::

            FaultPlan([Fault(kind="drop", command="ACK", nth=2)])
    """

    kind: Kind
    command: str
    nth: int = 1
    times: int = 1
    direction: Direction | None = None
    delay_ms: int = 0
    error: str = "ServiceNotReady"
    outage_s: float = 0.5
    topic: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigurationError(f"kind must be one of {', '.join(get_args(Kind))}")
        if self.command not in pb.BaseCommand.Type.keys():
            raise ConfigurationError(f"command {self.command!r} is not a command of the protocol")
        if self.nth < 1 or self.times < 1:
            raise ConfigurationError("nth and times count from 1")
        if self.delay_ms < 0 or self.outage_s < 0:
            raise ConfigurationError("delay_ms and outage_s cannot be negative")
        if self.error not in pb.ServerError.keys():
            raise ConfigurationError(f"error {self.error!r} is not a ServerError of the protocol")
        if self.kind == "refuse" and self.command not in _REFUSABLE:
            raise ConfigurationError(f"only {', '.join(_REFUSABLE)} can be refused")

    @property
    def side(self) -> Direction:
        if self.direction is not None:
            return self.direction
        name = self.command
        from_broker = name in _FROM_BROKER or name.endswith("_RESPONSE") or name[-8:] == "_SUCCESS"
        return "out" if from_broker and name != "AUTH_RESPONSE" else "in"


@dataclass(frozen=True, slots=True)
class Fired:
    """A fault that fired, and the number of its command."""

    fault: Fault
    step: int


class FaultPlan:
    """A list of faults, each with its own count.

    Attributes:
        fired: Faults that have fired, in order.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._faults = [(fault, fault.side) for fault in faults]
        self._seen = [0] * len(self._faults)
        self.fired: list[Fired] = []
        self.by_topic: bool = any(fault.topic is not None for fault, _ in self._faults)

    def step(self, direction: Direction, command: str, topic: str | None = None) -> list[Fault]:
        firing = []
        for at, (fault, side) in enumerate(self._faults):
            if fault.command != command or side != direction:
                continue
            if fault.topic is not None and fault.topic != topic:
                continue
            self._seen[at] += 1
            step = self._seen[at]
            if fault.nth <= step < fault.nth + fault.times:
                self.fired.append(Fired(fault, step))
                firing.append(fault)
        return firing

    @property
    def done(self) -> bool:
        """True if every fault has fired for the last time."""
        return all(
            seen >= fault.nth + fault.times - 1
            for seen, (fault, _) in zip(self._seen, self._faults, strict=True)
        )
