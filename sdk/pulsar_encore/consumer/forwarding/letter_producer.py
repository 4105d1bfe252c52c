"""The producer of one letter topic: made on first use, and again after it failed, in no hurry.

Owns `LetterProducer`. One creation at a time, shared by all who wait; after a failure the next
attempt waits for a backoff (100 ms to 60 s), and whoever posts meanwhile gets the last error at
once, so that nobody hangs. What has to wait for room waits in the link, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final, TypeAlias

from ...errors import (
    ClosedError,
    EncoreError,
    InvalidTopicName,
    ProducerFenced,
    PulsarException,
    TopicTerminated,
    UnknownError,
    named,
)
from ...transport.interface import RetryNotice, TransportProducer
from ...values.backoff import Backoff, FailureReports
from ...values.message_id import MessageId
from ...values.outgoing_message import OutgoingMessage
from ..event_publisher import ProducerEventPublisher

logger: logging.Logger = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(min_delay=0.1, max_delay=60, jitter=0.1)
_SEND_LIMIT: Final = 200  # letters sent in one turn of the loop, of those that waited: 4 ms or so
_CLOSE_S: Final = 5.0  # a creation that takes longer is closed when it comes
# Failures of one message; the producer is as good as before.
_MESSAGE_RESULTS: Final = frozenset(
    {"MessageTooBig", "InvalidMessage", "Timeout", "ProducerQueueIsFull", "MemoryBufferIsFull"}
)

# A new producer fails the same way until somebody changes the topic or the name.
_FINAL: Final = (InvalidTopicName, ProducerFenced, TopicTerminated)

OnSent: TypeAlias = Callable[[Exception | None], None]
"""Called once: with None when the letter is persisted, else with what went wrong."""


class LetterProducer:
    """Publishes to one topic.

    Args:
        topic: Full name.
        create: Makes a producer; every call makes a new one.
        event_publisher: Reports producers that cannot be made to the application.
    """

    def __init__(
        self,
        topic: str,
        create: Callable[[], Awaitable[TransportProducer]],
        event_publisher: ProducerEventPublisher,
    ) -> None:
        self._topic = topic
        self._create = create
        self._event_publisher = event_publisher
        self._loop = asyncio.get_running_loop()
        self._link: TransportProducer | None = None
        self._creating: asyncio.Task[None] | None = None
        self._waiting: list[tuple[OutgoingMessage, OnSent]] = []
        self._failures = 0
        self._not_before = 0.0
        self._last_error: Exception | None = None
        self._create_failures: FailureReports | None = (
            None  # attempts to make a producer that failed
        )
        self._closed = False
        self._closings: set[asyncio.Task[None]] = set()
        self._rng = Random()

    def post(self, letter: OutgoingMessage, on_sent: OnSent) -> None:
        """Send a letter; `then` may be called before this returns."""
        if self._link is not None and self._creating is None:
            self._publish(self._link, letter, on_sent)
        elif self._closed:
            on_sent(ClosedError("the consumer was closed before the letter was sent"))
        elif self._creating is not None:
            self._waiting.append((letter, on_sent))
        elif self._last_error is not None and self._loop.time() < self._not_before:
            on_sent(_retry_pending_error(self._last_error))
        else:
            self._waiting.append((letter, on_sent))
            self._creating = self._loop.create_task(self._make())

    def _publish(self, link: TransportProducer, letter: OutgoingMessage, on_sent: OnSent) -> None:
        try:
            sending = asyncio.ensure_future(link.publish(letter))
        except Exception as error:
            self._failed(error, link)
            on_sent(error)
            return
        sending.add_done_callback(partial(self._published, link, on_sent))

    def _published(
        self, link: TransportProducer, on_sent: OnSent, sending: asyncio.Future[MessageId]
    ) -> None:
        if sending.cancelled():
            on_sent(ClosedError("the producer was shut down before the letter was sent"))
            return
        error = sending.exception()
        if error is None:
            self._failures = 0
            on_sent(None)
        elif isinstance(error, Exception):
            self._failed(error, link)
            on_sent(error)

    def retry_delay_ms(self, failed_before: int = 0) -> int:
        """How long a message whose letter failed should wait before the next try.

        Args:
            failed_before: How often this message's letter failed before: one that never can be sent
                must not come back at full speed because others can.
        """
        return _BACKOFF.delay_ms(max(0, self._failures - 1, failed_before), self._rng)

    async def _make(self) -> None:
        link, failure = None, None
        try:
            link = await self._create()
        except EncoreError as error:
            failure = error
        except Exception as error:
            failure = UnknownError(f"the letter's producer could not be made: {error!r}")
        if failure is not None:
            self._report(failure)
            self._failed(failure, None)
        elif self._closed and link is not None:
            failure = ClosedError("the consumer was closed before the letter was sent")
            await _close(link)
        else:
            self._link = link
            self._created()
        while True:
            waiting, self._waiting = self._waiting[:_SEND_LIMIT], self._waiting[_SEND_LIMIT:]
            if not self._waiting:
                self._creating = None  # from here on a letter need not wait
            for letter, on_sent in waiting:
                try:
                    if failure is not None or link is None:
                        on_sent(failure)
                    else:
                        self._publish(link, letter, on_sent)
                except Exception:  # of one `then`: the other letters must still be sent
                    logger.exception("%s: the outcome of a letter was not handled", self._topic)
            if self._creating is None:
                return
            await asyncio.sleep(0)

    def _report(self, error: Exception) -> None:
        """Tell the application that no producer could be made: at once, then ever more rarely."""
        now = self._loop.time()
        if self._create_failures is None:
            self._create_failures = FailureReports()
        due = self._create_failures.failed(now)
        if isinstance(error, _FINAL):
            self._event_publisher.on_failed(self._topic, error)
        elif due:
            elapsed_s = self._create_failures.elapsed_s(now)
            self._event_publisher.on_retrying(
                RetryNotice(self._topic, error, self._create_failures.attempts, elapsed_s)
            )

    def _created(self) -> None:
        create_failures, self._create_failures = self._create_failures, None
        if create_failures is not None:
            logger.warning(
                "%s: letters are sent again, after %d failed attempts in %.1f s",
                self._topic,
                create_failures.attempts,
                create_failures.elapsed_s(self._loop.time()),
            )
        self._event_publisher.replaced()

    def _failed(self, error: Exception, link: TransportProducer | None) -> None:
        if getattr(error, "result", "") in _MESSAGE_RESULTS or not isinstance(error, EncoreError):
            return
        if link is not self._link:
            return  # one of many that were under way on it: one failure, counted already
        self._failures += 1
        self._last_error = error
        self._not_before = (
            self._loop.time() + _BACKOFF.delay_ms(self._failures - 1, self._rng) / 1000
        )
        if link is not None:
            self._link = None
            closing = self._loop.create_task(_close(link))
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)

    def end(self) -> None:
        """From now on every letter is refused."""
        self._closed = True

    async def close(self) -> None:
        """Close what was made; a creation that takes too long is closed when it comes."""
        self.end()
        if self._creating is not None:
            await asyncio.wait((self._creating,), timeout=_CLOSE_S)
        if self._link is not None:
            await _close(self._link)
            self._link = None
        if self._closings:
            await asyncio.wait(self._closings, timeout=_CLOSE_S)


def _retry_pending_error(last: Exception) -> PulsarException:
    return named(
        getattr(last, "result", "UnknownError"),
        f"the letter topic is not tried again yet: {last}",
        retryable=True,
    )


async def _close(link: TransportProducer) -> None:
    try:
        await link.close()
    except EncoreError:
        return  # it is gone already, which is what was wanted
