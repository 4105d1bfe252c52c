"""The native transport: makes consumers and producers, and closes them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from typing import Final
from weakref import WeakKeyDictionary

from ...codecs.codec import SchemaInfo
from ...errors import ClosedError, TopicNotFound
from ...eventloop.affinity import LoopEnd, end_all, running_loop
from ...eventloop.shielded_work import seen
from ...options import ProducerOptions, RegexSubscriptionMode, Subscription
from ...values.topic_names import full_name
from ...values.transaction_id import TxnId
from ...wire import pulsar_pb2 as pb
from ..interface import ProducerListener, TransportConsumer, TransportProducer
from ..versioned.known_schema import KnownSchema
from ..versioned.versioned_consumer import VersionedConsumer
from ..versioned.versioned_messages import SchemaVersions, has_versions
from ..versioned.writer_schemas import WriterSchemas
from .client_settings import ClientSettings
from .clusters import Clusters, OneCluster
from .connection.cluster_service import ClusterService, ConnectionCredentials, Dialer
from .connection.codec_thread import Codecs, CodecThread
from .connection.pool import ConnectionPool
from .connection.sockets import Sockets
from .connection.tls_context import TlsContext
from .consumer.native_consumer import NATIVE, NativeConsumer
from .lookup.lookup import Lookup
from .lookup.lookup_interface import NamePattern
from .lookup.refresh_schedule import RefreshSchedule, TimedSchedule
from .producer.native_producer import NativeProducer, open_producer
from .transaction_outcome import is_visible
from .transactions.begin_and_join import begin_transaction, join_transaction
from .transactions.coordinators import Coordinators
from .transactions.end_by_id import end_by_id
from .transactions.native_transaction import NativeTransaction
from .wire_schema import known_info

_NAME_DIGITS: Final = 5  # as many as in Java
_CLOSE_S: Final = 1.0  # how long `close` waits for the broker's answers to the close commands


class _LoopScope:
    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup
        self.coordinators = Coordinators(lookup)
        self.end: LoopEnd | None = None  # called when the loop ends
        # In the order of creation.
        self.handles: dict[NativeConsumer | VersionedConsumer | NativeProducer, None] = {}


class NativeTransport:
    """One client over the binary protocol (`Transport`).

    It has one connection pool per event loop, because a client may be used from several loops.

    Args:
        where: A service URL, or the clusters.
        credentials, dialer: Only if `where` is a URL. The dialer's `make_codecs`, if any, replaces
            the codec thread, because virtual time needs plain calls.
        rng: Spreads attempts and partitions.
        make_round: Makes the schedule of each task that looks for new topics.
    """

    capabilities = NATIVE

    def __init__(
        self,
        where: str | Clusters,
        settings: ClientSettings | None = None,
        *,
        credentials: ConnectionCredentials | None = None,
        dialer: Dialer | None = None,
        rng: Random | None = None,
        make_round: Callable[[], RefreshSchedule] = TimedSchedule,
    ) -> None:
        if isinstance(where, str):
            tls = TlsContext()
            service = ClusterService.at(where, dialer or Sockets(tls), credentials, tls)
            self._clusters: Clusters = OneCluster(service)
        else:
            self._clusters = where
        self._settings = settings or ClientSettings()
        self._rng = rng or Random()
        self._make_schedule = make_round
        self._make_codecs: Callable[[], Codecs] = getattr(dialer, "make_codecs", CodecThread)
        self._consumer_ids = count(1)
        self._producer_ids = count(1)
        self._scopes: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopScope] = WeakKeyDictionary()
        self._writer_schemas = WriterSchemas(self._definition)
        self._closed = False
        self._clusters_closed = False

    def _scope(self) -> _LoopScope:
        if self._closed:
            raise ClosedError("the client is closed: create another")
        self._end_closed_loops()
        loop = asyncio.get_running_loop()
        scope = self._scopes.get(loop)
        if scope is None:
            pool = ConnectionPool(
                self._clusters.initial_service(), self._settings, self._rng, self._make_codecs()
            )
            self._clusters.manage(pool)
            scope = self._scopes[loop] = _LoopScope(Lookup(pool, self._make_schedule))
            scope.end = LoopEnd(partial(self._on_loop_end, scope))
        return scope

    def _end_closed_loops(self) -> None:
        """End the scopes of loops that were closed without notice.

        Otherwise the broker would keep messages for their connections.
        """
        for loop, scope in list(self._scopes.items()):
            if loop.is_closed():
                self._end_scope(scope)

    async def _on_loop_end(self, scope: _LoopScope) -> None:
        self._end_scope(scope)
        await scope.lookup.pool.gone()

    def _end_scope(self, scope: _LoopScope) -> None:
        """End a scope. Its producers continue on the next loop that uses them."""
        pool = scope.lookup.pool
        if self._scopes.get(pool.loop) is scope:
            del self._scopes[pool.loop]
        handles = [each for each in scope.handles if not isinstance(each, NativeProducer)]
        end_all(pool.loop, *(handle.abandon for handle in handles), pool.shutdown)

    def new_consumer_name(self) -> str:
        return uuid.uuid4().hex[:_NAME_DIGITS]

    async def subscribe(self, subscription: Subscription) -> TransportConsumer:
        scope = self._scope()
        name = subscription.consumer_name or self.new_consumer_name()
        consumer = NativeConsumer(
            scope.lookup,
            subscription,
            name,
            self._consumer_ids,
            lambda _: scope.handles.pop(handle, None),
        )
        handle: NativeConsumer | VersionedConsumer = consumer
        if has_versions(subscription.schema):
            versions = SchemaVersions(subscription.schema, self._writer_schemas)
            handle = VersionedConsumer(consumer, subscription, versions)
        scope.handles[handle] = None
        await consumer.open()
        return handle

    async def create_producer(
        self, options: ProducerOptions, listener: ProducerListener | None = None
    ) -> TransportProducer:
        return await open_producer(self, options, self._producer_ids, listener)

    def lookup_for(self, producer: NativeProducer) -> Lookup:
        """Return the lookup of the running loop, and close the producer with the client."""
        scope = self._scope()
        scope.handles[producer] = None
        return scope.lookup

    def ended(self, producer: NativeProducer) -> None:
        for scope in self._scopes.values():
            scope.handles.pop(producer, None)

    async def topic_partitions(self, topic: str, *, create: bool = True) -> list[str]:
        name = full_name(topic)
        partitions = await self._scope().lookup.partitions(name, create=create)
        return [f"{name}-partition-{each}" for each in range(partitions)] or [name]

    async def topics_matching(self, pattern: str) -> list[str]:
        names = NamePattern(pattern)
        lookup = self._scope().lookup
        listing = await lookup.topics(names.namespace, RegexSubscriptionMode.PersistentOnly)
        return sorted(filter(names.matches, listing.topics or ()))

    async def schema_of(self, topic: str, version: int | None) -> KnownSchema:
        schema = await self._scope().lookup.schema(full_name(topic), version)
        return KnownSchema(schema, key_value=schema.type == pb.Schema.KeyValue)

    async def latest_schema(self, topic: str) -> KnownSchema | None:
        try:
            return await self.schema_of(topic, None)
        except TopicNotFound:
            return None

    async def begin_transaction(self, timeout_s: float) -> NativeTransaction:
        scope = self._scope()
        pool = scope.lookup.pool
        visible = partial(is_visible, self.subscribe)
        return await begin_transaction(self._coordinators(scope), pool, timeout_s, visible)

    async def join_transaction(self, txn_id: TxnId, timeout_s: float) -> NativeTransaction:
        scope = self._scope()
        pool = scope.lookup.pool
        visible = partial(is_visible, self.subscribe)
        return join_transaction(self._coordinators(scope), pool, txn_id, timeout_s, visible)

    async def end_transaction(self, txn_id: TxnId, *, commit: bool) -> None:
        scope = self._scope()
        await end_by_id(self._coordinators(scope), scope.lookup.pool, txn_id, commit=commit)

    def _coordinators(self, scope: _LoopScope) -> Coordinators:
        if scope.coordinators.service is not scope.lookup.pool.service:
            scope.coordinators = Coordinators(scope.lookup)  # the client went to another cluster
        return scope.coordinators

    @property
    def consumers(self) -> list[TransportConsumer]:
        """The open subscriptions, in the order of their creation."""
        return [
            handle
            for scope in self._scopes.values()
            for handle in scope.handles
            if not isinstance(handle, NativeProducer)
        ]

    def retry_now(self) -> None:
        """End all waits between attempts."""
        for scope in list(self._scopes.values()):
            scope.lookup.pool.retry_now()

    async def _definition(self, topic: str, version: int) -> SchemaInfo:
        return known_info(await self._scope().lookup.schema(full_name(topic), version))

    def shutdown(self) -> None:
        self._closed = True
        ending: list[Callable[[], object]] = [
            partial(_end_on_own_loop, scope) for scope in list(self._scopes.values())
        ]
        if not self._clusters_closed:
            self._clusters_closed = True
            ending.append(self._clusters.close)
        end_all(None, *ending)

    async def close(self) -> None:
        scope = self._scopes.get(asyncio.get_running_loop())
        if scope is not None and not self._closed:
            self._closed = True
            closing = [
                seen(asyncio.ensure_future(handle.close())) for handle in list(scope.handles)
            ]
            if closing:
                # The end of the connections has the same effect. A broker that is silent, such as
                # behind a network partition, would hold the end of the process for 30 s otherwise.
                await asyncio.wait(closing, timeout=_CLOSE_S)
        self.shutdown()
        if scope is not None:
            await scope.lookup.pool.gone()


def _end_on_own_loop(scope: _LoopScope) -> None:
    """End a scope on its own loop if that runs in another thread, else here."""
    loop = scope.lookup.pool.loop
    if loop.is_running() and loop is not running_loop():
        try:
            loop.call_soon_threadsafe(_end, scope)
        except RuntimeError:
            pass  # it has just been closed
        else:
            return
    _end(scope)


def _end(scope: _LoopScope) -> None:
    if scope.end is not None:
        scope.end.cancel()
    pool = scope.lookup.pool
    end_all(pool.loop, *(handle.abandon for handle in list(scope.handles)), pool.shutdown)
