"""Connection pool: choice of address, lifetime and reports of lost connections. Virtual time."""

from __future__ import annotations

import asyncio
import tracemalloc
from random import Random

import pytest
from brokers_kit import HANG_UP, Brokers, Deaf, Double, welcome
from native_kit import CONNECTED, TOPIC, Rig, run, settle

from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.devbroker.rules.credentials import Credential
from pulsar_encore.errors import ClosedError, ConfigurationError, TransportTimeout
from pulsar_encore.exceptions import (
    AuthenticationError,
    ConnectError,
    ErrorGettingAuthenticationData,
    InvalidUrl,
    NotConnected,
)
from pulsar_encore.transport.native.client_settings import ClientSettings
from pulsar_encore.transport.native.connection.addresses import Addresses, parse
from pulsar_encore.transport.native.connection.cluster_service import ClusterService
from pulsar_encore.transport.native.connection.reconnect_backoff import ReconnectBackoff
from pulsar_encore.transport.native.connection.session import Session
from pulsar_encore.wire import NO_REQUEST, frames, pb


class Secret:
    """Credentials of a test."""

    def __init__(self, *given: str | Exception) -> None:
        self.given = list(given)
        self.asked = 0

    method_name = "token"

    async def data(self) -> bytes:
        self.asked += 1
        given = self.given.pop(0) if len(self.given) > 1 else self.given[0]
        if isinstance(given, Exception):
            raise given
        return given.encode()


# Addresses


def test_a_service_url_is_parsed_into_addresses() -> None:
    found = parse("pulsar+ssl://h1,[::1]:7,h2:6652/")
    assert [str(each) for each in found] == [
        "pulsar+ssl://h1:6651",
        "pulsar+ssl://[::1]:7",
        "pulsar+ssl://h2:6652",
    ]
    assert [each.port for each in parse("http://h")] == [80]
    for wrong in (
        "h:6650",
        "kafka://h",
        "pulsar://",
        "pulsar://h:1,",
        "pulsar://u@h",
        "pulsar://h:x",
    ):
        with pytest.raises(InvalidUrl, match="service_url"):
            parse(wrong)


def test_a_failed_address_is_avoided_for_longer_each_time() -> None:
    one, two = parse("pulsar://one,two")
    addresses = Addresses([one, two], Random(3))
    addresses.quarantine(one, 0)
    assert {addresses.next(now) for now in (1, 30_000, 59_999)} == {two}
    assert {addresses.next(60_000), addresses.next(60_000)} == {one, two}
    addresses.quarantine(one, 60_000)
    assert {addresses.next(now) for now in (60_001, 179_999)} == {two}
    addresses.quarantine(two, 60_001)
    assert {addresses.next(60_002), addresses.next(60_002)} == {one, two}, "better than none"
    addresses.end_quarantine(one)
    assert {addresses.next(60_003), addresses.next(60_003)} == {one}


def test_clients_start_with_different_addresses() -> None:
    addresses = parse("pulsar://one,two,three")
    began = {Addresses(addresses, Random(seed)).next(0).host for seed in range(20)}
    assert began == {"one", "two", "three"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("what", ["gone", "silent", "dead"])
def test_another_address_is_used_when_one_does_not_answer(what: str, seed: int) -> None:
    async def main() -> None:
        network = Brokers(good=None)
        if what != "gone":
            getattr(network, what).add("bad:6650")
        pool = network.pool("pulsar://bad,good", seed=seed)
        for _ in range(5):
            session = await pool.any_broker()
            assert session.peer == "pulsar://good:6650"
            network.brokers["good:6650"].drop()
        assert network.dialed.count("bad:6650") <= 1, "it is left alone for a minute"

    run(main())


def test_the_last_error_is_raised_when_every_address_failed() -> None:
    async def main() -> None:
        network = Brokers()
        with pytest.raises(ConnectError, match="refused"):
            await network.pool("pulsar://a,b").any_broker()
        assert sorted(network.dialed) == ["a:6650", "b:6650"]

    run(main())


# Delays


def test_reconnect_delays_double_and_are_randomised() -> None:
    seen = []
    for seed in range(200):
        delays = ReconnectBackoff(0.1, 60.0, Random(seed))
        seen.append([delays.next() for _ in range(12)])
    for at, most in enumerate([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]):
        taken = [each[at] for each in seen]
        assert most / 2 <= min(taken) < 0.6 * most < 0.9 * most < max(taken) <= most
    delays.reset()
    assert delays.next() <= 0.1


# The handshake


def test_a_handshake_without_an_answer_times_out() -> None:
    async def main() -> None:
        network = Brokers()
        network.silent.add("h:6650")
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TransportTimeout, match="did not answer the handshake within 10 s"):
            await network.pool("pulsar://h").any_broker()
        assert loop.time() - began == pytest.approx(10)

    run(main())


