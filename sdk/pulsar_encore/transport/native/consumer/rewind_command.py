"""Sends the command that rewinds one topic of an ordered subscription.

The command is REDELIVER_UNACKNOWLEDGED_MESSAGES without ids. The consumer above the transport
decides to rewind; this module only chooses the moment to send the command. If the command meets a
read in progress at the broker, the broker skips a block of entries
(`docs/notes/wire-protocol.md#rewind-during-a-read`). The broker has no read in progress if its
permits are used up. Otherwise it is taken to be quiet if no entry arrived for 0.1 s. After 0.5 s
the command is sent in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from . import ack_commands as commands
from .broker_consumer import BrokerConsumer
from .incoming_entries import IncomingEntries
from .permits import Permits

_QUIET_S: Final = 0.1
_LONGEST_S: Final = 0.5


class RewindCommand:
    """Sends rewinds of one topic, each at a moment when the broker reads nothing.

    No permits are given while a rewind is pending, because they would make the broker read.
    """

    def __init__(
        self,
        broker: BrokerConsumer,
        incoming: IncomingEntries,
        permits: Permits,
        flow: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._incoming = incoming
        self._permits = permits
        self._flow = flow
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_pending(self) -> bool:
        """True from a request until the command is sent."""
        return self._timer is not None

    def request(self) -> None:
        """Rewind, or let the next attachment do so if no broker holds the consumer."""
        self._incoming.begin_epoch()
        if self._broker.session is not None and self._timer is None:
            self._send_when_quiet(self._broker.loop.time() + _LONGEST_S)

    def cancel(self) -> None:
        """Forget a pending rewind, because SUBSCRIBE has the same effect."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_when_quiet(self, deadline: float) -> None:
        self._timer = None
        session = self._broker.session
        if session is None:
            return
        now, arrived_s = self._broker.loop.time(), self._incoming.arrived_s
        is_quiet = now - arrived_s >= _QUIET_S
        if self._permits.open > 0 and not is_quiet and now < deadline:
            wait = min(deadline, arrived_s + _QUIET_S) - now
            self._timer = self._broker.loop.call_later(
                max(0.001, wait), self._send_when_quiet, deadline
            )
            return
        # The broker puts the epoch into every MESSAGE that it sends from now on. `IncomingEntries`
        # drops entries with an earlier epoch.
        session.write(commands.redeliver(self._broker.consumer_id, [], self._incoming.epoch))
        self._flow()
