"""Our versions of the C++ client's small values: rejected arguments, and use in its code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _pulsar
import pulsar
import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread
from pulsar_encore.options import ClientOptions, ConsumerOptions, ProducerOptions
from pulsar_encore.transport.stock import client_config
from pulsar_encore.values import crypto_keys as encryption
from pulsar_encore.wire import pulsar_pb2 as pb
from pulsar_encore.wire.entries import BatchError, encode_batch

NOWHERE = "pulsar://127.0.0.1:1"
QUIET = encore.ConsoleLogger(encore.LoggerLevel.Error)


def key_shared(**options: Any) -> ConsumerOptions:
    return ConsumerOptions(
        topics=("t",),
        pattern=None,
        subscription_name="s",
        consumer_type=encore.ConsumerType.KeyShared,
        **options,
    )


@pytest.mark.parametrize("package", [encore, pulsar])
def test_a_key_shared_policy_of_either_package_is_accepted(package: Any) -> None:
    sticky = package.ConsumerKeySharedPolicy(
        package.KeySharedMode.Sticky, True, [(0, 99), (1000, 65_535)]
    )
    read = key_shared(key_shared_policy=sticky).key_shared_policy
    assert type(read) is encore.ConsumerKeySharedPolicy
    assert read.key_shared_mode is encore.KeySharedMode.Sticky
    assert read.allow_out_of_order_delivery is True
    assert read.sticky_ranges == [(0, 99), (1000, 65_535)]
    native = read.policy()
    assert type(native) is _pulsar.KeySharedPolicy
    assert native.get_sticky_ranges() == read.sticky_ranges
    assert native.get_key_shared_mode() == encore.KeySharedMode.Sticky
    plain = key_shared(key_shared_policy=package.ConsumerKeySharedPolicy()).key_shared_policy
    assert plain is not None and plain.sticky_ranges == []
    assert plain.policy().get_key_shared_mode() == pulsar.KeySharedMode.AutoSplit


def wrong() -> list[tuple[Callable[[], object], str]]:
    policy, sticky = encore.ConsumerKeySharedPolicy, encore.KeySharedMode.Sticky
    info = encore.ServiceInfo(NOWHERE)
    loose: Any = encore
    return [
        (lambda: policy(sticky), "needs sticky_ranges"),
        (lambda: policy(sticky, False, []), "must not be empty"),
        (lambda: policy(sticky, False, [(0, 70_000)]), "to 65535, got 70000"),
        (lambda: policy(sticky, False, [(-1, 3)]), "from 0 to 65535, got -1"),
        (lambda: policy(sticky, False, [(0, 10), (10, 20)]), "overlap at 10"),
        (lambda: loose.ConsumerKeySharedPolicy(sticky, False, [1]), "pairs of numbers"),
        (lambda: loose.ConsumerKeySharedPolicy("Sticky"), "key_shared_mode must be"),
        (lambda: loose.ConsumerKeySharedPolicy(sticky, 1, [(0, 1)]), "allow_out_of_order"),
        (lambda: encore.ConsumerDeadLetterPolicy(0), "max_redeliver_count must be"),
        (lambda: encore.ConsumerDeadLetterPolicy(1, "a//b"), "dead_letter_topic must be"),
        (lambda: encore.DeadLetterPolicyBuilder().maxRedeliverCount(0), "maxRedeliverCount"),
        (lambda: encore.DeadLetterPolicyBuilder().initialSubscriptionName(""), "must be a string"),
        (lambda: loose.ConsoleLogger("Warn"), "log_level must be a LoggerLevel"),
        (lambda: loose.FileLogger(encore.LoggerLevel.Warn, 3), "log_file must be"),
        (lambda: loose.ServiceInfo(3), "service_url must be a str"),
        (lambda: loose.ServiceInfo(NOWHERE, "token"), "authentication must be one of"),
        (lambda: loose.ServiceInfo(NOWHERE, None, 3), "tls_trust_certs_file_path must be"),
        (lambda: encore.AutoClusterFailover(info, []), "secondary must be a list"),
        (lambda: loose.AutoClusterFailover(info, [3]), r"secondary\[0\] must be a ServiceInfo"),
        (lambda: loose.AutoClusterFailover("x", [info]), "primary must be a ServiceInfo"),
        (lambda: encore.AutoClusterFailover(info, [info], 0), "check_interval_ms must be"),
        (lambda: encore.AutoClusterFailover(info, [info], 1, 0), "failover_threshold must be"),
        (lambda: loose.MessageBatch().with_message_id(3), "expected a MessageId"),
        (lambda: loose.MessageBatch().parse_from("text", 1), "data must be bytes"),
        (lambda: loose.MessageBatch().parse_from(b"", 0), "size must be"),
    ]


@pytest.mark.parametrize(("make", "says"), wrong())
def test_the_error_names_a_wrong_value(make: Callable[[], object], says: str) -> None:
    with pytest.raises(encore.ConfigurationError, match=says):
        make()


def test_dead_letter_policies_have_the_values_of_pulsar_client() -> None:
    for package in (encore, pulsar):
        for policy in (
            package.ConsumerDeadLetterPolicy(3, "dead", "triage"),
            package.ConsumerDeadLetterPolicy(max_redeliver_count=3),
        ):
            native = policy.policy()
            assert type(native) is _pulsar.DeadLetterPolicy
            values = (
                policy.max_redeliver_count,
                policy.dead_letter_topic,
                policy.initial_subscription_name,
            )
            assert values in {(3, "dead", "triage"), (3, "", "")}
            assert values == (
                native.getMaxRedeliverCount(),
                native.getDeadLetterTopic(),
                native.getInitialSubscriptionName(),
            )
    builder = encore.DeadLetterPolicyBuilder().deadLetterTopic("dead").maxRedeliverCount(2)
    built = builder.initialSubscriptionName("triage").build()
    assert built.getDeadLetterTopic() == "dead"
    assert (built.getMaxRedeliverCount(), built.getInitialSubscriptionName()) == (2, "triage")
    theirs, ours = pulsar.DeadLetterPolicyBuilder().build(), encore.DeadLetterPolicyBuilder()
    assert theirs.getMaxRedeliverCount() == ours.build().getMaxRedeliverCount()


@pytest.mark.parametrize("url", [NOWHERE, "pulsar+ssl://h:6651", "http://h", "https://h"])
def test_service_infos_have_the_values_of_pulsar_client(url: str) -> None:
    for arguments in ((url,), (url, None, "/ca.pem")):
        theirs, ours = pulsar.ServiceInfo(*arguments), encore.ServiceInfo(*arguments)
        wrapped = encore.ServiceInfo.wrap(theirs._service_info)
        for each in (ours, wrapped):
            assert repr(each) == repr(theirs)
            assert each._service_info.use_tls == theirs.use_tls == each.use_tls
        assert wrapped._service_info is theirs._service_info


class NoEngine:
    """Replaces `_pulsar.Client`: records the arguments that the stock Python code passes to it."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    @classmethod
    def create_auto_cluster_failover(cls, *given: Any) -> NoEngine:
        return cls(*given)

    @classmethod
    def create_service_info_provider(cls, *given: Any) -> NoEngine:
        return cls(*given)


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pulsar, "Client", NoEngine)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("package", [encore, pulsar])
def test_the_stock_transport_accepts_failover_of_either_package(package: Any) -> None:
    info = package.ServiceInfo("pulsar+ssl://h", package.AuthenticationToken("t"), "/ca.pem")
    failover = package.AutoClusterFailover(info, [info, info], 7, 8, 9)
    assert ClientOptions(service_url=failover).service_url is failover
    handed = client_config.service_url(failover)
    primary, secondary, *numbers, _ = pulsar.Client(handed)._client.given
    assert [each.service_url for each in (primary, *secondary)] == ["pulsar+ssl://h"] * 3
    assert (primary.use_tls, primary.tls_trust_certs_file_path) == (True, "/ca.pem")
    assert numbers == [7, 8, 9]


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("package", [encore, pulsar])
def test_the_stock_transport_accepts_service_info_providers_of_either_package(package: Any) -> None:
    info = package.ServiceInfo("pulsar://h")
    received: list[Any] = []

    class Provider(package.ServiceInfoProvider):  # type: ignore[misc, name-defined]
        def initial_service_info(self) -> Any:
            return info

        def initialize(self, on_service_info_update: Any) -> None:
            on_service_info_update(info)

        def close(self) -> None:
            received.append("closed")

    provider = Provider()
    assert ClientOptions(service_url=provider).service_url is provider
    handed = pulsar.Client(client_config.service_url(provider))._client.given[0]
    handed.initialize(received.append)
    for each in handed.initial_service_info(), received.pop():
        assert isinstance(each, pulsar.ServiceInfo) and each.service_url == "pulsar://h"
    handed.close()
    assert received == ["closed"]


