"""What users test with: a broker on loopback, a transport in memory, and virtual time.

`broker()` starts the development broker for a test; `MemoryTransport` needs no sockets and runs
under `VirtualClockLoop`, where an hour's delay takes milliseconds.
"""

from ..devbroker import BrokerSettings, Fault, FaultPlan
from .clock import Deadlock, VirtualClockLoop, run
from .commands import Command
from .memory import MemoryTransport
from .running import BrokerUrl, broker

__all__ = [
    "BrokerSettings",
    "BrokerUrl",
    "Command",
    "Deadlock",
    "Fault",
    "FaultPlan",
    "MemoryTransport",
    "VirtualClockLoop",
    "broker",
    "run",
]
