"""A native seek that throws nothing away.

Owns `seek`. A broker closes the consumer for a seek, and answers; the library connects again, and
clears its queue on the answer. An answer of a busy broker that comes after the connection finds
messages from after the seek in that queue: they are cleared with the others, and nobody asks for
them. So a seek that was answered late is done again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import _pulsar

from .cpp_calls import CppCalls

_POLL_S: Final = 0.002
# An answer within so long of the connection is the one that waited for it, as the library arranges
# when it can; messages need longer to get here.
_LATE_S: Final = 0.020
_NO_LOCK: Final = nullcontext()
_MAX_SEEKS: Final = 4  # seeks in all; a connection that comes and goes looks like late answers


async def seek(
    native: Any,
    calls: CppCalls,
    target: Any,
    sought: Callable[[], None] = lambda: None,
    asking: AbstractContextManager[object] = _NO_LOCK,
) -> None:
    """Seek, and again while what came after it may have been thrown away.

    Args:
        native: The native consumer or reader, of which nothing is taken meanwhile.
        calls: Where the operation counts.
        target: A native message id, or a publish time in ms.
        sought: Called on a native thread each time it is done.
        asking: Held while another thread asks the native consumer something; see `Pump.asking`.

    Raises:
        ClosedError: It was closed meanwhile.
        TransportError: The broker refused.
    """
    for _ in range(_MAX_SEEKS):
        answered: list[float] = []

        def start(done: Callable[..., None], answered: list[float] = answered) -> None:
            def answer(result: Any) -> None:
                answered.append(time.monotonic())
                if result == _pulsar.Result.Ok:
                    sought()
                done(result)

            with asking:
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
    """When it was first seen to be connected after it was not."""
    lost = False
    while True:
        connected = native.is_connected()
        if connected and lost:
            return time.monotonic()
        lost = lost or not connected
        await asyncio.sleep(_POLL_S)
