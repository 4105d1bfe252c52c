"""Copies of messages for dead-letter replay and evacuation, with a bounded number in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from ...errors import EncoreError, TransportError
from ...eventloop.shielded_work import to_its_end
from ...transport.interface import Transport, TransportProducer
from ...values.outgoing_message import OutgoingMessage
from .copy_options import Destination, producer_options

_MAX_PRODUCERS: Final = 64
# Results that concern one message, not its destination.
_MESSAGE_RESULTS: Final = frozenset({"MessageTooBig", "InvalidMessage", "CryptoError"})


class BoundedCopy:
    """One run that copies messages.

    For each original the caller awaits `wait_for_slot`, then calls `begin` with the work: `publish`
    the copies, then ack the original. Each original has its own task, so a slow destination delays
    no other one until the limit is reached. Copies to one destination keep the order of `begin`.

    Args:
        schema: For messages that were written without one.
        limit: Messages in flight. An entry with more messages is copied alone.
        max_failures: Consecutive failed copies after which a destination is exhausted.
        drain_s: Longest wait of `drain`, in s; None for no limit.

    Attributes:
        failed_at: Name of the original at which the run failed.
        exhausted: Exhausted destinations, with their last error.
    """

    def __init__(
        self,
        transport: Transport,
        crypto_key_reader: Any,
        schema: Any = None,
        *,
        limit: int,
        max_failures: int,
        drain_s: float | None = None,
        **producer: Any,
    ) -> None:
        self._transport = transport
        self._crypto_key_reader = crypto_key_reader
        self._schema = schema
        self._limit = limit
        self._max_failures = max_failures
        self._drain_s = drain_s
        self._options = producer
        self._tasks: dict[asyncio.Task[None], int] = {}  # with the number of messages of each
        self._task_ended = asyncio.Event()
        self._making = asyncio.Lock()
        self._producers: dict[Destination, TransportProducer] = {}
        self._unavailable: dict[Destination, EncoreError] = {}  # why there is no producer
        self._failures: dict[Destination, int] = {}  # consecutive failures
        self.exhausted: dict[Destination, EncoreError] = {}
        self.failure: BaseException | None = None
        self.failed_at: str = ""

    async def wait_for_slot(self, messages: int = 1) -> bool:
        """Wait until more messages may be in flight; return False after a failure."""
        while self._tasks and sum(self._tasks.values()) + messages > self._limit:
            self._task_ended.clear()
            await self._task_ended.wait()
        return self.failure is None

    def begin(self, work: Coroutine[Any, Any, None], name: str = "", messages: int = 1) -> None:
        """Start the work of one original, `name`. The first error of any work ends the run."""
        task = asyncio.get_running_loop().create_task(self._guard(work, name))
        self._tasks[task] = messages
        task.add_done_callback(self._end)

    async def _guard(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except BaseException as error:
            self.fail(error, name)

    def _end(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._task_ended.set()

    def fail(self, error: BaseException, name: str) -> None:
        if self.failure is None and not isinstance(error, asyncio.CancelledError):
            self.failure, self.failed_at = error, name

    def check(self, destination: Destination) -> None:
        """Raise the error of a destination that accepts no copies any more."""
        error = self._unavailable.get(destination) or self.exhausted.get(destination)
        if error is not None:
            raise error

    async def open(self, destination: Destination) -> None:
        """Make a producer before any work begins for it, between two calls of `begin`.

        At the limit of producers it waits for the copies in flight and closes all producers.
        """
        if destination not in self._producers and len(self._producers) >= _MAX_PRODUCERS:
            await self.drain()
            await self._close_producers()
        await self._producer(destination)

    async def publish(self, destination: Destination, copy: OutgoingMessage) -> None:
        """Send a copy and wait for its receipt. After a timeout it may be stored nevertheless."""
        try:
            await (await self._producer(destination)).publish(copy)
        except TransportError as error:
            if error.result not in _MESSAGE_RESULTS:
                failures = self._failures[destination] = self._failures.get(destination, 0) + 1
                if failures >= self._max_failures:
                    self.exhausted[destination] = error
            raise
        self._failures.pop(destination, None)

    async def _producer(self, destination: Destination) -> TransportProducer:
        # Copies that arrive while the producer is made wait here in order.
        async with self._making:
            self.check(destination)
            if destination not in self._producers:
                try:
                    options = await producer_options(
                        destination,
                        self._transport.schema_of,
                        self._crypto_key_reader,
                        self._schema,
                        byte_keys=self._transport.capabilities.binary_keys,
                        **self._options,
                    )
                    producer = await self._transport.create_producer(options)
                except EncoreError as error:
                    self._unavailable[destination] = error
                    raise
                self._producers[destination] = producer
            return self._producers[destination]

    async def drain(self) -> int:
        """Wait for up to `drain_s`; return how many originals are left.

        A cancellation takes effect afterwards.
        """
        if self._tasks:
            await to_its_end(asyncio.wait(list(self._tasks), timeout=self._drain_s))
        return len(self._tasks)

    async def close(self) -> None:
        """Close the producers. A cancellation takes effect afterwards."""
        await to_its_end(self._close_producers())

    async def _close_producers(self) -> None:
        producers, self._producers = list(self._producers.values()), {}
        # A producer that fails to close is closed already.
        await asyncio.gather(*(each.close() for each in producers), return_exceptions=True)
