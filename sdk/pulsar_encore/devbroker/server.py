"""The development broker: listening sockets, administration and faults. Not for production."""

from __future__ import annotations

import asyncio
import logging
import ssl
from types import TracebackType
from typing import Self

from ..errors import ClosedError, ConfigurationError, ConnectError
from ..options.checks import check_choice
from .broker_service import BrokerService
from .broker_settings import BrokerSettings, TlsSettings
from .clock import LoopClock
from .connection import Connection, url_of
from .recorder import Recorded, check_command
from .rules.faults import FaultPlan
from .rules.refusal import Refusal, missing_subscription
from .rules.subscriptions import Subscription

CLOSING_TURNS = 100

log: logging.Logger = logging.getLogger("pulsar_encore.devbroker")


class Broker:
    """A broker on the running event loop; use it as an async context manager.

    Args:
        settings: See `BrokerSettings`. The default behaves like Pulsar.
        faults: Faults to inject. They can also be set later.

    Example:
        ::

            async with Broker(BrokerSettings(port=6650)) as broker:
                print(broker.url)
    """

    def __init__(
        self, settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
    ) -> None:
        self.settings: BrokerSettings = settings or BrokerSettings()
        self.port: int = self.settings.port
        self._faults = faults
        self._service: BrokerService | None = None
        self._sockets: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._tls_port = self.settings.tls.port if self.settings.tls is not None else None
        self._resume: asyncio.TimerHandle | None = None
        self._resuming: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            ConnectError: if the broker cannot listen on the address.
            ConfigurationError: if a file of `TlsSettings` is missing or invalid.
        """
        clock = LoopClock(asyncio.get_running_loop())
        self._service = BrokerService(self.settings, clock, self.outage)
        self._service.faults = self._faults
        await self._listen()
        urls = self.url if self._tls_port is None else f"{self.url} and {self.url_tls}"
        log.warning("development broker, in memory, not for production: listening on %s", urls)

    async def _listen(self) -> None:
        tls = self.settings.tls
        context = None if tls is None else _context(tls)
        try:
            self.port = await self._listen_on(self.port)
            if self._tls_port is not None:
                self._tls_port = await self._listen_on(self._tls_port, context)
        except ConnectError:
            self._stop_listening()
            raise

    async def _listen_on(self, port: int, context: ssl.SSLContext | None = None) -> int:
        loop = asyncio.get_running_loop()
        service, sockets = self.service, self._sockets
        try:
            server = await loop.create_server(
                lambda: Connection(service, sockets), self.settings.host, port, ssl=context
            )
        except OSError as error:
            raise ConnectError(
                f"cannot listen on {self.settings.host}:{port}: {error.strerror}; "
                "choose another port or 0",
                retryable=False,
            ) from error
        self._servers.append(server)
        number: int = server.sockets[0].getsockname()[1]
        return number

    @property
    def service(self) -> BrokerService:
        """The shared state of the sessions, while the broker runs."""
        if self._service is None:
            raise ClosedError("the broker was not started, or was closed")
        return self._service

    @property
    def url(self) -> str:
        """The service URL."""
        return url_of("pulsar", self._reachable_host, self.port)

    @property
    def url_tls(self) -> str:
        """The service URL for TLS.

        Raises:
            ConfigurationError: if `BrokerSettings.tls` is not set.
        """
        if self._tls_port is None:
            raise ConfigurationError("no TLS: set BrokerSettings.tls")
        return url_of("pulsar+ssl", self._reachable_host, self._tls_port)

    @property
    def _reachable_host(self) -> str:
        host = self.settings.host
        return "127.0.0.1" if host in ("", "0.0.0.0", "::") else host

    async def aclose(self) -> None:
        """Close every connection and stop. The topics are lost."""
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
                await asyncio.sleep(0)  # an aborted transport closes its socket in the next pass

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

    @property
    def faults(self) -> FaultPlan | None:
        """The active fault plan. Setting it starts its count."""
        return self._faults

    @faults.setter
    def faults(self, plan: FaultPlan | None) -> None:
        self._faults = plan
        if self._service is not None:
            self._service.faults = plan

    def drop_connections(self) -> int:
        """Abort every connection, like a network failure; return their number."""
        sessions = list(self.service.sessions)
        for session in sessions:
            session.abort()
        return len(sessions)

    def outage(self, seconds: float | None = None) -> None:
        """Refuse connections for `seconds`, or until `resume`. Topics are kept."""
        self._cancel_resume()
        self._stop_listening()
        self.drop_connections()
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._resume = loop.call_later(seconds, self._resume_soon)

    def _resume_soon(self) -> None:
        self._resuming = asyncio.get_running_loop().create_task(self.resume())

    async def resume(self) -> None:
        """End an outage: listen on the same port again."""
        self._cancel_resume()
        if not self._servers and self._service is not None:
            await self._listen()

    def _cancel_resume(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None

    def _stop_listening(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    def create_topic(self, topic: str) -> None:
        """Create a topic without partitions."""
        self.service.catalogue.create(topic)

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic, or add partitions."""
        self.service.catalogue.create_partitioned(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its partitions, and close its users."""
        self.service.delete(topic)

    def topics(self) -> list[str]:
        """Return the full names of all topics and partitions."""
        return sorted(self.service.catalogue.topics)

    def unload(self, topic: str) -> None:
        """Unload a topic: close its users and lose redelivery counts and partial acks."""
        for state in self.service.catalogue.states(topic):
            self.service.unload(state)

    def terminate(self, topic: str) -> None:
        """Accept no more messages on a topic."""
        for state in self.service.catalogue.states(topic):
            self.service.terminate(state)

    def subscription(self, topic: str, name: str) -> Subscription | None:
        """Return a subscription of one topic or partition; None if it does not exist."""
        return self.service.catalogue.topic(topic, create=False).subscriptions.get(name)

    def backlog(self, topic: str, subscription: str) -> int:
        """Return the number of entries not fully acked, over all partitions.

        Raises:
            ConfigurationError: if the topic or subscription does not exist.
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

    @property
    def commands(self) -> list[Recorded]:
        """All recorded commands, oldest first."""
        return self.recorded()

    def recorded(self, name: str | None = None, direction: str | None = None) -> list[Recorded]:
        """Return recorded commands of one type (``"ACK"``) and direction (``"in"``, ``"out"``).

        Raises:
            ConfigurationError: if there is no such command or direction.
        """
        if name is not None:
            check_command(name)
        check_choice(direction, "direction", "in", "out", None)
        recorder = self.service.recorder
        return recorder.find(name, direction) if recorder is not None else []

    def forget_commands(self) -> None:
        """Delete the recorded commands."""
        if self.service.recorder is not None:
            self.service.recorder.clear()


def _context(tls: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
        if tls.client_ca_file is not None:
            context.load_verify_locations(tls.client_ca_file)
            required = tls.require_client_certificate
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except OSError as error:  # includes SSLError
        raise ConfigurationError(f"{tls}: {error}") from error
    return context
