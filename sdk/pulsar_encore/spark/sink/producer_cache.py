"""The producers of a process, shared by its tasks. Used on the client's event loop.

Producers of numbered rows are closed with their task, because the next task with the same producer
name may run in another process.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable
from random import Random
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from ...client import Client, transport_of
from ...consumer.forwarding.copy_options import Destination, producer_options
from ...errors import EncoreError, NotSupportedError, ProducerBusy
from ...eventloop.shielded_work import shielded
from ...letters.letter_form import PLAIN
from ...options import PartitionsRoutingMode, ProducerOptions
from ...transport.interface import TransportProducer
from ...transport.versioned.known_schema import KnownSchema
from ...values.backoff import Backoff
from ...wire import pulsar_pb2 as pb
from ...wire.partition_by_key import PartitionRouter
from .sequence_ids import SequenceIds
from .sink_options import Publishing

log: Final = logging.getLogger("pulsar_encore.spark")

_MAX_IDLE: Final = 64  # idle producers that are kept; each occupies a producer name on a broker
_CLOSE_TIMEOUT_S: Final = 5.0  # longest wait for a broker to confirm the close
_BUSY_BACKOFF: Final = Backoff(min_delay=0.05, max_delay=2, jitter=0.2)


class ProducerKind(NamedTuple):
    """The properties that the producers of a write share.

    With `copies`, they send copies of messages. `avro` is the schema that they register, or None.
    """

    publishing: Publishing
    copies: bool
    avro: str | None


class _CachedProducer:
    __slots__ = ("making", "users")

    def __init__(self, making: asyncio.Task[TransportProducer]) -> None:
        self.making = making
        self.users = 0


class ProducerCache:
    def __init__(self, client: Client) -> None:
        self._transport = transport_of(client)
        self._cached: dict[tuple[Destination, ProducerKind], _CachedProducer] = {}
        self._closings: set[asyncio.Task[None]] = set()
        self._rng = Random()

    async def take(self, destination: Destination, kind: ProducerKind) -> TransportProducer:
        """Return the producer of a destination until `give_back` or `drop`."""
        cached = self._cached.pop((destination, kind), None)
        if cached is None:
            cached = _CachedProducer(asyncio.ensure_future(self.make(destination, kind, None)))
        self._cached[destination, kind] = cached  # keeps the dict in the order of the last use
        cached.users += 1
        try:
            return await shielded(cached.making)
        except BaseException:
            cached.users -= 1
            if cached.making.done() and self._cached.get((destination, kind)) is cached:
                del self._cached[destination, kind]
            raise

    def give_back(self, destinations: Iterable[Destination], kind: ProducerKind) -> None:
        for destination in destinations:
            cached = self._cached.get((destination, kind))
            if cached is not None:
                cached.users -= 1
        idle = [key for key, cached in self._cached.items() if cached.users <= 0]
        surplus = max(0, len(idle) - _MAX_IDLE)
        self._close_all(self._cached.pop(key) for key in idle[:surplus])

    async def drop(self, destinations: Iterable[Destination], kind: ProducerKind) -> None:
        """Close the producers of a failed task, so that none of its pending messages is sent."""
        dropped = [self._cached.pop((destination, kind), None) for destination in destinations]
        await _wait_shortly(self._close_all(cached for cached in dropped if cached is not None))

    def _close_all(self, dropped: Iterable[_CachedProducer]) -> list[asyncio.Task[None]]:
        return [self._start(_close_when_created(cached.making)) for cached in dropped]

    def _start(self, closing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(closing)
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)
        return task

    async def close(self, producers: Iterable[TransportProducer]) -> None:
        """Close unshared producers. A close that takes too long continues in the background."""
        await _wait_shortly([self._start(_close(producer)) for producer in producers])

    async def make_numbered(
        self, destination: Destination, kind: ProducerKind, numbering: SequenceIds
    ) -> TransportProducer:
        """Create a producer with a name under which no row of the task is dropped."""
        producer = await self.make(destination, kind, numbering)
        if numbering.follows(producer.last_sequence_id):
            return producer
        log.warning(
            "%s: an earlier attempt at this task had other rows or a failed row, or the query "
            "restarted from an older checkpoint: rows that were stored then are stored twice now, "
            "also under %s",
            destination.topic,
            producer.producer_name,
        )
        await self.close([producer])
        return await self.make(destination, kind, numbering.apart())

    async def make(
        self, destination: Destination, kind: ProducerKind, numbering: SequenceIds | None
    ) -> TransportProducer:
        """Create an unshared producer.

        A name in use is retried until the send timeout, because the connection of a killed worker
        stays open for a moment.
        """
        options = await self._options(destination, kind, numbering)
        timeout_s = kind.publishing.send_timeout_ms / 1000
        deadline = time.monotonic() + timeout_s
        attempt = 0
        while True:
            try:
                return await self._transport.create_producer(options)
            except ProducerBusy as error:
                delay_s = _BUSY_BACKOFF.delay_ms(attempt, self._rng) / 1000
                attempt += 1
                if time.monotonic() + delay_s > deadline:
                    raise ProducerBusy(_busy_text(options, timeout_s, error)) from error
                await asyncio.sleep(delay_s)

    async def _options(
        self, destination: Destination, kind: ProducerKind, numbering: SequenceIds | None
    ) -> ProducerOptions:
        publishing = kind.publishing
        keywords: dict[str, Any] = {
            **dict(publishing.producer),
            "producer_name": _name(destination, publishing, numbering),
            "send_timeout_millis": publishing.send_timeout_ms,
            # `RowSender` keeps to this limit. Only the chunks of a large message exceed it.
            "max_pending_messages": publishing.max_pending,
            "max_pending_messages_across_partitions": publishing.max_pending,
            "block_if_queue_full": True,
        }
        if numbering is not None:
            routing = keywords.pop("message_routing_mode", None)
            single = routing is PartitionsRoutingMode.UseSinglePartition
            topic_partitions = await self._transport.topic_partitions(destination.topic)
            if topic_partitions != [destination.topic]:
                # If a partition is added, rows would move to partitions where another row has a
                # higher number, and be dropped. Under another name they are stored twice instead.
                keywords["producer_name"] += f"-of-{len(topic_partitions)}"
            keywords["message_router"] = steady_router(
                single=single, partitions=len(topic_partitions)
            )
            keywords["message_routing_mode"] = PartitionsRoutingMode.CustomPartition
        binary_keys = self._transport.capabilities.binary_keys
        keys, crypto = publishing.keys, None
        if keys is not None:  # reads a file or calls the user's function
            crypto = await asyncio.to_thread(keys.reader, self._transport.capabilities.name)
        if kind.copies:
            if keys is not None:
                form = destination.form._replace(secrets=keys.names)
                destination = destination._replace(form=form)
            return await producer_options(
                destination,
                self._transport.schema_of,
                crypto,
                byte_keys=binary_keys,
                **keywords,
            )
        if kind.avro is not None:
            if self._transport.capabilities.name == "stock":
                raise NotSupportedError(
                    "valueFormat=avro needs the native transport: leave out "
                    "pulsar.client.transport, or encode in the job"
                )
            keywords["schema"] = _avro(kind.avro)
        if keys is not None:
            keywords |= {"encryption_key": keys.names, "crypto_key_reader": crypto}
        return ProducerOptions(topic=destination.topic, **keywords)


def _name(
    destination: Destination, publishing: Publishing, numbering: SequenceIds | None
) -> str | None:
    if numbering is not None:
        # One topic may need several producers, one for each schema version.
        form = destination.form
        suffix = "" if form == PLAIN else f"-{form.topic}-{form.version}-{form.keyed}"
        return f"{numbering.producer_name}{suffix}"
    if publishing.name is None:
        return None
    return f"{publishing.name}-{uuid.uuid4().hex[:8]}"  # tasks run concurrently


def _busy_text(options: ProducerOptions, timeout_s: float, error: ProducerBusy) -> str:
    text = (
        f"no producer could be created on {options.topic} for {timeout_s:g} s (sendTimeoutMs); the "
        f"broker answered: {error}"
    )
    name = options.producer_name
    if name is None or f"'{name}'" not in str(error):
        return text  # the error of a limit on producers, which quotes no name
    return (
        f"the producer name {options.producer_name!r} stayed in use: another attempt at the task, "
        f"or another query of the same producerName, has it; {text}"
    )


def steady_router(*, single: bool, partitions: int) -> Callable[[Any, int], int]:
    """Return a router that sends a row to the same partition in each attempt at a task.

    Rows without a key are distributed round robin from partition 0, or all go there (`single`): a
    random start would send a row to a partition that does not know its number. Partitions that are
    added after the producer was named get no rows.
    """
    router = PartitionRouter(start=0, single=single)

    def route(message: Any, _now: int) -> int:
        key = message.partition_key() or None
        return router.route(key, size=0, partitions=partitions, now_ms=0)

    return route


def _avro(text: str) -> KnownSchema:
    info = pb.Schema(name="spark", type=pb.Schema.Avro, schema_data=text.encode())
    return KnownSchema(info, key_value=False)


async def _wait_shortly(closings: list[asyncio.Task[None]]) -> None:
    if closings:
        await asyncio.wait(closings, timeout=_CLOSE_TIMEOUT_S)


async def _close_when_created(making: asyncio.Task[TransportProducer]) -> None:
    making.cancel()  # the transport cleans up
    try:
        producer = await making
    except (EncoreError, asyncio.CancelledError):
        return
    await _close(producer)


async def _close(producer: TransportProducer) -> None:
    try:
        await producer.close()
    except EncoreError:
        return  # closed already


_of_clients: WeakKeyDictionary[Client, ProducerCache] = WeakKeyDictionary()


def producers_of(client: Client) -> ProducerCache:
    found = _of_clients.get(client)
    if found is None:
        found = _of_clients[client] = ProducerCache(client)
    return found
