"""A worker that reads all topics of a pattern."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise

import pytest
from worker_kit import SUBSCRIPTION, running, until

import pulsar_encore as encore
from pulsar_encore import Client
from pulsar_encore.testing import MemoryTransport


async def test_a_worker_does_not_read_its_own_dead_letters(
    client: Client, transport: MemoryTransport
) -> None:
    calls = []

    async def handler(value: bytes, message: encore.Message[bytes]) -> None:
        calls.append(message.topic_name().rpartition("/")[2])
        raise ValueError("no")

    transport.put("orders-eu", b"poison")
    retry = encore.RetryPolicy(attempts=2, backoff=[1])
    async with running(client, handler, re.compile("orders-.*"), retry=retry) as worker:
        await until(lambda: worker.report().rejected == 1)
        transport.put("orders-us", b"poison")
        await until(lambda: worker.report().rejected == 2)
    assert calls == ["orders-eu", "orders-eu", "orders-us", "orders-us"]
    assert len(transport.catalogue.topics) == 4


async def test_a_long_delay_is_a_nack_because_a_pattern_has_no_retry_letter_topic(
    client: Client, transport: MemoryTransport
) -> None:
    calls: list[float] = []

    async def handler(value: bytes) -> None:
        calls.append(asyncio.get_running_loop().time())
        if len(calls) < 3:
            raise ValueError("no")

    transport.put("orders-eu", b"a")
    retry = encore.RetryPolicy(attempts=4, backoff=[700])
    async with running(client, handler, re.compile("orders-.*"), retry=retry):
        await until(lambda: transport.backlog("orders-eu", SUBSCRIPTION) == 0)
    assert [700 <= after - before < 710 for before, after in pairwise(calls)] == [True, True]


@pytest.mark.parametrize(
    ("topics", "publish", "problem"),
    [
        (re.compile("orders-.*"), "orders-done", "which is a loop"),
        (re.compile("orders-.*", re.IGNORECASE), None, "has flags"),
    ],
)
async def test_a_pattern_that_cannot_work_is_an_error(
    client: Client, topics: re.Pattern[str], publish: str | None, problem: str
) -> None:
    async def handler(value: bytes) -> None: ...

    with pytest.raises(encore.ConfigurationError, match=problem):
        encore.Worker(client, topics, SUBSCRIPTION, handler, publish=publish)
