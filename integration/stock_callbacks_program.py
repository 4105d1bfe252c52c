"""A program that passes raising functions to the C++ client.

``python stock_callbacks_program.py CASE URL`` reads a token from standard input. It prints the
results that the application gets, and "done" if the process survived.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pulsar_encore as encore


class UnprintableError(Exception):
    """An error with a `__str__` that raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


ERRORS: tuple[BaseException, ...] = (
    ValueError("no"),
    UnprintableError(),
    SystemExit(3),
    GeneratorExit(),
)


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


async def send_and_receive(client: encore.Client, **producing: Any) -> None:
    """Send and receive."""
    topic = f"persistent://public/default/callbacks-{uuid.uuid4().hex[:8]}"
    async with (
        client.subscribe(topic, "s", encore.ConsumerType.Shared) as consumer,
        await client.create_producer(topic, **producing) as producer,
    ):
        await producer.send(b"x")
        await consumer.acknowledge(await consumer.receive(timeout=10))


async def suppliers(url: str, _: str) -> None:
    """The suppliers never return a token, neither at the first connect nor at an HTTP lookup."""
    for error in ERRORS:
        auth = encore.AuthenticationToken(raising(error))
        async with encore.Client(url, auth, transport="stock") as client:
            try:
                await send_and_receive(client)
            except encore.AuthenticationError as refused:
                print("refused", type(error).__name__ in str(refused))


async def loggers(url: str, token: str) -> None:
    """A process has one C++ log, so one logger raises all errors."""
    errors = iter(ERRORS * 1000)

    class Logger(logging.Logger):
        def log(self, *_: Any, **__: Any) -> None:
            raise next(errors)

        debug = info = warning = error = log
        isEnabledFor = handle = log

    auth = encore.AuthenticationToken(token)
    async with encore.Client(url, auth, transport="stock", logger=Logger("raising")) as client:
        await send_and_receive(client)


async def providers(url: str, token: str) -> None:
    auth = encore.AuthenticationToken(token)
    for name in ("initial_service_info", "initialize", "close"):
        for error in ERRORS:
            provider = encore.ServiceInfoProvider()
            info = encore.ServiceInfo(url, auth)
            provider.initial_service_info = lambda info=info: info  # type: ignore[method-assign]
            provider.initialize = lambda update: None  # type: ignore[method-assign]
            setattr(provider, name, raising(error))
            with contextlib.suppress(encore.ConfigurationError, type(error), RuntimeError):
                async with encore.Client(provider, transport="stock") as client:
                    await send_and_receive(client)
                    print("used", name)


async def updates(url: str, token: str) -> None:
    """A provider passes invalid values to the C++ client from another thread."""
    auth = encore.AuthenticationToken(token)
    update_functions: list[Callable[[Any], None]] = []
    provider = encore.ServiceInfoProvider()
    provider.initial_service_info = (  # type: ignore[method-assign]
        lambda: encore.ServiceInfo(url, auth)
    )
    provider.initialize = update_functions.append  # type: ignore[method-assign]
    async with encore.Client(provider, transport="stock") as client:
        await send_and_receive(client)

        def send_invalid_values() -> None:
            for each in (5, None, object()):
                with contextlib.suppress(Exception):
                    update_functions[0](each)

        thread = threading.Thread(target=send_invalid_values)
        thread.start()
        thread.join()
        await send_and_receive(client)


CASES = {each.__name__: each for each in (suppliers, loggers, providers, updates)}

if __name__ == "__main__":
    asyncio.run(CASES[sys.argv[1]](sys.argv[2], sys.stdin.read()))
    print("done")
