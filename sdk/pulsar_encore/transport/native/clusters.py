"""Which cluster a client is on, and when it moves to another.

Owns the three ways: `OneCluster`, `Failover` that tries whether the clusters answer, and `Provided`
where the application says it. A connection that is let in is an answer; one that is accepted and
then silent is none. A move ends the connections to the former cluster: what was attached there
attaches on the other, and its acks and messages are in doubt as after any loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import WeakSet

from .connection.cluster_service import ClusterService
from .connection.pool import ConnectionPool

log: Final = logging.getLogger("pulsar_encore.connection")


class Clusters(Protocol):
    """Where the connections of a client go."""

    def now(self) -> ClusterService:
        """The cluster that a new set of connections begins with."""

    def guide(self, pool: ConnectionPool) -> None:
        """Move a set of connections from now on, until `close`; on its event loop."""

    def close(self) -> None:
        """The client was closed."""


class OneCluster:
    """Always the same (`Clusters`)."""

    def __init__(self, service: ClusterService) -> None:
        self._service = service

    def now(self) -> ClusterService:
        return self._service

    def guide(self, pool: ConnectionPool) -> None:
        """There is nowhere else to go."""

    def close(self) -> None:
        """There is nothing to end."""


class Failover:
    """The first of several that answers, and the very first again when it does (`Clusters`).

    Each event loop of a client looks for itself: what one cannot reach, another may.

    Args:
        services: In the order of preference; two at least.
        check_s: From look to look, in s.
        failures: So many looks in a row without an answer, and the client leaves.
        successes: So many looks in a row with an answer of the first, and it returns.
    """

    def __init__(
        self, services: list[ClusterService], *, check_s: float, failures: int, successes: int
    ) -> None:
        self.services = services
        self.check_s = check_s
        self.failures = failures
        self.successes = successes
        self._tasks: dict[asyncio.Task[None], ConnectionPool] = {}

    def now(self) -> ClusterService:
        return self.services[0]

    def guide(self, pool: ConnectionPool) -> None:
        for former, former_pool in list(self._tasks.items()):
            if former_pool.loop.is_closed():
                del self._tasks[former]
        task = pool.loop.create_task(self._watch(pool))
        self._tasks[task] = pool
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def close(self) -> None:
        for task, pool in list(self._tasks.items()):
            _call_on_loop(pool, task.cancel)

    async def _watch(self, pool: ConnectionPool) -> None:
        at, failed, answered = 0, 0, 0
        while True:
            await asyncio.sleep(self.check_s)
            to = at
            failed = 0 if await pool.probe(self.services[at]) else failed + 1
            if failed >= self.failures:
                to = await self._find_answering(pool, at)
            elif at:
                answered = answered + 1 if await pool.probe(self.services[0]) else 0
                if answered >= self.successes:
                    to = 0
            if to != at:
                log.warning("from %s to %s", self.services[at], self.services[to])
                at, failed, answered = to, 0, 0
                pool.move(self.services[at])

    async def _find_answering(self, pool: ConnectionPool, at: int) -> int:
        """The first of the others that answers; this one where none does."""
        for number, service in enumerate(self.services):
            if number != at and await pool.probe(service):
                return number
        return at


class Provided:
    """What a `ServiceInfoProvider` says (`Clusters`).

    Args:
        provider: Stock's or ours, or what has its methods.
        understand: Makes a cluster of a `ServiceInfo`.

    Raises:
        EncoreError: The first one cannot be understood; or what the provider raises.
    """

    def __init__(self, provider: Any, understand: Callable[[Any], ClusterService]) -> None:
        self._provider = provider
        self._make_service = understand
        self._pools: WeakSet[ConnectionPool] = WeakSet()
        self._service = understand(provider.initial_service_info())
        provider.initialize(self._on_service_info)

    def now(self) -> ClusterService:
        return self._service

    def guide(self, pool: ConnectionPool) -> None:
        self._pools.add(pool)
        if pool.service is not self._service:  # told meanwhile
            pool.move(self._service)

    def close(self) -> None:
        self._provider.close()

    def _on_service_info(self, info: Any) -> None:
        """Go there; called by the provider, on any thread. What is wrong with it is raised there,
        and the client stays."""
        service = self._make_service(info)
        log.warning("from %s to %s", self._service, service)
        self._service = service
        for pool in list(self._pools):
            _call_on_loop(pool, pool.move, service)


def _call_on_loop(pool: ConnectionPool, call: Callable[..., object], *values: Any) -> None:
    """Call it on the event loop of a pool, which may be closed by now."""
    with contextlib.suppress(RuntimeError):  # it is closed, perhaps since this moment
        pool.loop.call_soon_threadsafe(call, *values)
