"""The program on the first page of the documentation runs, and stops at SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport
from tests.harness.pages import blocks_of, run_block


async def test_the_program_handles_an_order_and_ends_at_sigterm(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = blocks_of("index.md")
    code, call, _ = block.code.partition("asyncio.run(main())")
    assert call
    monkeypatch.setattr(encore, "Client", lambda url: Client(url, transport=transport))
    names: dict[str, Any] = {}
    await run_block(replace(block, code=code), names)
    program = asyncio.create_task(names["main"]())
    await asyncio.sleep(1)
    transport.put("orders", b'{"id": 7}')
    await asyncio.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    await program
    assert capsys.readouterr().out == "billed 7\n"
    assert transport.backlog("orders", "billing") == 0
