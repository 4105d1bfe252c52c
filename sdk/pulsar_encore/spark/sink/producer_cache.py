"""The producers of a process, shared by the tasks that run in it one after the other.

Owns `ProducerCache` and what a producer is made with. One that a failed task used is closed, with
what is under way; those of numbered rows are closed with their task, as the next one of the same
name may run in another process. Everything here runs on the event loop of the client.
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
from ...letters.letter_form import PLAIN
from ...options import PartitionsRoutingMode, ProducerOptions
from ...transport.interface import TransportProducer
from ...transport.versioned.known_schema import KnownSchema
from ...values.backoff import Backoff
from ...wire import pulsar_pb2 as pb
from ...wire.partition_router import PartitionRouter
from ..option_table import PRODUCE
from .sequence_ids import SequenceIds
from .sink_options import Publishing, SinkOptions

log: Final = logging.getLogger("pulsar_encore.spark")

_MOST_IDLE: Final = 64  # kept for tasks to come; each is a name on some broker
_CLOSE_S: Final = 5.0  # longest wait for a broker to take leave of a producer
_BUSY: Final = Backoff(min_delay=0.05, max_delay=2, jitter=0.2)


class ProducerKind(NamedTuple):
    """What producers of a write have in common.

    Attributes:
        publishing: How they send.
        copies: They write copies, and not what the job made.
        avro: The schema that they register, as JSON; None for none.
    """

    publishing: Publishing
    copies: bool
    avro: str | None


def kind_of(options: SinkOptions) -> ProducerKind:
    """The kind of a write's producers."""
    return ProducerKind(options.publishing, options.mode != PRODUCE, options.value_schema)


class _Held:
    """A producer, or one that is being made."""

    __slots__ = ("making", "users")

    def __init__(self, making: asyncio.Task[TransportProducer]) -> None:
        self.making = making
        self.users = 0


class ProducerCache:
    """Those of one client.

    Args:
        client: Open.
    """

    def __init__(self, client: Client) -> None:
        self._transport = transport_of(client)
        self._held: dict[tuple[Destination, ProducerKind], _Held] = {}
        self._closings: set[asyncio.Task[None]] = set()
        self._rng = Random()

    async def take(self, destination: Destination, kind: ProducerKind) -> TransportProducer:
        """Return the producer of a destination, which `give_back` or `drop` returns to the pool.

        Raises:
            EncoreError: It cannot be made.
        """
        held = self._held.pop((destination, kind), None)
        if held is None:
            held = _Held(asyncio.ensure_future(self.make(destination, kind, None)))
        self._held[destination, kind] = held  # the last one used is the last in the dict
        held.users += 1
        try:
            return await asyncio.shield(held.making)
        except BaseException:
            held.users -= 1
            if held.making.done() and self._held.get((destination, kind)) is held:
                del self._held[destination, kind]
            raise

    def give_back(self, destinations: Iterable[Destination], kind: ProducerKind) -> None:
        """A task is done with its producers: what is stored is known."""
        for destination in destinations:
            held = self._held.get((destination, kind))
            if held is not None:
                held.users -= 1
        idle = [key for key, held in self._held.items() if held.users <= 0]
        surplus = max(0, len(idle) - _MOST_IDLE)
        self._close_all(self._held.pop(key) for key in idle[:surplus])

    async def drop(self, destinations: Iterable[Destination], kind: ProducerKind) -> None:
        """A task failed: nothing it handed to its producers is sent any more."""
        dropped = [self._held.pop((destination, kind), None) for destination in destinations]
        await _shortly(self._close_all(held for held in dropped if held is not None))

    def _close_all(self, dropped: Iterable[_Held]) -> list[asyncio.Task[None]]:
        return [self._begin(_close_made(held.making)) for held in dropped]

    def _begin(self, closing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(closing)
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)
        return task

    async def close(self, links: Iterable[TransportProducer]) -> None:
        """Close producers that are not shared; one that takes too long is closed by and by."""
        await _shortly([self._begin(_close(link)) for link in links])

    async def make_numbered(
        self, destination: Destination, kind: ProducerKind, numbering: SequenceIds
    ) -> TransportProducer:
        """A producer for the rows of a task, by a name at which the broker drops none of them.

        Raises:
            ProducerBusy: The name stayed in use.
            EncoreError: It cannot be made.
        """
        link = await self.make(destination, kind, numbering)
        if numbering.follows(link.last_sequence_id):
            return link
        log.warning(
            "%s: an earlier attempt at this task had other rows or failed at one, or the query "
            "began again from an older checkpoint: what was stored then is there twice now, under "
            "%s too",
            destination.topic,
            link.producer_name,
        )
        await self.close([link])
        return await self.make(destination, kind, numbering.apart())

    async def make(
        self, destination: Destination, kind: ProducerKind, numbering: SequenceIds | None
    ) -> TransportProducer:
        """A producer that nobody else has.

        A name that is in use is asked for again: the connection of a killed worker is still open
        for a moment. For the send timeout, no longer.

        Raises:
            ProducerBusy: It stayed in use.
            EncoreError: It cannot be made.
        """
        options = await self._options(destination, kind, numbering)
        timeout_s = kind.publishing.send_timeout_ms / 1000
        deadline = time.monotonic() + timeout_s
        attempt = 0
        while True:
            try:
                return await self._transport.create_producer(options)
            except ProducerBusy as error:
                delay_s = _BUSY.delay_ms(attempt, self._rng) / 1000
                attempt += 1
                if time.monotonic() + delay_s > deadline:
                    raise ProducerBusy(_busy(options, timeout_s, error)) from error
                await asyncio.sleep(delay_s)

    async def _options(
        self, destination: Destination, kind: ProducerKind, numbering: SequenceIds | None
    ) -> ProducerOptions:
        publishing = kind.publishing
        keywords: dict[str, Any] = {
            **dict(publishing.producer),
            "producer_name": _name(destination, publishing, numbering),
            "send_timeout_millis": publishing.send_timeout_ms,
            # The task keeps to the limit; beyond it are pieces of what is cut, which wait here.
            "max_pending_messages": publishing.max_pending,
            "max_pending_messages_across_partitions": publishing.max_pending,
            "block_if_queue_full": True,
        }
        if numbering is not None:
            routing = keywords.pop("message_routing_mode", None)
            single = routing is PartitionsRoutingMode.UseSinglePartition
            parts = await self._transport.topic_partitions(destination.topic)
            if parts != [destination.topic]:
                # Were a partition added, rows would move to partitions where the number of another
                # row is higher, and be dropped. Another count is another name: rows double then.
                keywords["producer_name"] += f"-of-{len(parts)}"
            keywords["message_router"] = steady_router(single=single, partitions=len(parts))
            keywords["message_routing_mode"] = PartitionsRoutingMode.CustomPartition
        binary_keys = self._transport.capabilities.binary_keys
        keys, crypto = publishing.keys, None
        if keys is not None:  # a file, or wherever a function has them
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
        # Of one topic several producers may be needed, one for each schema version.
        form = destination.form
        suffix = "" if form == PLAIN else f"-{form.topic}-{form.version}-{form.keyed}"
        return f"{numbering.producer_name}{suffix}"
    if publishing.name is None:
        return None
    return f"{publishing.name}-{uuid.uuid4().hex[:8]}"  # tasks run side by side


