"""A worker that starts before its broker, which answers "Namespace not found" while it comes up."""

from __future__ import annotations

import asyncio

import pulsar_encore as encore
from tests.harness.pulsar_server import Standalone, free_ports

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)


async def nothing(value: bytes) -> None: ...


async def test_workers_that_start_all_the_time_while_a_broker_comes_up_all_run() -> None:
    port, admin_port = free_ports(2)
    broker = Standalone(port=port, admin_port=admin_port)
    waits: set[str] = set()
    starting = asyncio.ensure_future(asyncio.to_thread(broker.start))
    workers: list[encore.Worker[bytes]] = []
    tasks: list[asyncio.Task[encore.Report]] = []
    try:
        async with encore.Client(f"pulsar://127.0.0.1:{port}") as client:
            while not starting.done():
                workers.append(encore.Worker(client, f"early-{len(workers)}", "s", nothing))
                tasks.append(asyncio.create_task(workers[-1].serve()))
                await asyncio.sleep(0.25)
                waits |= {reason for each in workers for reason in each.health().reasons}
            await starting
            async with asyncio.timeout(60):
                while any(each.health().state == "starting" for each in workers):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert {each.health().state for each in workers} == {"running"}
            assert any("Namespace not found" in each for each in waits)
            for each in workers:
                each.stop()
            await asyncio.gather(*tasks)
    finally:
        await asyncio.wait([starting])
        broker.close()
