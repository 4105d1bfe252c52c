"""The transport over one native client. Blocking native calls never run on the loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import _pulsar
import pulsar

from ...codecs.codec import SchemaInfo
from ...errors import (
    ClosedError,
    ConfigurationError,
    EncoreError,
    NotSupportedError,
    TransportError,
)
from ...eventloop.close_once import CloseOnce
from ...options import ClientOptions, ProducerOptions, Subscription
from ...values.topic_names import full_name
from ...values.transaction_id import TxnId
from ..interface import (
    ProducerListener,
    TransportConsumer,
    TransportProducer,
    TransportTransaction,
)
from ..versioned.known_schema import KnownSchema
from ..versioned.versioned_consumer import VersionedConsumer
from ..versioned.versioned_messages import SchemaVersions, has_versions
from ..versioned.writer_schemas import WriterSchemas
from .at_exit import end, end_open, keep_in_child, watch
from .client_config import authentication, logger, service_url
from .consumer_config import consumer_configuration, reader_configuration, subscribed_topics
from .cpp_calls import CppCalls, Start, in_thread
from .cpp_ids import to_native
from .cpp_log import engine_log
from .creations import Creations
from .dual_exceptions import use_dual_exceptions
from .producer_config import producer_configuration
from .result_errors import NO_TRANSACTIONS
from .stock_consumer import STOCK, StockConsumer
from .stock_producer import StockProducer
from .stock_reader import StockReader
from .stock_schemas import attach, check_readable, known_info

# Longest wait for pending creations in `close`: an unreachable broker would keep the caller for
# operation_timeout_seconds.
_CREATIONS_WAIT_S: Final = 1.0
_NAME_DIGITS: Final = 5  # of a consumer's name; as many as in Java

_Child = StockConsumer | StockProducer | StockReader | VersionedConsumer


class StockTransport:
    """One client on `pulsar-client` (`Transport`). It connects on first use."""

    capabilities = STOCK

    def __init__(self, options: ClientOptions) -> None:
        use_dual_exceptions()
        self._options = options
        # The C++ client drops its reference to a provider without holding the GIL. If it were the
        # last one, the interpreter would abort (3.13.0).
        self._native, where = _native_client(options)
        self._calls = CppCalls()
        # an authentication of this package with a supplier
        waiting = getattr(options.authentication, "waiting", None)
        if waiting is not None:
            waiting.add(self._calls)
        self._creations = Creations()
        # Refers to the native client only: collecting this object closes it.
        self._writers = WriterSchemas(partial(_definition, self._native))
        self._children: WeakSet[_Child] = WeakSet()
        self._adding = threading.Lock()  # several threads may add
        self._closed = False
        self._close_once = CloseOnce(self._close)
        watch(self, self._native, self._creations.then, keep=where)

    @property
    def native(self) -> Any:
        """The `_pulsar.Client`, for features that this package does not wrap."""
        return self._native

    def new_consumer_name(self) -> str:
        return uuid.uuid4().hex[:_NAME_DIGITS]

    async def subscribe(self, subscription: Subscription) -> TransportConsumer:
        check_readable(subscription.schema)
        child: StockConsumer | StockReader | VersionedConsumer
        if subscription.durable:
            child = await self._consumer(subscription)
        else:
            child = await self._reader(subscription)
        if has_versions(subscription.schema):
            versions = SchemaVersions(subscription.schema, self._writers)
            child = VersionedConsumer(child, subscription, versions)
        self._add(child)
        return child

    async def _consumer(self, subscription: Subscription) -> StockConsumer:
        conf = consumer_configuration(subscription)
        attach(subscription.schema, self._native)
        topics = subscribed_topics(subscription)
        name = subscription.subscription_name
        partitioned = False
        if isinstance(topics, str):
            partitioned = await self.topic_partitions(topics) != [full_name(topics)]
        native = await self._create(
            lambda done: self._native.subscribe_async_v2(topics, name, conf, done),
            f"subscribe {name!r} to {subscription.pattern or ', '.join(subscription.topics)}",
        )
        return StockConsumer(native, subscription, partitioned=partitioned)

    async def _reader(self, subscription: Subscription) -> StockReader:
        conf = reader_configuration(subscription)
        attach(subscription.schema, self._native)
        [topic] = subscription.topics
        assert subscription.start_message_id is not None
        start = to_native(subscription.start_message_id)
        native = await self._create(
            lambda done: self._native.create_reader_async_v2(topic, start, conf, done),
            f"create a reader on {topic}",
        )
        return StockReader(native, subscription)

    async def create_producer(
        self, options: ProducerOptions, listener: ProducerListener | None = None
    ) -> TransportProducer:
        conf, router = producer_configuration(options)
        attach(options.schema, self._native)
        native = await self._create(
            lambda done: self._native.create_producer_async_v2(options.topic, conf, done),
            f"create a producer on {options.topic}",
        )
        producer = StockProducer(native, options, router)
        self._add(producer)
        return producer

    async def topic_partitions(self, topic: str, *, create: bool = True) -> list[str]:
        partitions = await self._calls.run(
            partial(self._native.get_topic_partitions_async, topic), f"partitions of {topic}"
        )
        return [str(each) for each in partitions]

    async def topics_matching(self, pattern: str) -> list[str]:
        raise NotSupportedError("the stock library does not list topics: use the native transport")

    async def schema_of(self, topic: str, version: int) -> KnownSchema:
        info = await _schema_info(self._native, topic, version)
        return KnownSchema(info, key_value=info.schema_type() == _pulsar.SchemaType.KEY_VALUE)

    async def latest_schema(self, topic: str) -> KnownSchema | None:
        raise NotSupportedError(
            "the stock library does not ask for the latest schema of a topic: use the native "
            "transport"
        )

    async def begin_transaction(self, timeout_s: float) -> TransportTransaction:
        raise NotSupportedError(NO_TRANSACTIONS)

    async def join_transaction(self, txn_id: TxnId, timeout_s: float) -> TransportTransaction:
        raise NotSupportedError(NO_TRANSACTIONS)

    async def end_transaction(self, txn_id: TxnId, *, commit: bool) -> None:
        raise NotSupportedError(NO_TRANSACTIONS)

    async def _create(self, start: Start, action: str) -> Any:
        return keep_in_child(await self._creations.make(self._calls, start, action))

    def shutdown(self) -> None:
        # Not the native shutdown: it keeps the GIL while it waits for threads that may need it.
        if not self._closed:
            self._abandon()

    async def close(self) -> None:
        await self._close_once()

    async def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._calls.abandon()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.operation_timeout_seconds):
                    # Their close was interrupted, or they never reached a caller.
                    closing = (child.close() for child in self._all_children())
                    await asyncio.gather(*closing, return_exceptions=True)
            with contextlib.suppress(ClosedError, TransportError, TimeoutError):
                async with asyncio.timeout(_CREATIONS_WAIT_S):
                    await self._creations.settled()
                async with asyncio.timeout(self._options.operation_timeout_seconds):
                    await CppCalls().run(partial(end, self._native), "close the client")
        finally:
            self._abandon()
        await engine_log.wait_until_delivered()

    def _all_children(self) -> list[_Child]:
        with self._adding:
            return list(self._children)

    def _add(self, child: _Child) -> None:
        with self._adding:
            self._children.add(child)

    def _abandon(self) -> None:
        self._closed = True
        self._calls.abandon()
        for child in self._all_children():
            child.abandon()
        self._creations.then(partial(end_open, self._native))


async def _definition(native: Any, topic: str, version: int) -> SchemaInfo:
    return known_info(await _schema_info(native, topic, version))


async def _schema_info(native: Any, topic: str, version: int) -> Any:
    return await in_thread(
        partial(native.get_schema_info, topic, version),
        f"get schema version {version} of {topic}",
    )


def _native_client(options: ClientOptions) -> tuple[Any, Any]:
    """Return the C++ client, and the URL or provider that it uses."""
    try:
        where = service_url(options.service_url)
        with engine_log.logger_for_client(logger(options.logger)) as log:
            client = pulsar.Client(
                where,
                authentication=authentication(options.authentication),
                operation_timeout_seconds=options.operation_timeout_seconds,
                io_threads=options.io_threads,
                message_listener_threads=options.message_listener_threads,
                concurrent_lookup_requests=options.concurrent_lookup_requests,
                log_conf_file_path=options.log_conf_file_path,
                stats_interval_in_seconds=options.stats_interval_in_seconds,
                use_tls=options.use_tls,
                tls_trust_certs_file_path=options.tls_trust_certs_file_path,
                tls_allow_insecure_connection=options.tls_allow_insecure_connection,
                tls_validate_hostname=options.tls_validate_hostname,
                logger=log,
                connection_timeout_ms=options.connection_timeout_ms,
                listener_name=options.listener_name,
                tls_private_key_file_path=options.tls_private_key_file_path,
                tls_certificate_file_path=options.tls_certificate_file_path,
            )
    except EncoreError:
        raise  # from an authentication of this package, with advice
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(f"the client cannot be created: {error}") from error
    return client._client, where