def _busy(options: ProducerOptions, timeout_s: float, error: ProducerBusy) -> str:
    said = (
        f"no producer could be made on {options.topic} for {timeout_s:g} s (sendTimeoutMs), as the "
        f"broker said: {error}"
    )
    name = options.producer_name
    if name is None or f"'{name}'" not in str(error):
        return said  # brokers say so of a limit of producers too, and then quote no name
    return (
        f"the producer name {options.producer_name!r} stayed in use: another attempt at the task, "
        f"or another query of the same producerName, has it; {said}"
    )


def steady_router(*, single: bool, partitions: int) -> Callable[[Any, int], int]:
    """Chooses partitions as producers do, and the same ones in each attempt at a task.

    Args:
        single: What has no key goes to one partition.
        partitions: There were, when the producer was named; those added since get nothing.

    Keys decide as ever. What has none goes round robin from partition 0, or all of it there: a
    random start would bring a row to a partition that does not know its number.
    """
    router = PartitionRouter(start=0, single=single)

    def route(message: Any, _now: int) -> int:
        key = message.partition_key() or None
        return router.route(key, size=0, partitions=partitions, now_ms=0)

    return route


def _avro(text: str) -> KnownSchema:
    info = pb.Schema(name="spark", type=pb.Schema.Avro, schema_data=text.encode())
    return KnownSchema(info, key_value=False)


async def _shortly(closings: list[asyncio.Task[None]]) -> None:
    if closings:
        await asyncio.wait(closings, timeout=_CLOSE_S)


async def _close_made(making: asyncio.Task[TransportProducer]) -> None:
    making.cancel()  # of what is not made yet, the transport closes the rest
    try:
        link = await making
    except (EncoreError, asyncio.CancelledError):
        return
    await _close(link)


async def _close(link: TransportProducer) -> None:
    try:
        await link.close()
    except EncoreError:
        return  # it is gone already, which is what was wanted


_of_clients: WeakKeyDictionary[Client, ProducerCache] = WeakKeyDictionary()


def producers_of(client: Client) -> ProducerCache:
    """Those of a client, which are as many as the process's connections."""
    found = _of_clients.get(client)
    if found is None:
        found = _of_clients[client] = ProducerCache(client)
    return found
