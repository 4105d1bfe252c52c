"""The loop that calls an application's `message_listener`, one message at a time.

If a callback raises, or an await inside it is cancelled, the message is nacked with the error as
evidence. Only a cancellation of the listener's own task ends the listener, with a log message.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol

from ...errors import EncoreError
from ...eventloop.fair_yield import FairYield
from ...message import Message
from .receive_queue import ReceiveQueue

#: Seconds that `close` waits for a running callback.
CLOSE_S: Final = 5.0
_CANCEL_S: Final = 1.0  # for a cancelled callback to clean up

# The message of the running callback. Tasks that the callback makes inherit it.
_inside: ContextVar[Message | None] = ContextVar("pulsar_encore_listener", default=None)


def in_callback() -> bool:
    return _inside.get() is not None


class _Consumer(Protocol):
    def topic(self) -> str: ...
    async def negative_acknowledge(
        self, message: Message, *, error: BaseException | None
    ) -> None: ...


class Listener:
    def __init__(
        self,
        consumer: _Consumer,
        queue: ReceiveQueue,
        callback: Callable[..., Any],
        fair_yield: FairYield,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._consumer = consumer
        self._queue = queue
        self._callback = callback
        self._fair_yield = fair_yield
        self._stopped = False
        self._current: Message | None = None
        self._running = asyncio.Event()
        self._running.set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def _run(self) -> None:
        queue, fair_yield, running = self._queue, self._fair_yield, self._running
        ticket = queue.ticket()
        try:
            while not self._stopped:
                if not running.is_set():
                    await running.wait()
                elif fair_yield.clock() >= fair_yield.ends:
                    await fair_yield.end()
                elif (message := queue.take()) is not None:
                    await self._call(message)
                else:
                    await queue.wait(None, ticket, takes=False)
        except EncoreError:
            pass  # closed or failed: `failed` has logged it
        except asyncio.CancelledError:
            if not self._stopped:
                self._stopped = True
                self._log_end("its task was cancelled, as asyncio.run does at its end")
            raise

    async def _call(self, message: Message) -> None:
        self._current = message
        _inside.set(message)
        cancelled = self._task.cancelling()
        try:
            result = self._callback(self._consumer, message)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            ours = self._task.cancelling() > cancelled
            if not (ours and self._stopped):  # `close` lets the broker redeliver the message
                await self._failed(message, error)
            if ours:
                raise
        except Exception as error:
            await self._failed(message, error)
        finally:
            self._current = None

    async def _failed(self, message: Message, error: BaseException) -> None:
        try:
            await self._consumer.negative_acknowledge(message, error=error)
        except EncoreError as refused:
            # Closed or failed meanwhile: the broker redelivers the message.
            self._logger.error(
                "message_listener failed on %s; not nacked: %s",
                message.message_id(),
                refused,
                exc_info=error,
            )
        else:
            self._logger.error(
                "message_listener failed on %s; nacked", message.message_id(), exc_info=error
            )

    def failed(self, error: Exception) -> None:
        if not self._stopped:
            self._stopped = True
            self._log_end(str(error))

    def _log_end(self, why: str) -> None:
        self._logger.error(
            "message_listener of %s gets nothing more: %s; close the consumer and subscribe again",
            self._consumer.topic(),
            why,
        )

    async def close(self) -> None:
        """Wait for the running callback, up to `CLOSE_S`, then cancel it.

        A call from within that callback does not wait, to avoid a deadlock.
        """
        self._stopped = True
        current = self._current
        if current is not None:
            if _inside.get() is current:
                return
            await asyncio.wait((self._task,), timeout=CLOSE_S)
        if not self._task.done():
            if self._current is not None:
                self._logger.warning(
                    "message_listener did not end on %s within %s s of closing: cancelled",
                    self._current.message_id(),
                    CLOSE_S,
                )
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=_CANCEL_S)
