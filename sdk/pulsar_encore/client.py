"""The client: it connects to a cluster and creates producers, consumers and readers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import finalize

from .errors import ClosedError, ConfigurationError, NotSupportedError, TransportTimeout
from .eventloop.affinity import end_all, running_loop
from .eventloop.awaitables import opening
from .eventloop.close_once import CloseOnce, warn_unless_closed
from .eventloop.process import check_process
from .options import (
    DEFAULT_UNACKED_WINDOW,
    BatchingType,
    BatchReceivePolicy,
    ClientOptions,
    CompressionType,
    ConsumerCryptoFailureAction,
    ConsumerOptions,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProducerOptions,
    ReaderOptions,
    RegexSubscriptionMode,
    RocksState,
    SpillingNackIndex,
    parse_topics,
)
from .options.checks import boolean, seconds, topic_name
from .options.client_logs import ClientLogs
from .options.client_options import DEFAULT_RECREATE_AFTER_S
from .transport.interface import Transport, TransportConsumer, TransportProducer
from .transport.transport_choice import make_transport
from .values.backoff import BackoffLike
from .values.message_id import MessageId
from .values.transaction_id import TxnId
from .values.type_variables import T

# Modules of producers, readers and consumers are imported when a client creates the first one, so
# that `import pulsar_encore` is fast.
if TYPE_CHECKING:
    from .admin import WebService
    from .codecs.codec import Codec
    from .consumer.consumer import Consumer
    from .consumer.event_publisher import ProducerEventPublisher
    from .consumer.events import ConsumerEvent, ProducerEvent, ReaderEvent
    from .consumer.nack_disk_index import NackSpilling
    from .consumer.state_writer import StateWriter
    from .observability.observer import Observer
    from .observability.observer_list import EventRelay, ObserverList
    from .producer import Producer
    from .reader.reader import Reader
    from .transaction import Transaction

#: Longest wait for a close on the event loop of another thread, in s.
_OTHER_LOOP_CLOSE_TIMEOUT_S: Final = 10.0


class Client:
    """A connection to a Pulsar cluster, shared by the producers, consumers and readers it creates.

    A client can be created before an event loop runs, and several loops can use it, in turn or at
    the same time. A producer, consumer or reader belongs to the loop that created it. A forked
    child needs its own client.

    Args:
        service_url: An address such as ``pulsar://localhost:6650`` or ``pulsar+ssl://host:6651``,
            an `AutoClusterFailover` or a `ServiceInfoProvider`.
        authentication: One of the Authentication classes, or None.
        operation_timeout_seconds: Longest wait for one answer of the broker, in s. A call that
            creates something needs several answers (partitions, owner, creation) and perhaps a
            connection (`connection_timeout_ms`), so it can take the sum of these times.
        io_threads: Network threads of the C++ client (stock transport).
        message_listener_threads: Delivery threads of the C++ client (stock transport).
        concurrent_lookup_requests: Most lookups in flight on one connection.
        log_conf_file_path: Accepted and ignored, as in `pulsar-client`.
        stats_interval_in_seconds: How often the C++ client logs statistics, in s; 0 for never.
        use_tls: Accepted and ignored, as in `pulsar-client`. The scheme of the URL decides.
        tls_trust_certs_file_path: File with trusted certificates. None: certifi (stock transport),
            or the system's store, else certifi (native transport). This file and the client
            certificate must be readable now. The C++ client reads the files of `AuthenticationTLS`
            when it connects; a missing one is an authentication error.
        tls_allow_insecure_connection: Accept any certificate.
        tls_validate_hostname: Compare the certificate's name with the host name. The native
            transport always does, unless it accepts any certificate.
        logger: Where the records of this client go: a `logging.Logger`, a `ConsoleLogger` (standard
            output) or a `FileLogger`. None means the loggers of this package, whose names begin
            with ``"pulsar_encore"``. Records about credentials and state directories, which
            clients can share, always go to these. With the stock transport, the C++ client logs
            there too, and the first client of a process decides for all. None then logs its
            warnings and errors to ``"pulsar_encore.engine"``, at most 0.5 s late and before the
            related exception is raised. For more, set the level of that logger or of
            ``"pulsar_encore"`` before the first client: INFO logs each connection, DEBUG each
            message, at half of the throughput or less. With a `logging.Logger`, the level that
            holds for it then decides. Of more than 10,000 lines in 0.5 s, only the last 10,000
            become records. With a ``ConsoleLogger`` or ``FileLogger``, most errors lack the
            broker's reason. Without in-memory files (other systems than Linux), None means
            ``ConsoleLogger(LoggerLevel.Warn)``, and a `logging.Logger` is slow at any level,
            because every line of the C++ client crosses into Python; a line at process exit may
            abort the process.
        connection_timeout_ms: Longest wait for a connection, in ms.
        listener_name: The advertised listener of the broker to use.
        tls_private_key_file_path: Key of the client certificate.
        tls_certificate_file_path: Client certificate.
        partitions_update_interval: Time between two checks for new partitions of named topics, from
            0.1 to 1e9 s, or a timedelta. (Patterns have `pattern_auto_discovery_period`.) This
            option and the next four need the native transport; the stock transport accepts the
            defaults only.
        reattach_timeout: How long a consumer, producer or reader tries to reconnect, in s or as a
            timedelta, before it ends with the last error. None retries forever.
        recreate_after: How long a topic must be missing before its consumers and producers may
            create it again by automatic topic creation, in s or as a timedelta. Until then a topic
            that an operator deleted stays deleted.
        max_partitions: Most partitions of a topic. The call raises `LookupError` if the broker
            reports more.
        max_uncompressed_size: Largest decompressed payload of an entry or a chunked message, in
            bytes. The client acks an entry with a larger payload with the validation error
            UncompressedSizeCorruption.
        admin_url: Address of the web service, such as ``http://localhost:8080``, for
            `Consumer.lag`. Its requests use the login and TLS options of this client, and need
            ``pulsar-encore[http]``.
        transport: "native" implements Pulsar's protocol, "stock" uses `pulsar-client`, "auto" takes
            the native transport if it supports the options, else the stock transport, with a
            warning that says why. None means the environment variable
            ``PULSAR_ENCORE_TRANSPORT``, by default "auto". With a transport object such as
            `testing.MemoryTransport()`, the options above except `logger` are checked but not used.
        observers: A list of `Observer` objects. They see the messages, letters, connections and
            workers of this client, for metrics and traces.

    Raises:
        ConfigurationError: if an option is wrong.
        NotSupportedError: if the transport does not support an option.

    Example:
        ```python
        async with pulsar_encore.Client("pulsar://localhost:6650") as client:
            consumer = await client.subscribe("orders", "billing")
            message = await consumer.receive()
            await consumer.acknowledge(message)
        ```
    """

    def __init__(
        self,
        service_url: Any,
        authentication: Any = None,
        operation_timeout_seconds: int = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = False,
        logger: Any = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        *,
        partitions_update_interval: float | timedelta = 60.0,
        reattach_timeout: float | timedelta | None = None,
        recreate_after: float | timedelta = DEFAULT_RECREATE_AFTER_S,
        max_partitions: int = 100_000,
        max_uncompressed_size: int = 256 * 1024 * 1024,
        admin_url: str | None = None,
        transport: Transport | str | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        options = ClientOptions(
            service_url=service_url,
            authentication=authentication,
            operation_timeout_seconds=operation_timeout_seconds,
            io_threads=io_threads,
            message_listener_threads=message_listener_threads,
            concurrent_lookup_requests=concurrent_lookup_requests,
            log_conf_file_path=log_conf_file_path,
            stats_interval_in_seconds=stats_interval_in_seconds,
            use_tls=use_tls,
            tls_trust_certs_file_path=tls_trust_certs_file_path,
            tls_allow_insecure_connection=tls_allow_insecure_connection,
            tls_validate_hostname=tls_validate_hostname,
            logger=logger,
            connection_timeout_ms=connection_timeout_ms,
            listener_name=listener_name,
            tls_private_key_file_path=tls_private_key_file_path,
            tls_certificate_file_path=tls_certificate_file_path,
            partitions_update_interval=partitions_update_interval,
            reattach_timeout=reattach_timeout,
            recreate_after=recreate_after,
            max_partitions=max_partitions,
            max_uncompressed_size=max_uncompressed_size,
            admin_url=admin_url,
        )
        self._options = options
        self._logs = ClientLogs(options.logger)
        self._observers: ObserverList | None = None
        try:
            if not isinstance(observers, tuple | list) or observers:
                from .observability.observer_list import ObserverList  # lazy: only this option

                self._observers = ObserverList(observers, self._logs.named)
            self._transport: Transport = _checked_transport(transport, options, self._logs)
        except BaseException:
            self._logs.close()
            raise
        # Each refers to the client through `_forget` until it is closed, so the client and its
        # connections live as long as one of them is open.
        self._open: dict[
            Producer | Consumer | Reader | Transaction, finalize[[str, int], object]
        ] = {}
        self._closed = False
        self._close_once = CloseOnce(self._close)
        self._pid = os.getpid()
        self._name = f"{service_url}"
        self._unclosed = warn_unless_closed(self, f"the client of {service_url}")

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._open)} open"
        return f"<Client of {self._name}, {state}>"

    @opening
    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: Codec[T] | None = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool = True,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = (
            PartitionsRoutingMode.RoundRobinDistribution
        ),
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: Any = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Callable[[Any, int], int] | None = None,
        *,
        event_listener: Callable[[ProducerEvent], object] | None = None,
    ) -> Producer[T]:
        """Create a producer: `await` the call, or use `async with`.

        Keywords, units and defaults are those of `pulsar.asyncio`. With `block_if_queue_full`, a
        send beyond `max_pending_messages` (for the whole producer) waits; the event loop is never
        blocked. With `chunking_enabled`, each chunk counts, and a message with more chunks than the
        limit is sent when no other message is pending. New in this package:

        Args:
            schema: A codec, such as `Json(Order)`, which also says to type checkers what `send`
                takes; or a schema class of `pulsar-client`. A producer registers its schema.
            event_listener: Called on the event loop with each `ProducerEvent` (`Disconnected`,
                `Retrying`, `Connected`, `Failed`) until `close`. Its exceptions are logged.

        Raises:
            ConfigurationError: if an option is wrong. Nothing was connected.
            NotSupportedError: if `event_listener` is given on the stock transport: the C++ client
                does not report events of producers.
            ClosedError: if the client is closed.
            TransportError: if the broker refused or could not be reached.
        """
        self._check_open()
        options = ProducerOptions(
            topic=topic,
            producer_name=producer_name,
            schema=schema,
            initial_sequence_id=initial_sequence_id,
            send_timeout_millis=send_timeout_millis,
            compression_type=compression_type,
            max_pending_messages=max_pending_messages,
            max_pending_messages_across_partitions=max_pending_messages_across_partitions,
            block_if_queue_full=block_if_queue_full,
            batching_enabled=batching_enabled,
            batching_max_messages=batching_max_messages,
            batching_max_allowed_size_in_bytes=batching_max_allowed_size_in_bytes,
            batching_max_publish_delay_ms=batching_max_publish_delay_ms,
            chunking_enabled=chunking_enabled,
            message_routing_mode=message_routing_mode,
            lazy_start_partitioned_producers=lazy_start_partitioned_producers,
            properties=properties,
            batching_type=batching_type,
            encryption_key=encryption_key,
            crypto_key_reader=crypto_key_reader,
            access_mode=access_mode,
            message_router=message_router,
            event_listener=event_listener,
        )
        from .producer import Producer  # lazy: see above

        observers = self._observers
        relay: EventRelay | None = None
        if observers is not None and observers.producer_event is not None:
            relay = self._producer_event_relay(options, observers.producer_event)
        event_publisher = self._producer_event_publisher(options, relay)
        transport_producer = await self._transport.create_producer(options, event_publisher)
        await self._check_still_open(transport_producer)
        if observers is not None and (observers.sending or observers.sent):
            from .observability.observed_sends import ObservedTransportProducer  # lazy: see above

            transport_producer = ObservedTransportProducer(
                transport_producer, observers, self._logs.named(__name__)
            )
        producer = Producer(
            transport_producer,
            options,
            on_closed=self._on_closed(None if observers is None else observers.producer_closed),
            event_publisher=event_publisher,
            make_meter=None if observers is None else observers.send_meter,
            logger_of=self._logs.named,
        )
        self._open[producer] = warn_unless_closed(
            producer, f"the producer of {transport_producer.topic}"
        )
        if relay is not None:
            relay.subject = producer
        if observers is not None and observers.producer_opened is not None:
            observers.producer_opened(producer)
        return producer

    def _producer_event_relay(
        self, options: ProducerOptions, observe: Callable[..., None]
    ) -> EventRelay | None:
        if not self._transport.capabilities.producer_events:
            return None
        from .observability.observer_list import EventRelay  # lazy: see above

        return EventRelay(observe, options.event_listener)

    def _producer_event_publisher(
        self, options: ProducerOptions, relay: EventRelay | None
    ) -> ProducerEventPublisher | None:
        listener = relay or options.event_listener
        if listener is None:
            return None
        capabilities = self._transport.capabilities
        if not capabilities.producer_events:
            raise NotSupportedError(
                f"event_listener: the {capabilities.name} transport reports no events of "
                "producers. Leave it out, or use transport='native'"
            )
        from .consumer.event_publisher import (  # lazy: see above
            EventDispatcher,
            ProducerEventPublisher,
        )

        loop = asyncio.get_running_loop()
        events = EventDispatcher(listener, loop, started=False, logger_of=self._logs.named)
        return ProducerEventPublisher(events)

    @opening
    async def subscribe(
        self,
        topic: str | list[str] | Any,
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Codec[T] | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        initial_position: InitialPosition = InitialPosition.Latest,
        crypto_key_reader: Any = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: BatchReceivePolicy | Any = None,
        key_shared_policy: Any = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        dead_letter_policy: Any = None,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        is_pattern_topic: bool = False,
        *,
        message_listener: Callable[..., Any] | None = None,
        pattern_auto_discovery_period: int = 60,
        negative_ack_redelivery_backoff: BackoffLike | None = None,
        negative_ack_precision_bit_cnt: int | None = None,
        ack_timeout_redelivery_backoff: BackoffLike | None = None,
        ack_group_time_ms: int = 100,
        ack_group_max_size: int = 1000,
        ack_receipt_enabled: bool = False,
        event_listener: Callable[[ConsumerEvent], object] | None = None,
        max_unacked_messages: int = DEFAULT_UNACKED_WINDOW,
        retry_enable: bool = False,
        nack_overflow: str | None = None,
        nack_overflow_share: float = 0.5,
        nack_overflow_delay: float | timedelta = 600.0,
        state: RocksState | None = None,
        max_leases: int = 10_000,
        ordered_leases: bool = False,
        nack_index: SpillingNackIndex | None = None,
    ) -> Consumer[T]:
        """Subscribe to one or more topics: `await` the call, or use `async with`.

        Keywords, units and defaults are those of `pulsar.asyncio`; `message_listener` and
        `pattern_auto_discovery_period` (s) are those of the synchronous client. New in this
        package:

        Args:
            schema: A codec, such as `Json(Order)`, which also says to type checkers what
                `Message.value` returns; or a schema class of `pulsar-client`.
            negative_ack_redelivery_backoff: Delay of a nack by the delivery attempts of the
                message, in place of `negative_ack_redelivery_delay_ms`. A `Backoff`, or a list of
                delays by attempt in s or timedeltas, such as `[10, 60, 600]`; the last delay
                repeats. It also applies to a lease of `Consumer.pop` that expires.
            negative_ack_precision_bit_cnt: Due times are rounded up to a multiple of 2**n ms
                (PIP-393). None chooses n by the delay.
            ack_timeout_redelivery_backoff: As `negative_ack_redelivery_backoff`, for messages whose
                `unacked_messages_timeout_ms` (from 1000 ms) has passed.
            ack_group_time_ms: Longest time that acks are collected before they are sent, in ms.
            ack_group_max_size: Number of collected acks that are sent at once.
            ack_receipt_enabled: Awaiting an ack waits for the broker's receipt. Acks are still
                grouped: await many together, or set `ack_group_time_ms` to 0.
            event_listener: Called on the event loop with each `ConsumerEvent`, such as
                `Disconnected` or `Failed`, until `close`. Its exceptions are logged. The stock
                transport reports `Disconnected`, `Connected` and `Failed` only.
            max_unacked_messages: The broker's `maxUnackedMessagesPerConsumer`. The consumer warns
                before it stalls at this limit.
            retry_enable: Also read the retry letter topic, for `reconsume_later`.
            dead_letter_policy: A `DeadLetterPolicy`, or the `ConsumerDeadLetterPolicy` of
                `pulsar-client`.
            nack_overflow: "retry_letter" sends nacked messages to the retry letter topic when they
                fill `nack_overflow_share` of the unacked window, or must wait longer than
                `nack_overflow_delay` (s or timedelta).
            state: A `RocksState`, so that due times of nacked messages and delivery attempts
                survive the process. None keeps them in memory.
            max_leases: Largest number of active leases of `Consumer.pop`. Further pops wait. With
                `ordered_leases`, messages held back by a lease of their key count too.
            ordered_leases: Deliver the messages of a key one pop at a time, and a failed message
                again before the messages that follow it. Key_Shared only; use `pop` in place of
                `receive`.
            nack_index: A `SpillingNackIndex` that keeps ids of nacked messages on disk. None keeps
                them in memory. Useful for very many nacks on a broker without limits of unacked
                messages.

        Raises:
            ConfigurationError: if an option is wrong. Nothing was connected.
            StoreError: if `state` cannot be opened (a StateInUseError, StateFormatError or
                StateDamagedError if the cause is known), or the directory of `nack_index` cannot be
                created. Nothing was connected.
            NotSupportedError: if `ack_receipt_enabled` is set on the stock transport, or
                `nack_index` on a system without `fcntl.flock`.
            ClosedError: if the client is closed.
            TransportError: if the broker refused or could not be reached.
        """
        self._check_open()
        topics, pattern = parse_topics(topic, boolean(is_pattern_topic, "is_pattern_topic"))
        options = ConsumerOptions(
            topics=topics,
            pattern=pattern,
            subscription_name=subscription_name,
            consumer_type=consumer_type,
            schema=schema,
            message_listener=message_listener,
            receiver_queue_size=receiver_queue_size,
            max_total_receiver_queue_size_across_partitions=(
                max_total_receiver_queue_size_across_partitions
            ),
            consumer_name=consumer_name,
            unacked_messages_timeout_ms=unacked_messages_timeout_ms,
            broker_consumer_stats_cache_time_ms=broker_consumer_stats_cache_time_ms,
            negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
            is_read_compacted=is_read_compacted,
            properties=properties,
            pattern_auto_discovery_period=pattern_auto_discovery_period,
            initial_position=initial_position,
            crypto_key_reader=crypto_key_reader,
            replicate_subscription_state_enabled=replicate_subscription_state_enabled,
            max_pending_chunked_message=max_pending_chunked_message,
            auto_ack_oldest_chunked_message_on_queue_full=(
                auto_ack_oldest_chunked_message_on_queue_full
            ),
            start_message_id_inclusive=start_message_id_inclusive,
            batch_receive_policy=batch_receive_policy,
            key_shared_policy=key_shared_policy,
            batch_index_ack_enabled=batch_index_ack_enabled,
            regex_subscription_mode=regex_subscription_mode,
            dead_letter_policy=dead_letter_policy,
            crypto_failure_action=crypto_failure_action,
            negative_ack_redelivery_backoff=negative_ack_redelivery_backoff,
            negative_ack_precision_bit_cnt=negative_ack_precision_bit_cnt,
            ack_timeout_redelivery_backoff=ack_timeout_redelivery_backoff,
            ack_group_time_ms=ack_group_time_ms,
            ack_group_max_size=ack_group_max_size,
            ack_receipt_enabled=ack_receipt_enabled,
            event_listener=event_listener,
            max_unacked_messages=max_unacked_messages,
            retry_enable=retry_enable,
            nack_overflow=nack_overflow,
            nack_overflow_share=nack_overflow_share,
            nack_overflow_delay=nack_overflow_delay,
            state=state,
            max_leases=max_leases,
            ordered_leases=ordered_leases,
            nack_index=nack_index,
        )
        from .consumer.consumer_factory import (  # lazy: see above
            make_consumer,
            open_transport_consumer,
        )

        observers = self._observers
        spilling: NackSpilling | None = None
        state_writer: StateWriter | None = None
        if options.nack_index is not None:
            from .consumer.nack_disk_index import NackSpilling  # lazy: only this option needs it

            spilling = await NackSpilling.open(options)
        try:
            if options.state is not None:
                from .consumer.state_writer import StateWriter  # lazy: only this option needs it

                state_writer = await StateWriter.open(options, self._logs.named)
            transport_consumer = await open_transport_consumer(self._transport, options)
            await self._check_still_open(transport_consumer)
            consumer = make_consumer(
                self._transport,
                transport_consumer,
                options,
                self._on_closed(None if observers is None else observers.consumer_closed),
                state_writer,
                spilling,
                self._logs.named,
                observers,
                None if self._options.admin_url is None else self._new_web_service,
            )
        except BaseException:
            try:
                if state_writer is not None:
                    await state_writer.close()
            finally:
                if spilling is not None:
                    await spilling.close()
            raise
        name = f"the consumer of {options.pattern or ', '.join(options.topics)}"
        self._open[consumer] = warn_unless_closed(
            consumer, f"{name} ({options.subscription_name!r})"
        )
        if observers is not None and observers.consumer_opened is not None:
            observers.consumer_opened(consumer)
        return consumer

    def _new_web_service(self) -> WebService:
        from .admin import WebService  # lazy: only `lag` needs it

        assert self._options.admin_url is not None
        return WebService(self._options, self._options.admin_url, self._logs.named)

    @opening
    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId | Any,
        schema: Codec[T] | None = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: Any = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        event_listener: Callable[[ReaderEvent], object] | None = None,
    ) -> Reader[T]:
        """Create a reader: `await` the call, or use `async with`.

        Keywords, units and defaults are those of `pulsar.asyncio`. New in this package:

        Args:
            schema: As in `subscribe`.
            event_listener: Called on the event loop with each `ReaderEvent` (`Disconnected`,
                `Retrying`, `Connected`, `Failed`) until `close`. Its exceptions are logged. The
                stock transport reports `Failed` only.

        Raises:
            ConfigurationError: if an option is wrong. Nothing was connected.
            ClosedError: if the client is closed.
            TransportError: if the broker refused or could not be reached.
        """
        self._check_open()
        options = ReaderOptions(
            topic=topic,
            start_message_id=start_message_id,
            schema=schema,
            receiver_queue_size=receiver_queue_size,
            reader_name=reader_name,
            subscription_role_prefix=subscription_role_prefix,
            is_read_compacted=is_read_compacted,
            crypto_key_reader=crypto_key_reader,
            start_message_id_inclusive=start_message_id_inclusive,
            crypto_failure_action=crypto_failure_action,
            event_listener=event_listener,
        )
        from .reader.reader import Reader, subscription_of  # lazy: see above

        transport_consumer = await self._transport.subscribe(subscription_of(options))
        await self._check_still_open(transport_consumer)
        reader = Reader(
            transport_consumer, options, on_closed=self._forget, logger_of=self._logs.named
        )
        self._open[reader] = warn_unless_closed(reader, f"the reader of {transport_consumer.topic}")
        return reader

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the names of a topic's partitions, or its own full name if it is not partitioned.

        Raises:
            ConfigurationError: if `topic` is not a topic name.
            ClosedError: if the client is closed.
            TransportError: if the broker refused or could not be reached.
        """
        self._check_open()
        return await self._transport.topic_partitions(topic_name(topic, "topic"))

    @opening
    async def transaction(self, timeout: float | timedelta = 60.0) -> Transaction:
        """Begin a transaction (PIP-31, NEW_TXN): `await` the call, or use `async with`.

        The native transport is needed, and a cluster with
        ``transactionCoordinatorEnabled=true``. Several transactions can be open at a time.

        Args:
            timeout: The cluster aborts the transaction after this time, from 1 s, in s or as a
                timedelta. While it is open, and for this time after a crash, readers of its topics
                see nothing behind its first message.

        Raises:
            ConfigurationError: if `timeout` is wrong.
            NotSupportedError: on the stock transport; `TransactionNotEnabledError` if the cluster
                has no transactions.
            ClosedError: if the client is closed.
            TransportError: if no coordinator could be reached.
        """
        self._check_open()
        timeout_s = seconds(timeout, "timeout", low=1.0)
        from .transaction import Transaction  # lazy: see above

        transport_transaction = await self._transport.begin_transaction(timeout_s)
        if self._closed:
            transport_transaction.abandon()
            raise ClosedError("the client was closed meanwhile: create another")
        txn = Transaction(transport_transaction, on_ended=self._forget, logger_of=self._logs.named)
        self._open[txn] = warn_unless_closed(txn, f"transaction {txn.id}")
        return txn

    async def commit_transaction(self, txn_id: TxnId) -> None:
        """Commit a transaction by its id, which perhaps another process has begun (END_TXN).

        Its owner does not learn of it. If the owner sends a message afterwards, readers see nothing
        behind it until another transaction of the same coordinator ends on that topic, and then
        none of its messages, the committed ones too (Pulsar 4.2.4).

        Raises:
            TransactionNotFound: if it has ended before, or belongs to another role.
            InvalidTxnStatusError: if it is being aborted.
            TransactionOutcomeUnknown: if an answer was lost, and it has ended by then.
            TransportError: if the coordinator did not answer.
        """
        self._check_open()
        await self._transport.end_transaction(_checked_txn_id(txn_id), commit=True)

    async def abort_transaction(self, txn_id: TxnId) -> None:
        """Abort a transaction by its id, such as one whose process has died (END_TXN).

        Raises:
            TransactionNotFound: if it has ended before, or belongs to another role.
            InvalidTxnStatusError: if it is being committed.
            TransactionOutcomeUnknown: if an answer was lost, and it has ended by then.
            TransportError: if the coordinator did not answer.
        """
        self._check_open()
        await self._transport.end_transaction(_checked_txn_id(txn_id), commit=False)

    def shutdown(self) -> None:
        """Close everything at once, without waiting for answers and without flushing.

        Producers, consumers and readers of this client are closed too: their pending and later
        calls raise `ClosedError`.
        """
        check_process(self._pid, "client")
        self._closed = True
        self._unclosed.detach()
        cleanups = [partial(_abandon_on_its_loop, each) for each in list(self._open)]
        end_all(None, *cleanups, self._transport.shutdown, self._logs.close)

    async def close(self) -> None:
        """Close all producers, consumers and readers, then the connections.

        A second call does nothing. Consumers send their acks first. Sends without an answer fail.
        Open transactions are aborted. Cancelling the call does not stop the close. Objects of
        another event loop are closed on that loop. If that loop no longer runs, messages acked in
        its last `ack_group_time_ms` may be redelivered.

        Raises:
            TransportTimeout: if another event loop did not close its objects within 10 s.
        """
        check_process(self._pid, "client")
        await self._close_once()

    async def _close(self) -> None:
        self._closed = True
        self._unclosed.detach()
        failures = await asyncio.gather(
            *(_close_on_its_loop(each) for each in list(self._open)), return_exceptions=True
        )
        await self._transport.close()
        self._logs.close()
        for failure in failures:
            if isinstance(failure, BaseException) and not isinstance(failure, ClosedError):
                raise failure

    def _on_closed(
        self, observe: Callable[..., None] | None
    ) -> Callable[[Producer | Consumer | Reader | Transaction], None]:
        """Return the function that a producer or consumer calls once, when it has closed."""
        if observe is None:
            return self._forget

        def forget(closed: Producer | Consumer | Reader | Transaction) -> None:
            self._forget(closed)
            observe(closed)

        return forget

    def _forget(self, closed: Producer | Consumer | Reader | Transaction) -> None:
        unclosed = self._open.pop(closed, None)
        if unclosed is not None:
            unclosed.detach()

    async def _check_still_open(self, opened: TransportProducer | TransportConsumer) -> None:
        """Close a new producer or consumer, and raise ClosedError, if the client was closed."""
        if self._closed:
            await opened.close()
            raise ClosedError("the client was closed meanwhile: create another")

    def _check_open(self) -> None:
        check_process(self._pid, "client")
        if self._closed:
            raise ClosedError("the client is closed: create another")

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _checked_transport(given: Any, options: ClientOptions, logs: ClientLogs) -> Transport:
    """Return the transport of the option `transport`, which may be the name of one."""
    if given is None or isinstance(given, str):
        return make_transport(options, given, logs.named)
    if isinstance(given, type) or not hasattr(given, "subscribe"):
        class_name = "the class " + given.__name__ if isinstance(given, type) else ""
        raise ConfigurationError(
            "transport must be a Transport, such as testing.MemoryTransport(), or a name of "
            f"one, got {class_name or type(given).__name__}"
        )
    transport: Transport = given
    return transport


