"""The producer of one letter topic: made on first use, and again after it failed, in no hurry.

Owns `LetterProducer`. One creation at a time, shared by all who wait; after a failure the next
attempt waits for a backoff (100 ms to 60 s), and whoever publishes meanwhile gets the last error at
once, so that nobody hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from ..backoff import Backoff
from ..errors import ClosedError, EncoreError, TransportError
from ..ids import MessageId
from ..transport.base import Outgoing, ProducerLink

_BACKOFF: Final = Backoff(min_delay=0.1, max_delay=60, jitter=0.1)
_CLOSE_S: Final = 5.0  # a creation that takes longer is closed when it comes
_MOST_UNDER_WAY: Final = 500  # half the engine's default queue, so that it is never full
# Failures of one message; the producer is as good as before.
_OF_THE_MESSAGE: Final = frozenset(
    {"MessageTooBig", "InvalidMessage", "Timeout", "ProducerQueueIsFull", "MemoryBufferIsFull"}
)


class LetterProducer:
    """Publishes to one topic.

    Args:
        create: Makes a producer; every call makes a new one.
    """

    def __init__(self, create: Callable[[], Awaitable[ProducerLink]]) -> None:
        self._create = create
        self._link: ProducerLink | None = None
        self._creating: asyncio.Task[ProducerLink] | None = None
        self._under_way = asyncio.Semaphore(_MOST_UNDER_WAY)
        self._failures = 0
        self._not_before = 0.0
        self._last_error: EncoreError | None = None
        self._closed = False
        self._rng = Random()

    async def publish(self, letter: Outgoing) -> MessageId:
        """Send a letter; returns when it is persisted.

        Raises:
            TransportError: It is not known to be persisted.
            ClosedError: Closed meanwhile.
        """
        async with self._under_way:
            link = await self._producer()
            try:
                message_id = await link.publish(letter)
            except EncoreError as error:
                self._failed(error, link)
                raise
            self._failures = 0
            return message_id

    def retry_delay_ms(self, tries: int = 0) -> int:
        """How long a message whose letter failed should wait before the next try.

        Args:
            tries: How often this message's letter failed before: one that never can be sent must
                not come back at full speed because others can.
        """
        return _BACKOFF.delay_ms(max(0, self._failures - 1, tries), self._rng)

    async def _producer(self) -> ProducerLink:
        if self._closed:
            raise ClosedError("the consumer was closed before the letter was sent")
        if self._link is not None:
            return self._link
        if self._creating is None:
            loop = asyncio.get_running_loop()
            if loop.time() < self._not_before and self._last_error is not None:
                raise TransportError(
                    f"the letter topic is not tried again yet: {self._last_error}",
                    result=getattr(self._last_error, "result", "UnknownError"),
                    retryable=True,
                ) from self._last_error
            self._creating = loop.create_task(self._make())
        # Shielded: whoever is cancelled must not take the producer from the others.
        return await asyncio.shield(self._creating)

    async def _make(self) -> ProducerLink:
        try:
            link = await self._create()
        except EncoreError as error:
            self._failed(error, None)
            raise
        except Exception as error:
            wrapped = TransportError(f"the letter's producer could not be made: {error}")
            self._failed(wrapped, None)
            raise wrapped from error
        finally:
            self._creating = None
        if self._closed:
            await link.close()
            raise ClosedError("the consumer was closed before the letter was sent")
        self._link = link
        return link

    def _failed(self, error: EncoreError, link: ProducerLink | None) -> None:
        if getattr(error, "result", "") in _OF_THE_MESSAGE:
            return
        if link is not self._link:
            return  # one of many that were under way on it: one failure, counted already
        self._failures += 1
        self._last_error = error
        loop = asyncio.get_running_loop()
        self._not_before = loop.time() + _BACKOFF.delay_ms(self._failures - 1, self._rng) / 1000
        if link is not None:
            self._link = None
            self._closing = loop.create_task(_close(link))

    async def close(self) -> None:
        """Close what was made; a creation under way is closed when it comes."""
        self._closed = True
        if self._creating is not None:
            await asyncio.wait((self._creating,), timeout=_CLOSE_S)
        if self._link is not None:
            await _close(self._link)
            self._link = None


async def _close(link: ProducerLink) -> None:
    try:
        await link.close()
    except EncoreError:
        return  # it is gone already, which is what was wanted
