"""Suppliers of tokens that fail, and the program that gives each of them to the C++ library.

The program is run in a process of its own, because a supplier that raises into the C++ library ends
the process: ``python failing_suppliers.py URL`` with tokens that end at a time on standard input.
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
    """Raises from its own text."""

    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


class Text(str):
    """A str of another class, with a text of its own."""

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


#: What a supplier does, and what the log says of it.
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


def supplier_of(fail: Callable[[], Any], tokens: list[str], failures: int) -> Callable[[], Any]:
    """The first token, then so many failures, then the other tokens, the last one for ever."""
    calls = 0

    def supplier() -> Any:
        nonlocal calls
        calls += 1
        if 1 < calls <= 1 + failures:
            return fail()
        return tokens[min(max(0, calls - 1 - failures), len(tokens) - 1)]

    return supplier


async def _works(url: str, name: str, tokens: list[str], seconds: float) -> None:
    """A producer sends until the token has expired and was replaced."""
    supplier = supplier_of(FAILURES[name][0], tokens, failures=2)
    client = encore.Client(url, encore.AuthenticationToken(supplier), transport="stock")
    topic = "persistent://public/default/" + name.replace(" ", "-").replace("'", "")
    async with client, await client.create_producer(topic) as producer:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await producer.send(b"x")
            await asyncio.sleep(0.1)
        await producer.send(b"last")


async def main(url: str, tokens: list[str], seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        for name in FAILURES:
            group.create_task(_works(url, name, tokens, seconds))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.load(sys.stdin), float(sys.argv[2])))
    sys.stdout.write("done\n")
