"""`Attachment` attaches a consumer or producer, and attaches it again after losses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from brokers_kit import Brokers, Double, lookup_answer, welcome
from google.protobuf.message import Message
from native_kit import TOPIC, Rig, run, settle

from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.errors import ClosedError, ConfigurationError, ProtocolError, TransportTimeout
from pulsar_encore.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BrokerMetadataError,
    ConnectError,
    ConsumerBusy,
    InvalidTopicName,
    NotAllowedError,
    NotConnected,
    ProducerBusy,
    ProducerFenced,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    TopicNotFound,
    TopicTerminated,
)
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.attachment import Attachment
from pulsar_encore.transport.native.connection.cluster_service import ClusterService
from pulsar_encore.transport.native.connection.session import Session
from pulsar_encore.transport.native.lookup.lookup import Lookup
from pulsar_encore.wire import NO_REQUEST, frames, pb

FINAL = (
    AuthenticationError("x"),
    AuthorizationError("x"),
    InvalidTopicName("x"),
    NotAllowedError("x"),
    ProducerFenced("x"),
    SubscriptionNotFound("x"),
    TopicNotFound("x"),
    TopicTerminated("x"),
)
FINAL_LATER = (
    ClosedError("x"),
    InvalidTopicName("x"),
    ProducerFenced("x"),
    TopicTerminated("x"),
)
PASSING = (
    ServiceUnitNotReady("x"),
    BrokerMetadataError("x"),
    NotConnected("x"),
    ConnectError("x"),
    TransportTimeout("x"),
    ProtocolError("x"),
    AuthenticationError("the issuer is away", retryable=True),
)


class Thing:
    """Something to attach, with a list of outcomes. The last outcome holds for all later attempts.

    Attributes:
        at: Time of each attempt, in s.
        peers: The peers that were attached to.
        failures: The errors that ended the retrying.
    """

    def __init__(self, *outcomes: Any, settings: ClientSettings | None = None) -> None:
        self.network = Brokers(h=None, other=None)
        # With this seed, the delays before the last attempt add up to most of 30 s.
        self.lookup = Lookup(self.network.pool("pulsar://h", settings=settings, seed=3))
        self.loop = asyncio.get_running_loop()
        self.outcomes = list(outcomes)
        self.at: list[float] = []
        self.peers: list[str] = []
        self.failures: list[Exception] = []
        self.attachment = Attachment(self.lookup, TOPIC, self._attach, self.failures.append)

    async def _attach(self, session: Session) -> None:
        self.at.append(self.loop.time())
        self.peers.append(session.peer)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            await outcome()


def asleep(seconds: float) -> Callable[[], Awaitable[None]]:
    return lambda: asyncio.sleep(seconds)


# The first time


@pytest.mark.parametrize("error", [*FINAL, ConsumerBusy("x"), ProducerBusy("x")], ids=type)
def test_a_final_error_of_the_first_attempt_is_raised_at_once(
    error: Exception,
) -> None:
    async def main() -> None:
        thing = Thing(error)
        with pytest.raises(type(error)):
            await thing.attachment.first()
        assert len(thing.at) == 1
        assert thing.failures == [], "it was told once"

    run(main())


@pytest.mark.parametrize("error", PASSING, ids=type)
def test_the_first_attach_is_retried_for_the_operation_timeout(error: Exception) -> None:
    async def main() -> None:
        thing = Thing(error)
        with pytest.raises(type(error)):
            await thing.attachment.first()
        assert 20 < thing.loop.time() <= 30
        assert len(thing.at) >= 7
        thing = Thing(error, error, None)
        await thing.attachment.first()
        assert len(thing.at) == 3

    run(main())


def test_a_connection_error_that_retrying_cannot_help_is_raised_at_once() -> None:
    async def main() -> None:
        thing = Thing(ConnectError("its certificate is not for 'h'", retryable=False))
        with pytest.raises(ConnectError, match="certificate"):
            await thing.attachment.first()
        assert len(thing.at) == 1
        with pytest.raises(ConfigurationError, match="key file"):
            await Thing(ConfigurationError("the key file")).attachment.first()

    run(main())


def test_an_attempt_that_hangs_times_out_and_reports_the_previous_error() -> None:
    async def main() -> None:
        thing = Thing(ServiceUnitNotReady("it unloads"), asleep(1000))
        with pytest.raises(TransportTimeout, match=r"within 30 s.*it unloads"):
            await thing.attachment.first()
        assert thing.loop.time() == pytest.approx(30)

    run(main())


def test_an_attempt_that_declares_itself_slow_has_no_time_limit() -> None:
    async def main() -> None:
        async def long() -> None:
            thing.attachment.remove_time_limit()
            await asyncio.sleep(500)

        thing = Thing(long)
        await thing.attachment.first()
        assert thing.loop.time() >= 500

    run(main())


def test_stopping_during_the_connect_raises_a_closed_error() -> None:
    async def main() -> None:
        for outcome in (asleep(1000), ServiceUnitNotReady("x")):
            thing = Thing(outcome)
            waiting = asyncio.create_task(thing.attachment.first())
            await asyncio.sleep(0.3)
            await thing.attachment.stop()
            with pytest.raises(ClosedError):
                await waiting
            tried = len(thing.at)
            await asyncio.sleep(100)
            assert len(thing.at) == tried
            with pytest.raises(ClosedError):
                await thing.attachment.first()

    run(main())


def test_cancelling_the_first_attempt_only_cancels_it() -> None:
    async def main() -> None:
        thing = Thing(asleep(1000))
        waiting = asyncio.create_task(thing.attachment.first())
        await settle()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(100)
        assert len(thing.at) == 1

    run(main())


def test_a_loss_right_after_attaching_is_repaired_before_the_caller_returns() -> None:
    async def main() -> None:
        async def lost() -> None:
            thing.attachment.again()

        thing = Thing(lost, None)
        await thing.attachment.first()
        await asyncio.sleep(10)
        assert len(thing.at) == 2

    run(main())


# Later


@pytest.mark.parametrize("error", FINAL_LATER, ids=type)
def test_a_final_error_after_the_first_success_is_reported_once_and_ends_the_retrying(
    error: Exception,
) -> None:
    async def main() -> None:
        thing = Thing(None, error)
        await thing.attachment.first()
        thing.attachment.again()
        await asyncio.sleep(100)
        thing.attachment.again()
        await asyncio.sleep(100)
        assert thing.failures == [error]
        assert len(thing.at) == 2

    run(main())


def test_repeated_losses_right_after_attaching_slow_down_the_attempts() -> None:
    async def main() -> None:
        async def attached_for_a_moment() -> None:
            asyncio.get_running_loop().call_later(0.05, thing.attachment.again)

        thing = Thing(attached_for_a_moment, settings=ClientSettings(max_backoff_s=20.0))
        await thing.attachment.first()
        await asyncio.sleep(300)
        assert 80 < len(thing.at) < 250, "every few seconds: it works"
        thing.outcomes = [None]
        await asyncio.sleep(50)
        tried = len(thing.at)
        thing.attachment.again()
        await asyncio.sleep(0.2)
        assert len(thing.at) == tried + 1, "it worked for long, so the delay is short again"

    run(main())


@pytest.mark.parametrize(
    "error",
    [
        *PASSING,
        *(each for each in FINAL if type(each) not in map(type, FINAL_LATER)),
        ConnectError("its certificate has expired", retryable=False),
        ConsumerBusy("x"),
        ProducerBusy("x"),
        ConfigurationError("the key file"),
        ZeroDivisionError("not ours"),
    ],
    ids=type,
)
def test_after_the_first_success_retries_never_end_and_slow_down(error: Exception) -> None:
    async def main() -> None:
        thing = Thing(None, error, settings=ClientSettings(max_backoff_s=20.0, keep_alive_s=1e6))
        await thing.attachment.first()
        thing.attachment.again()
        await asyncio.sleep(2000)
        gaps = [later - earlier for earlier, later in zip(thing.at, thing.at[1:], strict=False)]
        assert gaps[0] <= 0.11 and max(gaps) <= 20.1
        assert all(10 <= gap for gap in gaps[-50:])
        assert thing.failures == []
        thing.outcomes = [None]
        await asyncio.sleep(21)
        tried = len(thing.at)
        await asyncio.sleep(1000)
        assert len(thing.at) == tried, "attached"
        thing.attachment.again()
        await asyncio.sleep(0.2)
        assert len(thing.at) == tried + 1, "it worked, so the delay is short again"

    run(main())


def test_a_second_loss_during_an_attempt_causes_one_more_attempt_and_no_parallel_one() -> None:
    async def main() -> None:
        thing = Thing(None, asleep(5), None)
        await thing.attachment.first()
        thing.attachment.again()
        thing.attachment.again()
        await asyncio.sleep(1)
        thing.attachment.again()
        await asyncio.sleep(100)
        assert len(thing.at) == 3

    run(main())


def test_stop_ends_a_running_reattach_before_it_returns() -> None:
    async def main() -> None:
        thing = Thing(None, asleep(1000))
        await thing.attachment.first()
        thing.attachment.again()
        await asyncio.sleep(1)
        await thing.attachment.stop()
        await thing.attachment.stop()
        thing.attachment.again()
        thing.attachment.abandon()
        await asyncio.sleep(100)
        assert len(thing.at) == 2
        assert thing.failures == []

    run(main())


def test_consumers_that_are_lost_together_do_not_reattach_at_the_same_moment() -> None:
    async def main() -> None:
        rig = Rig()
        loop = asyncio.get_running_loop()
        times: list[float] = []

        async def attach(session: Session) -> None:
            times.append(loop.time())

        things = [Attachment(rig.lookup, f"{TOPIC}-{each}", attach, print) for each in range(200)]
        for thing in things:
            thing.again()
        await asyncio.sleep(1)
        assert len(times) == 200
        assert max(times) - min(times) > 0.03
        assert len(rig.dialer.lines) == 1

    run(main())


def test_a_move_to_another_cluster_ends_the_retry_delay() -> None:
    async def main() -> None:
        thing = Thing(None, *[ServiceUnitNotReady("x")] * 8, None)
        await thing.attachment.first()
        thing.attachment.again()
        await asyncio.sleep(8)
        tried, before = len(thing.at), thing.loop.time()
        thing.lookup.pool.move(ClusterService.at("pulsar://other", thing.network))
        await asyncio.sleep(0.15)
        assert len(thing.at) == tried + 1
        assert thing.at[-1] - before <= 0.11
        assert thing.peers[-1] == "pulsar://other:6650"

    run(main())


# Which broker


def test_the_broker_that_a_close_names_is_dialed_at_once_without_a_lookup() -> None:
    async def main() -> None:
        thing = Thing(None)
        await thing.attachment.first()
        before = thing.loop.time()
        thing.attachment.again("pulsar://other:6650")
        await asyncio.sleep(1)
        assert thing.peers == ["pulsar://h:6650", "pulsar://other:6650"]
        assert thing.at[1] - before < 0.01
        service = thing.network.brokers["other:6650"].service
        assert service.recorder is not None
        assert not service.recorder.find("LOOKUP", "in")

    run(main())


@pytest.mark.parametrize("address", ["pulsar://nobody:6650", "nonsense", ""])
def test_an_unreachable_broker_from_a_close_is_replaced_by_a_lookup(address: str) -> None:
    async def main() -> None:
        thing = Thing(None)
        await thing.attachment.first()
        thing.attachment.again(address)
        await asyncio.sleep(1)
        assert thing.peers == ["pulsar://h:6650"] * 2
        assert thing.failures == []

    run(main())


def test_a_broker_from_a_close_is_reached_through_the_proxy() -> None:
    def answer(command: pb.BaseCommand) -> list[Message]:
        if command.type == pb.BaseCommand.LOOKUP:
            return [
                lookup_answer(
                    command, brokerServiceUrl="pulsar://inside:6650", proxy_through_service_url=True
                )
            ]
        return welcome(command)

    async def main() -> None:
        thing = Thing(None)
        thing.network.doubles["proxy:6650"] = double = Double(answer)
        thing.lookup = Lookup(thing.network.pool("pulsar://proxy"))
        attachment = Attachment(thing.lookup, TOPIC, thing._attach, thing.failures.append)
        await attachment.first()
        attachment.again("pulsar://another:6650")
        await asyncio.sleep(1)
        assert thing.peers == [
            "pulsar://proxy:6650 for inside:6650",
            "pulsar://proxy:6650 for another:6650",
        ]
        assert thing.network.dialed == ["proxy:6650"] * 3
        connects = [each for each in double.received if each.type == pb.BaseCommand.CONNECT]
        assert [each.connect.proxy_to_broker_url for each in connects] == [
            "",
            "inside:6650",
            "another:6650",
        ]

    run(main())


# A consumer on top


def test_a_consumer_that_is_closed_in_the_same_read_as_its_answer_attaches_again() -> None:
    closes = 1

    def answer(command: pb.BaseCommand) -> list[Message] | bytes:
        nonlocal closes
        if command.type == pb.BaseCommand.LOOKUP:
            return [lookup_answer(command, brokerServiceUrl="pulsar://memory:6650")]
        if command.type == pb.BaseCommand.PARTITIONED_METADATA:
            number = command.partitionMetadata.request_id
            return [
                pb.CommandPartitionedTopicMetadataResponse(
                    request_id=number,
                    partitions=0,
                    response=pb.CommandPartitionedTopicMetadataResponse.Success,
                )
            ]
        if command.type == pb.BaseCommand.SUBSCRIBE:
            success = frames.encode(pb.CommandSuccess(request_id=command.subscribe.request_id))
            if closes:
                closes -= 1
                close = pb.CommandCloseConsumer(
                    consumer_id=command.subscribe.consumer_id, request_id=NO_REQUEST
                )
                return success + frames.encode(close)
            return success
        return welcome(command)

    async def main() -> None:
        rig = Rig()
        network = Brokers()
        network.doubles["memory:6650"] = double = Double(answer)
        rig.transport = type(rig.transport)("pulsar://memory", dialer=network)
        transport_consumer, _ = await rig.subscribe()
        await asyncio.sleep(1)
        subscribed = [each for each in double.received if each.type == pb.BaseCommand.SUBSCRIBE]
        assert len(subscribed) == 2
        assert transport_consumer.is_connected()
        assert [each.type for each in double.received[-1:]] == [pb.BaseCommand.FLOW]
        rig.transport.shutdown()

    run(main())


def test_a_consumer_attaches_again_when_its_permission_is_restored() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(token="t"))
        secret = Secret()
        rig.transport = type(rig.transport)(
            "pulsar://memory", credentials=secret, dialer=rig.dialer
        )
        transport_consumer, listener = await rig.subscribe()
        secret.token = b"not any more"
        rig.dialer.drop()
        await asyncio.sleep(5)
        assert listener.names[0] == "disconnected" and set(listener.names[1:]) == {"retrying"}
        assert isinstance(listener.calls[-1][2].error, AuthenticationError)
        assert not transport_consumer.is_connected()
        secret.token = b"t"
        await asyncio.sleep(10)
        assert listener.names[-1] == "connected"

    run(main())


class Secret:
    """A token that changes."""

    method_name = "token"
    token = b"t"

    async def data(self) -> bytes:
        return self.token
