"""The callbacks of a session to the consumers, producers and watchers attached to it."""

from __future__ import annotations

from typing import Protocol

from ....wire import pulsar_pb2 as pb
from .fast_path import MessageTemplate


class ConsumerHandler(Protocol):
    """Callbacks to a consumer, on the event loop. They may neither raise nor suspend."""

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
            ack_set: Mask of the unacked indexes; -1 if the broker did not say.
            epoch: The consumer epoch in the command; 0 if it has none.
            data: The bytes that were read. The body is ``data[at:end]`` (`wire.entries`), without
                broker entry metadata.
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
        """Handle consecutive MESSAGEs that differ only in the entry id, on their first delivery.

        Args:
            data, at: The first frame is at ``data[at]``, its size included.
            stop: Frames that begin here or later are for the next call.
            most: Largest frame, without its size.

        Returns:
            The start of the first frame that was not taken; `at` if none was.
        """

    def on_entries_end(self) -> None:
        """Hand on the entries of this read."""

    def on_closed_by_broker(self, address: str | None) -> None:
        """Handle CLOSE_CONSUMER: attach again, at `address` if the broker named one."""

    def on_lost(self, error: Exception) -> None:
        """Handle the end of the connection. Its requests have failed before this call."""

    def on_end_of_topic(self) -> None:
        """Handle that the topic was terminated and this subscription has nothing left."""

    def on_active_change(self, active: bool) -> None:
        """Failover: handle that this consumer became active, or stopped being active."""


class ProducerHandler(Protocol):
    """Callbacks to a producer, on the event loop. They may neither raise nor suspend."""

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> int:
        """Handle SEND_RECEIPT; return the number of its messages.

        The reactions: `docs/notes/wire-protocol.md#send-receipts`.
        """

    def on_send_error(self, error: pb.CommandSendError) -> None:
        """Handle SEND_ERROR. The connection stays open."""

    def on_closed_by_broker(self, address: str | None) -> None:
        """Handle CLOSE_PRODUCER: attach again, at `address` if the broker named one."""

    def on_lost(self, error: Exception) -> None:
        """Handle the end of the connection. Its requests have failed before this call."""

    def on_writable(self, writable: bool) -> None:
        """Stop writing if the socket's buffer is full (False); continue if it has room again
        (True)."""


class WatchHandler(Protocol):
    """Callbacks to a watcher of topics, on the event loop. They may neither raise nor suspend."""

    def on_topics_changed(self, update: pb.CommandWatchTopicUpdate) -> None:
        """Handle WATCH_TOPIC_UPDATE: `docs/notes/wire-protocol.md#topic-lists`."""

    def on_lost(self, error: Exception) -> None:
        """Handle the end of the connection. Its requests have failed before this call."""
