"""Producers of the transport in memory.

Owns `MemoryProducer`: one entry for each message, stored before the next turn of the loop unless a
fault says otherwise. What a lost connection took is sent again; what nobody answers fails after
`send_timeout_millis`. Batches are made by `MemoryTransport.put`, so that a test decides what shares
an entry.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Sequence

from ..devbroker.rules.refusal import Refusal
from ..errors import ClosedError, EncoreError, TransportTimeout
from ..exceptions import named
from ..ids import MessageId
from ..options import ProducerOptions
from ..outgoing import Outgoing
from .cluster import MemoryCluster
from .commands import MemoryMessage


class MemoryProducer:
    """A `ProducerLink`; made by `MemoryTransport.create_producer`."""

    def __init__(
        self, cluster: MemoryCluster, options: ProducerOptions, topics: Sequence[str], name: str
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._name = options.producer_name or name
        initial = options.initial_sequence_id
        self._sequence_id = -1 if initial is None else initial
        self._timeout_s = options.send_timeout_millis / 1000 or None
        self._pending: dict[asyncio.Future[MessageId], tuple[str, MemoryMessage, Outgoing]] = {}
        self._turn = 0
        self._closed = False
        cluster.producers.append(self)

    @property
    def topic(self) -> str:
        return self._topics[0].rpartition("-partition-")[0] or self._topics[0]

    @property
    def producer_name(self) -> str:
        return self._name

    @property
    def last_sequence_id(self) -> int:
        return self._sequence_id

    def is_connected(self) -> bool:
        return self._cluster.connected and not self._closed

    def publish(self, message: Outgoing) -> Awaitable[MessageId]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[MessageId] = loop.create_future()
        try:
            if self._closed:
                raise ClosedError("the producer was closed")
            self._cluster.check_connected()
        except EncoreError as error:
            done.set_exception(error)
            return done
        topic = self._choose(message.partition_key)
        stored = MemoryMessage(
            message.payload,
            producer=self._name,
            event_ms=message.event_timestamp or 0,
            key=message.partition_key or "",
            ordering=message.ordering_key or "",
            attributes=dict(message.properties or {}),
        )
        self._pending[done] = (topic, stored, message)
        self._send(done)
        if not done.done() and self._timeout_s is not None:
            late = TransportTimeout(f"no answer in {self._timeout_s} s (send_timeout_millis)")
            timer = loop.call_later(self._timeout_s, _fail, done, late)
            done.add_done_callback(lambda _: timer.cancel())
        done.add_done_callback(self._pending.pop)
        return done

    def send_again(self) -> None:
        """What was not answered on the connection before."""
        for done in list(self._pending):
            self._send(done)

    def _send(self, done: asyncio.Future[MessageId]) -> None:
        topic, stored, message = self._pending[done]
        generation = self._cluster.generation

        def carry_out() -> None:
            if generation != self._cluster.generation:
                return
            entry = self._cluster.store(
                topic,
                [stored],
                key=message.ordering_key or message.partition_key or "",
                deliver_at_ms=message.deliver_at or 0,
            )
            self._sequence_id += 1
            if message.sequence_id is not None:
                self._sequence_id = message.sequence_id
            partition = self._cluster.state(topic).log.partition
            if not done.done():
                done.set_result(MessageId(partition, entry.ledger, entry.entry, topic=stored.topic))

        try:
            self._cluster.command("SEND", topic, "", message, carry_out)
        except Refusal as error:
            _fail(done, named(error.code, error.message))
        except EncoreError as error:
            _fail(done, error)

    def _choose(self, key: str | None) -> str:
        if key is not None:
            return self._topics[zlib.crc32(key.encode()) % len(self._topics)]
        self._turn += 1
        return self._topics[self._turn % len(self._topics)]

    async def flush(self) -> None:
        """Wait for what a fault holds up; everything else is stored."""
        pending = list(self._pending)
        if pending:
            await asyncio.wait(pending)
        for done in pending:
            if not done.cancelled():
                done.result()

    async def close(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Close at once; calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._cluster.producers.remove(self)
            for done in list(self._pending):
                _fail(done, ClosedError("the producer was closed"))


def _fail(done: asyncio.Future[MessageId], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
