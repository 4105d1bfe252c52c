"""Run the suite against a real Pulsar, on asyncio's event loop only.

Another event loop affects the client's side only, which the development broker covers.
"""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tests.harness.admin import Admin
from tests.harness.contract.cluster import Place
from tests.harness.contract.fixtures import client, engine, topic, transport
from tests.harness.pulsar_server import Server

__all__ = ["client", "cluster", "engine", "topic", "transport"]


class RealCluster:
    """The real broker of this run, through its admin API."""

    def __init__(self, server: Server, admin: Admin) -> None:
        self._admin = admin
        self.url = server.service_url

    async def create_topic(self, topic: str) -> None:
        await asyncio.to_thread(self._admin.create_topic, topic)

    async def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        await asyncio.to_thread(self._admin.create_partitioned_topic, topic, partitions)

    async def delete_topic(self, topic: str) -> None:
        await asyncio.to_thread(self._admin.delete_topic, topic)

    async def unload(self, topic: str) -> None:
        await asyncio.to_thread(self._admin.unload, topic)

    async def terminate(self, topic: str) -> None:
        await asyncio.to_thread(self._admin.terminate, topic)

    async def backlog(self, topic: str, subscription: str) -> int:
        return await asyncio.to_thread(self._backlog, topic, subscription)

    def _backlog(self, topic: str, subscription: str) -> int:
        names = [name for name in self._admin.topics() if name.startswith(f"{topic}-partition-")]
        stats = [self._admin.subscription_stats(name, subscription) for name in names or [topic]]
        return sum(int(each["msgBacklog"]) for each in stats)

    async def place(self, *, window: int | None = None, creation: bool = True) -> Place:
        policies: dict[str, object] = {}
        if window is not None:
            policies["max_unacked_messages_per_consumer"] = window
        if not creation:
            policies["autoTopicCreationOverride"] = {"allowAutoTopicCreation": False}
        namespace = f"public/contract-{uuid.uuid4().hex[:8]}"
        await asyncio.to_thread(self._admin.create_namespace, namespace, policies)
        return Place(self.url, namespace)


@pytest.fixture(scope="session")
def cluster(pulsar: Server, admin: Admin) -> RealCluster:
    """The real broker."""
    return RealCluster(pulsar, admin)
