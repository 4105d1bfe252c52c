"""Consumers and readers whose messages wait for the schema they were written with.

Owns the waiting: in order, before anything is queued, so that an ordered subscription stays
ordered; bounded, because what waits was not consumed. A version that cannot be fetched stops
nothing: its messages are handed out, and only their values are errors.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections import deque
from collections.abc import Container, Sequence

import _pulsar

from ...errors import ClosedError
from ...ids import MessageId
from ...options import ConsumerOptions
from ..base import Delivery, Sink
from .consumer import StockConsumer
from .reader import StockReader
from .schema_versions import SchemaVersions, Version


class _Gate:
    """A `Sink` before the consumer's, where deliveries wait for their schema versions."""

    def __init__(self, link: VersionedConsumer, versions: SchemaVersions, sink: Sink) -> None:
        self._link = link
        self._versions = versions
        self._sink = sink
        self._held: deque[tuple[Version | None, Delivery]] = deque()
        self._fetching: asyncio.Task[None] | None = None

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            topic, _ = self._link.topic_of(each.source)
            version, each.messages = self._versions.view(topic, each.messages)
            self._held.append((version, each))
        if self._fetching is None:
            self._pass_on()

    def _pass_on(self) -> None:
        """Hand over up to the first whose version is to be fetched, and fetch that."""
        held, ready = self._held, []
        while held and not self._versions.lacks(held[0][0]):
            ready.append(held.popleft()[1])
        version = held[0][0] if held else None
        if version is not None:
            self._fetching = asyncio.create_task(self._fetch(version))
        if ready:
            self._sink.on_deliveries(ready)

    async def _fetch(self, version: Version) -> None:
        await self._versions.fetch(version)
        self._fetching = None
        self._pass_on()

    def drop(self) -> list[Delivery]:
        """Forget what waits; it comes again, or is void."""
        dropped = [delivery for _, delivery in self._held]
        self._held.clear()
        for delivery in dropped:
            self._link.consumed(delivery.source, len(delivery.messages))
        return dropped

    def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
        self._held.clear()

    def on_connected(self, only: Container[int] | None = None) -> None:
        self._sink.on_connected(only)

    def on_disconnected(self, only: Container[int] | None = None) -> None:
        self.drop()
        self._sink.on_disconnected(only)

    def on_doubtful(self, only: Container[int] | None = None) -> None:
        self._sink.on_doubtful(only)

    def on_asked_all(self, unseen: Sequence[Delivery], only: Container[int] | None = None) -> None:
        self._sink.on_asked_all(unseen, only)

    def on_sought(self, only: Container[int] | None = None) -> None:
        self.drop()
        self._sink.on_sought(only)

    def on_failed(self, error: Exception) -> None:
        self._sink.on_failed(error)


class VersionedConsumer(StockConsumer):
    """A `StockConsumer` of a schema with versions."""

    def __init__(
        self,
        native: _pulsar.Consumer,
        options: ConsumerOptions,
        versions: SchemaVersions,
        *,
        several: bool = False,
    ) -> None:
        super().__init__(native, options, several=several)
        self._versions = versions
        self._gate: _Gate | None = None

    def start(self, sink: Sink) -> None:
        self._gate = _Gate(self, self._versions, sink)
        super().start(self._gate)

    def redeliver_all(self, source: int | None = None) -> None:
        super().redeliver_all(source)
        if self._gate is not None:  # from before the rewind, which brings it again, in order
            unseen = self._gate.drop()
            if self._options.shared:
                self._gate.on_asked_all(unseen)

    def _stop(self) -> None:
        if self._gate is not None:
            self._gate.close()
        super()._stop()


class VersionedReader:
    """A `ReaderLink` before a `StockReader`, of a schema with versions."""

    def __init__(self, link: StockReader, versions: SchemaVersions) -> None:
        self._link = link
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._versions = versions
        self._held: tuple[Version | None, Delivery] | None = None
        self._turn = asyncio.Lock()  # in order, whoever waits

    @property
    def topic(self) -> str:
        return self._link.topic

    def is_connected(self) -> bool:
        return self._link.is_connected()

    def topic_of(self, source: int) -> str:
        return self._link.topic_of(source)

    async def read_next(self, timeout_ms: int | None) -> Delivery | None:
        loop = asyncio.get_running_loop()
        deadline = None if timeout_ms is None else loop.time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            return None
        try:
            return await self._read(deadline)
        finally:
            self._turn.release()

    async def _read(self, deadline: float | None) -> Delivery | None:
        """What is taken from the link is held until its version is here, whoever asked for it."""
        loop = asyncio.get_running_loop()
        while True:
            if self._held is None:
                left = None if deadline is None else max(0, int((deadline - loop.time()) * 1000))
                delivery = await self._link.read_next(left)
                if delivery is None:
                    return None
                topic = self._link.topic_of(delivery.source)
                version, delivery.messages = self._versions.view(topic, delivery.messages)
                self._held = version, delivery
            version, delivery = self._held
            if version is None or not self._versions.lacks(version):
                self._held = None
                return delivery
            fetching = asyncio.ensure_future(self._versions.fetch(version))
            try:
                left_s = None if deadline is None else max(0.0, deadline - loop.time())
                done, _ = await asyncio.wait(
                    (fetching, self._closed), timeout=left_s, return_when=FIRST_COMPLETED
                )
            finally:
                fetching.cancel()  # of the waiting alone
            if self._closed.done():
                raise ClosedError("the reader was closed")
            if not done:
                return None

    async def has_message_available(self) -> bool:
        return self._held is not None or await self._link.has_message_available()

    async def seek(self, position: MessageId | int) -> None:
        await self._link.seek(position)
        self._held = None

    async def close(self) -> None:
        self._end()
        await self._link.close()

    def abandon(self) -> None:
        self._end()
        self._link.abandon()

    def _end(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
