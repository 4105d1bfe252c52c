"""The development broker: listens, and does to its clients what tests ask for.

In memory; loopback unless told otherwise. Not for production, and its start-up line says so.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

from ..errors import ClosedError, ConfigurationError
from ..exceptions import ConnectError
from .clock import LoopClock
from .connection import Connection
from .recorder import Recorded, check_command
from .rules.faults import FaultPlan
from .rules.refusal import Refusal, missing_subscription
from .rules.subscriptions import Subscription
from .service import BrokerService
from .settings import BrokerSettings

CLOSING_TURNS = 100

log: logging.Logger = logging.getLogger("pulsar_encore.devbroker")


class Broker:
    """A broker on the running event loop; use it as an async context manager.

    Args:
        settings: See `BrokerSettings`; the default behaves like Pulsar.
        faults: What goes wrong, by step; can be set later too.
    """

    def __init__(
        self, settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
    ) -> None:
        self.settings: BrokerSettings = settings or BrokerSettings()
        self.port: int = self.settings.port
        self._faults = faults
        self._service: BrokerService | None = None
        self._sockets: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._resume: asyncio.TimerHandle | None = None
        self._resuming: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            ConnectError: The address cannot be had.
        """
        clock = LoopClock(asyncio.get_running_loop())
        self._service = BrokerService(self.settings, clock, self.outage)
        self._service.faults = self._faults
        await self._listen()
        log.warning("development broker, in memory, not for production: listening on %s", self.url)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        service, sockets = self.service, self._sockets
        try:
            self._server = await loop.create_server(
                lambda: Connection(service, sockets), self.settings.host, self.port
            )
        except OSError as error:
            raise ConnectError(
                f"cannot listen on {self.settings.host}:{self.port}: {error.strerror}; "
                "choose another port or 0",
                retryable=False,
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def service(self) -> BrokerService:
        """What the sessions share.

        Raises:
            ClosedError: The broker does not run.
        """
        if self._service is None:
            raise ClosedError("the broker was not started, or was closed")
        return self._service

    @property
    def url(self) -> str:
        """What clients connect to."""
        host = self.settings.host
        if host in ("", "0.0.0.0", "::"):
            host = "127.0.0.1"
        return f"pulsar://[{host}]:{self.port}" if ":" in host else f"pulsar://{host}:{self.port}"

    async def aclose(self) -> None:
        """Close every connection and stop; topics are gone."""
        service, self._service = self._service, None
        if service is None:
            return
        self._cancel_resume()
        if self._resuming is not None:
            await asyncio.gather(self._resuming, return_exceptions=True)
        self._stop_listening()
        service.scheduler.close()
        for connection in list(self._sockets):
            connection.session.abort()
        for _ in range(CLOSING_TURNS):
            if self._sockets:
                await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    # Faults

    @property
    def faults(self) -> FaultPlan | None:
        """The fault plan in force; assigning one starts its count."""
        return self._faults

    @faults.setter
    def faults(self, plan: FaultPlan | None) -> None:
        self._faults = plan
        if self._service is not None:
            self._service.faults = plan

    def drop_connections(self) -> int:
        """Abort every connection, as a network failure does; returns how many."""
        sessions = list(self.service.sessions)
        for session in sessions:
            session.abort()
        return len(sessions)

    def outage(self, seconds: float | None = None) -> None:
        """Refuse connections, for so many seconds or until `resume`; topics are kept."""
        self._cancel_resume()
        self._stop_listening()
        self.drop_connections()
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._resume = loop.call_later(seconds, self._resume_soon)

    def _resume_soon(self) -> None:
        self._resuming = asyncio.get_running_loop().create_task(self.resume())

    async def resume(self) -> None:
        """End an outage: listen again on the same port."""
        self._cancel_resume()
        if self._server is None and self._service is not None:
            await self._listen()

    def _cancel_resume(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None

    def _stop_listening(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    # Administration

    def create_topic(self, topic: str) -> None:
        """Create a topic without partitions."""
        self.service.catalogue.create(topic)

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic, or let one grow."""
        self.service.catalogue.create_partitioned(topic, partitions)

    def topics(self) -> list[str]:
        """Full names of all topics and partitions."""
        return sorted(self.service.catalogue.topics)

    def unload(self, topic: str) -> None:
        """Unload a topic: all its users are closed; counts and partial acks are lost."""
        for state in self.service.catalogue.states(topic):
            self.service.unload(state)

    def terminate(self, topic: str) -> None:
        """Accept no more messages on a topic."""
        for state in self.service.catalogue.states(topic):
            self.service.terminate(state)

    def subscription(self, topic: str, name: str) -> Subscription | None:
        """A subscription of one topic or partition, to look at; None when there is none."""
        return self.service.catalogue.topic(topic, create=False).subscriptions.get(name)

    def backlog(self, topic: str, subscription: str) -> int:
        """Entries not acked, over all partitions.

        Raises:
            ConfigurationError: There is no such topic or subscription.
        """
        try:
            states = self.service.catalogue.states(topic)
        except Refusal as refusal:
            raise ConfigurationError(f"no backlog of {topic!r}: {refusal.message}") from refusal
        found = [s.subscriptions[subscription] for s in states if subscription in s.subscriptions]
        if not found:
            known = {name for state in states for name in state.subscriptions}
            raise missing_subscription(topic, subscription, known)
        return sum(one.backlog for one in found)

    # The record

    @property
    def commands(self) -> list[Recorded]:
        """Every command on the wire, oldest first."""
        return self.recorded()

    def recorded(self, name: str | None = None, direction: str | None = None) -> list[Recorded]:
        """Commands on the wire, of one type (``"ACK"``) and direction (``"in"``, ``"out"``).

        Raises:
            ConfigurationError: The protocol has no such command, or there is no such direction.
        """
        if name is not None:
            check_command(name)
        if direction not in (None, "in", "out"):
            raise ConfigurationError(f'direction must be "in", "out" or None, got {direction!r}')
        recorder = self.service.recorder
        return recorder.find(name, direction) if recorder is not None else []

    def forget_commands(self) -> None:
        """Empty the record."""
        if self.service.recorder is not None:
            self.service.recorder.clear()
