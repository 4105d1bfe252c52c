"""The producer of one letter topic, created on first use and again after a failure.

Each further creation waits for a backoff (100 ms to 60 s). Letters that are posted meanwhile fail
at once with the last error, so that no caller hangs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final

from ...errors import (
    ClosedError,
    EncoreError,
    InvalidTopicName,
    NotConnected,
    ProducerFenced,
    PulsarException,
    TopicTerminated,
    UnknownError,
    exception_of_result,
)
from ...transaction_group import leaves_producer
from ...transport.interface import MESSAGE_RESULTS, OnPosted, RetryNotice, TransportProducer
from ...values.backoff import Backoff, FailureReports
from ...values.outgoing_message import OutgoingMessage
from ..event_publisher import ProducerEventPublisher

_BACKOFF: Final = Backoff(min_delay=0.1, max_delay=60, jitter=0.1)
#: Waiting letters that are sent in one iteration of the loop: about 4 ms.
SEND_LIMIT: Final = 200
_CLOSE_S: Final = 5.0  # a creation that takes longer is closed when it completes
# A new producer fails in the same way.
_FINAL: Final = (InvalidTopicName, ProducerFenced, TopicTerminated)


class LetterProducer:
    def __init__(
        self,
        topic: str,
        create: Callable[[], Awaitable[TransportProducer]],
        event_publisher: ProducerEventPublisher,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
    ) -> None:
        self._logger = logger_of(__name__)
        self._topic = topic
        self._create = create
        self._event_publisher = event_publisher
        self._loop = asyncio.get_running_loop()
        self._transport_producer: TransportProducer | None = None
        self._creating: asyncio.Task[None] | None = None
        # A caller of `when_ready` has no letter.
        self._waiting: list[tuple[OutgoingMessage | None, OnPosted]] = []
        self._failures = 0
        self._not_before = 0.0
        # Result and text of the last error. The frames of its traceback hold messages and consumers
        # of every call that waited for the same connection.
        self._last_error: tuple[str, str] | None = None
        self._create_failures: FailureReports | None = None  # failed creations in a row
        self._closed = False
        self._closings: set[asyncio.Task[None]] = set()
        self._rng = Random()

    @property
    def is_ready(self) -> bool:
        """True if a letter of a transaction can be sent."""
        return self._transport_producer is not None

    def when_ready(self, on_ready: OnPosted) -> None:
        """Make the producer if necessary, then call `on_ready` with None, or with the error.

        It may be called before this method returns.
        """
        self._post(None, on_ready)

    def post(self, letter: OutgoingMessage, on_sent: OnPosted) -> None:
        """Send a letter. `on_sent` may be called before this method returns.

        A letter of a transaction does not wait for a producer, because the transaction would not
        know of it: call `when_ready` before.
        """
        if letter.txn is None:
            self._post(letter, on_sent)
        elif self._transport_producer is not None:
            self._publish(self._transport_producer, letter, on_sent)
        else:
            on_sent(NotConnected(f"{self._topic}: the producer ended before the letter was sent"))

    def _post(self, letter: OutgoingMessage | None, on_sent: OnPosted) -> None:
        if self._transport_producer is not None and self._creating is None:
            self._publish(self._transport_producer, letter, on_sent)
        elif self._closed:
            on_sent(ClosedError("the consumer was closed before the letter was sent"))
        elif self._creating is not None:
            self._waiting.append((letter, on_sent))
        elif self._last_error is not None and self._loop.time() < self._not_before:
            on_sent(_retry_pending_error(*self._last_error))
        else:
            self._waiting.append((letter, on_sent))
            self._creating = self._loop.create_task(self._make())

    def _publish(
        self,
        transport_producer: TransportProducer,
        letter: OutgoingMessage | None,
        on_sent: OnPosted,
    ) -> None:
        if letter is None:
            on_sent(None)
            return
        in_transaction = letter.txn is not None
        on_done = partial(self._published, transport_producer, on_sent, in_transaction)
        try:
            transport_producer.post(letter, on_done)
        except Exception as error:
            on_done(error)

    def _published(
        self,
        transport_producer: TransportProducer,
        on_sent: OnPosted,
        in_transaction: bool,
        error: Exception | None,
    ) -> None:
        if error is None:
            self._failures = 0
        elif not (in_transaction and leaves_producer(error)):
            self._failed(error, transport_producer)
        on_sent(error)

    def retry_delay_ms(self, failed_before: int = 0) -> int:
        """Return the delay before a failed letter is sent again, in ms.

        Earlier failures of the same message count, so that a letter that can never be sent is not
        retried at full speed because others succeed.
        """
        return _BACKOFF.delay_ms(max(0, self._failures - 1, failed_before), self._rng)

    async def _make(self) -> None:
        transport_producer, failure = None, None
        try:
            transport_producer = await self._create()
        except EncoreError as error:
            failure = error
        except Exception as error:
            failure = UnknownError(f"the letter's producer could not be made: {error!r}")
        if failure is not None:
            self._report(failure)
            self._failed(failure, None)
        elif self._closed and transport_producer is not None:
            failure = ClosedError("the consumer was closed before the letter was sent")
            await _close(transport_producer)
        else:
            self._transport_producer = transport_producer
            self._created()
        while True:
            waiting, self._waiting = self._waiting[:SEND_LIMIT], self._waiting[SEND_LIMIT:]
            if not self._waiting:
                self._creating = None  # from now on letters are published at once
            for letter, on_sent in waiting:
                try:
                    if failure is not None or transport_producer is None:
                        on_sent(failure)
                    else:
                        self._publish(transport_producer, letter, on_sent)
                except Exception:  # an error in one callback must not stop the other letters
                    self._logger.exception(
                        "%s: the outcome of a letter was not handled", self._topic
                    )
            if self._creating is None:
                return
            await asyncio.sleep(0)

    def _report(self, error: Exception) -> None:
        """Report a failed creation: at once, then at growing intervals."""
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
            self._logger.warning(
                "%s: letters are sent again, after %d failed attempts in %.1f s",
                self._topic,
                create_failures.attempts,
                create_failures.elapsed_s(self._loop.time()),
            )
        self._event_publisher.replaced()

    def _failed(self, error: Exception, transport_producer: TransportProducer | None) -> None:
        if getattr(error, "result", "") in MESSAGE_RESULTS or not isinstance(error, EncoreError):
            return
        if transport_producer is not self._transport_producer:
            return  # many letters may fail with one producer; the first one was counted
        self._failures += 1
        self._last_error = getattr(error, "result", "UnknownError"), str(error)
        self._not_before = (
            self._loop.time() + _BACKOFF.delay_ms(self._failures - 1, self._rng) / 1000
        )
        if transport_producer is not None:
            self._transport_producer = None
            closing = self._loop.create_task(_close(transport_producer))
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)

    def end(self) -> None:
        self._closed = True

    async def close(self) -> None:
        self.end()
        if self._creating is not None:
            await asyncio.wait((self._creating,), timeout=_CLOSE_S)
        if self._transport_producer is not None:
            await _close(self._transport_producer)
            self._transport_producer = None
        if self._closings:
            await asyncio.wait(self._closings, timeout=_CLOSE_S)


def _retry_pending_error(result: str, text: str) -> PulsarException:
    return exception_of_result(
        result,
        f"the letter topic is not retried yet: {text}",
        retryable=True,
    )


async def _close(transport_producer: TransportProducer) -> None:
    try:
        await transport_producer.close()
    except EncoreError:
        return  # it is closed already
