"""Topic lookups: redirects, retries and shared requests. Virtual time."""

from __future__ import annotations

import asyncio

import pytest
from brokers_kit import Brokers, Double, lookup_answer, welcome
from google.protobuf.message import Message
from native_kit import TOPIC, Rig, run, settle

from pulsar_encore.devbroker import BrokerSettings, Fault, FaultPlan
from pulsar_encore.errors import TransportTimeout
from pulsar_encore.exceptions import (
    AuthorizationError,
    ConnectError,
    InvalidTopicName,
    NotConnected,
    ServiceUnitNotReady,
    TooManyLookupRequestException,
)
from pulsar_encore.exceptions import LookupError as TopicLookupError
from pulsar_encore.options import RegexSubscriptionMode
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.session import Session
from pulsar_encore.transport.native.lookup.lookup import Lookup
from pulsar_encore.transport.native.lookup.lookup_interface import NamePattern
from pulsar_encore.wire import pulsar_pb2 as pb

_Type = pb.BaseCommand


def asked(network: Brokers, broker: str, command: str) -> int:
    recorder = network.brokers[f"{broker}:6650"].service.recorder
    assert recorder is not None
    return len(recorder.find(command, "in"))


# Redirects


def test_a_redirect_to_another_broker_is_followed() -> None:
    async def main() -> None:
        network = Brokers(
            a=BrokerSettings(redirect_to="pulsar://b:6650"),
            b=BrokerSettings(redirect_to="pulsar://c:6650"),
            c=None,
        )
        lookup = Lookup(network.pool("pulsar://a"))
        session = await lookup.owner(TOPIC)
        assert session.peer == "pulsar://c:6650"
        recorder = network.brokers["c:6650"].service.recorder
        assert recorder is not None
        (question,) = recorder.find("LOOKUP", "in")
        assert question.command.lookupTopic.authoritative, "as the broker before said"

    run(main())


def test_a_redirect_loop_ends_with_an_error() -> None:
    async def main() -> None:
        network = Brokers(
            a=BrokerSettings(redirect_to="pulsar://b:6650"),
            b=BrokerSettings(redirect_to="pulsar://a:6650"),
        )
        with pytest.raises(TopicLookupError, match="more than 20 redirects"):
            await Lookup(network.pool("pulsar://a")).owner(TOPIC)
        assert asked(network, "a", "LOOKUP") + asked(network, "b", "LOOKUP") == 21

    run(main())


@pytest.mark.parametrize(
    ("scheme", "urls", "why"),
    [
        ("pulsar", {}, "no plain address"),
        ("pulsar", {"brokerServiceUrl": "nonsense"}, "is malformed"),
        ("pulsar+ssl", {"brokerServiceUrl": "pulsar://plain:1"}, "no TLS address"),
    ],
)
def test_an_answer_without_an_address_is_an_error(
    scheme: str, urls: dict[str, str], why: str
) -> None:
    def answer(command: pb.BaseCommand) -> list[Message]:
        if command.type == _Type.LOOKUP:
            return [lookup_answer(command, **urls)]
        return welcome(command)

    async def main() -> None:
        network = Brokers()
        network.doubles["h:1"] = Double(answer)
        with pytest.raises(TopicLookupError, match=why):
            await Lookup(network.pool(f"{scheme}://h:1")).owner(TOPIC)

    run(main())


def test_the_brokers_tls_address_is_used_with_tls() -> None:
    def answer(command: pb.BaseCommand) -> list[Message]:
        if command.type == _Type.LOOKUP:
            return [
                lookup_answer(
                    command, brokerServiceUrl="pulsar://b:1", brokerServiceUrlTls="pulsar+ssl://b:2"
                )
            ]
        return welcome(command)

    async def main() -> None:
        network = Brokers()
        double = Double(answer)
        network.doubles = dict.fromkeys(("h:6651", "b:2", "h:6650", "b:1"), double)
        secure = await Lookup(network.pool("pulsar+ssl://h")).owner(TOPIC)
        assert secure.peer == "pulsar+ssl://b:2"
        plain = await Lookup(network.pool("pulsar://h")).owner(TOPIC)
        assert plain.peer == "pulsar://b:1"

    run(main())