def _checked_txn_id(given: Any) -> TxnId:
    if isinstance(given, TxnId):
        return given
    raise ConfigurationError(
        f"txn_id must be a TxnId, got {type(given).__name__}: TxnId.parse reads its text form"
    )


def transport_of(client: Client) -> Transport:
    return client._transport


def observers_of(client: Client) -> ObserverList | None:
    """Return the observers of a client, or None if it has none."""
    return client._observers


def logger_of(client: Client) -> Callable[[str], logging.Logger]:
    """Return the function from the name of a logger of this package to the client's logger."""
    return client._logs.named


def _abandon_on_its_loop(each: Producer | Consumer | Reader | Transaction) -> None:
    loop = each.affinity.loop
    if loop.is_running() and loop is not running_loop():
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(each.abandon)
    else:
        each.abandon()


async def _close_on_its_loop(each: Producer | Consumer | Reader | Transaction) -> None:
    """Close an object on its own event loop.

    If that loop does not run, the object is only marked as closed, and the transport closes the
    connection.
    """
    loop = each.affinity.loop
    if loop is running_loop():
        await each.close()
    elif loop.is_running():
        closing = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(each.close(), loop))
        await asyncio.wait((closing,), timeout=_OTHER_LOOP_CLOSE_TIMEOUT_S)
        if closing.done() and not closing.cancelled():
            closing.result()
            return
        each.abandon()
        if not closing.done():
            raise TransportTimeout(
                f"the event loop of {each!r} did not close it in "
                f"{_OTHER_LOOP_CLOSE_TIMEOUT_S:g} s: its last acks may be lost, and these messages "
                "redelivered. Keep that loop running while the client is closed"
            )
    else:
        each.abandon()
