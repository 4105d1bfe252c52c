"""Every wrong keyword is named before anything connects."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pulsar_encore as encore
from pulsar_encore import testing
from pulsar_encore.options import ClientOptions, ProducerOptions, ReaderOptions

NOWHERE = "pulsar://127.0.0.1:1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("service_url", "localhost:6650"),
        ("service_url", "pulsar://"),
        ("service_url", "ftp://host:1"),
        ("service_url", ""),
        ("service_url", "pulsar://host:port"),
        ("service_url", "pulsar://host:99999"),
        ("service_url", "pulsar://host:0"),
        ("service_url", "pulsar://one:6650,two:x"),
        ("service_url", "pulsar://:6650"),
        ("tls_trust_certs_file_path", "/no/such"),
        ("tls_private_key_file_path", "/no/such"),
        ("tls_certificate_file_path", "/"),
        ("transport", "x"),
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
def test_the_error_names_a_wrong_client_option(name: str, value: Any) -> None:
    with pytest.raises(encore.ConfigurationError, match=name):
        encore.Client(**{"service_url": NOWHERE, name: value})


def test_errors_name_the_bad_port_or_file(tmp_path: Path) -> None:
    for options, expected_error in (
        ({"service_url": "pulsar://host:port"}, "port 'port' must be a number from 1 to 65535"),
        ({"service_url": "pulsar://a:1,b:99999"}, "port '99999' must be a number"),
        ({"tls_trust_certs_file_path": "/no/such"}, "cannot read '/no/such': No such file"),
        ({"tls_private_key_file_path": str(tmp_path)}, "is not a file"),
    ):
        with pytest.raises(encore.ConfigurationError, match=expected_error):
            ClientOptions(**{"service_url": NOWHERE, **options})  # type: ignore[arg-type]
    here = tmp_path / "certificates.pem"
    here.touch()
    for url in ("pulsar://[::1]:6650", "pulsar://[::1]", "pulsar+ssl://a,b:6651/", "http://h:8080"):
        ClientOptions(service_url=url, tls_trust_certs_file_path=str(here))


WRONG_TOPICS = (
    *("a//b", "a/b", "/x", "x/", "a/b/c/d", "kafka://a/b/c", "PERSISTENT://a/b/c", "a://b"),
    *("persistent://", "persistent://x", "persistent://x/y", "persistent://a/b/", "a/b/"),
    *("persistent://a//c", "persistent://a b/c/d", "non-persistent://a/b%/c"),
    # Names from before Pulsar 2, and similar ones: the C++ client would time out over them.
    *("persistent://t/cluster/n/a", "persistent://a/b/c/d/e/f"),
)
RIGHT_TOPICS = (
    *("a", "a:b", "a b", "ä", "t/n/a", "persistent://t/n/a", "non-persistent://t/n/a b"),
    "t-1/n_1.x=/a",
)


@pytest.mark.parametrize("topic", WRONG_TOPICS)
async def test_an_invalid_topic_name_is_refused_before_any_connection(topic: str) -> None:
    async with encore.Client(NOWHERE) as client:
        calls: list[Awaitable[Any]] = [
            client.create_producer(topic),
            client.create_reader(topic, encore.MessageId.earliest),
            client.subscribe(topic, "s"),
            client.subscribe(["fine", topic], "s"),
            client.get_topic_partitions(topic),
        ]
        for call in calls:
            with pytest.raises(encore.InvalidTopicName, match="topic must be a name"):
                await call
    for name in ("dead_letter_topic", "retry_letter_topic"):
        with pytest.raises(encore.ConfigurationError, match=f"{name} must be a name"):
            encore.DeadLetterPolicy(1, **{name: topic})  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", RIGHT_TOPICS)
def test_valid_topic_names_are_accepted(topic: str) -> None:
    assert ProducerOptions(topic=topic).topic == topic


def test_the_error_for_a_class_as_schema_gives_advice_only_for_schema_classes() -> None:
    with pytest.raises(encore.ConfigurationError, match="got the class dict, which is no schema"):
        ProducerOptions(topic="t", schema=dict)
    with pytest.raises(encore.ConfigurationError, match="write StringSchema"):
        ProducerOptions(topic="t", schema=encore.schema.StringSchema)


@pytest.mark.parametrize("name", ["max_num_message", "max_num_bytes", "timeout_ms"])
@pytest.mark.parametrize("value", ["5", 1.5, True, None])
def test_a_batch_receive_policy_takes_only_ints(name: str, value: Any) -> None:
    with pytest.raises(encore.ConfigurationError, match=f"{name} must be an int"):
        encore.BatchReceivePolicy(**{name: value})


def test_authentication_together_with_a_failover_url_is_refused() -> None:
    failover = encore.AutoClusterFailover(
        encore.ServiceInfo(NOWHERE), [encore.ServiceInfo("pulsar://127.0.0.1:2")]
    )
    with pytest.raises(encore.ConfigurationError, match="authentication"):
        ClientOptions(service_url=failover, authentication=encore.AuthenticationToken("t"))
    assert ClientOptions(service_url=failover).service_url is failover


def test_every_kind_of_logger_is_accepted() -> None:
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
async def test_the_error_names_a_wrong_producer_option(name: str, value: Any) -> None:
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
async def test_the_error_names_a_wrong_reader_option(name: str, value: Any) -> None:
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
        ("schema", encore.schema.BytesSchema),
        ("crypto_key_reader", "file"),
        ("consumer_type", "Shared"),
    ],
)
async def test_the_error_names_a_wrong_subscribe_option(name: str, value: Any) -> None:
    async with encore.Client(NOWHERE) as client:
        with pytest.raises(encore.ConfigurationError, match=name):
            await client.subscribe(**{"topic": "t", "subscription_name": "s", name: value})


async def test_the_error_names_a_wrong_key_shared_policy() -> None:
    async with encore.Client(NOWHERE) as client:
        with pytest.raises(encore.ConfigurationError, match="key_shared_policy"):
            await client.subscribe(
                "t", "s", encore.ConsumerType.KeyShared, key_shared_policy="sticky"
            )


def test_enum_members_and_ids_of_pulsar_client_are_accepted() -> None:
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


async def test_get_last_message_id_is_refused_for_several_partitions() -> None:
    async with testing.broker() as url, encore.Client(url) as client:
        url.broker.create_partitioned_topic("several", 2)
        consumer = await client.subscribe("several", "s")
        with pytest.raises(encore.NotSupportedError, match="one topic without partitions"):
            await consumer.get_last_message_id()
