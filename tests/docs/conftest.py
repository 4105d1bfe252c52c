"""Programs of the documentation, on the transport in memory and in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from pulsar_encore.testing import VirtualClockLoop
from tests.harness.memory_fixtures import client, transport

__all__ = ["client", "pytest_asyncio_loop_factories", "transport"]

# Tests of pages with programs that need sockets, threads or processes.
_REAL: tuple[str, ...] = (
    "test_authentication_page.py",
    "test_dead_letters_page.py",
    "test_health_page.py",
    "test_leases_page.py",
    "test_letter_properties_page.py",
    "test_migrating_page.py",
    "test_observability_page.py",
    "test_operations_page.py",
    "test_pub_sub_program.py",
    "test_pulsar_programs_on_a_broker.py",
    "test_recipe_fastapi_page.py",
    "test_recipe_kubernetes_page.py",
    "test_recipe_database_page.py",
    "test_spilling_page.py",
    "test_state_page.py",
    "test_transports_page.py",
)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in _REAL:
        return {"real": asyncio.SelectorEventLoop}
    return {"virtual": VirtualClockLoop}
