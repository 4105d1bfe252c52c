"""Helpers of the consumer tests: the topic, and functions that inspect a transport."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest

from pulsar_encore import Consumer, Message, ReceiveTimeout
from pulsar_encore.consumer.consumer import ConsumerParts
from pulsar_encore.devbroker.broker_service import BrokerService
from pulsar_encore.testing import MemoryTransport

TOPIC = "persistent://public/default/t"
REDELIVER = "REDELIVER_UNACKNOWLEDGED_MESSAGES"

Subscribe: TypeAlias = Callable[..., Awaitable[Consumer]]


def now_s() -> float:
    return asyncio.get_running_loop().time()


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the log records, without those of the connection logger."""
    return [each for each in caplog.records if each.name != "pulsar_encore.connection"]


async def settle() -> None:
    """Wait until the commands in flight between client and broker have arrived."""
    await asyncio.sleep(0.01)


def parts_of(consumer: Consumer) -> ConsumerParts:
    """Return the parts that a consumer is assembled from, for tests that drive one of them."""
    return consumer._parts


def service_of(transport: MemoryTransport) -> BrokerService:
    """Return the broker in memory, for tests that delete or unload a topic."""
    return transport._service


def armed_timers() -> list[asyncio.TimerHandle]:
    """Return the timers of the running event loop that are not cancelled."""
    loop: Any = asyncio.get_running_loop()
    return [handle for handle in loop._scheduled if not handle.cancelled()]


async def receive_all(consumer: Consumer, quiet_s: float = 1.0) -> list[Message]:
    """Receive messages until none has arrived for `quiet_s` seconds."""
    got = []
    while True:
        try:
            got.append(await consumer.receive(timeout=quiet_s))
        except ReceiveTimeout:
            return got


async def receive_n(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout=100_000) for _ in range(count)]


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.data() for message in messages]


def counted(messages: list[Message]) -> Counter[bytes]:
    return Counter(payloads(messages))


def put_numbers(transport: MemoryTransport, count: int, batch: int = 1) -> list[bytes]:
    """Publish `count` numbered messages, `batch` to an entry."""
    numbers = [b"%d" % each for each in range(count)]
    for start in range(0, count, batch):
        transport.put(TOPIC, *numbers[start : start + batch])
    return numbers


def redelivered(transport: MemoryTransport) -> list[tuple[int, list[tuple[int, int]]]]:
    """(ms, entries) of each redeliver command."""
    return [(command.at_ms, command.details) for command in transport.recorded(REDELIVER)]


async def receive_numbers(
    transport: MemoryTransport, subscribe: Subscribe, count: int, *, batch: int = 1, **options: Any
) -> tuple[Consumer, list[Message]]:
    """Publish the numbers from 0, and return a new consumer and all of its messages."""
    put_numbers(transport, count, batch=batch)
    consumer = await subscribe(**options)
    return consumer, await receive_n(consumer, count)


async def close_without_backlog(transport: MemoryTransport, consumer: Consumer) -> None:
    """Close a consumer, and check that the broker keeps no message for its subscription."""
    await consumer.close()
    assert transport.backlog(TOPIC, "s") == 0
