"""The verbs of a message that only its worker can serve, during one handler call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..errors import ConfigurationError
from ..options.checks import seconds, topic_name
from .outbox import Out, Outgoing, checked_out, out_of
from .retry_policy import Reject
from .scheduler import Job, Order

if TYPE_CHECKING:
    from ..message import DetachedMessage, MessageConsumer

_MOST_S: Final = 30 * 86_400.0  # a lease lasts at most as long


class ContextServer(Protocol):
    """The part of a worker that serves its handlers.

    Attributes:
        stopping: Set when the worker begins its drain.
        publish_topic: The topic of results, or None.
        order: The order of the worker.
    """

    @property
    def stopping(self) -> asyncio.Event: ...
    @property
    def publish_topic(self) -> str | None: ...
    @property
    def order(self) -> Order: ...
    def extend(self, job: Job, seconds: float) -> None: ...
    def detach(self, job: Job, lease: float) -> DetachedMessage: ...
    def note_verdict(self, job: Job, error: BaseException | str | None) -> None:
        """Note that the handler has nacked or rejected a message, and why."""

    def nack_delay_s(self, job: Job) -> float:
        """Return the delay of a nack by the handler that gives none, in seconds."""


class HandlerContext:
    """One handler call.

    Attributes:
        outgoing: Messages to publish before the received message is acked, in order.
        consumer: Settles a message that no consumer holds, in tests; None otherwise.
    """

    __slots__ = ("_job", "_server", "consumer", "outgoing")

    def __init__(self, server: ContextServer, job: Job) -> None:
        self._server = server
        self._job = job
        self.outgoing: list[Outgoing] = []
        self.consumer: MessageConsumer | None = None

    @property
    def stopping(self) -> asyncio.Event:
        return self._server.stopping

    def begin_nack(self, error: BaseException | str | None) -> float:
        if self._server.order is not Order.NONE:
            raise ConfigurationError(
                f'msg.nack() would break order="{self._server.order}": later messages would '
                "overtake this one. Raise Retry(delay=...) instead, and it waits in the worker"
            )
        self._server.note_verdict(self._job, error)
        return self._server.nack_delay_s(self._job)

    def note_rejection(self, reason: BaseException | str) -> None:
        self._server.note_verdict(
            self._job, reason if isinstance(reason, Reject) else Reject(reason)
        )

    def extend(self, length: float | timedelta) -> None:
        self._server.extend(self._job, seconds(length, "seconds", high=_MOST_S))

    def detach(self, lease: float | timedelta = 3600) -> DetachedMessage:
        if self._server.order is not Order.NONE:
            raise ConfigurationError(
                'detach needs order="none": with an order, the next message of the key or '
                "partition has to wait for this one. Keep the handler running, and give it more "
                "time with msg.extend(seconds)"
            )
        return self._server.detach(self._job, seconds(lease, "lease", high=_MOST_S))

    def publish(
        self,
        value: Any,
        *,
        topic: str | None = None,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        if topic is None:
            topic = self._server.publish_topic
        if topic is None:
            raise ConfigurationError(
                "publish needs a topic: give topic=, or Worker(..., publish=) for all results"
            )
        self.outgoing.append(
            Outgoing(topic_name(topic, "topic"), checked_out(value, key, properties))
        )

    def add_result(self, result: Any) -> None:
        """Add a value that the handler returned or yielded; None adds nothing.

        Raises:
            ConfigurationError: for an `Out` without a topic of results. Other values are ignored
                then, because handlers return values for other callers too.
        """
        topic = self._server.publish_topic
        if result is not None and topic is not None:
            self.outgoing.append(Outgoing(topic, out_of(result)))
        elif isinstance(result, Out):
            raise ConfigurationError(
                "the handler returned an Out, and the worker has no topic for results: give one, "
                'as in Worker(..., publish="invoices")'
            )
