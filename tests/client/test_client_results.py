"""The bridge from native callbacks: swallows everything, loses nothing, orphans nothing."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import _pulsar
import pulsar.asyncio
import pytest

import pulsar_encore as encore
from pulsar_encore.eventloop.mailbox import Mailbox
from pulsar_encore.options import ClientOptions
from pulsar_encore.transport.stock import StockTransport, at_exit
from pulsar_encore.transport.stock.cpp_calls import CppCalls, close_quietly
from pulsar_encore.transport.stock.result_errors import failure, raised

OK = _pulsar.Result.Ok


class Native:
    """An operation that ends when the test says so."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[..., None]] = []
        self.closed = 0

    def start(self, done: Callable[..., None]) -> None:
        self.callbacks.append(done)

    def close_async(self, _done: Callable[..., None]) -> None:
        self.closed += 1


def elsewhere(action: Callable[[], None]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


async def begin(native: Native, calls: CppCalls) -> asyncio.Task[Any]:
    task = asyncio.create_task(calls.run(native.start, "subscribe", discard=close_quietly))
    await asyncio.sleep(0)
    return task


async def test_a_call_returns_a_result_that_another_thread_reports() -> None:
    native = Native()
    task = await begin(native, CppCalls())
    elsewhere(lambda: native.callbacks[0](OK, 7))
    assert await task == 7


@pytest.mark.parametrize("moment", ["before the result", "in the turn of the result"])
async def test_the_result_for_a_cancelled_caller_is_closed(moment: str) -> None:
    native = Native()
    task = await begin(native, CppCalls())
    if moment == "before the result":
        task.cancel()
        await asyncio.wait([task])
        native.callbacks[0](native)
    else:
        native.callbacks[0](native)
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert task.cancelled()
    assert native.closed == 1


async def test_a_failure_for_a_cancelled_caller_is_ignored() -> None:
    native = Native()
    task = await begin(native, CppCalls())
    task.cancel()
    await asyncio.wait([task])
    native.callbacks[0](_pulsar.Result.Timeout)
    await asyncio.sleep(0)
    assert native.closed == 0


def test_a_result_after_the_loop_is_closed_is_closed() -> None:
    native = Native()
    loop = asyncio.new_event_loop()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await CppCalls().run(native.start, "subscribe", discard=close_quietly)

    loop.run_until_complete(main())
    loop.close()
    elsewhere(lambda: native.callbacks[0](native))
    assert native.closed == 1


async def test_abandon_fails_calls_that_were_never_answered() -> None:
    native, calls = Native(), CppCalls()
    task = await begin(native, calls)
    calls.abandon()
    with pytest.raises(encore.ClosedError):
        await task
    with pytest.raises(encore.ClosedError):
        await calls.run(native.start, "subscribe")
    native.callbacks[0](OK)
    await asyncio.sleep(0)


async def test_the_error_names_a_call_that_could_not_begin() -> None:
    def refuse(_done: Callable[..., None]) -> None:
        raise TypeError("incompatible function arguments")

    with pytest.raises(encore.ConfigurationError, match="seek: incompatible"):
        await CppCalls().run(refuse, "seek")


async def test_many_posts_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    mail = Mailbox(loop)
    got: list[int] = []
    wakes = 0
    original = loop.call_soon_threadsafe

    def counted(*args: Any) -> Any:
        nonlocal wakes
        wakes += 1
        return original(*args)

    def post_all() -> None:
        for each in range(100):
            mail.post(got.append, each)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    elsewhere(post_all)
    await asyncio.sleep(0.01)
    assert got == list(range(100))
    assert wakes == 1
    assert mail.post(got.append, 100)
    await asyncio.sleep(0)
    assert got[-1] == 100


async def test_many_posted_calls_let_the_loop_run_and_keep_their_order() -> None:
    loop = asyncio.get_running_loop()
    mail = Mailbox(loop)
    got: list[int] = []
    turns = 0

    def work(number: int) -> None:
        got.append(number)
        if number < 10:  # calls posted during the work run last
            elsewhere(lambda: mail.post(got.append, 60 + number))
        time.sleep(0.001)

    for each in range(60):
        mail.post(work, each)
    while len(got) < 70:
        turns += 1
        await asyncio.sleep(0)
    assert got == list(range(70))
    assert turns > 15  # a pass is three of them long, or shorter where the machine is slow
    assert mail.post(got.append, 70)
    await asyncio.sleep(0)
    assert got[-1] == 70


async def test_a_posted_call_that_fails_does_not_stop_the_next() -> None:
    mail = Mailbox(asyncio.get_running_loop())
    seen: list[Any] = []
    mail.loop.set_exception_handler(lambda _loop, context: seen.append(context["exception"]))

    def fail() -> None:
        raise ZeroDivisionError

    mail.post(fail)
    mail.post(seen.append, "next")
    await asyncio.sleep(0.01)
    assert isinstance(seen[0], ZeroDivisionError)
    assert seen[1] == "next"


def test_a_post_to_a_closed_loop_returns_false() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    assert not Mailbox(loop).post(print, "never")


def test_every_result_has_a_text_and_an_exception_class_of_its_name() -> None:
    for name, result in _pulsar.Result.__members__.items():
        if name in ("Ok", "AlreadyClosed"):
            continue
        error = failure(result, "subscribe", "detail")
        assert isinstance(error, getattr(encore, name))
        assert isinstance(error, (encore.TransportError, encore.ConfigurationError))
        assert error.error() == result
        assert error.result == name
        assert str(error).startswith(f"subscribe: {name}: ")
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.result, again.retryable) == (str(error), name, error.retryable)
    assert isinstance(failure(_pulsar.Result.AlreadyClosed, "send"), encore.ClosedError)
    assert failure(_pulsar.Result.Timeout, "send").retryable  # type: ignore[attr-defined]
    assert not failure(_pulsar.Result.AuthorizationError, "send").retryable  # type: ignore[attr-defined]


def test_exceptions_of_pulsar_client_are_translated() -> None:
    assert isinstance(raised(pulsar.Timeout("x"), "flush"), encore.TransportError)
    assert isinstance(raised(pulsar.AlreadyClosed("x"), "flush"), encore.ClosedError)
    assert isinstance(raised(ValueError("x"), "flush"), encore.ConfigurationError)
    assert isinstance(raised(RuntimeError("x"), "flush"), encore.TransportError)


def test_a_dropped_stock_transport_closes_its_cpp_client() -> None:
    transport = StockTransport(ClientOptions(service_url="pulsar://127.0.0.1:1"))
    key = id(transport.native)
    assert key in at_exit._open
    del transport
    assert key not in at_exit._open


def test_the_exit_handler_waits_for_the_answer_that_a_shutdown_causes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that fell silent does not answer the close. The library answers it once it is shut
    down, on a thread of its own; with the interpreter gone by then, the process aborts."""

    class Silent:
        answer: Callable[..., None] | None = None
        answered = False

        def close_async(self, done: Callable[..., None]) -> None:
            self.answer = done

        def shutdown(self) -> None:
            threading.Thread(target=self._answer).start()

        def _answer(self) -> None:
            time.sleep(0.2)
            assert self.answer is not None
            self.answer(OK)
            self.answered = True
            self.answer = None

    native = Silent()
    monkeypatch.setattr(at_exit, "_EXIT_WAIT_S", 0.01)
    at_exit._open[id(native)] = native
    at_exit._end_all()
    assert native.answered and not at_exit._ending
