"""Health over real sockets, so on a real event loop; the broker is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.harness.memory_fixtures import client, transport

__all__ = ["client", "pytest_asyncio_loop_factories", "transport"]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"real": asyncio.SelectorEventLoop}
