"""Tools for tests: a broker on loopback, a transport in memory, and virtual time.

Test without a network, in virtual time, where an hour's delay takes milliseconds::

    async def main() -> None:
        transport = testing.MemoryTransport()
        async with encore.Client("memory://", transport=transport) as client:
            consumer = await client.subscribe("jobs", "worker")
            transport.put("jobs", b"one")
            await consumer.acknowledge(await consumer.receive())
        assert transport.backlog("jobs", "worker") == 0

    testing.run(main())

`run` is `asyncio.run` on a `VirtualClockLoop`. The package's pytest plugin runs async tests that
have the marker `pulsar_virtual_time` on that loop. Its fixtures are
`pulsar_memory`, `pulsar_broker` and `pulsar_faults`.

Code with threads or sockets, which includes the stock transport, needs real time and `broker()`::

    async with testing.broker() as url, encore.Client(url) as client:
        ...
        url.broker.drop_connections()  # see `BrokerThread`

A `FaultPlan` injects faults into either one. `BrokerUrl.broker` is the running broker.
"""

from typing import TYPE_CHECKING, Any

from ..devbroker import BrokerSettings, BrokerThread, Credential, Fault, FaultPlan, TlsSettings
from .broker_context import BrokerUrl as BrokerUrl
from .broker_context import broker
from .command_log import Command
from .memory_pulsar import MemoryPulsar
from .memory_transport import MemoryTransport
from .received_message import message
from .stored_letters import letters
from .virtual_clock import Deadlock, run
from .virtual_clock import VirtualClockLoop as VirtualClockLoop

if TYPE_CHECKING:
    from .worker_drain import Drained, drain
else:

    def __getattr__(name: str) -> Any:
        if name in ("Drained", "drain"):  # the worker, which a program without one does not load
            from . import worker_drain

            return getattr(worker_drain, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# `BrokerUrl` and `VirtualClockLoop` are not listed: the methods that they inherit from str and from
# asyncio's loop would make help() of this module ten times as long.
__all__ = [
    "BrokerSettings",
    "BrokerThread",
    "Command",
    "Credential",
    "Deadlock",
    "Drained",
    "Fault",
    "FaultPlan",
    "MemoryPulsar",
    "MemoryTransport",
    "TlsSettings",
    "broker",
    "drain",
    "letters",
    "message",
    "run",
]
