"""Reattaching: its time limit, and early attempts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from native_kit import TOPIC, Rig, run
from test_native_attachment import Thing

from pulsar_encore.devbroker.rules.faults import Fault, FaultPlan
from pulsar_encore.exceptions import AuthorizationError, ServiceUnitNotReady
from pulsar_encore.transport.native.client_settings import ClientSettings


def test_retry_now_may_be_called_again_before_the_attempt_begins() -> None:
    async def main() -> None:
        thing = Thing(None, ServiceUnitNotReady("unload"))
        await thing.attachment.first()
        thing.attachment.again()
        await asyncio.sleep(20)
        tried = len(thing.at)
        thing.attachment.retry_now()
        for _ in range(3):
            thing.attachment.retry_now()
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert len(thing.at) == tried + 1

    run(main())


def test_reattach_timeout_counts_from_the_last_loss_after_a_loss_during_the_first_attach() -> None:
    async def main() -> None:
        async def lost() -> None:
            thing.attachment.again()

        unload = ServiceUnitNotReady("unload")
        settings = ClientSettings(reattach_timeout_s=300)
        thing = Thing(lost, None, unload, unload, None, settings=settings)
        await thing.attachment.first()
        await asyncio.sleep(3600)
        thing.attachment.again()
        await asyncio.sleep(100)
        assert len(thing.at) == 5 and thing.failures == []

    run(main())


class Hanging:
    """A token supplier that can hang."""

    method_name = "token"
    hangs = False

    async def data(self) -> bytes:
        if self.hangs:
            await asyncio.sleep(1e6)
        return b"t"


def test_a_token_supplier_that_hangs_delays_an_attempt_and_does_not_end_the_retrying() -> None:
    async def main() -> None:
        rig = Rig()
        supplier = Hanging()
        rig.transport = type(rig.transport)(
            "pulsar://memory", credentials=supplier, dialer=rig.dialer
        )
        transport_consumer, _ = await rig.subscribe()
        refused = Fault(kind="refuse", command="SUBSCRIBE", error="AuthorizationError", times=1_000)
        rig.service.faults = FaultPlan([refused])
        supplier.hangs = True
        transport_consumer.topic_consumers[0].reattach()
        await asyncio.sleep(1)
        rig.service.faults = FaultPlan([])
        await asyncio.sleep(60)
        assert transport_consumer.is_connected()

    run(main())


def test_reattach_timeout_ends_the_retrying_while_a_token_supplier_hangs() -> None:
    async def main() -> None:
        thing = Thing(None, AuthorizationError("x"), settings=ClientSettings(reattach_timeout_s=20))
        await thing.attachment.first()
        supplier = Hanging()
        supplier.hangs = True
        pool = thing.lookup.pool
        pool.service = replace(pool.service, credentials=supplier)
        thing.attachment.again()
        await asyncio.sleep(21)
        assert len(thing.failures) == 1

    run(main())


def test_a_connection_attempt_ends_when_the_token_supplier_hangs() -> None:
    async def main() -> None:
        rig = Rig()
        supplier = Hanging()
        rig.transport = type(rig.transport)(
            "pulsar://memory", credentials=supplier, dialer=rig.dialer
        )
        transport_consumer, _ = await rig.subscribe(topics=(TOPIC,))
        supplier.hangs = True
        rig.dialer.drop()
        await asyncio.sleep(1)
        supplier.hangs = False
        await asyncio.sleep(60)
        assert transport_consumer.is_connected()

    run(main())


def test_a_token_supplier_that_raises_cancelled_error_is_called_again() -> None:
    """E.g. a supplier that awaits a shared refresh task that was cancelled."""

    class Supplier:
        method_name = "token"
        fails = 0

        async def data(self) -> bytes:
            if self.fails:
                self.fails -= 1
                raise asyncio.CancelledError
            return b"t"

    async def main() -> None:
        rig = Rig()
        supplier = Supplier()
        rig.transport = type(rig.transport)(
            "pulsar://memory", credentials=supplier, dialer=rig.dialer
        )
        transport_consumer, _ = await rig.subscribe()
        supplier.fails = 2
        rig.dialer.drop()
        await asyncio.sleep(30)
        assert supplier.fails == 0 and transport_consumer.is_connected()

    run(main())


def test_cancelled_error_of_the_applications_code_during_an_attempt_is_retried() -> None:
    async def main() -> None:
        async def cancelled() -> None:
            raise asyncio.CancelledError

        thing = Thing(None, cancelled, None)
        await thing.attachment.first()
        thing.attachment.again()
        await asyncio.sleep(30)
        assert len(thing.at) == 3 and thing.failures == []

    run(main())


def test_an_attempt_is_made_shortly_before_reattach_timeout_ends() -> None:
    async def main() -> None:
        thing = Thing(
            None, ServiceUnitNotReady("x"), settings=ClientSettings(reattach_timeout_s=50)
        )
        await thing.attachment.first()
        lost = thing.loop.time()
        thing.attachment.again()
        await asyncio.sleep(60)
        assert len(thing.failures) == 1
        assert 48.5 < thing.at[-1] - lost < 50

    run(main())


def test_all_consumers_attach_soon_after_the_broker_returns() -> None:
    async def main() -> None:
        rig = Rig()
        transport_consumers = []
        for number in range(50):
            transport_consumer, _ = await rig.subscribe(topics=(f"{TOPIC}-{number}",))
            transport_consumers.append(transport_consumer)
        rig.dialer.reachable = False
        rig.dialer.drop()
        await asyncio.sleep(120)
        rig.dialer.reachable = True
        while not any(
            transport_consumer.is_connected() for transport_consumer in transport_consumers
        ):
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        assert all(transport_consumer.is_connected() for transport_consumer in transport_consumers)

    run(main())
