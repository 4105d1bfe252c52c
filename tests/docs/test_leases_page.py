"""The Python blocks of `docs/leases.md` run: leases that are kept, settled later, and in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block

KEPT, OVER_A_RESTART, BY_KEY = blocks_of("leases.md")


class Jobs:
    """The system that does the work and calls back with the handle."""

    def __init__(self) -> None:
        self.started: list[tuple[bytes, str]] = []

    async def start(self, work: bytes, done: str) -> None:
        self.started.append((work, done))


async def test_leases_are_kept_while_the_handler_runs_and_acked(
    transport: MemoryTransport,
) -> None:
    billed: list[bytes] = []

    async def bill(value: bytes) -> None:
        billed.append(value)

    await make_orders(transport, b"one")
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        await run_block(KEPT, {"client": client, "encore": encore, "bill": bill})
    assert billed == [b"one"]
    assert transport.backlog("orders", "billing") == 0


async def make_orders(transport: MemoryTransport, *bodies: bytes) -> None:
    """Make the subscription, which begins at the end of the topic, and put messages there."""
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        await client.subscribe("orders", "billing", consumer_type=encore.ConsumerType.Shared)
    for body in bodies:
        transport.put("orders", body)


async def test_a_callback_after_a_restart_settles_the_lease(
    transport: MemoryTransport, tmp_path: Path
) -> None:
    block = replace(OVER_A_RESTART, code=OVER_A_RESTART.code.replace("/var/lib", str(tmp_path)))
    jobs = Jobs()
    await make_orders(transport, b"one")
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        await run_block(block, {"client": client, "encore": encore, "jobs": jobs})
    ((work, handle),) = jobs.started
    assert work == b"one"
    assert transport.backlog("orders", "billing") == 1
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        # The restarted process subscribes, and pops nothing, because the message is still leased.
        code = block.code.replace("lease=3600", "lease=3600, wait=0.2")
        names: dict[str, Any] = {"client": client, "encore": encore, "jobs": jobs}
        await run_block(replace(block, code=code), names)
        assert len(jobs.started) == 1
        on_callback: Callable[[str], Awaitable[None]] = names["on_callback"]
        await on_callback(handle)
    assert transport.backlog("orders", "billing") == 0


async def test_a_failed_message_is_popped_before_the_later_messages_of_its_key(
    client: Client, transport: MemoryTransport
) -> None:
    names: dict[str, Any] = {"client": client, "encore": encore}
    await run_block(BY_KEY, names)
    for body, key in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b")):
        transport.put("orders", body, key=key)
    order = []
    for _ in range(4):
        (lease,) = await names["consumer"].pop(max_messages=1, wait=5)
        order.append(lease.message.data())
        if order == [b"a1"]:
            await lease.nack(delay=0.1)
        else:
            await lease.ack()
    assert order == [b"a1", b"b1", b"a1", b"a2"]
