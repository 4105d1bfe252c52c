"""The first of several attempts to succeed, begun one after the other.

Owns `first`. The next one begins when the one before failed, or has taken so long that it may be
dead; the ones that lost are cancelled, and what they bring after all is discarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

STAGGER_S: Final = 0.25
"""How long the first of two addresses has for itself (RFC 8305)."""

_Result = TypeVar("_Result")


async def first(
    attempts: Sequence[Callable[[], Awaitable[_Result]]],
    *,
    discard: Callable[[_Result], None],
    stagger_s: float = STAGGER_S,
) -> _Result:
    """What the first attempt to succeed brings.

    Args:
        attempts: At least one.
        discard: Called with what comes too late.
        stagger_s: How long one is waited for before the next begins beside it, in s.

    Raises:
        Exception: That of the last attempt, when all failed.
    """
    running: set[asyncio.Task[_Result]] = set()
    waiting = list(reversed(attempts))
    failure: BaseException | None = None
    try:
        while running or waiting:
            if waiting:
                running.add(asyncio.ensure_future(_run(waiting.pop())))
            done, running = await asyncio.wait(
                running,
                timeout=stagger_s if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            won = next((task for task in done if task.exception() is None), None)
            if won is not None:
                running |= done - {won}
                return won.result()
            for task in done:
                failure = task.exception()
        assert failure is not None, "no attempts"
        raise failure
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(lambda late: _late(late, discard))


async def _run(attempt: Callable[[], Awaitable[_Result]]) -> _Result:
    return await attempt()


def _late(task: asyncio.Task[_Result], discard: Callable[[_Result], None]) -> None:
    if not task.cancelled() and task.exception() is None:
        discard(task.result())