def test_the_error_for_an_immediate_hangup_mentions_tls() -> None:
    async def main() -> None:
        network = Brokers()
        network.doubles["h:6650"] = Double(lambda command: HANG_UP)
        with pytest.raises(ConnectError, match=r"without an answer.*pulsar\+ssl://"):
            await network.pool("pulsar://h").any_broker()

    run(main())


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "answers HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46\0", r"speaks TLS: use pulsar\+ssl://"),
        (b"220 mail.example ESMTP\r\n", "does not speak Pulsar's binary protocol"),
    ],
)
def test_the_error_for_another_protocol_says_so(answer: bytes, named: str) -> None:
    async def main() -> None:
        network = Brokers()
        network.doubles["h:6650"] = double = Double(lambda command: answer)
        with pytest.raises(ConnectError, match=named):
            await network.pool("pulsar://h").any_broker()
        assert double.sessions[0].closed

    run(main())


def test_closing_the_client_fails_waiting_callers_and_a_cancelled_wait_changes_nothing() -> None:
    async def main() -> None:
        network = Brokers()
        network.dead.add("h:6650")
        pool = network.pool("pulsar://h")
        waiting = [asyncio.create_task(pool.any_broker()) for _ in range(2)]
        await settle()
        waiting[0].cancel()
        await settle()
        pool.shutdown()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert isinstance(results[1], ClosedError)
        with pytest.raises(ClosedError):
            await pool.any_broker()

    run(main())


def test_a_cancelled_handshake_leaves_no_connection() -> None:
    async def main() -> None:
        network = Brokers()
        network.doubles["h:6650"] = double = Double(lambda command: b"")
        pool = network.pool("pulsar://h")
        waiting = asyncio.create_task(pool.any_broker())
        await settle()
        pool.shutdown()
        with pytest.raises(ClosedError):
            await waiting
        assert double.sessions[0].closed

    run(main())


# Credentials


def test_errors_of_credentials_do_not_reveal_them() -> None:
    async def main() -> None:
        network = Brokers(h=None)
        broken = Secret(RuntimeError("the password is sesame"))
        with pytest.raises(
            ErrorGettingAuthenticationData, match=r"token: .*RuntimeError"
        ) as caught:
            await network.pool("pulsar://h", credentials=broken).any_broker()
        assert "sesame" not in str(caught.value)
        ours = Secret(ConfigurationError("the key file cannot be read"))
        with pytest.raises(ErrorGettingAuthenticationData, match="key file"):
            await network.pool("pulsar://h", credentials=ours).any_broker()
        assert network.dialed == [], "there was nothing to say"

    run(main())


def test_an_expired_credential_is_renewed_without_losses() -> None:
    async def main() -> None:
        network = Brokers(
            h=BrokerSettings(
                credentials=(Credential(data="old", expires_s=30), Credential(data="new")),
                auth_refresh_check_s=10,
            )
        )
        secret = Secret("old", "new")
        pool = network.pool("pulsar://h", credentials=secret, settings=ClientSettings(idle_s=0))
        session = await pool.any_broker()
        await asyncio.sleep(200)
        assert not session.closed
        assert secret.asked == 2

    run(main())


def test_an_unanswerable_challenge_ends_the_connection_with_an_error() -> None:
    async def main() -> None:
        network = Brokers(
            h=BrokerSettings(
                credentials=(Credential(data="old", expires_s=30),), auth_refresh_check_s=10
            )
        )
        secret = Secret("old", AuthenticationError("the issuer is away", retryable=True))
        pool = network.pool("pulsar://h", credentials=secret, settings=ClientSettings(idle_s=0))
        session = await pool.any_broker()
        await asyncio.sleep(29)
        assert not session.closed
        await asyncio.sleep(15)
        assert session.closed
        assert secret.asked == 2
        assert pool.sessions == []

    run(main())


# Lifetime


def test_an_unused_connection_is_closed_and_a_used_one_is_kept() -> None:
    async def main() -> None:
        rig = Rig()
        pool = rig.lookup.pool
        session = await pool.any_broker()
        await asyncio.sleep(59)
        assert not session.closed
        await asyncio.sleep(62)
        assert session.closed and rig.dialer.lines == []
        transport_consumer, _ = await rig.subscribe()
        await asyncio.sleep(1000)
        assert len(rig.dialer.lines) == 1
        await transport_consumer.close()
        await asyncio.sleep(121)
        assert rig.dialer.lines == []

    run(main())


def test_occasional_requests_keep_a_connection_open() -> None:
    async def main() -> None:
        network = Brokers(h=None)
        pool = network.pool("pulsar://h")
        session = await pool.any_broker()
        for _ in range(10):
            await session.request(
                lambda number: pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=number),
                "ask",
                5,
            )
            await asyncio.sleep(50)
        assert not session.closed
        forever = network.pool("pulsar://h", settings=ClientSettings(idle_s=0))
        session = await forever.any_broker()
        await asyncio.sleep(1000)
        assert not session.closed

    run(main())


