"""The call of a handler: which arguments it takes, and where it runs.

The signature is checked when the worker is made, so that a wrong handler fails before the first
message.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import partial
from types import CoroutineType
from typing import Any, Final, Never

from ..errors import ConfigurationError
from ..eventloop.fair_yield import FairYield
from ..message import Message
from .handler_threads import run_in_thread
from .slots import current_job

__all__ = ["HandlerCall", "HandlerKind", "current_message"]

_EXAMPLE: Final = "async def handler(value, message), or without the second parameter"


def current_message() -> Message | None:
    """Return the message of the running handler, or None outside a handler.

    Tasks and threads that a handler starts with `asyncio.create_task` and `asyncio.to_thread` see
    the message too. Use it for log filters::

        class MessageIdFilter(logging.Filter):
            def filter(self, record):
                message = encore.current_message()
                record.message_id = message.message_id() if message else "-"
                return True
    """
    message: Message | None = getattr(current_job(), "message", None)  # None for a list
    return message


class HandlerKind(enum.StrEnum):
    """How a handler runs."""

    COROUTINE = "coroutine"  # on the event loop
    GENERATOR = "generator"  # on the event loop, and each value that it yields is published
    THREAD = "thread"  # a plain function, in a daemon thread


class HandlerCall:
    """Calls one handler for one message after another.

    Args:
        handler: A coroutine function, an async generator function or a plain function. It takes
            the value, or the value and the message.

    Attributes:
        kind: How the handler runs. A plain function that returns an awaitable, such as a lambda
            around a coroutine function, becomes a `HandlerKind.COROUTINE` at its first call.
        name: The name of the handler for logs and errors.
        takes_message: True if the handler also takes the message.

    Raises:
        ConfigurationError: if the handler does not have one or two required positional parameters.
    """

    def __init__(self, handler: Callable[..., Any]) -> None:
        if not callable(handler):
            raise ConfigurationError(
                f"handler={handler!r} cannot be called: give a function, as in {_EXAMPLE}"
            )
        self.name: str = _name_of(handler)
        self.takes_message: bool = _required_positional(handler, self.name) == 2
        self.kind: HandlerKind = _kind_of(handler, self.name)
        self._handler = handler
        self._fair_yield: FairYield | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def cancellable(self) -> bool:
        """Return True if a cancellation ends the handler: a thread cannot be cancelled."""
        return self.kind is not HandlerKind.THREAD

    def call(
        self, value: Any, message: Message, emit: Callable[[Any], None] | None = None
    ) -> Awaitable[Any]:
        """Call the handler; awaiting the result gives the handler's.

        Args:
            value: The decoded value.
            message: The message, also if the handler does not take it.
            emit: Called with each value that an async generator yields, before its next step.
        """
        if self.kind is HandlerKind.THREAD:
            return self._in_thread((value, message) if self.takes_message else (value,), emit)
        result = self._handler(value, message) if self.takes_message else self._handler(value)
        # A second coroutine around the handler's would cost 0.3 us for each message.
        return result if type(result) is CoroutineType else self._result_of(result, emit)

    def call_list(
        self,
        values: list[Any],
        messages: list[Message[Any]],
        emit: Callable[[Any], None] | None = None,
    ) -> Awaitable[Any]:
        """Call the handler of a `BatchWorker`, as `call` does; there is no current message."""
        arguments = (values, messages) if self.takes_message else (values,)
        if self.kind is HandlerKind.THREAD:
            return self._in_thread(arguments, emit)
        return self._result_of(self._handler(*arguments), emit)

    async def _in_thread(
        self, arguments: tuple[Any, ...], emit: Callable[[Any], None] | None
    ) -> Any:
        result = await run_in_thread(self._handler, *arguments)
        if inspect.isawaitable(result):
            # If it were dropped, the message would be acked without its work.
            self.kind = HandlerKind.COROUTINE
        return await self._result_of(result, emit)

    async def _result_of(self, result: Any, emit: Callable[[Any], None] | None) -> Any:
        if inspect.isawaitable(result):
            return await result
        if inspect.isasyncgen(result):
            self.kind = HandlerKind.GENERATOR
            return await self._iterate(result, emit)
        if inspect.isgenerator(result):
            raise ConfigurationError(_generator_error(self.name))
        return result

    async def _iterate(
        self, values: AsyncGenerator[Any, Never], emit: Callable[[Any], None] | None
    ) -> None:
        if emit is None:
            raise ConfigurationError(
                f"the handler {self.name} yields values, and nothing publishes them: set publish= "
                "to a topic"
            )
        fair_yield = self._fair_yield_of(asyncio.get_running_loop())
        try:
            async for each in values:
                emit(each)
                # A generator that never awaits would block the event loop.
                if fair_yield.clock() >= fair_yield.ends:
                    await fair_yield.end()
        finally:
            # If `emit` fails or the call is cancelled, the generator has not ended. Its `finally`
            # blocks must run in this call, not when the event loop collects the generator.
            await values.aclose()

    def _fair_yield_of(self, loop: asyncio.AbstractEventLoop) -> FairYield:
        if self._fair_yield is None or self._loop is not loop:
            self._fair_yield = FairYield(loop)
            self._loop = loop
        return self._fair_yield


def _layers(handler: Any) -> Iterator[Any]:
    """Yield a handler and the callables that it wraps, outermost first."""
    seen: set[int] = set()
    while handler is not None and id(handler) not in seen:
        seen.add(id(handler))
        yield handler
        if isinstance(handler, partial):
            handler = handler.func
        else:
            handler = getattr(handler, "__wrapped__", None)


def _name_of(handler: Callable[..., Any]) -> str:
    names = (getattr(each, "__qualname__", None) for each in _layers(handler))
    return next((name for name in names if isinstance(name, str)), type(handler).__qualname__)


def _kind_of(handler: Callable[..., Any], name: str) -> HandlerKind:
    """Return the kind of the outermost layer that is not a plain function.

    A decorator is often a plain function that returns the coroutine of the function inside.
    """
    for each in _layers(handler):
        call = each if inspect.isroutine(each) else type(each).__call__
        for function in (each, call):
            if inspect.iscoroutinefunction(function):
                return HandlerKind.COROUTINE
            if inspect.isasyncgenfunction(function):
                return HandlerKind.GENERATOR
            if inspect.isgeneratorfunction(function):
                raise ConfigurationError(_generator_error(name))
    return HandlerKind.THREAD


def _generator_error(name: str) -> str:
    return (
        f"the handler {name} is a plain generator, which nothing would run: write async def with "
        "yield to publish values, or return a value"
    )


def _required_positional(handler: Callable[..., Any], name: str) -> int:
    """Return how many positional parameters a handler requires: 1 or 2.

    Raises:
        ConfigurationError: if the number is another one, or a keyword-only parameter is required.
    """
    if isinstance(handler, partial):
        # `functools.update_wrapper` gives a partial a `__wrapped__`, and `inspect.signature` would
        # show parameters that the partial has set already.
        handler = partial(handler.func, *handler.args, **handler.keywords)
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the parameters of the handler {name} are unknown ({error}): wrap it in a function, "
            f"as in {_EXAMPLE}"
        ) from error
    required = [each for each in parameters if each.default is each.empty]
    keywords = [each.name for each in required if each.kind is each.KEYWORD_ONLY]
    if keywords:
        raise ConfigurationError(
            f"the handler {name} requires the keyword {', '.join(keywords)}, and a worker passes "
            "none: give the parameter a default, or set it with functools.partial"
        )
    positional = [
        each.name
        for each in required
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) not in (1, 2):
        names = f" ({', '.join(positional)})" if positional else ""
        raise ConfigurationError(
            f"the handler {name} requires {len(positional)} positional parameters{names}, and a "
            f"worker passes the value, or the value and the message: write {_EXAMPLE}; set others "
            "with functools.partial or a default"
        )
    return len(positional)
