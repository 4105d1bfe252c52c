"""A development broker for the length of a test.

Owns `broker` and the url it gives, which is a plain `str` for every client and knows its broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..devbroker import BrokerSettings, BrokerThread, FaultPlan


class BrokerUrl(str):
    """A service url that knows its broker.

    Attributes:
        broker: The running `BrokerThread`: recorded commands, faults, outages, topics.
    """

    __slots__ = ("broker",)

    broker: BrokerThread


@asynccontextmanager
async def broker(
    settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
) -> AsyncIterator[BrokerUrl]:
    """Start a broker on a free loopback port and a thread of its own; it ends with the block.

    Args:
        settings: See `BrokerSettings`; Pulsar's defaults when None.
        faults: What goes wrong, by step; `url.broker.faults` changes it later.

    Raises:
        TransportError: The address cannot be had.
    """
    running = BrokerThread(settings, faults=faults)
    await asyncio.to_thread(running.start)
    try:
        url = BrokerUrl(running.url)
        url.broker = running
        yield url
    finally:
        await asyncio.to_thread(running.close)