@pytest.mark.parametrize("given", ["own", "stock"])
def test_the_stock_transport_accepts_authentication_of_either_package(given: str) -> None:
    made = (encore if given == "own" else pulsar).AuthenticationToken("secret")
    handed = client_config.authentication(made)
    assert isinstance(handed, pulsar.Authentication) and handed.auth is made.auth
    assert client_config.authentication(None) is None


async def test_the_cpp_client_calls_a_service_info_provider_of_this_package(
    broker: BrokerThread, topic: str
) -> None:
    class Provider(encore.ServiceInfoProvider):
        def initial_service_info(self) -> encore.ServiceInfo:
            return encore.ServiceInfo(broker.url)

        def initialize(self, on_service_info_update: object) -> None:
            pass

    async with encore.Client(Provider()) as client:
        await (await client.create_producer(topic)).send(b"there")


def test_the_stock_transport_accepts_loggers_of_either_package(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    for package in encore, pulsar:
        console = client_config.logger(package.ConsoleLogger(package.LoggerLevel.Error))
        assert isinstance(console, pulsar.ConsoleLogger)
        assert console.log_level is pulsar.LoggerLevel.Error
        file = client_config.logger(package.FileLogger(package.LoggerLevel.Warn, path))
        assert isinstance(file, pulsar.FileLogger)
        assert (file.log_level, file.log_file) == (pulsar.LoggerLevel.Warn, path)
    own = logging.getLogger("mine")
    assert client_config.logger(own) is own and client_config.logger(None) is None
    assert repr(QUIET) == "ConsoleLogger(LoggerLevel.Error)"


def test_a_crypto_key_reader_reads_its_files_when_a_key_is_requested(tmp_path: Path) -> None:
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    reader = encore.CryptoKeyReader(str(public), str(private))
    assert ProducerOptions(topic="t", crypto_key_reader=reader).crypto_key_reader is reader
    assert encryption.key_reader_of(reader) is reader
    assert encryption.key_reader_of(None) is None
    with pytest.raises(encore.CryptoError, match=r"key 'k'.*public_key_path: cannot read"):
        reader.public_key("k", {})
    public.write_bytes(b"public"), private.write_bytes(b"private")
    assert (reader.public_key("k", {}), reader.private_key("k", {})) == (b"public", b"private")
    assert type(reader.cryptoKeyReader) is _pulsar.CryptoKeyReader
    theirs = pulsar.CryptoKeyReader("a", "b")
    assert ProducerOptions(topic="t", crypto_key_reader=theirs).crypto_key_reader is theirs
    with pytest.raises(encore.NotSupportedError, match=r"create a pulsar_encore\.CryptoKeyReader"):
        encryption.key_reader_of(theirs)
    with pytest.raises(encore.ConfigurationError, match="crypto_key_reader must be"):
        encryption.key_reader_of("file")


READ = (
    *("data", "properties", "partition_key", "ordering_key", "publish_timestamp", "topic_name"),
    *("event_timestamp", "redelivery_count", "schema_version", "producer_name", "has_null_value"),
)


def test_message_batch_reads_a_batch_as_pulsar_client_does() -> None:
    plain = pb.SingleMessageMetadata()
    full = pb.SingleMessageMetadata(partition_key="key", ordering_key=b"order", event_time=7)
    full.properties.append(pb.KeyValue(key="name", value="value"))
    null = pb.SingleMessageMetadata(null_value=True)
    payload = encode_batch([(plain, b"one"), (full, b"two"), (null, b"")])
    native = _pulsar.MessageId(2, 3, 4, -1)
    theirs = pulsar.MessageBatch().with_message_id(native).parse_from(payload, 3)
    for entry in (native, encore.MessageId(2, 3, 4)):
        ours = encore.MessageBatch().with_message_id(entry).parse_from(payload, 3)
        assert [each.value() for each in ours] == [b"one", b"two", None]  # stock: b"", as `data`
        for mine, other in zip(ours, theirs, strict=True):
            for name in READ:
                assert getattr(mine, name)() == getattr(other, name)(), name
            assert mine.message_id() == other.message_id()
            assert mine.encryption_context() is None and mine.int_schema_version() < 0
    with pytest.raises(BatchError):
        encore.MessageBatch().parse_from(payload, 4)
