"""What a session calls of a consumer or a producer that is attached to it. Contracts; no code."""

from __future__ import annotations

from typing import Protocol

from ....wire import pulsar_pb2 as pb
from .fast_path import MessageTemplate


class ConsumerHandler(Protocol):
    """A consumer's end. Called on the event loop; may neither raise nor suspend."""

    def on_entry(
        self,
        ledger: int,
        entry: int,
        redelivery_count: int,
        ack_set: int,
        epoch: int,
        data: bytes,
        at: int,
        end: int,
    ) -> None:
        """One MESSAGE; what it gives is handed on in `on_entries_end`.

        Args:
            ledger, entry: The entry's position.
            redelivery_count: The broker's.
            ack_set: Indexes that are still unacked as a mask; -1 when the broker did not say.
            epoch: The consumer epoch it was sent in; 0 when the command has none.
            data: What the socket read; the body is ``data[at:end]`` (`wire.entries`), without
                broker entry metadata.
            at, end: See `data`.
        """

    def on_run(
        self,
        template: MessageTemplate,
        ledger: int,
        epoch: int,
        data: bytes,
        at: int,
        most: int,
        stop: int,
    ) -> int:
        """Perhaps many MESSAGEs that differ in the entry id alone, delivered for the first time.

        Args:
            template: What they have in common.
            ledger, epoch: Of all of them.
            data, at: The first one's frame is at ``data[at]``, its size included.
            stop: Frames that begin here or behind are for the next call.
            most: Largest frame, without its size.

        Returns:
            Where the first frame begins that was not taken; `at` when none was.
        """

    def on_entries_end(self) -> None:
        """All entries of one read were given."""

    def on_closed_by_broker(self, address: str | None) -> None:
        """CLOSE_CONSUMER: it is attached no more; to be attached again, by `address` if given."""

    def on_lost(self, error: Exception) -> None:
        """The connection has ended; nothing of it comes any more. Requests failed before this."""

    def on_end_of_topic(self) -> None:
        """Terminated, and this subscription has nothing left."""

    def on_active_change(self, active: bool) -> None:
        """Failover: this consumer is the one that gets the messages, or is so no more."""


class ProducerHandler(Protocol):
    """A producer's end. Called on the event loop; may neither raise nor suspend."""

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> int:
        """Handle SEND_RECEIPT; return the number of its messages.

        The reactions: `docs/notes/wire-protocol.md#send-receipts`.
        """

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """SEND_ERROR; the connection stays."""

    def on_closed_by_broker(self, address: str | None) -> None:
        """CLOSE_PRODUCER: it is attached no more; to be attached again, by `address` if given."""

    def on_lost(self, error: Exception) -> None:
        """The connection has ended. Requests failed before this."""

    def on_writable(self, writable: bool) -> None:
        """The socket's buffer is full (False): write no more; or has room again (True)."""


class WatchHandler(Protocol):
    """Who watches the topics of a namespace. Called on the event loop; may neither raise nor
    suspend."""

    def on_topics_changed(self, update: pb.CommandWatchTopicUpdate) -> None:
        """Handle WATCH_TOPIC_UPDATE: `docs/notes/wire-protocol.md#topic-lists`."""

    def on_lost(self, error: Exception) -> None:
        """The connection has ended. Requests failed before this."""
