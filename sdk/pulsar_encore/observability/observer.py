"""The base class `Observer`.

`pulsar_encore.prometheus` and `pulsar_encore.otel` are observers. An application can write its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..consumer.consumer import Consumer
    from ..consumer.events import ConsumerEvent, ProducerEvent
    from ..producer import Producer
    from ..worker.worker import Worker
    from .observations import (
        BreakerChange,
        HandlerCall,
        HandlerEnd,
        LetterWritten,
        Sending,
        WindowFilling,
    )


class Observer:
    """Sees what a client does: `Client(observers=[...])`.

    Inherit from this class and override the methods that you need; the others do nothing, and cost
    nothing. All methods are called on the event loop of the consumer, producer or worker, and must
    return soon. An exception is logged once for each method, and has no other effect.

    Example:
        Count the failures of all workers of a client::

            class Failures(encore.Observer):
                count = 0

                def handler_ended(self, call, end):
                    self.count += end.result == "failure"

            async with encore.Client(url, observers=[Failures()]) as client:
                ...
    """

    # Objects

    def consumer_opened(self, consumer: Consumer[Any]) -> None:
        """A consumer has subscribed."""

    def consumer_closed(self, consumer: Consumer[Any]) -> None:
        """A consumer has closed. Its counters are final."""

    def producer_opened(self, producer: Producer[Any]) -> None:
        """A producer is connected."""

    def producer_closed(self, producer: Producer[Any]) -> None:
        """A producer has closed."""

    def worker_started(self, worker: Worker[Any]) -> None:
        """A worker begins to subscribe."""

    def worker_ended(self, worker: Worker[Any], error: BaseException | None) -> None:
        """A worker has ended; `error` is its failure, or None."""

    # Messages

    def sending(self, sending: Sending) -> None:
        """A producer is about to send a message. Called in the context of the caller of `send`.

        Letters and replayed letters are not reported here: they keep the properties of their
        original.
        """

    def sent(self, sending: Sending, error: BaseException | None) -> None:
        """The broker has stored a message, or the send failed with `error`."""

    def handler_started(self, call: HandlerCall) -> None:
        """A worker is about to call its handler. Called in the context of the handler.

        Context variables that are set here are seen by the handler, and end with its call.
        """

    def handler_ended(self, call: HandlerCall, end: HandlerEnd) -> None:
        """The handler has ended, and what happens to its message is decided."""

    def letter_written(self, letter: LetterWritten) -> None:
        """A consumer has stored a letter."""

    # States

    def consumer_event(self, consumer: Consumer[Any], event: ConsumerEvent) -> None:
        """The connection of a consumer has changed, or its topics. See `event_listener`."""

    def producer_event(self, producer: Producer[Any], event: ProducerEvent) -> None:
        """The connection of a producer has changed. Native transport only."""

    def window_filling(self, filling: WindowFilling) -> None:
        """The unacked window of a consumer is nearly full."""

    def breaker_changed(self, change: BreakerChange) -> None:
        """The breaker of a worker opened or closed."""

    def drain_began(self, worker: Worker[Any]) -> None:
        """A worker stops taking messages, and waits for its handlers."""

    def drain_ended(self, worker: Worker[Any]) -> None:
        """The drain of a worker has ended: its handlers have ended, or were given up."""
