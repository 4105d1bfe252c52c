"""The cluster that a client uses, and when the client moves to another.

A move closes the connections to the old cluster. Consumers and producers attach again in the new
one, and acks and messages in flight are uncertain as after any loss.
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

LOG_NAME: Final = "pulsar_encore.connection"


class Clusters(Protocol):
    def initial_service(self) -> ClusterService:
        """Return the cluster that a new connection pool begins with."""

    def manage(self, pool: ConnectionPool) -> None:
        """Move a connection pool between clusters until `close`. Called on its loop."""

    def close(self) -> None:
        """Stop moving pools."""


class OneCluster:
    """A single cluster."""

    def __init__(self, service: ClusterService) -> None:
        self._service = service

    def initial_service(self) -> ClusterService:
        return self._service

    def manage(self, pool: ConnectionPool) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Failover:
    """The first cluster that answers; the preferred one again once it recovers.

    A probe succeeds if the broker accepts the connection and completes the handshake. Each event
    loop probes for itself.

    Args:
        services: In the order of preference.
        check_s: Time between probes, in s.
        failures: Failed probes in a row after which the client leaves a cluster.
        successes: Successful probes of the first cluster in a row after which it returns.
    """

    def __init__(
        self, services: list[ClusterService], *, check_s: float, failures: int, successes: int
    ) -> None:
        self.services = services
        self.check_s = check_s
        self.failures = failures
        self.successes = successes
        self._tasks: dict[asyncio.Task[None], ConnectionPool] = {}

    def initial_service(self) -> ClusterService:
        return self.services[0]

    def manage(self, pool: ConnectionPool) -> None:
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
                log = pool.settings.logger_of(LOG_NAME)
                log.warning("moving from cluster %s to %s", self.services[at], self.services[to])
                at, failed, answered = to, 0, 0
                pool.move(self.services[at])

    async def _find_answering(self, pool: ConnectionPool, at: int) -> int:
        """Return the first other cluster that answers; the current one if none does."""
        for number, service in enumerate(self.services):
            if number != at and await pool.probe(service):
                return number
        return at


class Provided:
    """The cluster that a `ServiceInfoProvider` names.

    Args:
        provider: A provider of this package or of `pulsar-client`, or an object with its methods.
    """

    def __init__(
        self,
        provider: Any,
        understand: Callable[[Any], ClusterService],
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._log = logger_of(LOG_NAME)
        self._provider = provider
        self._make_service = understand
        self._pools: WeakSet[ConnectionPool] = WeakSet()
        self._service = understand(provider.initial_service_info())
        provider.initialize(self._on_service_info)

    def initial_service(self) -> ClusterService:
        return self._service

    def manage(self, pool: ConnectionPool) -> None:
        self._pools.add(pool)
        if pool.service is not self._service:  # it changed meanwhile
            pool.move(self._service)

    def close(self) -> None:
        self._provider.close()

    def _on_service_info(self, info: Any) -> None:
        """Move to another cluster, or raise. The provider calls this on any thread."""
        service = self._make_service(info)
        self._log.warning("moving from cluster %s to %s", self._service, service)
        self._service = service
        for pool in list(self._pools):
            _call_on_loop(pool, pool.move, service)


def _call_on_loop(pool: ConnectionPool, call: Callable[..., object], *values: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        pool.loop.call_soon_threadsafe(call, *values)
