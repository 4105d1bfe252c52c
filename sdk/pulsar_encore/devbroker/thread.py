"""A broker on a thread of its own, for callers that block or have an event loop they want for
themselves.

Every method runs on the broker's loop and returns when it is done there; none waits for a client.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from ..errors import ClosedError
from .broker_settings import BrokerSettings
from .recorder import Recorded
from .rules.faults import FaultPlan
from .server import Broker

T = TypeVar("T")

JOIN_S = 10.0


class BrokerThread:
    """A development broker that any thread may use; a context manager, also for ``async with``.

    What it refuses to do (a topic that is not there, say) raises `EncoreError` with the protocol's
    name for it.

    Args:
        settings: See `BrokerSettings`.
        faults: What goes wrong, by step.

    Raises:
        TransportError: From `start`, when the address cannot be had.
    """

    def __init__(
        self, settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
    ) -> None:
        self.broker: Broker = Broker(settings, faults=faults)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Start the thread and listen; returns once clients can connect. Once is enough."""
        if self._loop is not None:
            return self
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._thread = threading.Thread(target=loop.run_forever, name="devbroker", daemon=True)
        self._thread.start()
        try:
            self._await(self.broker.start())
        except BaseException:
            self._stop()
            raise
        return self

    def close(self) -> None:
        """Close every connection and end the thread; calling it again does nothing."""
        if self._loop is not None:
            self._await(self.broker.aclose())
            self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        thread, self._thread = self._thread, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(JOIN_S)
        loop.close()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise ClosedError("the broker was not started, or was closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(JOIN_S)

    def call(self, work: Callable[[Broker], T]) -> T:
        """Run a function of the broker on its loop, for what has no method here.

        Raises:
            ClosedError: The broker does not run.
        """

        async def run() -> T:
            return work(self.broker)

        return self._await(run())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    @property
    def url(self) -> str:
        """What clients connect to."""
        return self.broker.url

    @property
    def url_tls(self) -> str:
        """What clients connect to by TLS.

        Raises:
            ConfigurationError: It was started without `BrokerSettings.tls`.
        """
        return self.broker.url_tls

    @property
    def port(self) -> int:
        """The port it listens on, kept over an outage."""
        return self.broker.port

    @property
    def settings(self) -> BrokerSettings:
        """The settings it was made with."""
        return self.broker.settings

    @property
    def faults(self) -> FaultPlan | None:
        """The fault plan in force; assigning one starts its count."""
        return self.broker.faults

    @faults.setter
    def faults(self, plan: FaultPlan | None) -> None:
        self.call(lambda broker: setattr(broker, "faults", plan))

    def drop_connections(self) -> int:
        """Abort every connection, as a network failure does; returns how many."""
        return self.call(lambda broker: broker.drop_connections())

    def outage(self, seconds: float | None = None) -> None:
        """Refuse connections, for so many seconds or until `resume`; topics are kept."""
        self.call(lambda broker: broker.outage(seconds))

    def resume(self) -> None:
        """End an outage: listen again on the same port."""
        self._await(self.broker.resume())

    def create_topic(self, topic: str) -> None:
        """Create a topic without partitions."""
        self.call(lambda broker: broker.create_topic(topic))

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic, or let one grow."""
        self.call(lambda broker: broker.create_partitioned_topic(topic, partitions))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, or a partitioned one with all its partitions; who uses it is closed."""
        self.call(lambda broker: broker.delete_topic(topic))

    def topics(self) -> list[str]:
        """Full names of all topics and partitions."""
        return self.call(lambda broker: broker.topics())

    def unload(self, topic: str) -> None:
        """Unload a topic: all its users are closed; counts and partial acks are lost."""
        self.call(lambda broker: broker.unload(topic))

    def terminate(self, topic: str) -> None:
        """Accept no more messages on a topic."""
        self.call(lambda broker: broker.terminate(topic))

    def backlog(self, topic: str, subscription: str) -> int:
        """Entries of a subscription not acked, over all partitions.

        Raises:
            ConfigurationError: There is no such topic or subscription.
        """
        return self.call(lambda broker: broker.backlog(topic, subscription))

    @property
    def commands(self) -> list[Recorded]:
        """Every command on the wire, oldest first."""
        return self.recorded()

    def recorded(self, name: str | None = None, direction: str | None = None) -> list[Recorded]:
        """Commands on the wire, of one type (``"ACK"``) and direction (``"in"``, ``"out"``).

        Raises:
            ConfigurationError: The protocol has no such command, or there is no such direction.
        """
        return self.call(lambda broker: broker.recorded(name, direction))

    def forget_commands(self) -> None:
        """Empty the record."""
        self.call(lambda broker: broker.forget_commands())


def run_in_thread(
    settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
) -> BrokerThread:
    """Start a broker on its own thread; close it with `close` or use it in a ``with``."""
    return BrokerThread(settings, faults=faults).start()
