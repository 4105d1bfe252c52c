"""A broker on its own thread, for callers that block or run their own event loop.

Every method runs on the broker's loop and returns when it is done. No method waits for a client.
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
    """A development broker for any thread; a context manager, also for ``async with``.

    A refused call, for instance for a missing topic, raises `EncoreError` with the protocol's name
    of the error.

    Args:
        settings: See `BrokerSettings`.
        faults: Faults to inject.

    Raises:
        TransportError: from `start`, if the broker cannot listen on the address.

    Example:
        ::

            with BrokerThread(BrokerSettings(auto_create_partitions=4)) as broker:
                print(broker.url)
    """

    def __init__(
        self, settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
    ) -> None:
        self.broker: Broker = Broker(settings, faults=faults)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        """Start the thread, and return when clients can connect. A second call does nothing."""
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
        """Close every connection and end the thread. A second call does nothing."""
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
        """Run a function with the broker on its loop, for operations without a method here.

        Raises:
            ClosedError: if the broker is not running.
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
        """The service URL."""
        return self.broker.url

    @property
    def url_tls(self) -> str:
        """The service URL for TLS.

        Raises:
            ConfigurationError: if `BrokerSettings.tls` is not set.
        """
        return self.broker.url_tls

    @property
    def port(self) -> int:
        """The port, which an outage keeps."""
        return self.broker.port

    @property
    def settings(self) -> BrokerSettings:
        return self.broker.settings

    @property
    def faults(self) -> FaultPlan | None:
        """The active fault plan. Setting it starts its count."""
        return self.broker.faults

    @faults.setter
    def faults(self, plan: FaultPlan | None) -> None:
        self.call(lambda broker: setattr(broker, "faults", plan))

    def drop_connections(self) -> int:
        """Abort every connection, like a network failure; return their number."""
        return self.call(lambda broker: broker.drop_connections())

    def outage(self, seconds: float | None = None) -> None:
        """Refuse connections for `seconds`, or until `resume`. Topics are kept."""
        self.call(lambda broker: broker.outage(seconds))

    def resume(self) -> None:
        """End an outage: listen on the same port again."""
        self._await(self.broker.resume())

    def create_topic(self, topic: str) -> None:
        """Create a topic without partitions."""
        self.call(lambda broker: broker.create_topic(topic))

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic, or add partitions."""
        self.call(lambda broker: broker.create_partitioned_topic(topic, partitions))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with all its partitions, and close its users."""
        self.call(lambda broker: broker.delete_topic(topic))

    def topics(self) -> list[str]:
        """Return the full names of all topics and partitions."""
        return self.call(lambda broker: broker.topics())

    def unload(self, topic: str) -> None:
        """Unload a topic: close its users and lose redelivery counts and partial acks."""
        self.call(lambda broker: broker.unload(topic))

    def terminate(self, topic: str) -> None:
        """Accept no more messages on a topic."""
        self.call(lambda broker: broker.terminate(topic))

    def backlog(self, topic: str, subscription: str) -> int:
        """Return the number of entries not fully acked, over all partitions.

        Raises:
            ConfigurationError: if the topic or subscription does not exist.
        """
        return self.call(lambda broker: broker.backlog(topic, subscription))

    @property
    def commands(self) -> list[Recorded]:
        """All recorded commands, oldest first."""
        return self.recorded()

    def recorded(self, name: str | None = None, direction: str | None = None) -> list[Recorded]:
        """Return recorded commands of one type (``"ACK"``) and direction (``"in"``, ``"out"``).

        Raises:
            ConfigurationError: if there is no such command or direction.
        """
        return self.call(lambda broker: broker.recorded(name, direction))

    def forget_commands(self) -> None:
        """Delete the recorded commands."""
        self.call(lambda broker: broker.forget_commands())


def run_in_thread(
    settings: BrokerSettings | None = None, *, faults: FaultPlan | None = None
) -> BrokerThread:
    """Start a broker on its own thread. End it with `close` or a ``with`` block."""
    return BrokerThread(settings, faults=faults).start()
