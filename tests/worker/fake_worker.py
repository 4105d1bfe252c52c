"""A worker without messages, for tests of `run`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from pulsar_encore.worker.drain_deadline import DrainDeadline


class FakeWorker:
    """Serves until it is stopped, then runs `drained`, and reports the lines that it wrote.

    Args:
        handler: Runs in `serve` until the worker is stopped; its error fails the worker.
        drained: Awaited after `stop`, with the deadline.
    """

    def __init__(
        self,
        name: str = "billing",
        *,
        drain: float = 20.0,
        on_failure: Literal["raise", "terminate"] = "raise",
        handler: Callable[[], Awaitable[object]] | None = None,
        drained: Callable[[DrainDeadline], Awaitable[object]] | None = None,
    ) -> None:
        self.name: str = name
        self.drain: float = drain
        self.on_failure: Literal["raise", "terminate"] = on_failure
        self.lines: list[str] = []
        self.left_behind: int = 0
        self.client: object = None
        self.deadline: DrainDeadline | None = None
        self._handler = handler
        self._drained = drained
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def report(self) -> list[str]:
        return [self.name, *self.lines]

    def unfinished(self) -> int:
        return self.left_behind

    def stop(self) -> None:
        if self._loop is None:
            self._stopped.set()
        else:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def serve(self, budget: DrainDeadline, /) -> list[str]:
        self._loop = asyncio.get_running_loop()
        self.deadline = budget
        try:
            handler = asyncio.ensure_future(self._handle())
            stopped = asyncio.ensure_future(self._stopped.wait())
            await asyncio.wait((handler, stopped), return_when=asyncio.FIRST_COMPLETED)
            if handler.done():
                handler.result()
            await stopped
            handler.cancel()
            budget.begin()
            self.lines.append("draining")
            if self._drained is not None:
                await self._drained(budget)
            self.lines.append("drained")
            return self.report()
        except asyncio.CancelledError:
            self.lines.append("closed")
            raise

    async def _handle(self) -> None:
        if self._handler is not None:
            await self._handler()
