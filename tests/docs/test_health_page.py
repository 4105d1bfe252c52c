"""The Python block of `docs/health.md` serves probes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pulsar_encore as encore
from tests.harness.pages import blocks_of, run_block
from tests.harness.pulsar_server import free_port


async def bill(value: bytes) -> None: ...


FIRST, TWO_PORTS = blocks_of("health.md")


async def test_the_worker_of_the_page_answers_probes(client: encore.Client) -> None:
    port = free_port()
    names: dict[str, Any] = {"client": client, "bill": bill}
    block = replace(FIRST, code=FIRST.code.replace("8080", str(port)))
    running = asyncio.create_task(run_block(block, names))
    while "worker" not in names or not names["worker"].health().ready:
        await asyncio.sleep(0.001)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ready HTTP/1.0\r\n\r\n")
    assert b" 200 OK" in await reader.readline()
    writer.close()
    names["worker"].stop()
    await running


async def test_the_second_port_lists_messages_beside_the_probes(client: encore.Client) -> None:
    probes, debug = str(free_port()), str(free_port())
    worker = encore.Worker(client, "orders", "billing", bill)
    code = TWO_PORTS.code.replace("8080", probes).replace("8081", debug)
    names: dict[str, Any] = {"encore": encore, "worker": worker}
    running = asyncio.create_task(run_block(replace(TWO_PORTS, code=code), names))
    while not worker.health().ready:
        await asyncio.sleep(0.001)
    for port, path in ((probes, b"/ready"), (debug, b"/pending")):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(b"GET " + path + b" HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        assert b" 200 OK" in await reader.readline()
        writer.close()
    worker.stop()
    await running
