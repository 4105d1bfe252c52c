"""The broker of a case: the development broker in the same loop, or a real one behind proxies.

In memory, time is virtual and a case runs the same way each time. With sockets it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.testing.dialer import BrokerDialer, MemoryConnection, whole
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.addresses import Address
from pulsar_encore.transport.native.connection.session import ByteTransport, Session
from pulsar_encore.transport.native.native_transport import NativeTransport

from ..admin import Admin
from ..histories.proxy import Proxy
from .mischief import End as Ending
from .mischief import Mischief, Step, Stream

#: Largest chunk of chunked content, in bytes.
MOST_BYTES: Final = 14_000
_URL: Final = "pulsar://memory:6650"
_READ: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """The broker's state of a topic's subscription after a case.

    Attributes:
        backlog: Unacked entries.
        consumers: Consumers of the subscription.
        producers: Producers of the topic.
        withheld: True if there is a backlog, none of it was sent, and every consumer has permits.
        has: For each consumer, its permits and its unacked messages.
    """

    backlog: int
    consumers: int
    producers: int
    withheld: bool = False
    has: tuple[tuple[int, int], ...] = ()


class Network(Protocol):
    """A broker and its clients."""

    def topic(self, name: str) -> str:
        """Return the full name of a topic of this network."""

    async def client(self, mischief: Mischief | None = None) -> encore.Client:
        """Create a client over the native transport. Without `mischief` it sends small chunks."""

    async def left(self, topic: str, subscription: str) -> Left:
        """Return the current state of a subscription."""

    async def connections(self) -> int | None:
        """Return the number of connections, or None if the broker has other connections, too."""

    async def close(self) -> None:
        """Close all clients and proxies."""


class _FaultyConnection(MemoryConnection):
    """A connection with faults."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, lines: list[MemoryConnection], mischief: Mischief
    ) -> None:
        super().__init__(loop, whole, lines)
        self._streams = {True: Stream(mischief, "in"), False: Stream(mischief, "out")}
        self._steps: dict[bool, deque[Step]] = {True: deque(), False: deque()}
        self._pumping = {True: False, False: False}
        self._stalled = False

    def carry(self, data: bytes, *, to_broker: bool) -> None:
        self._steps[to_broker].extend(self._streams[to_broker].feed(data))
        if not self._pumping[to_broker]:
            self._pumping[to_broker] = True
            self._loop.call_soon(self._pump, to_broker)

    def _pump(self, to_broker: bool) -> None:
        """Take the next step of a direction: one in each pass of the loop."""
        steps = self._steps[to_broker]
        if not steps or self._stalled:
            self._pumping[to_broker] = False
            return
        step = steps.popleft()
        if isinstance(step, float):
            self._loop.call_later(step, self._pump, to_broker)
            return
        if isinstance(step, bytes):
            self._arrive(step, to_broker)
        elif step is Ending.CUT:
            self.cut()
        else:
            self._stalled = True
        self._loop.call_soon(self._pump, to_broker)


class _FaultyDialer:
    """A `Dialer` to the broker of `dialer` over faulty connections."""

    make_codecs = BrokerDialer.make_codecs

    def __init__(self, dialer: BrokerDialer, mischief: Mischief) -> None:
        self._dialer = dialer
        self._mischief = mischief

    async def dial(
        self, address: Address, make: Callable[[ByteTransport], Session], timeout_s: float
    ) -> Session:
        await asyncio.sleep(0)
        dialer = self._dialer
        connection = _FaultyConnection(asyncio.get_running_loop(), dialer.lines, self._mischief)
        return dialer.connect(connection, address, make)


class Memory:
    """The development broker without sockets (`Network`), for a loop in virtual time."""

    def __init__(self) -> None:
        settings = BrokerSettings(
            max_message_size=MOST_BYTES, failover_delay_ms=50, rewind_overtaken=0.5, record=False
        )
        self._dialer = BrokerDialer(settings)

    def topic(self, name: str) -> str:
        return f"persistent://public/default/{name}"

    async def client(self, mischief: Mischief | None = None) -> encore.Client:
        dialer = self._dialer if mischief is None else _FaultyDialer(self._dialer, mischief)
        return encore.Client(_URL, transport=NativeTransport(_URL, ClientSettings(), dialer=dialer))

    async def left(self, topic: str, subscription: str) -> Left:
        state = self._dialer.service.catalogue.topic(topic)
        found = state.subscriptions[subscription]
        return Left(
            backlog=found.backlog,
            consumers=len(found.consumers),
            producers=len(state.producers.ready),
        )

    async def connections(self) -> int | None:
        return len(self._dialer.lines)

    async def close(self) -> None:
        self._dialer.drop()


