"""What users test with: a broker on loopback, a transport in memory, and virtual time.

Without a network, in virtual time (an hour's delay takes milliseconds)::

    async def main() -> None:
        transport = testing.MemoryTransport()
        async with encore.Client("memory://", transport=transport) as client:
            consumer = await client.subscribe("jobs", "worker")
            transport.put("jobs", b"one")
            await consumer.acknowledge(await consumer.receive())
        assert transport.backlog("jobs", "worker") == 0

    testing.run(main())

`run` is `asyncio.run` on a `VirtualClockLoop`; give that loop to a plug-in of pytest, too.
Code that uses threads or sockets, the stock transport among it, needs real time and `broker()`::

    async with testing.broker() as url, encore.Client(url) as client:
        ...
        url.broker.drop_connections()  # see `BrokerThread`

`FaultPlan` says what goes wrong at which command, for both. The address that `broker()` gives is a
`BrokerUrl`, a str that has the running broker in its attribute `broker`.
"""

from ..devbroker import BrokerSettings, BrokerThread, Credential, Fault, FaultPlan, TlsSettings
from .broker_context import BrokerUrl as BrokerUrl
from .broker_context import broker
from .command_log import Command
from .memory_transport import MemoryTransport
from .virtual_clock import Deadlock, run
from .virtual_clock import VirtualClockLoop as VirtualClockLoop

# Not here: `BrokerUrl` and `VirtualClockLoop`. With all that they inherit from str and from
# asyncio's loop, help() of this module would be ten times as long.
__all__ = [
    "BrokerSettings",
    "BrokerThread",
    "Command",
    "Credential",
    "Deadlock",
    "Fault",
    "FaultPlan",
    "MemoryTransport",
    "TlsSettings",
    "broker",
    "run",
]
