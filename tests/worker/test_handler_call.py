"""Which handlers a worker accepts, and how it calls them."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.testing import run
from pulsar_encore.worker.handler_call import HandlerCall, HandlerKind
from pulsar_encore.worker.slots import Returned, Slots

MESSAGE: Any = object()  # handlers get this object itself


async def called(call: HandlerCall, value: Any, message: Any, emit: Any = None) -> Any:
    """Call a handler in the context of its task, as a worker does."""
    return await call.call(value, message, emit)


class JobOf:
    def __init__(self, message: Any) -> None:
        self.message = message


async def called_in_slot(call: HandlerCall, message: Any) -> Any:
    """Call a handler in a slot, which the current message is read from."""
    jobs, done = [JobOf(message)], asyncio.get_running_loop().create_future()
    slots: Slots[Any] = Slots(
        1,
        lambda: jobs.pop() if jobs else None,
        lambda job: call.call(1, job.message),
        lambda _, result: done.set_result(result),
    )
    slots.wake()
    result = await done
    assert isinstance(result, Returned), result
    return result.value


async def one(value: Any) -> Any:
    return value


async def two(value: Any, message: Any) -> Any:
    return (value, message)


async def optional(value: Any, message: Any = "left out") -> Any:
    return (value, message)


async def with_database(database: str, value: Any, message: Any) -> Any:
    return (database, value, message)


async def with_keyword(value: Any, *, retries: int = 3) -> Any:
    return (value, retries)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Service:
    async def method(self, value: Any, message: Any) -> Any:
        return (value, message)

    @staticmethod
    async def static(value: Any) -> Any:
        return value

    @classmethod
    async def of_class(cls, value: Any) -> Any:
        return value


class CallableService:
    async def __call__(self, value: Any) -> Any:
        return value


class PlainCallable:
    def __call__(self, value: Any, message: Any) -> Any:
        return (value, message)


def plain(value: Any) -> Any:
    return value


updated = functools.update_wrapper(functools.partial(with_database, "db"), with_database)

ACCEPTED: list[tuple[Callable[..., Any], Any]] = [
    (one, 1),
    (two, (1, MESSAGE)),
    (optional, (1, "left out")),
    (with_keyword, (1, 3)),
    (functools.partial(with_database, "db"), ("db", 1, MESSAGE)),
    (functools.partial(functools.partial(with_database, "db"), message="set"), ("db", 1, "set")),
    (functools.partial(with_keyword, retries=5), (1, 5)),
    (updated, ("db", 1, MESSAGE)),
    (decorated(two), (1, MESSAGE)),
    (decorated(decorated(one)), 1),
    (functools.partial(decorated(with_database), "db"), ("db", 1, MESSAGE)),
    (decorated(Service().method), (1, MESSAGE)),
    (Service().method, (1, MESSAGE)),
    (Service().static, 1),
    (Service.of_class, 1),
    (CallableService(), 1),
    (functools.partial(CallableService()), 1),
]


@pytest.mark.parametrize(("handler", "expected"), ACCEPTED)
def test_the_required_parameters_decide_what_a_handler_gets(
    handler: Callable[..., Any], expected: Any
) -> None:
    call = HandlerCall(handler)
    assert call.kind is HandlerKind.COROUTINE
    assert call.cancellable()
    assert run(called(call, 1, MESSAGE)) == expected


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (plain, 1),
        (functools.partial(plain), 1),
        (PlainCallable(), (1, MESSAGE)),
        (PlainCallable().__call__, (1, MESSAGE)),
        (decorated(plain), 1),
    ],
)
def test_plain_functions_run_in_a_thread(handler: Callable[..., Any], expected: Any) -> None:
    call = HandlerCall(handler)
    assert call.kind is HandlerKind.THREAD
    assert not call.cancellable()
    assert run(called(call, 1, MESSAGE)) == expected


async def none() -> None: ...
async def three(value: Any, message: Any, database: Any) -> None: ...
async def any_number(*values: Any) -> None: ...
async def required_keyword(value: Any, *, database: Any) -> None: ...
def generator(value: Any) -> Iterator[Any]:
    yield value


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (none, r"handler none requires 0 positional parameters, and"),
        (three, r"handler three requires 3 positional parameters \(value, message, database\)"),
        (any_number, "requires 0 positional parameters"),
        (required_keyword, "requires the keyword database"),
        (functools.partial(three, message=1), "requires the keyword database"),
        (functools.partial(one, 1), "requires 0 positional parameters"),
        (Service.method, "requires 3 positional parameters"),
        (generator, "handler generator is a plain generator"),
        (decorated(generator), "is a plain generator"),
        ("orders", "handler='orders' cannot be called"),
        (None, "handler=None cannot be called"),
        (max, "the parameters of the handler max are unknown"),
    ],
)
def test_a_handler_with_other_parameters_is_an_error_when_it_is_given(
    handler: Any, text: str
) -> None:
    with pytest.raises(encore.ConfigurationError, match=text):
        HandlerCall(handler)


@pytest.mark.parametrize(
    ("handler", "name"),
    [
        (one, "one"),
        (functools.partial(with_database, "db"), "with_database"),
        (Service().method, "Service.method"),
        (CallableService(), "CallableService"),
    ],
)
def test_a_handler_has_a_name_for_logs(handler: Callable[..., Any], name: str) -> None:
    assert HandlerCall(handler).name == name


def test_each_value_of_an_async_generator_is_emitted_before_its_next_step() -> None:
    steps: list[str] = []

    async def handler(value: int, message: Any) -> AsyncIterator[int]:
        for each in range(value):
            yield each
            await asyncio.sleep(1)
            steps.append(f"after {each}")

    call = HandlerCall(handler)
    assert call.kind is HandlerKind.GENERATOR
    assert run(called(call, 2, MESSAGE, lambda each: steps.append(f"emit {each}"))) is None
    assert steps == ["emit 0", "after 0", "emit 1", "after 1"]


@pytest.mark.parametrize("wrap", [decorated, functools.partial, lambda each: lambda v: each(v)])
def test_an_async_generator_behind_a_wrapper_is_iterated(wrap: Any) -> None:
    async def handler(value: int) -> AsyncIterator[int]:
        yield value

    emitted: list[int] = []
    run(called(HandlerCall(wrap(handler)), 1, MESSAGE, emitted.append))
    assert emitted == [1]


def test_an_async_generator_is_closed_within_its_call() -> None:
    closed: list[str] = []

    async def handler(value: int) -> AsyncIterator[int]:
        try:
            yield value
        finally:
            await asyncio.sleep(1)
            closed.append("closed")

    def refuse(value: Any) -> None:
        raise ValueError("too large to publish")

    async def main() -> None:
        with pytest.raises(ValueError, match="too large to publish"):
            await called(HandlerCall(handler), 1, MESSAGE, refuse)
        assert closed == ["closed"]

    run(main())


def test_an_error_of_an_async_generator_comes_after_the_values_before_it() -> None:
    async def handler(value: int) -> AsyncIterator[int]:
        yield value
        raise KeyError("no such order")

    emitted: list[int] = []
    with pytest.raises(KeyError):
        run(called(HandlerCall(handler), 1, MESSAGE, emitted.append))
    assert emitted == [1]


def test_values_that_nothing_publishes_are_an_error() -> None:
    async def handler(value: int) -> AsyncIterator[int]:
        yield value

    with pytest.raises(encore.ConfigurationError, match="set publish= to a topic"):
        run(called(HandlerCall(handler), 1, MESSAGE))


async def test_an_async_generator_that_never_awaits_lets_other_tasks_run() -> None:
    async def handler(value: int) -> AsyncIterator[int]:
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            yield value

    passes = 0

    async def other() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += 1

    task = asyncio.create_task(other())
    await called(HandlerCall(handler), 1, MESSAGE, lambda value: None)
    task.cancel()
    assert passes >= 5


def test_a_coroutine_that_a_plain_function_returns_is_awaited() -> None:
    # A lambda is not a coroutine function. If its coroutine were dropped, the work would be lost.
    call = HandlerCall(lambda value: two(value, "from the lambda"))
    assert call.kind is HandlerKind.THREAD

    async def main() -> None:
        assert await called(call, 1, MESSAGE) == (1, "from the lambda")
        assert call.kind is HandlerKind.COROUTINE
        assert call.cancellable()
        assert await called(call, 2, MESSAGE) == (2, "from the lambda")

    run(main())


def test_a_generator_that_a_plain_function_returns_is_an_error() -> None:
    with pytest.raises(encore.ConfigurationError, match="is a plain generator"):
        run(called(HandlerCall(lambda value: generator(value)), 1, MESSAGE))


def test_the_current_message_is_the_one_whose_handler_runs() -> None:
    async def inner() -> Any:
        return encore.current_message()

    async def handler(value: Any) -> Any:
        in_thread = await asyncio.to_thread(encore.current_message)
        return (encore.current_message(), await asyncio.create_task(inner()), in_thread)

    async def call(message: Any) -> Any:
        return await called_in_slot(HandlerCall(handler), message)

    async def main() -> None:
        first, second = object(), object()
        results = await asyncio.gather(call(first), call(second))
        assert results == [(first,) * 3, (second,) * 3]
        assert encore.current_message() is None, "outside a handler"

    run(main())


def test_a_handler_in_a_thread_sees_its_message() -> None:
    def handler(value: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        return encore.current_message()

    assert run(called_in_slot(HandlerCall(handler), MESSAGE)) is MESSAGE


def test_a_handler_is_called_in_one_event_loop_after_another() -> None:
    async def handler(value: int) -> AsyncIterator[int]:
        for each in range(value):
            time.sleep(0.005)  # longer than a time slice
            yield each

    call = HandlerCall(handler)
    for _ in range(2):
        emitted: list[int] = []
        asyncio.run(called(call, 2, MESSAGE, emitted.append))
        assert emitted == [0, 1]
