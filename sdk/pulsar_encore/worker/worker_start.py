"""The start of a worker: wait for a broker that is away, but not with a wrong setting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

from ..errors import ConsumerBusy, EncoreError, TopicNotFound, TransportError
from ..values.backoff import Backoff
from .start_log import StartLog

_BACKOFF: Final = Backoff(min_delay=0.5, max_delay=30, jitter=0.2)
#: An attempt that takes longer is logged, because connecting can take a minute without an error.
_SILENCE_S: Final = 5.0
#: A broker that comes up answers "Namespace not found" before it has made its namespaces: for 5 s
#: with a standalone of Pulsar 4.2.4. A missing namespace has the same answer, so the wait is short.
_NAMESPACE_WAIT_S: Final = 30.0
_NO_NAMESPACE: Final = "Namespace not found"
T = TypeVar("T")


def can_wait_for(error: BaseException) -> bool:
    """Return True if another attempt may succeed without a change by the user.

    ConsumerBusy is one of these: during a rollout the earlier process still holds an Exclusive
    subscription, or as many consumers as the broker allows are attached.
    """
    return isinstance(error, ConsumerBusy) or (
        isinstance(error, TransportError) and error.retryable
    )


def _lacks_namespace(error: BaseException) -> bool:
    return isinstance(error, TopicNotFound) and _NO_NAMESPACE in str(error)


async def wait_until_made(
    make: Callable[[], Awaitable[T]],
    name: str,
    stopping: asyncio.Event,
    rng: Random,
    log: StartLog,
    waits: Callable[[str], None] = lambda reason: None,
) -> T | None:
    """Call `make` until it succeeds; None if `stopping` was set first.

    `waits` is called with the reason of each attempt that has to be repeated.

    An attempt that is in progress when `stopping` is set is cancelled, so that the process can end
    at once.

    Raises:
        EncoreError: at once, if another attempt cannot help; after 30 s, if the namespace is
            missing.
    """
    failed, logged = 0, ""
    now = asyncio.get_running_loop().time
    give_up_s: float | None = None  # while the namespace is missing

    def on_silence() -> None:
        nonlocal logged
        reason = f"no connection to the broker, or no answer, for {_SILENCE_S:g} s"
        waits(reason)
        if not logged:
            logged = "silence"
            log.waits(name, logged, reason)

    while not stopping.is_set():
        try:
            return await _unless_stopped(make, stopping, on_silence)
        except EncoreError as error:
            if _lacks_namespace(error):
                give_up_s = now() + _NAMESPACE_WAIT_S if give_up_s is None else give_up_s
                if now() >= give_up_s:
                    raise
            elif can_wait_for(error):
                give_up_s = None
            else:
                raise
            reason = f"{type(error).__name__}: {error}"
            waits(reason)
            if type(error).__name__ != logged:  # one line for each change, not for each attempt
                logged = type(error).__name__
                log.waits(name, logged, reason)
            delay_s = _BACKOFF.delay_ms(failed, rng) / 1000
            failed += 1
        try:
            async with asyncio.timeout(delay_s):
                await stopping.wait()
        except TimeoutError:
            continue
    return None


async def _unless_stopped(
    make: Callable[[], Awaitable[T]], stopping: asyncio.Event, on_silence: Callable[[], None]
) -> T | None:
    """Await `make()`; cancel it and return None if `stopping` is set before it ends."""
    making = asyncio.ensure_future(make())
    stopped = asyncio.ensure_future(stopping.wait())
    both = (making, stopped)
    try:
        done, _ = await asyncio.wait(both, timeout=_SILENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            on_silence()
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        making.cancel()  # changes nothing if it has ended
    # A result that came in spite of the cancellation is returned, so that the caller closes it.
    await asyncio.wait((making,))
    return None if making.cancelled() else making.result()