def alone(transport: Deaf) -> Session:
    """Return a session that the broker accepted."""
    session = Session(
        transport,
        loop=asyncio.get_running_loop(),
        request_ids=iter(range(1000)),
        keep_alive_s=30.0,
        peer="test",
        renew=lambda session: None,
        on_end=lambda session: None,
    )
    session.receive(CONNECTED)
    return session


def test_a_broker_that_never_reads_is_disconnected_and_a_slow_one_is_not() -> None:
    async def main() -> None:
        pong = frames.encode(pb.CommandPong())
        deaf, slow = Deaf(), Deaf()
        stuck, moving = alone(deaf), alone(slow)
        for _ in range(20):
            stuck.pause_writing()
            moving.pause_writing()
            await asyncio.sleep(10)
            stuck.receive(pong)
            moving.receive(pong)
            moving.resume_writing()
        assert moving.writable and not moving.closed
        assert not stuck.writable

    run(main())


def test_a_paused_connection_ends_with_the_second_keep_alive() -> None:
    async def main() -> None:
        deaf = Deaf()
        session = alone(deaf)
        session.pause_writing()
        for _ in range(13):
            await asyncio.sleep(5)
            session.receive(frames.encode(pb.CommandPong()))
        assert session.closed
        assert deaf.ended == "aborted"

    run(main())


def test_a_large_frame_in_small_reads_takes_memory_for_its_own_size_only() -> None:
    async def main() -> None:
        session = alone(Deaf())
        size = 5_000_000
        tracemalloc.start()
        try:
            session.receive((size).to_bytes(4, "big"))
            for _ in range(100_000):
                session.receive(b"\0")
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
        assert not session.closed
        session.lost(None)

    run(main())


def test_a_close_command_gives_the_tls_address_to_tls_clients() -> None:
    async def main() -> None:
        reported: list[str | None] = []

        class Handler:
            def on_closed_by_broker(self, address: str | None) -> None:
                reported.append(address)

        close = pb.CommandCloseConsumer(
            consumer_id=1,
            request_id=NO_REQUEST,
            assignedBrokerServiceUrl="pulsar://plain:1",
            assignedBrokerServiceUrlTls="pulsar+ssl://secure:2",
        )
        for tls in (False, True):
            session = Session(
                Deaf(),
                loop=asyncio.get_running_loop(),
                request_ids=iter(range(1000)),
                keep_alive_s=30.0,
                peer="test",
                renew=lambda session: None,
                on_end=lambda session: None,
                tls=tls,
            )
            session.receive(CONNECTED)
            session.attach_consumer(1, Handler())  # type: ignore[arg-type]
            session.receive(frames.encode(close))
            assert not session.holds_consumer(1)
            session.lost(None)
        assert reported == ["pulsar://plain:1", "pulsar+ssl://secure:2"]

    run(main())


# Proxies and other clusters


def test_brokers_behind_one_proxy_have_separate_connections_to_one_address() -> None:
    async def main() -> None:
        network = Brokers()
        network.doubles["proxy:6650"] = double = Double(welcome)
        pool = network.pool("pulsar://proxy")
        proxy, one, two = parse("pulsar://proxy,one:1,two:2")
        service = await pool.any_broker()
        first_one = await pool.broker(one, through=proxy)
        assert await pool.broker(one, through=proxy) is first_one
        assert await pool.broker(two, through=proxy) not in (first_one, service)
        assert await pool.broker(proxy, through=proxy) is service
        asked = [
            each.connect.proxy_to_broker_url
            for each in double.received
            if each.type == pb.BaseCommand.CONNECT
        ]
        assert asked == ["", "one:1", "two:2"]
        way = pool.key_of(first_one)
        assert way is not None and way.proxy_to == "one:1"

    run(main())


def test_a_cluster_move_ends_connections_and_redirects_pending_requests() -> None:
    async def main() -> None:
        network = Brokers(new=None)
        network.dead.add("slow:6650")
        network.brokers["old:6650"] = Brokers(old=None).brokers["old:6650"]
        pool = network.pool("pulsar://old")
        session = await pool.any_broker()
        pool.move(ClusterService.at("pulsar://slow", network))
        assert session.closed
        waiting = asyncio.create_task(pool.any_broker())
        await settle()
        pool.move(ClusterService.at("pulsar://new", network))
        with pytest.raises(NotConnected, match="moved to another cluster"):
            await waiting
        assert (await pool.any_broker()).peer == "pulsar://new:6650"
        assert not await pool.probe(ClusterService.at("pulsar://slow,nobody", network))
        assert await pool.probe(ClusterService.at("pulsar://nobody,new", network))
        await settle()
        assert len(network.brokers["new:6650"].lines) == 1, "a probe leaves nothing"

    run(main())
