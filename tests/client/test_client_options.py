"""Every wrong keyword is named before anything connects."""

from __future__ import annotations

import logging
from typing import Any

import pulsar
import pytest

import pulsar_encore as encore
from pulsar_encore.options import ClientOptions, ProducerOptions, ReaderOptions

NOWHERE = "pulsar://127.0.0.1:1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("service_url", "localhost:6650"),
        ("service_url", "pulsar://"),
        ("service_url", "ftp://host:1"),
        ("service_url", ""),
        ("service_url", None),
        ("authentication", "token"),
        ("operation_timeout_seconds", 0),
        ("operation_timeout_seconds", "30"),
        ("io_threads", 0),
        ("message_listener_threads", -1),
        ("concurrent_lookup_requests", True),
        ("stats_interval_in_seconds", -1),
        ("use_tls", 1),
        ("tls_validate_hostname", "yes"),
        ("tls_trust_certs_file_path", ""),
        ("connection_timeout_ms", 0),
        ("listener_name", 7),
        ("logger", print),
    ],
)
def test_a_wrong_client_option_is_named(name: str, value: Any) -> None:
    with pytest.raises(encore.ConfigurationError, match=name):
        encore.Client(**{"service_url": NOWHERE, name: value})


def test_authentication_beside_a_failover_url_is_refused() -> None:
    failover = encore.AutoClusterFailover(
        encore.ServiceInfo(NOWHERE), [encore.ServiceInfo("pulsar://127.0.0.1:2")]
    )
    with pytest.raises(encore.ConfigurationError, match="authentication"):
        ClientOptions(service_url=failover, authentication=encore.AuthenticationToken("t"))
    assert ClientOptions(service_url=failover).service_url is failover


def test_every_kind_of_logger_is_taken() -> None:
    for logger in (
        None,
        logging.getLogger("x"),
        encore.ConsoleLogger(),
        encore.FileLogger(encore.LoggerLevel.Warn, "engine.log"),
    ):
        assert ClientOptions(service_url=NOWHERE, logger=logger).logger is logger


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", ""),
        ("topic", ["a"]),
        ("producer_name", 1),
        ("schema", encore.schema.StringSchema),
        ("schema", "string"),
        ("initial_sequence_id", -2),
        ("send_timeout_millis", -1),
        ("compression_type", "LZ4"),
        ("max_pending_messages", -1),
        ("max_pending_messages_across_partitions", 1.5),
        ("block_if_queue_full", None),
        ("batching_max_messages", 1),
        ("batching_max_allowed_size_in_bytes", 0),
        ("batching_max_publish_delay_ms", 0),
        ("chunking_enabled", True),
        ("message_routing_mode", encore.PartitionsRoutingMode.CustomPartition),
        ("properties", {"a": 1}),
        ("properties", ["a"]),
        ("batching_type", 1),
        ("encryption_key", "key"),
        ("crypto_key_reader", "file"),
        ("access_mode", encore.ConsumerType.Shared),
        ("message_router", 3),
    ],
)
async def test_a_wrong_producer_option_is_named(name: str, value: Any) -> None:
    async with encore.Client(NOWHERE) as client:
        with pytest.raises(encore.ConfigurationError, match=name):
            await client.create_producer(**{"topic": "t", name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", None),
        ("start_message_id", "earliest"),
        ("start_message_id", None),
        ("schema", 3),
        ("receiver_queue_size", -1),
        ("reader_name", ""),
        ("subscription_role_prefix", 3),
        ("is_read_compacted", 0),
        ("crypto_key_reader", object()),
        ("start_message_id_inclusive", "no"),
        ("crypto_failure_action", 2),
    ],
)
async def test_a_wrong_reader_option_is_named(name: str, value: Any) -> None:
    good = {"topic": "t", "start_message_id": encore.MessageId.earliest}
    async with encore.Client(NOWHERE) as client:
        with pytest.raises(encore.ConfigurationError, match=name):
            await client.create_reader(**{**good, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topic", 3),
        ("is_pattern_topic", "yes"),
        ("subscription_name", ""),
        ("receiver_queue_size", 0),
        ("schema", encore.schema.BytesSchema),
        ("crypto_key_reader", "file"),
        ("consumer_type", "Shared"),
    ],
)
async def test_a_wrong_subscribe_option_is_named(name: str, value: Any) -> None:
    async with encore.Client(NOWHERE) as client:
        with pytest.raises(encore.ConfigurationError, match=name):
            await client.subscribe(**{"topic": "t", "subscription_name": "s", name: value})


async def test_a_wrong_key_shared_policy_is_named() -> None:
    async with encore.Client(NOWHERE) as client:
        with pytest.raises(encore.ConfigurationError, match="key_shared_policy"):
            await client.subscribe(
                "t", "s", encore.ConsumerType.KeyShared, key_shared_policy="sticky"
            )


def test_stocks_enum_members_and_ids_are_taken() -> None:
    producer = ProducerOptions(
        topic="t",
        compression_type=pulsar.CompressionType.ZSTD,
        access_mode=pulsar.ProducerAccessMode.Exclusive,
    )
    assert producer.compression_type is encore.CompressionType.ZSTD
    assert producer.access_mode is encore.ProducerAccessMode.Exclusive
    for start in (pulsar.MessageId.latest, pulsar.MessageId(3, 4, 5, 6)):
        reader = ReaderOptions(topic="t", start_message_id=start)
        assert reader.start_message_id == encore.MessageId.wrap(start)
