"""Waits for all sends that are pending at one moment, without a wait for each message.

A flush ends with the last of its frames, and fails with the first of their errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from .pending_sends import PendingSend

W = TypeVar("W")


class _Flush(Generic[W]):
    __slots__ = ("done", "error", "left")

    def __init__(self, of: Iterable[PendingSend[W]], done: asyncio.Future[Any]) -> None:
        self.left = set(of)
        self.error: Exception | None = None
        self.done = done


class Flushes(Generic[W]):
    """The flushes of one topic or partition that have not ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: list[_Flush[W]] = []

    @property
    def under_way(self) -> list[_Flush[W]]:
        return self._open

    def begin(self, of: list[PendingSend[W]]) -> list[asyncio.Future[Any]]:
        """Return a future that is done when all these frames are completed; no future if there are
        none."""
        if not of:
            return []
        flush = _Flush(of, self._loop.create_future())
        self._open.append(flush)
        return [flush.done]

    def adopt(self, others: Flushes[W]) -> None:
        """Take over another part's flushes, because some of their frames may complete here."""
        self._open += others.under_way

    def left(self, sending: PendingSend[W], error: Exception | None) -> None:
        """Note that a frame is no longer pending: it is stored, or failed with `error`."""
        for flush in list(self._open):
            if flush.done.done():
                self._open.remove(flush)
                continue
            if sending not in flush.left:
                continue
            flush.left.discard(sending)
            flush.error = flush.error or error
            if not flush.left:
                self._open.remove(flush)
                _end(flush)


def _end(flush: _Flush[W]) -> None:
    if flush.error is None:
        flush.done.set_result(None)
    else:
        flush.done.set_exception(flush.error)
        flush.done.exception()  # marks it as retrieved, if no caller waits