def test_a_lookup_through_a_proxy_connects_to_the_broker_by_the_proxy() -> None:
    """A client behind Pulsar's proxy cannot reach a broker's own address."""

    def answer(command: pb.BaseCommand) -> list[Message]:
        if command.type == _Type.LOOKUP:
            return [
                lookup_answer(
                    command, brokerServiceUrl="pulsar://inside:6650", proxy_through_service_url=True
                )
            ]
        return welcome(command)

    async def main() -> None:
        network = Brokers()
        network.doubles["proxy:6650"] = double = Double(answer)
        lookup = Lookup(network.pool("pulsar://proxy"))
        session = await lookup.owner(TOPIC)
        assert await lookup.owner(f"{TOPIC}2") is session
        assert network.dialed == ["proxy:6650"] * 2
        proxied = [each.connect.proxy_to_broker_url for each in double.received if each.type == 2]
        assert proxied == ["", "inside:6650"]

    run(main())


# Retries


@pytest.mark.parametrize("error", ["ServiceNotReady", "TooManyRequests", "MetadataError"])
def test_a_lookup_with_a_temporary_error_is_retried(error: str) -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.faults = FaultPlan(
            [Fault(kind="refuse", command="PARTITIONED_METADATA", times=3, error=error)]
        )
        assert await rig.lookup.partitions(TOPIC) == 0
        assert rig.service.faults.done

    run(main())


def test_a_permanent_error_is_raised_at_once() -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.faults = FaultPlan(
            [Fault(kind="refuse", command="PARTITIONED_METADATA", error="AuthorizationError")]
        )
        with pytest.raises(AuthorizationError):
            await rig.lookup.partitions(TOPIC)
        assert asyncio.get_running_loop().time() < 1

    run(main())


def test_a_lookup_reconnects_when_it_loses_its_connection() -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.faults = FaultPlan(
            [
                Fault(kind="close_before", command="PARTITIONED_METADATA", times=2),
                Fault(kind="outage", command="GET_TOPICS_OF_NAMESPACE", outage_s=3.0),
            ]
        )
        lookup = rig.lookup
        assert await lookup.partitions(TOPIC) == 0
        found = await lookup.topics("public/default", RegexSubscriptionMode.PersistentOnly)
        assert found.topics == [TOPIC]

    run(main())


def test_retries_end_with_the_operation_timeout_and_raise_the_last_error() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(operation_timeout_s=10.0))
        rig.service.faults = FaultPlan(
            [Fault(kind="refuse", command="PARTITIONED_METADATA", times=1000)]
        )
        loop = asyncio.get_running_loop()
        with pytest.raises(ServiceUnitNotReady):
            await rig.lookup.partitions(TOPIC)
        assert 2 < loop.time() <= 10, "another attempt would have ended too late"
        network = Brokers()
        network.dead.add("h:6650")
        began = loop.time()
        with pytest.raises(TransportTimeout, match=r"within 25 s; the last error: no connection"):
            await Lookup(
                network.pool("pulsar://h", settings=ClientSettings(operation_timeout_s=25.0))
            ).partitions(TOPIC)
        assert loop.time() - began == pytest.approx(25)

    run(main())


def test_another_broker_is_used_when_one_is_overloaded() -> None:
    def busy(command: pb.BaseCommand) -> list[Message]:
        if command.type == _Type.PARTITIONED_METADATA:
            number = command.partitionMetadata.request_id
            return [
                pb.CommandPartitionedTopicMetadataResponse(
                    request_id=number,
                    error=pb.TooManyRequests,
                    message="busy",
                    response=pb.CommandPartitionedTopicMetadataResponse.Failed,
                )
            ]
        return welcome(command)

    async def main() -> None:
        network = Brokers(free=None)
        network.doubles["busy:6650"] = double = Double(busy)
        pool = network.pool("pulsar://busy,free", settings=ClientSettings(idle_s=0))
        while (await pool.any_broker()).peer != "pulsar://busy:6650":
            pool = network.pool("pulsar://busy,free", seed=len(network.dialed) + 2)
        lookup = Lookup(pool)
        answers = await asyncio.gather(
            *(lookup.partitions(f"{TOPIC}{each}") for each in range(49)), return_exceptions=True
        )
        assert double.sessions[-1].closed, "it refused again and again"
        assert answers == [0] * 49, "and the other one answered"

    run(main())


