"""Where a case is played: the development broker in the same loop, or a real one behind proxies.

Owns `Network` and its two kinds. In memory time is virtual and a case is the same each time; with
sockets it is as real as it gets.
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
from pulsar_encore.devbroker.session import Session as BrokerSession
from pulsar_encore.testing.dialer import BrokerDialer, ConnectionEnd, MemoryConnection, whole
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.addresses import Address
from pulsar_encore.transport.native.connection.session import ByteTransport, Session
from pulsar_encore.transport.native.native_transport import NativeTransport

from ..admin import Admin
from ..histories.proxy import Proxy
from .mischief import End as Ending
from .mischief import Mischief, Step, Stream

#: What a message is cut into for chunked content, in bytes.
MOST_BYTES: Final = 14_000
_URL: Final = "pulsar://memory:6650"
_READ: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """What a broker has of a topic's subscription after a case.

    Attributes:
        backlog: Entries that are not acked.
        consumers: Of the subscription.
        producers: Of the topic.
        withheld: There is a backlog, all of it is with the broker, and every consumer has permits.
        has: Of each consumer the permits it gave, and what it has not acked.
    """

    backlog: int
    consumers: int
    producers: int
    withheld: bool = False
    has: tuple[tuple[int, int], ...] = ()


class Network(Protocol):
    """A broker, and clients of it."""

    def topic(self, name: str) -> str:
        """Full name of a topic of this network."""

    async def client(self, mischief: Mischief | None = None) -> encore.Client:
        """A client over the native transport; without mischief it cuts large messages small."""

    async def left(self, topic: str, subscription: str) -> Left:
        """What there is now."""

    async def connections(self) -> int | None:
        """Connections that the broker has; None where it has others than ours."""

    async def close(self) -> None:
        """End everything."""


class _FaultyLine(MemoryConnection):
    """A connection on which things go wrong."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, lines: list[MemoryConnection], mischief: Mischief
    ) -> None:
        super().__init__(loop, whole, lines)
        self._streams = {True: Stream(mischief, "in"), False: Stream(mischief, "out")}
        self._waiting: dict[bool, deque[Step]] = {True: deque(), False: deque()}
        self._pumping = {True: False, False: False}
        self._stalled = False

    def carry(self, data: bytes, *, to_broker: bool) -> None:
        self._waiting[to_broker].extend(self._streams[to_broker].feed(data))
        if not self._pumping[to_broker]:
            self._pumping[to_broker] = True
            self._loop.call_soon(self._pump, to_broker)

    def _pump(self, to_broker: bool) -> None:
        """The next step of a direction; one in each turn of the loop."""
        waiting = self._waiting[to_broker]
        if not waiting or self._stalled:
            self._pumping[to_broker] = False
            return
        step = waiting.popleft()
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
    """Connects to the broker of `dialer` by lines on which things go wrong (`Dialer`)."""

    make_codecs = BrokerDialer.make_codecs

    def __init__(self, dialer: BrokerDialer, mischief: Mischief) -> None:
        self._dialer = dialer
        self._mischief = mischief

    async def dial(
        self, address: Address, make: Callable[[ByteTransport], Session], timeout_s: float
    ) -> Session:
        await asyncio.sleep(0)
        line = _FaultyLine(asyncio.get_running_loop(), self._dialer.lines, self._mischief)
        line.client = make(ConnectionEnd(line, to_broker=True))
        line.broker = BrokerSession(
            self._dialer.service,
            ConnectionEnd(line, to_broker=False),
            url=str(address),
            address="/memory:2",
        )
        self._dialer.lines.append(line)
        return line.client


class Memory:
    """The development broker without sockets (`Network`); for a loop in virtual time."""

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

    #: A peer that is silent for two of these is given up; a case should not last a minute.
    keep_alive_s: Final = 1.0

    def __init__(self, url: str, admin: Admin) -> None:
        self._url = url
        self._admin = admin
        self._cutting: Proxy | None = None
        self._proxies: list[FaultProxy] = []

    def topic(self, name: str) -> str:
        return f"persistent://public/default/{name}"

    async def client(self, mischief: Mischief | None = None) -> encore.Client:
        if mischief is None:
            if self._cutting is None:
                self._cutting = Proxy(self._url, max_message_size=MOST_BYTES)
                await self._cutting.start()
            url = self._cutting.url
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
            withheld=backlog > 0 and bool(consumers) and all(map(_could_get, consumers)),
            has=tuple((each["availablePermits"], each["unackedMessages"]) for each in consumers),
        )

    async def connections(self) -> int | None:
        return None

    async def close(self) -> None:
        for proxy in self._proxies:
            await proxy.close()
        if self._cutting is not None:
            await self._cutting.close()


def _could_get(consumer: Mapping[str, Any]) -> bool:
    """Whether nothing but the broker keeps messages from a consumer, by its statistics."""
    return (
        consumer["availablePermits"] > 0
        and not consumer["unackedMessages"]
        and not consumer["blockedConsumerOnUnackedMsgs"]
    )


class FaultProxy:
    """Between a client and a broker, on a free loopback port: things go wrong as told.

    Args:
        url: The broker's service URL.
        mischief: What goes wrong; it comes to name the proxy in answers to lookups.
    """

    def __init__(self, url: str, mischief: Mischief) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6650)
        self._mischief = mischief
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url: str = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.url = f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._mischief.broker_url = self.url

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        stalled = asyncio.Event()
        try:
            broker, requests = await asyncio.open_connection(*self._target)
            up = self._pass(Stream(self._mischief, "in"), client, requests, stalled)
            down = self._pass(Stream(self._mischief, "out"), broker, answers, stalled)
            directions = [asyncio.ensure_future(up), asyncio.ensure_future(down)]
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in directions:
                    each.cancel()
                await asyncio.gather(*directions, return_exceptions=True)
                requests.transport.abort()
        except OSError:
            pass  # the broker is gone, and so is the client now
        finally:
            answers.transport.abort()

    async def _pass(
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
                        await _flushed(writer)
                        return
                    else:
                        stalled.set()


async def _flushed(writer: asyncio.StreamWriter) -> None:
    """Wait until the other side can have read what was written."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
