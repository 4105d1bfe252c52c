"""A failed attempt that is followed by another one is logged, one line for each kind in 10 s."""

from __future__ import annotations

import asyncio
import logging

import pytest
from worker_kit import TOPIC, all_acked, running

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport


@pytest.mark.parametrize("order", ["none", "key", "partition"])
@pytest.mark.parametrize("backoff", [1, 3600])
async def test_a_failed_attempt_is_logged_with_its_traceback(
    client: Client,
    transport: MemoryTransport,
    caplog: pytest.LogCaptureFixture,
    order: str,
    backoff: float,
) -> None:
    async def handler(value: bytes, message: encore.Message[bytes]) -> None:
        if message.attempt == 1:
            raise ValueError("no such customer")

    transport.put(TOPIC, b"x", key="k")
    retry = encore.RetryPolicy(backoff=[backoff])
    async with running(client, handler, order=order, retry=retry, name="billing"):
        await all_acked(transport)
    (record,) = [each for each in caplog.records if "failed, the next one" in each.message]
    assert record.levelno == logging.WARNING
    assert "worker billing: attempt 1 at <Message" in record.message
    assert f"the next one is in {backoff:.1f} s: ValueError('no such customer')" in record.message
    assert record.exc_info is not None


async def test_many_failures_of_a_kind_are_one_line_in_10_s(
    client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(value: bytes, message: encore.Message[bytes]) -> None:
        if message.attempt < 20:
            raise KeyError(value) if value == b"1" else ValueError(value)

    transport.put(TOPIC, *(b"%d" % number for number in range(100)))
    async with running(client, handler, retry=encore.RetryPolicy(attempts=20, backoff=[1])):
        await asyncio.sleep(60)
    lines = [each.message for each in caplog.records if "failed, the next one" in each.message]
    assert len(lines) == 4
    assert sum("KeyError" in each for each in lines) == 2
    assert any("more failures of this kind" in each for each in lines)


async def test_discarded_messages_of_a_kind_are_one_line_in_10_s(
    client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(value: bytes) -> None:
        raise encore.Reject("negative total")

    transport.put(TOPIC, *(b"%d" % number for number in range(100)))
    retry = encore.RetryPolicy(dead_letters=False)
    async with running(client, handler, retry=retry, reject_limit=None) as worker:
        await asyncio.sleep(11)
        transport.put(TOPIC, b"later")
        await all_acked(transport)
    lines = [each.message for each in caplog.records if "discarded" in each.message]
    assert worker.report().discarded == 101
    assert len(lines) == 2
    assert "rejected: negative total" in lines[0]
    assert "(99 more discarded messages of this kind since the last line)" in lines[1]


async def test_a_retry_that_the_handler_asks_for_is_not_logged(
    client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(value: bytes, message: encore.Message[bytes]) -> None:
        if message.attempt == 1:
            raise encore.Retry(delay=5)

    transport.put(TOPIC, b"x")
    async with running(client, handler):
        await all_acked(transport)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_while_the_breaker_stays_open_a_failed_probe_is_a_line_without_a_traceback(
    client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    away = True

    async def handler(value: bytes) -> None:
        if away:
            raise ConnectionError("refused")

    transport.put(TOPIC, *(b"%d" % number for number in range(20)))
    async with running(client, handler, breaker=encore.Breaker(on=(ConnectionError,))):
        await asyncio.sleep(300)
        away = False
        await all_acked(transport)
    lines = [each for each in caplog.records if " failed, " in each.getMessage()]
    first, *probes = lines
    assert "the next one is in" in first.message and first.exc_info is not None
    assert len(probes) >= 3
    assert all("failed, and the breaker stays open" in each.message for each in probes)
    assert all(each.exc_info is None for each in probes)
    assert all("the next one is in" not in each.message for each in probes)
