"""A message listener: the loop that calls it, and its pause switch.

Owns `Listener`. The callback may be a plain function or a coroutine function; one call at a time,
in order. A callback that raises has failed: the message is nacked and comes back.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import EncoreError
from ..message import Message
from .receive_queue import ReceiveQueue

logger = logging.getLogger(__name__)


class _Nacker(Protocol):
    async def negative_acknowledge(self, message: Message) -> None: ...


class Listener:
    """Feeds messages of `queue` to `callback(consumer, message)` until closed."""

    def __init__(
        self, consumer: _Nacker, queue: ReceiveQueue, callback: Callable[..., Any]
    ) -> None:
        self._consumer = consumer
        self._queue = queue
        self._callback = callback
        self._stopped = False
        self._running = asyncio.Event()
        self._running.set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def _run(self) -> None:
        consumer = self._consumer
        while not self._stopped:
            await self._running.wait()
            message = self._queue.take()
            if message is None:
                try:
                    await self._queue.wait(None, takes=False)
                except EncoreError:
                    return  # closed, or dead for good: both are reported where they happened
                continue  # paused meanwhile, perhaps
            try:
                result = self._callback(consumer, message)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                logger.exception("message_listener failed on %s; nacked", message.message_id())
                try:
                    await consumer.negative_acknowledge(message)
                except EncoreError:
                    return

    async def close(self, caller: asyncio.Task[Any] | None) -> None:
        """Cancel the callback under way and wait for it, unless it is what closes (`caller`)."""
        self._stopped = True
        if self._task is caller:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
