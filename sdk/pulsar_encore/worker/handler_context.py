"""The verbs of a message that only its worker can serve, during one handler call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigurationError
from ..options.checks import seconds, topic_name
from .outbox import Outgoing, checked_out, out_of

if TYPE_CHECKING:
    from ..consumer.leases.lease import Lease

_MOST_S: Final = 30 * 86_400.0  # a lease lasts at most as long


class HandlerContext:
    """The worker's part of one handler call.

    Args:
        stopping: Set when the worker begins its drain.
        extend: Moves the deadline of the handler to so many seconds from now.
        detach: Turns the message into a lease.
        publish: The topic of results, or None.
    """

    __slots__ = ("_detach", "_extend", "_publish", "outgoing", "stopping")

    def __init__(
        self,
        stopping: asyncio.Event,
        extend: Callable[[float], None],
        detach: Callable[[float], Lease],
        publish: str | None,
    ) -> None:
        self.stopping: asyncio.Event = stopping
        self.outgoing: list[Outgoing] = []
        self._extend = extend
        self._detach = detach
        self._publish = publish

    def extend(self, length: float | timedelta) -> None:
        self._extend(seconds(length, "seconds", high=_MOST_S))

    def detach(self, lease: float | timedelta = 3600) -> Lease:
        return self._detach(seconds(lease, "lease", high=_MOST_S))

    def publish(
        self,
        value: Any,
        topic: str | None = None,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        if topic is None:
            topic = self._publish
        if topic is None:
            raise ConfigurationError(
                "publish needs a topic: give topic=, or Worker(..., publish=) for all results"
            )
        self.outgoing.append(
            Outgoing(topic_name(topic, "topic"), checked_out(value, key, properties))
        )

    def add_result(self, result: Any) -> None:
        """Add a value that the handler returned or yielded; None adds nothing."""
        if result is not None and self._publish is not None:
            self.outgoing.append(Outgoing(self._publish, out_of(result)))
