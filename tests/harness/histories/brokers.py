"""Brokers for histories: topics, faults and backlogs, apart from the protocol.

`Broker` has two implementations, real Pulsar and the development broker. A broker is shared by all
runs, or private to a run that stops it. Topics are in namespaces without automatic topic creation,
so that a deleted topic stays deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from pulsar_encore.devbroker import BrokerSettings, BrokerThread, Fault, FaultPlan

from ..admin import Admin, AdminError
from ..pulsar_server import Server, Standalone
from .control import Control

THREADS = 100


class Broker(Protocol):
    """A broker under test."""

    @property
    def url(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    async def create(self, topic: str, partitions: int) -> None: ...

    async def unload(self, topic: str) -> None: ...

    async def delete(self, topic: str) -> None:
        """Delete an unpartitioned topic. Consumers that subscribe again are refused."""

    async def backlog(self, topic: str, subscription: str) -> int:
        """Return the number of unacked entries of one topic or partition."""

    async def stop(self) -> None: ...

    async def kill(self) -> None: ...

    async def start(self) -> None: ...


class RealBroker:
    """Real Pulsar, in a namespace of its own.

    Args:
        url: Service URL.
        admin_url: Root of the admin API.
        private: The broker process, if the run may stop it.
    """

    def __init__(self, url: str, admin_url: str, private: Standalone | None = None) -> None:
        self.url = url
        self.namespace = f"public/histories-{uuid.uuid4().hex[:8]}"
        self._admin = Admin(admin_url)
        self._private = private

    async def open(self) -> None:
        policies = {"autoTopicCreationOverride": {"allowAutoTopicCreation": False}}
        await asyncio.to_thread(self._admin.create_namespace, self.namespace, policies)

    async def close(self) -> None:
        with contextlib.suppress(AdminError, OSError):
            await asyncio.to_thread(self._admin.delete_namespace, self.namespace)

    async def create(self, topic: str, partitions: int) -> None:
        if partitions:
            await asyncio.to_thread(self._admin.create_partitioned_topic, topic, partitions)
        else:
            await asyncio.to_thread(self._admin.create_topic, topic)

    async def unload(self, topic: str) -> None:
        await asyncio.to_thread(self._admin.unload, topic)

    async def delete(self, topic: str) -> None:
        await asyncio.to_thread(self._admin.delete_topic, topic)

    async def backlog(self, topic: str, subscription: str) -> int:
        found = await asyncio.to_thread(self._admin.subscription_stats, topic, subscription)
        return int(found["msgBacklog"])

    async def stop(self) -> None:
        assert self._private is not None
        await asyncio.to_thread(self._private.stop)

    async def kill(self) -> None:
        assert self._private is not None
        await asyncio.to_thread(self._private.kill)

    async def start(self) -> None:
        assert self._private is not None
        await asyncio.to_thread(self._private.start)


class DevBroker:
    """The development broker."""

    namespace = "public/default"

    def __init__(self, thread: BrokerThread) -> None:
        self._thread = thread
        self._deletions: list[Fault] = []
        self.url = thread.url

    async def create(self, topic: str, partitions: int) -> None:
        if partitions:
            await asyncio.to_thread(self._thread.create_partitioned_topic, topic, partitions)
        else:
            await asyncio.to_thread(self._thread.create_topic, topic)

    async def unload(self, topic: str) -> None:
        await asyncio.to_thread(self._thread.unload, topic)

    async def delete(self, topic: str) -> None:
        # The development broker cannot delete topics. Refusing lookups and unloading looks the same
        # to a consumer.
        self._deletions += [
            Fault(kind="refuse", command=name, topic=topic, times=10**9, error="TopicNotFound")
            for name in ("SUBSCRIBE", "LOOKUP")
        ]
        plan = FaultPlan(self._deletions)
        await asyncio.to_thread(setattr, self._thread, "faults", plan)
        await self.unload(topic)

    async def backlog(self, topic: str, subscription: str) -> int:
        return await asyncio.to_thread(self._thread.backlog, topic, subscription)

    async def stop(self) -> None:
        await asyncio.to_thread(self._thread.outage)

    async def kill(self) -> None:
        await asyncio.to_thread(self._thread.outage)

    async def start(self) -> None:
        await asyncio.to_thread(self._thread.resume)


class Brokers:
    """The shared broker of a session, and one private broker for runs that stop their broker.

    Args:
        kind: `real` or `dev`.
        server: The shared real broker.
    """

    def __init__(self, kind: str, server: Server | None) -> None:
        self.kind = kind
        self._server = server
        self._stack = contextlib.AsyncExitStack()
        self._shared: Broker | None = None
        self._private: Broker | None = None
        self._control: Control | None = None
        self._private_lock = asyncio.Lock()

    async def __aenter__(self) -> Brokers:
        # Blocking clients occupy threads of the default executor, some for a whole run. With its
        # few threads, runs would block one another for ever.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        self._shared = await self._open_broker(private=False)
        topic = f"persistent://{self._shared.namespace}/control-{uuid.uuid4().hex[:8]}"
        await self._shared.create(topic, 0)
        self._control = Control(self._shared.url, topic)
        self._control.start()
        self._stack.push_async_callback(asyncio.to_thread, self._control.close)
        return self

    def lags(self) -> list[tuple[float, float]]:
        """Return `Control.lags` of the shared broker. They also measure the machine."""
        return [] if self._control is None else list(self._control.lags)

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @contextlib.asynccontextmanager
    async def lend(self, *, private: bool) -> AsyncIterator[Broker]:
        """Yield a broker for one run."""
        if not private:
            assert self._shared is not None
            yield self._shared
            return
        async with self._private_lock:
            if self._private is None:
                self._private = await self._open_broker(private=True)
            yield self._private

    async def _open_broker(self, *, private: bool) -> Broker:
        if self.kind == "dev":
            settings = BrokerSettings(
                auto_create=False, failover_delay_ms=50, record=False, max_unacked_per_consumer=0
            )
            thread = BrokerThread(settings)
            await self._stack.enter_async_context(thread)
            return DevBroker(thread)
        if private:
            process = Standalone()
            await asyncio.to_thread(process.__enter__)
            self._stack.push_async_callback(asyncio.to_thread, process.close)
            real = RealBroker(process.service_url, process.admin_url, process)
        else:
            assert self._server is not None
            real = RealBroker(self._server.service_url, self._server.admin_url)
        await real.open()
        self._stack.push_async_callback(real.close)
        return real
