"""The callbacks of a session to its consumers, producers and watchers. They may neither raise nor
suspend."""

from __future__ import annotations

from typing import Protocol

from ....wire import pulsar_pb2 as pb
from .fast_path import MessageTemplate


class ConsumerHandler(Protocol):
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
        """Handle one MESSAGE. Its messages are handed on in `on_entries_end`.

        Args:
            ack_set: Mask of the unacked indexes; -1 if the broker did not send one.
            epoch: The consumer epoch; 0 if there is none.
            data: The bytes that were read. The body is ``data[at:end]``, without broker entry
                metadata.
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
        """Handle consecutive MESSAGEs on first delivery that differ only in the entry id.

        Args:
            at: Start of the first frame in `data`, its size included.
            most: Largest frame, without its size.
            stop: Frames that begin here or later are for the next call.

        Return the start of the first frame that was not taken; `at` if none was.
        """

    def on_entries_end(self) -> None:
        """Hand on the entries of this read."""

    def on_closed_by_broker(self, address: str | None) -> None:
        """Handle CLOSE_CONSUMER, which may name the new broker."""

    def on_lost(self, error: Exception) -> None:
        """Handle the end of the connection. Its requests have failed before."""

    def on_end_of_topic(self) -> None:
        """Handle that the topic was terminated and this subscription has nothing left."""

    def on_active_change(self, active: bool) -> None:
        """Failover: this consumer became active, or stopped being active."""


class ProducerHandler(Protocol):
    def on_receipt(self, receipt: pb.CommandSendReceipt) -> int:
        """Handle SEND_RECEIPT; return the number of its messages:
        `docs/notes/wire-protocol.md#send-receipts`."""

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """Handle SEND_ERROR. The connection stays open."""

    def on_closed_by_broker(self, address: str | None) -> None:
        """Handle CLOSE_PRODUCER, which may name the new broker."""

    def on_lost(self, error: Exception) -> None:
        """Like `ConsumerHandler.on_lost`."""

    def on_writable(self, writable: bool) -> None:
        """Stop writing while the socket's buffer is full."""


class WatchHandler(Protocol):
    def on_topics_changed(self, update: pb.CommandWatchTopicUpdate) -> None:
        """Handle WATCH_TOPIC_UPDATE: `docs/notes/wire-protocol.md#topic-lists`."""

    def on_lost(self, error: Exception) -> None:
        """Like `ConsumerHandler.on_lost`."""
