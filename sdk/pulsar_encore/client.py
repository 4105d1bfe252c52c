"""The entry point: one client, its producers, consumers and readers.

Owns `Client` and what closes with it. Every keyword is checked before anything connects, and after
`close` every method fails by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
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
from .options.checks import boolean, topic_name
from .options.client_options import DEFAULT_RECREATE_AFTER_S
from .transport.interface import Transport, TransportConsumer, TransportProducer
from .transport.transport_choice import make_transport
from .values.backoff import BackoffLike
from .values.message_id import MessageId

# Producers, readers and consumers are most of this package. The first of a kind that a client makes
# loads its modules, so `import pulsar_encore` is quick, and a program that publishes loads no more.
if TYPE_CHECKING:
    from .consumer.consumer import Consumer
    from .consumer.event_publisher import ProducerEventPublisher
    from .consumer.events import ConsumerEvent, ProducerEvent, ReaderEvent
    from .consumer.nack_spilling import NackSpilling
    from .consumer.state_writer import StateWriter
    from .producer import Producer
    from .reader.reader import Reader

#: Longest wait for the loop of another thread that closes something, in s.
_OTHER_LOOP_CLOSE_TIMEOUT_S: Final = 10.0


class Client:
    """A connection to a Pulsar cluster, shared by everything made from it.

    It may be made before any event loop runs, and used from several, one after the other or side by
    side; what it makes belongs to the loop that made it. After a fork the child needs another.

    Args:
        service_url: Such as ``pulsar://localhost:6650`` or ``pulsar+ssl://host:6651``, or an
            `AutoClusterFailover` or `ServiceInfoProvider`.
        authentication: One of the Authentication classes.
        operation_timeout_seconds: Longest wait for one answer of the broker, in s. Creating asks
            several times (partitions, owner, the thing itself), and a connection that is accepted
            and never answered ends after `connection_timeout_ms`: a call can take the sum.
        io_threads: Network threads of the C++ library (stock transport).
        message_listener_threads: Its delivery threads.
        concurrent_lookup_requests: Most lookups under way on one connection.
        log_conf_file_path: Accepted and without effect, as in stock.
        stats_interval_in_seconds: How often the C++ library logs statistics, in s; 0 for never.
        use_tls: Accepted and without effect, as in stock: the URL's scheme decides.
        tls_trust_certs_file_path: Trusted certificates; certifi's when None, with the native
            transport the system's, and certifi's where it has none. This and the two
            other files must be there and readable. (Those of `AuthenticationTLS` are the stock
            library's to check: a missing one is an authentication error when it connects.)
        tls_allow_insecure_connection: Accept any certificate.
        tls_validate_hostname: Compare the certificate's name with the host's. The native transport
            always does, unless it is to accept any certificate.
        logger: Where the C++ library logs; the first client of a process decides for all of
            them. None is Python's `logging`, under ``"pulsar_encore.engine"``: warnings and
            errors, at most 0.5 s after they happen, and before the error they belong to is raised.
            For more give that logger, or ``"pulsar_encore"``, a level before the first client:
            INFO tells of every connection, DEBUG of every message (half of the throughput at best).
            Only with None do most errors carry the broker's reason. Where there are no files in
            memory (other systems than Linux) None is ``ConsoleLogger(LoggerLevel.Warn)``, on
            stdout.
            Others: `ConsoleLogger`, `FileLogger`, or a `logging.Logger` (slow at any level: every
            line of the library crosses into Python, and one at the process's end may abort it).
        connection_timeout_ms: Longest wait for a connection in ms.
        listener_name: Which of the broker's advertised listeners to use.
        tls_private_key_file_path: Key of a client certificate.
        tls_certificate_file_path: Client certificate.
        partitions_update_interval: Time in s, or a timedelta, between two looks for new partitions
            of named topics, from 0.1 to 1e9. It holds for consumers, producers and readers. A
            pattern has `pattern_auto_discovery_period` instead. Native transport only, like the
            four options below: with the stock transport another value than the default is an error.
        reattach_timeout: Longest time in s, or a timedelta, that a consumer, producer or reader
            tries to attach again after a loss. Then it ends with the last refusal. None retries
            without end.
        recreate_after: Time in s, or a timedelta, that a topic has to be missing before a consumer
            or producer that was attached to it may create the topic again, on a broker with
            automatic topic creation. Until then a topic that an operator deleted stays deleted.
        max_partitions: Most partitions that a topic may have. If a broker's answer has more, the
            call raises `LookupError`.
        max_uncompressed_size: Largest payload in bytes after decompression, of an entry or of a
            chunked message. The client cannot read a larger payload: it acks the entry with the
            validation error UncompressedSizeCorruption.
        transport: "native", which speaks Pulsar's protocol itself; "stock", which is over
            `pulsar-client`; "auto", the native one wherever it can serve these options, else
            stock's, as the log of ``"pulsar_encore.client"`` says. None leaves it to the
            environment variable ``PULSAR_ENCORE_TRANSPORT``, and without it is "auto". Or another
            transport, such as `testing.MemoryTransport()`; then the options above are checked but
            not used.

    Raises:
        ConfigurationError: An option is wrong.
        NotSupportedError: The transport cannot serve the options.
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
        transport: Transport | str | None = None,
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
        )
        if transport is None or isinstance(transport, str):
            transport = make_transport(options, transport)
        elif isinstance(transport, type) or not hasattr(transport, "subscribe"):
            class_name = "the class " + transport.__name__ if isinstance(transport, type) else ""
            raise ConfigurationError(
                "transport must be a Transport, such as testing.MemoryTransport(), or a name of "
                f"one, got {class_name or type(transport).__name__}"
            )
        self._transport: Transport = transport
        # What it made keeps it, by `_forget`, until closed: dropping the client ends nothing.
        self._open: dict[Producer | Consumer | Reader, finalize[[str, int], object]] = {}
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
        schema: Any = None,
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
    ) -> Producer:
        """Create a producer: `await` it, or enter it with `async with`.

        Keywords, units and defaults are those of `pulsar.asyncio`.
        With `block_if_queue_full`, a send over the limit of `max_pending_messages` (of the whole
        producer) waits its turn; the event loop is never blocked. With `chunking_enabled` each
        chunk counts, and a message of more chunks than the limit goes when no other is under way.
        New here:

        Args:
            event_listener: Called on the event loop with each `ProducerEvent`: the connection is
                lost (`Disconnected`), attempts to attach again fail (`Retrying`), the producer is
                attached again (`Connected`) or has ended for good (`Failed`). An exception that it
                raises is logged. Not called after `close`.

        Raises:
            ConfigurationError: A keyword is wrong; nothing was connected.
            NotSupportedError: `event_listener` on the stock transport, whose library reports
                nothing about its producers.
            ClosedError: The client is or was closed.
            TransportError: The broker refused, or could not be reached.
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
        from .producer import Producer  # not at the top: see there

        event_publisher = self._producer_event_publisher(options)
        link = await self._transport.create_producer(options, event_publisher)
        await self._check_still_open(link)
        producer = Producer(link, options, on_closed=self._forget, event_publisher=event_publisher)
        self._open[producer] = warn_unless_closed(producer, f"the producer of {link.topic}")
        return producer

    def _producer_event_publisher(self, options: ProducerOptions) -> ProducerEventPublisher | None:
        if options.event_listener is None:
            return None
        capabilities = self._transport.capabilities
        if not capabilities.producer_events:
            raise NotSupportedError(
                f"event_listener: the {capabilities.name} transport is told nothing about its "
                "producers. Leave it out, or use transport='native'"
            )
        from .consumer.event_publisher import (  # not at the top: see there
            EventDispatcher,
            ProducerEventPublisher,
        )

        loop = asyncio.get_running_loop()
        return ProducerEventPublisher(EventDispatcher(options.event_listener, loop, started=False))

    @opening
    async def subscribe(
        self,
        topic: str | list[str] | Any,
        subscription_name: str,
        consumer_type: ConsumerType = ConsumerType.Exclusive,
        schema: Any = None,
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
    ) -> Consumer:
        """Subscribe to a topic, a list of topics or a pattern: `await` it, or `async with` it.

        Keywords, units and defaults are those of `pulsar.asyncio`; `message_listener` and
        `pattern_auto_discovery_period` (s) are the synchronous client's. New here:

        Args:
            negative_ack_redelivery_backoff: Delay of a negative ack by the message's attempts,
                instead of the one `negative_ack_redelivery_delay_ms`: a `Backoff`, or a list of
                delays (s or timedeltas) by attempt such as `[10, 60, 600]`, of which the last one
                repeats. A lease of `Consumer.pop` that expires waits for the same delay.
            negative_ack_precision_bit_cnt: Due times are rounded up to 2**n ms (PIP-393); None
                lets it follow the delay.
            ack_timeout_redelivery_backoff: The same for `unacked_messages_timeout_ms`, which
                takes any value from 1000 ms here.
            ack_group_time_ms: Acks are sent together, at the latest after so many ms.
            ack_group_max_size: Acks are sent as soon as there are so many.
            ack_receipt_enabled: Awaiting an ack takes until the broker has confirmed it. It is
                grouped all the same: await many together, or set `ack_group_time_ms` to 0.
            event_listener: Called on the event loop with each `ConsumerEvent`: connections lost
                (`Disconnected`), failed attempts to attach again (`Retrying`), connections back
                (`Connected`), a consumer or a letter producer that has ended for good (`Failed`),
                turns of a Failover, ends of topics, new topics. The stock transport reports lost
                and restored connections and `Failed` only. An exception that the listener raises
                is logged. Not called after `close`.
            max_unacked_messages: The broker's `maxUnackedMessagesPerConsumer`, for the warning
                before the consumer stalls.
            retry_enable: Read the retry-letter topic along, for `reconsume_later`.
            dead_letter_policy: A `DeadLetterPolicy`, or stock's.
            nack_overflow: "retry_letter" parks nacks on the retry-letter topic when waiting ones
                fill `nack_overflow_share` of the window, or wait over `nack_overflow_delay` (s).
            state: Where due times of nacked messages and counts of attempts outlive the process; in
                memory when None.
            max_leases: Messages that `Consumer.pop` has handed out and that are not settled yet; at
                so many, pops wait. With `ordered_leases` those held back behind them count too.
            ordered_leases: One pop at a time has messages of a key, and a message that failed is
                popped again before those that follow it. Key_Shared only; messages are popped then,
                not received.
            nack_index: Where the ids of waiting nacks overflow to; in memory when None. For very
                many of them on a broker without limits of unacked messages.

        Raises:
            ConfigurationError: A keyword is wrong; nothing was connected.
            StoreError: The `state` cannot be opened: a StateInUseError, StateFormatError or
                StateDamagedError where it is known why; or the directory of `nack_index` cannot be
                made. Nothing was connected.
            NotSupportedError: `ack_receipt_enabled` on the stock transport, or `nack_index` on a
                system without `fcntl.flock`.
            ClosedError: The client is or was closed.
            TransportError: The broker refused, or could not be reached.
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
        from .consumer.consumer_factory import make_consumer, open_link  # not at the top: see there

        spilling: NackSpilling | None = None
        state_writer: StateWriter | None = None
        if options.nack_index is not None:
            from .consumer.nack_spilling import NackSpilling  # the one option that needs it

            spilling = await NackSpilling.open(options)
        try:
            if options.state is not None:
                from .consumer.state_writer import StateWriter  # the one option that needs it

                state_writer = await StateWriter.open(options)
            link = await open_link(self._transport, options)
            await self._check_still_open(link)
            consumer = make_consumer(
                self._transport, link, options, self._forget, state_writer, spilling
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
        return consumer

    @opening
    async def create_reader(
        self,
        topic: str,
        start_message_id: MessageId | Any,
        schema: Any = None,
        receiver_queue_size: int = 1000,
        reader_name: str | None = None,
        subscription_role_prefix: str | None = None,
        is_read_compacted: bool = False,
        crypto_key_reader: Any = None,
        start_message_id_inclusive: bool = False,
        crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL,
        *,
        event_listener: Callable[[ReaderEvent], object] | None = None,
    ) -> Reader:
        """Create a reader: `await` it, or enter it with `async with`.

        Keywords, units and defaults are those of `pulsar.asyncio`. New here:

        Args:
            event_listener: Called on the event loop with each `ReaderEvent`: the connection is lost
                (`Disconnected`), attempts to attach again fail (`Retrying`), the reader is attached
                again (`Connected`) or has ended for good (`Failed`). The stock transport reports
                `Failed` only. An exception that the listener raises is logged. Not called after
                `close`.

        Raises:
            ConfigurationError: A keyword is wrong; nothing was connected.
            ClosedError: The client is or was closed.
            TransportError: The broker refused, or could not be reached.
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
        from .reader.reader import Reader, subscription_of  # not at the top: see there

        link = await self._transport.subscribe(subscription_of(options))
        await self._check_still_open(link)
        reader = Reader(link, options, on_closed=self._forget)
        self._open[reader] = warn_unless_closed(reader, f"the reader of {link.topic}")
        return reader

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Names of a topic's partitions; the topic's own full name when it has none.

        Raises:
            ConfigurationError: `topic` is not a name.
            ClosedError: The client is or was closed.
            TransportError: The broker refused, or could not be reached.
        """
        self._check_open()
        return await self._transport.topic_partitions(topic_name(topic, "topic"))

    def shutdown(self) -> None:
        """Drop everything at once: nothing is waited for and nothing is flushed.

        Whatever it made is closed with it: calls under way and later ones raise `ClosedError`.
        """
        check_process(self._pid, "client")
        self._closed = True
        self._unclosed.detach()
        cleanups = [partial(_abandon_on_its_loop, each) for each in list(self._open)]
        end_all(None, *cleanups, self._transport.shutdown)

    async def close(self) -> None:
        """Close every producer, consumer and reader, then the connections. Again does nothing.

        Consumers send their acks first. Cancelling the call does not stop the closing. What belongs
        to another event loop is closed there; where that does not run any more, what was acked in
        its last `ack_group_time_ms` may come again.

        Raises:
            TransportTimeout: Another event loop did not close what belongs to it within 10 s.
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
        for failure in failures:
            if isinstance(failure, BaseException) and not isinstance(failure, ClosedError):
                raise failure

    def _forget(self, closed: Producer | Consumer | Reader) -> None:
        unclosed = self._open.pop(closed, None)
        if unclosed is not None:
            unclosed.detach()

    async def _check_still_open(self, link: TransportProducer | TransportConsumer) -> None:
        """The client may have been closed while the link was made: then it must not stay."""
        if self._closed:
            await link.close()
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


def transport_of(client: Client) -> Transport:
    """What a client is connected by; for what this package builds on clients."""
    return client._transport


def _abandon_on_its_loop(each: Producer | Consumer | Reader) -> None:
    loop = each.affinity.loop
    if loop.is_running() and loop is not running_loop():
        with contextlib.suppress(RuntimeError):  # it has just been closed
            loop.call_soon_threadsafe(each.abandon)
    else:
        each.abandon()


async def _close_on_its_loop(each: Producer | Consumer | Reader) -> None:
    """On the loop it belongs to; when that does not run, it can only be left to the transport."""
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
                f"{_OTHER_LOOP_CLOSE_TIMEOUT_S:g} s: what it acked last may "
                "come again; let that loop run while the client is closed"
            )
    else:
        each.abandon()
