"""A call on a closed consumer logs nothing if its caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable
from typing import Any

import pytest
from consumer_kit import TOPIC, Subscribe

from pulsar_encore import ClosedError, Consumer, EncoreError, Message
from pulsar_encore.eventloop.close_once import CloseOnce
from pulsar_encore.testing import MemoryTransport

CALLS: dict[str, Callable[[Consumer, Message], Any]] = {
    "acknowledge": lambda consumer, message: consumer.acknowledge(message),
    "acknowledge a list": lambda consumer, message: consumer.acknowledge([message] * 3),
    "acknowledge a long list": lambda consumer, message: consumer.acknowledge([message] * 1_000),
    "acknowledge_cumulative": lambda consumer, message: consumer.acknowledge_cumulative(message),
    "negative_acknowledge": lambda consumer, message: consumer.negative_acknowledge(message),
    "receive": lambda consumer, message: consumer.receive(),
    "batch_receive": lambda consumer, message: consumer.batch_receive(),
    "seek": lambda consumer, message: consumer.seek(message.message_id()),
    "unsubscribe": lambda consumer, message: consumer.unsubscribe(),
    "close": lambda consumer, message: consumer.close(),
}


async def wrapped(call: Callable[[], Any]) -> None:
    await call()


class Log:
    """Messages that the loop's exception handler received."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: self.reported.append(str(context["message"]))
        )

    async def all(self) -> list[str]:
        await asyncio.sleep(0.05)
        gc.collect()
        await asyncio.sleep(0.01)
        return self.reported


@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "closing"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_cancelled_on_a_closing_or_closed_consumer_logs_nothing(
    transport: MemoryTransport, subscribe: Subscribe, name: str, closed: bool, turns: int
) -> None:
    log = Log()
    transport.put(TOPIC, b"x")
    consumer = await subscribe()
    message = await consumer.receive()
    closing = asyncio.ensure_future(consumer.close())
    if closed:
        await closing
    made: list[asyncio.Task[Any]] = [
        asyncio.ensure_future(CALLS[name](consumer, message)),
        asyncio.ensure_future(wrapped(lambda: CALLS[name](consumer, message))),
    ]
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in made:
        task.cancel()
    for task in made:
        with contextlib.suppress(asyncio.CancelledError, EncoreError):
            await task
        del task
    await closing
    made.clear()
    assert await log.all() == []


async def test_the_error_of_an_ack_that_is_never_awaited_is_reported_to_the_loop(
    transport: MemoryTransport, subscribe: Subscribe
) -> None:
    log = Log()
    transport.put(TOPIC, b"x")
    consumer = await subscribe()
    message = await consumer.receive()
    await consumer.close()
    consumer.acknowledge(message)
    assert len(await log.all()) == 1


async def test_a_close_that_fails_after_its_caller_was_cancelled_logs_nothing() -> None:
    log = Log()

    async def close() -> None:
        await asyncio.sleep(0.01)
        raise ClosedError("it failed")

    once = CloseOnce(close)
    closing = asyncio.ensure_future(once())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await asyncio.sleep(0.02)
    del once, closing
    assert await log.all() == []
