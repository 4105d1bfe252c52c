"""A development broker for the duration of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..devbroker import BrokerSettings, BrokerThread, FaultPlan


class BrokerUrl(str):
    """A service URL with its broker. Clients use it as a plain `str`.

    Attributes:
        broker: The running `BrokerThread`: recorded commands, faults, outages, topics.
    """

    __slots__ = ("broker",)

    broker: BrokerThread


@asynccontextmanager
async def broker(
    settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
) -> AsyncIterator[BrokerUrl]:
    """Run a broker on a free loopback port, on a thread of its own, until the block ends.

    Args:
        settings: See `BrokerSettings`. None takes Pulsar's defaults.
        faults: Faults to inject. Set `url.broker.faults` to change them later.

    Raises:
        TransportError: if the broker cannot listen on the address.

    Example:
        A test with its own broker::

            async with testing.broker() as url, encore.Client(url) as client:
                consumer = await client.subscribe("jobs", "worker")
    """
    running = BrokerThread(settings, faults=faults)
    await asyncio.to_thread(running.start)
    try:
        url = BrokerUrl(running.url)
        url.broker = running
        yield url
    finally:
        await asyncio.to_thread(running.close)
