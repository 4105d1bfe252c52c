"""Workers on the transport in memory, in virtual time: an hour's backoff takes milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from pulsar_encore.testing import VirtualClockLoop
from tests.harness.memory_fixtures import client, transport

__all__ = ["client", "pytest_asyncio_loop_factories", "transport"]

# Threads and watchdogs need real time.
_REAL = ("test_handler_call.py", "test_handler_threads.py", "test_loop_watchdog.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in _REAL:
        return {"real": asyncio.SelectorEventLoop}
    return {"virtual": VirtualClockLoop}
