"""Evacuations on the transport in memory, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from evacuation_kit import OldHost

from pulsar_encore import Client
from tests.harness.memory_fixtures import client, pytest_asyncio_loop_factories, transport

__all__ = ["client", "host", "pytest_asyncio_loop_factories", "transport"]


@pytest.fixture
def host(client: Client, tmp_path: Path) -> OldHost:
    return OldHost(client, tmp_path / "state")
