"""Connections with credentials that the application has replaced."""

from __future__ import annotations

import asyncio

import pytest
from brokers_kit import Brokers
from native_kit import Collector, Rig, run, subscription

from pulsar_encore.devbroker.rules.faults import Fault, FaultPlan
from pulsar_encore.exceptions import ErrorGettingAuthenticationData
from pulsar_encore.transport.native.connection.addresses import parse
from pulsar_encore.transport.native.connection.pool import ConnectionPool
from pulsar_encore.transport.native.connection.session import Session

NAMESPACE = "persistent://public/default"


class Minted:
    """A supplier of tokens.

    Attributes:
        calls: Number of calls.
        fresh: True if each call returns another token.
    """

    method_name = "token"

    def __init__(self, *, fresh: bool) -> None:
        self.fresh = fresh
        self.calls = 0

    async def data(self) -> bytes:
        self.calls += 1
        return b"jwt-%d" % (self.calls if self.fresh else 0)


@pytest.mark.parametrize(("fresh", "most"), [(True, 2), (False, 1)])
def test_a_token_per_call_and_a_refused_topic_do_not_lead_to_a_connection_per_consumer(
    fresh: bool, most: int
) -> None:
    async def main() -> None:
        rig = Rig()
        rig.transport = type(rig.transport)(
            "pulsar://memory", credentials=Minted(fresh=fresh), dialer=rig.dialer
        )
        bad = await rig.transport.subscribe(subscription(topics=(f"{NAMESPACE}/bad",)))
        bad.start(Collector())
        refused = Fault(
            kind="refuse",
            command="SUBSCRIBE",
            error="AuthorizationError",
            times=1_000,
            topic=f"{NAMESPACE}/bad",
        )
        rig.service.faults = FaultPlan([refused])
        bad.topic_consumers[0].reattach()
        transport_consumers = []
        for number in range(20):
            await asyncio.sleep(90)
            transport_consumer, _ = await rig.subscribe(topics=(f"{NAMESPACE}/{number}",))
            transport_consumers.append(transport_consumer)
            assert len(rig.dialer.lines) <= most
        assert all(transport_consumer.is_connected() for transport_consumer in transport_consumers)
        assert rig.service.recorder is not None
        assert len(rig.service.recorder.find("CONNECT", "in")) <= 3 * most

    run(main())


class Handler:
    """A producer that records the loss of its connection."""

    def on_lost(self, error: Exception) -> None:
        pass


async def with_outdated(minted: Minted) -> tuple[ConnectionPool, Session, Session]:
    """A pool with an outdated connection and the one that replaced it."""
    pool = Brokers(h=None).pool("pulsar://h", credentials=minted)
    address = parse("pulsar://h")[0]
    old = await pool.broker(address)
    old.attach_producer(1, Handler())  # type: ignore[arg-type]
    await pool.refresh_credentials()
    new = await pool.broker(address)
    assert new is not old and not old.closed
    return pool, old, new


def test_a_pool_on_a_closed_loop_severs_outdated_connections_too() -> None:
    async def main() -> tuple[ConnectionPool, Session, Session]:
        return await with_outdated(Minted(fresh=True))

    loop = asyncio.new_event_loop()
    pool, old, new = loop.run_until_complete(main())
    dropped: list[str] = []
    old.drop = lambda: dropped.append("old")  # type: ignore[method-assign]
    new.drop = lambda: dropped.append("new")  # type: ignore[method-assign]
    loop.close()
    pool.shutdown()
    assert sorted(dropped) == ["new", "old"]
    assert old.closed and new.closed


def test_an_outdated_connection_is_tracked_until_it_ends() -> None:
    async def main() -> None:
        pool, old, new = await with_outdated(Minted(fresh=True))
        assert pool.key_of(old) == pool.key_of(new) is not None
        assert pool.sessions == [new]
        new.attach_producer(2, Handler())  # type: ignore[arg-type]
        await asyncio.sleep(21)
        await pool.refresh_credentials()
        assert pool.sessions == [new], "a third connection would be one too many"
        old.detach_producer(1)
        old.close()
        await asyncio.sleep(41)
        assert pool.key_of(old) is None
        await pool.refresh_credentials()
        assert pool.sessions == [] and not new.closed
        pool.shutdown()
        assert new.closed

    run(main())


def test_a_supplier_that_hangs_is_named_after_the_connection_timeout() -> None:
    class Hanging:
        method_name = "token"

        async def data(self) -> bytes:
            await asyncio.sleep(1e6)
            return b""

    async def main() -> None:
        pool = Brokers(h=None).pool("pulsar://h", credentials=Hanging())
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(ErrorGettingAuthenticationData, match="connection_timeout"):
            await pool.broker(parse("pulsar://h")[0])
        assert loop.time() - began == pytest.approx(pool.settings.connection_timeout_s)

    run(main())
