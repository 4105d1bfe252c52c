"""Java's client in a process with many sessions at a time (see java/.../Main.java)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Final

from ..letters.java_client import JavaError, build

PROJECT: Final = Path(__file__).resolve().parent / "java"
_OK: Final = "ok"


def build_classes() -> str:
    """Compile the program and return its class path.

    Raises:
        JavaError: if Maven failed.
    """
    return build(PROJECT)


class JavaFailure(Exception):
    """A call of Java's client raised.

    Attributes:
        name: The simple name of Java's exception.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class JavaProcess:
    """Runs lines of several sessions at the same time."""

    def __init__(self, process: asyncio.subprocess.Process, errors: IO[str]) -> None:
        self._process = process
        self._errors = errors
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[list[str]]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            number, *words = line.decode().split()
            self._waiting.pop(number).set_result(words)
        self._errors.seek(0)
        for each in self._waiting.values():
            each.set_exception(JavaError(f"Java's client ended:\n{self._errors.read()}"))

    async def call(self, session: str, *words: object) -> list[str]:
        """Run one line of a session, and return the words of its answer behind "ok".

        Raises:
            JavaFailure: if Java's client raised.
        """
        assert self._process.stdin is not None
        number = str(next(self._numbers))
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(" ".join(map(str, (number, session, *words))).encode() + b"\n")
        report, *rest = await answer
        if report != _OK:
            raise JavaFailure(report)
        return rest


@contextlib.asynccontextmanager
async def java_process(classes: str) -> AsyncIterator[JavaProcess]:
    """Start the process, and kill it at the end.

    Args:
        classes: The class path, from `build_classes`.
    """
    with tempfile.TemporaryFile("w+") as errors:
        process = await asyncio.create_subprocess_exec(
            "java",
            *("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),  # it lives for a minute
            *("-cp", classes, "encore.transactions.Main"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
        try:
            yield JavaProcess(process, errors)
        finally:
            process.kill()
            await process.wait()