def test_occasional_refusals_do_not_close_the_connection() -> None:
    def busy(command: pb.BaseCommand) -> list[Message]:
        if command.type == _Type.LOOKUP:
            number = command.lookupTopic.request_id
            return [
                pb.CommandLookupTopicResponse(
                    request_id=number,
                    error=pb.TooManyRequests,
                    message="busy",
                    response=pb.CommandLookupTopicResponse.Failed,
                )
            ]
        return welcome(command)

    async def main() -> None:
        network = Brokers()
        network.doubles["h:6650"] = double = Double(busy)
        lookup = Lookup(network.pool("pulsar://h", settings=ClientSettings(idle_s=0)))
        for _ in range(200):
            with pytest.raises(TooManyLookupRequestException):
                await lookup.owner(TOPIC)
            await asyncio.sleep(1.25)
        assert len(double.sessions) == 1
        with pytest.raises((TooManyLookupRequestException, NotConnected, ConnectError)):
            for _ in range(50):
                try:
                    await lookup.owner(TOPIC)
                except TooManyLookupRequestException:
                    if double.sessions[0].closed:
                        raise
        assert double.sessions[0].closed

    run(main())


# Shared requests


def test_identical_lookups_share_one_request() -> None:
    async def main() -> None:
        rig = Rig()
        lookup = rig.lookup
        asking = [asyncio.create_task(lookup.owner(TOPIC)) for _ in range(20)]
        await asyncio.sleep(0)
        asking[0].cancel()
        sessions = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(sessions[0], asyncio.CancelledError)
        assert all(isinstance(each, Session) for each in sessions[1:])
        assert len(rig.service.recorder.find("LOOKUP", "in")) == 1
        await lookup.owner(TOPIC)
        assert len(rig.service.recorder.find("LOOKUP", "in")) == 2, "an answer is not kept"

    run(main())


def test_concurrent_lookups_are_bounded() -> None:
    async def main() -> None:
        rig = Rig(settings=ClientSettings(lookups=2))
        rig.service.faults = FaultPlan(
            [
                Fault(
                    kind="delay",
                    command="PARTITIONED_METADATA_RESPONSE",
                    delay_ms=1000,
                    times=6,
                )
            ]
        )
        lookup = rig.lookup
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(lookup.partitions(f"{TOPIC}{each}") for each in range(6)))
        assert loop.time() == pytest.approx(3, abs=0.1)

    run(main())


def test_an_abandoned_lookup_logs_no_error() -> None:
    async def main() -> None:
        network = Brokers()
        lookup = Lookup(network.pool("pulsar://nobody"))
        asking = asyncio.create_task(lookup.owner(TOPIC))
        await asyncio.sleep(0)
        asking.cancel()
        await settle()

    run(main())


# Patterns


def test_patterns_match_the_full_topic_name() -> None:
    pattern = NamePattern("persistent://t/n/a.*")
    assert pattern.namespace == "t/n" and pattern.path == "t/n/a.*"
    assert pattern.matches("persistent://t/n/a")
    assert pattern.matches("non-persistent://t/n/ab")
    assert pattern.matches("persistent://t/n/ab-partition-3")
    assert not pattern.matches("persistent://t/n/ba")
    assert not NamePattern("t/n/a").matches("persistent://t/n/ab")
    assert NamePattern("t/n/a").matches("persistent://t/n/a-partition-3")
    assert NamePattern("x.*").namespace == "public/default"
    alternatives = NamePattern("t/n/a.*|b")
    assert alternatives.path == "t/n/(?:a.*|b)"
    assert alternatives.matches("persistent://t/n/b")
    assert not alternatives.matches("persistent://t/n/cb")
    for wrong in ("persistent://t/n", "t/n/[", "persistent://t"):
        with pytest.raises(InvalidTopicName):
            NamePattern(wrong)
