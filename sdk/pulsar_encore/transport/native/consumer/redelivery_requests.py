"""Requests of one topic for redelivery: of single entries, of dropped chunks, or of everything."""

from __future__ import annotations

from collections.abc import Callable

from ..connection.session import Session
from . import ack_commands as commands
from .broker_consumer import BrokerConsumer
from .chunked_messages import ChunkedMessages
from .consumer_states import State
from .incoming_entries import IncomingEntries
from .read_position import EntryKey
from .rewind_command import RewindCommand


class RedeliveryRequests:
    """Requests entries again.

    Args:
        shared: True for Shared and Key_Shared. Other subscriptions redeliver everything at once.
    """

    def __init__(
        self,
        broker: BrokerConsumer,
        chunked: ChunkedMessages,
        incoming: IncomingEntries,
        rewind: RewindCommand,
        *,
        shared: bool,
        reattach: Callable[[], None],
        flow: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._chunked = chunked
        self._incoming = incoming
        self._rewind = rewind
        self._shared = shared
        self._reattach = reattach
        self._flow = flow

    def request_entries(self, entries: list[EntryKey]) -> None:
        """Request single entries again (Shared and Key_Shared), or raise NotConnected."""
        self._write(self._broker.ready(), self._chunked.expand(entries))

    def request_chunks(self, entries: list[EntryKey]) -> None:
        """Request chunks again, because their messages could not be joined.

        An ordered subscription does not redeliver single entries, so it attaches again, but not
        during a seek: a successful seek drops all incomplete messages.
        """
        session = self._broker.session
        if session is None:
            return
        if self._shared:
            self._write(session, entries)
        elif self._broker.state not in (State.SEEKING, State.SEEKING_BROKEN):
            self._reattach()

    def request_all(self) -> None:
        """Request all unacked messages again.

        If no broker holds the consumer, the next SUBSCRIBE has the same effect.
        """
        if not self._shared:
            self._rewind.request()
        elif self._broker.session is not None:
            self._broker.session.write(commands.redeliver(self._broker.consumer_id, []))
            self._incoming.drop_queued()
            self._flow()

    def _write(self, session: Session, entries: list[EntryKey]) -> None:
        consumer_id, most = self._broker.consumer_id, commands.MOST_IDS
        for at in range(0, len(entries), most):
            session.write(commands.redeliver(consumer_id, entries[at : at + most]))
