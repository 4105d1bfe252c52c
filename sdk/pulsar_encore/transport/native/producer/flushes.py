"""Waits for all sends that are pending at one moment, with one future for all of them.

A flush fails with the first error of its frames, after the last of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .unconfirmed_frames import SendFrame


@dataclass(slots=True, eq=False)
class _Flush:
    pending: set[SendFrame]
    done: asyncio.Future[Any]
    error: Exception | None = None


class Flushes:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.open: list[_Flush] = []

    def begin(self, frames: Sequence[SendFrame]) -> list[asyncio.Future[Any]]:
        """Return a future for the completion of all these frames; `[]` without frames."""
        if not frames:
            return []
        flush = _Flush(set(frames), self._loop.create_future())
        self.open.append(flush)
        return [flush.done]

    def adopt(self, others: Flushes) -> None:
        """Take over another part's flushes, because some of their frames may complete here."""
        self.open += others.open

    def complete(self, frame: SendFrame, error: Exception | None) -> None:
        for flush in list(self.open):
            if flush.done.done():
                self.open.remove(flush)
                continue
            if frame not in flush.pending:
                continue
            flush.pending.discard(frame)
            flush.error = flush.error or error
            if flush.pending:
                continue
            self.open.remove(flush)
            if flush.error is None:
                flush.done.set_result(None)
            else:
                flush.done.set_exception(flush.error)
                flush.done.exception()  # marks it as retrieved