class Sockets:
    """A real broker behind proxies (`Network`).

    Args:
        url: Its service URL.
        admin: Its admin API.
    """

    #: A connection is closed after two silent intervals, in s. The short interval keeps a case
    #: under a minute.
    keep_alive_s: Final = 1.0

    def __init__(self, url: str, admin: Admin) -> None:
        self._url = url
        self._admin = admin
        self._chunking_proxy: Proxy | None = None
        self._proxies: list[FaultProxy] = []

    def topic(self, name: str) -> str:
        return f"persistent://public/default/{name}"

    async def client(self, mischief: Mischief | None = None) -> encore.Client:
        if mischief is None:
            if self._chunking_proxy is None:
                self._chunking_proxy = Proxy(self._url, max_message_size=MOST_BYTES)
                await self._chunking_proxy.start()
            url = self._chunking_proxy.url
        else:
            proxy = FaultProxy(self._url, mischief)
            await proxy.start()
            self._proxies.append(proxy)
            url = proxy.url
        settings = ClientSettings(keep_alive_s=self.keep_alive_s, operation_timeout_s=5.0)
        return encore.Client(url, transport=NativeTransport(url, settings))

    async def left(self, topic: str, subscription: str) -> Left:
        stats: dict[str, Any] = await asyncio.to_thread(self._admin.stats, topic)
        found = stats["subscriptions"][subscription]
        consumers, backlog = found["consumers"], int(found["msgBacklog"])
        return Left(
            backlog=backlog,
            consumers=len(consumers),
            producers=len(stats["publishers"]),
            withheld=backlog > 0 and bool(consumers) and all(map(_is_withheld, consumers)),
            has=tuple((each["availablePermits"], each["unackedMessages"]) for each in consumers),
        )

    async def connections(self) -> int | None:
        return None

    async def close(self) -> None:
        for proxy in self._proxies:
            await proxy.close()
        if self._chunking_proxy is not None:
            await self._chunking_proxy.close()


def _is_withheld(consumer: Mapping[str, Any]) -> bool:
    """True if the statistics of a consumer show no reason why the broker sends it no messages."""
    return (
        consumer["availablePermits"] > 0
        and not consumer["unackedMessages"]
        and not consumer["blockedConsumerOnUnackedMsgs"]
    )


class FaultProxy:
    """A proxy with faults between a client and a broker, on a free loopback port.

    Args:
        url: The broker's service URL.
        mischief: The faults. `start` sets its `broker_url` to the proxy's.
    """

    def __init__(self, url: str, mischief: Mischief) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6650)
        self._mischief = mischief
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url: str = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        self.url = f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._mischief.broker_url = self.url

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _on_connection(
        self, client: asyncio.StreamReader, answers: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        stalled = asyncio.Event()
        try:
            broker, requests = await asyncio.open_connection(*self._target)
            up = self._forward(Stream(self._mischief, "in"), client, requests, stalled)
            down = self._forward(Stream(self._mischief, "out"), broker, answers, stalled)
            directions = [asyncio.ensure_future(up), asyncio.ensure_future(down)]
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in directions:
                    each.cancel()
                await asyncio.gather(*directions, return_exceptions=True)
                requests.transport.abort()
        except OSError:
            pass  # the broker closed the connection, so the client's is closed too
        finally:
            answers.transport.abort()

    async def _forward(
        self,
        stream: Stream,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        stalled: asyncio.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ):
                if stalled.is_set():
                    continue
                for step in stream.feed(data):
                    if isinstance(step, float):
                        await asyncio.sleep(step)
                    elif isinstance(step, bytes):
                        if not stalled.is_set():
                            writer.write(step)
                            await writer.drain()
                    elif step is Ending.CUT:
                        await _flush_and_close(writer)
                        return
                    else:
                        stalled.set()


async def _flush_and_close(writer: asyncio.StreamWriter) -> None:
    """Close the connection and wait until the peer can have read everything."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
