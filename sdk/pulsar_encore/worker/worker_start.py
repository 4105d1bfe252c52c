"""The start of a worker: wait for a broker that is away, but not with a wrong setting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, TypeVar

from ..errors import ConsumerBusy, EncoreError, TransportError
from ..eventloop.close_once import seen
from ..values.backoff import Backoff

log: logging.Logger = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(min_delay=0.5, max_delay=30, jitter=0.2)
T = TypeVar("T")


def can_wait_for(error: BaseException) -> bool:
    """Return True if another attempt may succeed without a change by the user.

    ConsumerBusy is one of these: during a rollout the earlier process still holds an Exclusive
    subscription, or as many consumers as the broker allows are attached.
    """
    return isinstance(error, ConsumerBusy) or (
        isinstance(error, TransportError) and error.retryable
    )


async def wait_until_made(
    make: Callable[[], Coroutine[Any, Any, T]], name: str, stopping: asyncio.Event, rng: Random
) -> T | None:
    """Call `make` until it succeeds; None if `stopping` was set first, which cancels the call.

    Raises:
        EncoreError: at once, if another attempt cannot help.
    """
    failed, logged = 0, ""
    while not stopping.is_set():
        try:
            return await _unless_stopped(make(), stopping)
        except EncoreError as error:
            if not can_wait_for(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            if type(error).__name__ != logged:  # one line for each change, not for each attempt
                log.warning("worker %s waits to start: %s", name, reason)
                logged = type(error).__name__
            delay_s = _BACKOFF.delay_ms(failed, rng) / 1000
            failed += 1
        try:
            async with asyncio.timeout(delay_s):
                await stopping.wait()
        except TimeoutError:
            continue
    return None


async def _unless_stopped(work: Coroutine[Any, Any, T], stopping: asyncio.Event) -> T | None:
    """Await `work`; cancel it and return None if `stopping` is set first.

    A subscribe can take as long as the broker is away, and a drain must not wait for that.
    """
    working = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not working.done():
            seen(working).cancel()
    return working.result() if working.done() else None
