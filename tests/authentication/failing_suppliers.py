"""Token suppliers that fail, and a program that gives each of them to the C++ library.

The program has its own process, because a supplier that raises into the C++ library ends the
process. It prints "ready", and reads a JSON list of the service URL and two tokens, of which the
first expires soon. It prints "done" when all clients have used the second token.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pulsar_encore as encore

SECRET = "s3cret"


class UnprintableError(Exception):
    """An error with a `__str__` that raises."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


class Text(str):
    """A subclass of str with a `__str__` that raises."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)


def raising(error: BaseException) -> Callable[[], Any]:
    def supplier() -> Any:
        raise error

    return supplier


def waiting(error: BaseException) -> Callable[[], Any]:
    async def supplier() -> Any:
        await asyncio.sleep(0)
        raise error

    return supplier


def endless() -> Any:
    return endless()


#: A supplier, and a part of the log message about its failure.
FAILURES: dict[str, tuple[Callable[[], Any], str]] = {
    "an error": (raising(ValueError(SECRET)), "raised ValueError"),
    "a missing file": (raising(FileNotFoundError(SECRET)), "raised FileNotFoundError"),
    "an error without a text": (raising(UnprintableError()), "raised UnprintableError"),
    "the end of the program": (raising(SystemExit(SECRET)), "raised SystemExit"),
    "an interrupt": (raising(KeyboardInterrupt()), "raised KeyboardInterrupt"),
    "a generator's end": (raising(GeneratorExit()), "raised GeneratorExit"),
    "endless recursion": (endless, "raised RecursionError"),
    "an async error": (waiting(ValueError(SECRET)), "raised ValueError"),
    "an async end": (waiting(SystemExit(SECRET)), "raised SystemExit"),
    "None": (lambda: None, "gave NoneType"),
    "a number": (lambda: 5, "gave int"),
    "nothing": (lambda: "", "gave an empty token"),
    "no bytes": (lambda: b"", "gave an empty token"),
    "surrogates": (lambda: "\ud800" + SECRET, "gave text that UTF-8 cannot encode"),
}


class Supplier:
    """Returns the first token, then fails twice, then returns the second token always.

    Attributes:
        over: True if the second token was returned.
    """

    def __init__(self, fail: Callable[[], Any], tokens: list[str]) -> None:
        self._fail = fail
        self._tokens = tokens
        self._calls = 0
        self.over = False

    def __call__(self) -> Any:
        self._calls += 1
        if self._calls == 1:
            return self._tokens[0]
        if self._calls < 4:
            return self._fail()
        self.over = True
        return self._tokens[1]


async def _works(url: str, name: str, tokens: list[str]) -> None:
    """Send until the second token was returned, then send another message."""
    supplier = Supplier(FAILURES[name][0], tokens)
    client = encore.Client(url, encore.AuthenticationToken(supplier), transport="stock")
    topic = "persistent://public/default/" + name.replace(" ", "-").replace("'", "")
    async with client, await client.create_producer(topic) as producer:
        while not supplier.over:
            await producer.send(b"x")
            await asyncio.sleep(0.1)
        await producer.send(b"last")


async def main(url: str, tokens: list[str]) -> None:
    async with asyncio.TaskGroup() as group:
        for name in FAILURES:
            group.create_task(_works(url, name, tokens))


if __name__ == "__main__":
    sys.stdout.write("ready\n")  # a test mints the first token after this line
    sys.stdout.flush()
    asyncio.run(main(*json.load(sys.stdin)))
    sys.stdout.write("done\n")
