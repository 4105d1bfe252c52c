"""A native seek that loses no messages.

For a seek the broker closes the consumer and answers; the C++ client reconnects, and clears its
queue at the answer. If a busy broker answers after the reconnect, messages from after the seek are
discarded for good. The seek is then repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import _pulsar

from .cpp_calls import CppCalls

_POLL_S: Final = 0.002
# The C++ client tries to hold the answer back until it has reconnected. An answer within this time
# after the reconnect is not late: messages take longer.
_LATE_S: Final = 0.020
_MAX_SEEKS: Final = 4  # seeks in all; an unstable connection looks like late answers


async def seek(
    native: Any,
    calls: CppCalls,
    target: Any,
    note_seek: Callable[[], None],
    cpp_lock: AbstractContextManager[object],
) -> None:
    """Seek, and repeat the seek while messages after it may have been discarded.

    Args:
        native: The native consumer or reader, without other receives.
        target: A native message id, or a publish time in ms.
        note_seek: Called on a native thread after each completed seek.
        cpp_lock: Held while the native seek begins; see `Pump.cpp_lock`.
    """
    for _ in range(_MAX_SEEKS):
        answered: list[float] = []

        def start(done: Callable[..., None], answered: list[float] = answered) -> None:
            def answer(result: Any) -> None:
                answered.append(time.monotonic())
                if result == _pulsar.Result.Ok:
                    note_seek()
                done(result)

            with cpp_lock:
                native.seek_async(target, answer)

        reconnect = asyncio.create_task(_reconnected_at(native))
        try:
            await calls.run(start, "seek")
        finally:
            reconnect.cancel()
            await asyncio.wait((reconnect,))
        if reconnect.cancelled() or answered[0] - reconnect.result() < _LATE_S:
            return


async def _reconnected_at(native: Any) -> float:
    """Return the time of the first poll that saw a connection after a lost one."""
    lost = False
    while True:
        connected = native.is_connected()
        if connected and lost:
            return time.monotonic()
        lost = lost or not connected
        await asyncio.sleep(_POLL_S)
