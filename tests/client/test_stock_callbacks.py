"""Functions that the C++ library calls never raise into it, which would end the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import _pulsar
import pytest

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerThread
from pulsar_encore.eventloop.mailbox import Mailbox
from pulsar_encore.transport.stock.cpp_calls import CppCalls
from pulsar_encore.transport.stock.creations import Creations
from pulsar_encore.transport.stock.producer_config import RouterGuard

ROUTING = """
import asyncio, sys
import pulsar_encore as encore

class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class Number:
    def __le__(self, other):
        raise SystemExit(3)
    __ge__ = __lt__ = __gt__ = __int__ = __le__

def raising(error):
    def route(message, partitions):
        raise error
    return route

ROUTERS = [
    raising(ValueError("no")), raising(UnprintableError()), raising(SystemExit(3)),
    raising(GeneratorExit()), lambda message, partitions: "0", lambda message, partitions: None,
    lambda message, partitions: -1, lambda message, partitions: partitions,
    lambda message, partitions: Number(), lambda: 0,
]

async def main(url):
    async with encore.Client(url, transport="stock") as client:
        for route in ROUTERS:
            async with await client.create_producer("parts", message_router=route) as producer:
                try:
                    await producer.send(b"x")
                except encore.ConfigurationError as error:
                    print("refused", type(error.__cause__).__name__)

asyncio.run(main(sys.argv[1]))
print("done")
"""


def test_no_message_router_ends_the_process(broker: BrokerThread) -> None:
    broker.create_partitioned_topic("parts", 2)
    done = subprocess.run(
        [sys.executable, "-c", ROUTING, broker.url], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    refused = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("refused")]
    assert refused[:4] == ["ValueError", "UnprintableError", "SystemExit", "GeneratorExit"]
    assert len(refused) == 10 and done.stdout.endswith("done\n")


def test_an_error_without_a_text_raised_by_a_router_is_named() -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise SystemExit(1)

    def route(message: Any, partitions: int) -> int:
        raise UnprintableError

    router = RouterGuard(route, None)
    assert router(None, 2) == 2
    assert str(router.failed).endswith("UnprintableError")


class BrokenLoop(asyncio.SelectorEventLoop):
    """A loop that cannot be woken from another thread."""

    def call_soon_threadsafe(self, *_: Any, **__: Any) -> Any:
        raise OSError("no descriptor")


def _closed() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    loop.close()
    return loop


@pytest.mark.parametrize("make", [BrokenLoop, _closed])
def test_a_receipt_for_a_closed_loop_does_not_raise(
    make: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    loop = make()
    try:
        assert Mailbox(loop).post(print, "never") is False
    finally:
        loop.close()


@pytest.mark.parametrize("outcome", [(_pulsar.Result.Ok,), (_pulsar.Result.Timeout,), ("native",)])
def test_an_answer_for_a_closed_loop_does_not_raise(outcome: tuple[Any, ...]) -> None:
    kept: list[Callable[..., None]] = []

    async def begin() -> None:
        call = asyncio.ensure_future(CppCalls().run(kept.append, "something"))
        await asyncio.sleep(0)
        call.cancel()

    asyncio.run(begin())
    thread_errors: list[Any] = []
    for answer in kept:
        thread = threading.Thread(target=_noting, args=(answer, outcome, thread_errors))
        thread.start()
        thread.join()
    assert kept and not thread_errors


def _noting(answer: Callable[..., None], outcome: tuple[Any, ...], errors: list[Any]) -> None:
    try:
        answer(*outcome)
    except BaseException as error:
        errors.append(error)


def test_an_action_that_fails_after_the_last_creation_does_not_raise() -> None:
    creations = Creations()
    kept: list[Callable[..., None]] = []

    async def begin() -> None:
        making = asyncio.ensure_future(creations.make(CppCalls(), kept.append, "make"))
        await asyncio.sleep(0)
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)

        def fail() -> None:
            raise SystemExit(1)

        creations.then(fail)

    asyncio.run(begin())
    (answer,) = kept
    answer(_pulsar.Result.Timeout)  # on a thread of the library


async def test_a_late_result_of_a_call_that_failed_without_a_token_is_closed() -> None:
    calls = CppCalls()
    kept: list[Callable[..., None]] = []
    given_back: list[Any] = []
    call = asyncio.ensure_future(calls.run(kept.append, "make", discard=given_back.append))
    await asyncio.sleep(0)
    calls.fail_authentication("the token's supplier raised ValueError")
    with pytest.raises(encore.AuthenticationError, match=r"make: .*raised ValueError"):
        await call
    kept[0]("native")
    await asyncio.sleep(0)
    assert given_back == ["native"]
