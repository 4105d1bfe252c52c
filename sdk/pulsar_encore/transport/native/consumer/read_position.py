"""The position of a reader in one topic. The broker keeps no position for a reader. Pure.

A broker delivers whole entries, from a start id on. Some of their messages may lie before the
position.
"""

from __future__ import annotations

from ....values.message_id import MessageId
from ....wire import pulsar_pb2 as pb
from ....wire.commands import NO_REQUEST

EntryKey = tuple[int, int]


class ReadPosition:
    """The position of a reader.

    Args:
        start: The first message; None for the end of the topic.
        inclusive: The message of the start id is delivered.
        starts_at_last: Reading starts at the last message that exists when the reader is made.
        stored: False for a non-persistent topic. All its message ids are equal and say nothing
            about a position.

    Attributes:
        missing_chunks: The first entry of each chunked message that lost chunks with a connection,
            by uuid. Messages after that entry may have been delivered.
        starts_at_last: True until `begin_at` has been called with the last message id.
        sought_time_ms: The publish time, in ms, of a seek after which no message arrived yet; else
            None.
    """

    def __init__(
        self,
        start: MessageId | None,
        partition: int,
        *,
        inclusive: bool,
        starts_at_last: bool,
        stored: bool = True,
    ) -> None:
        self._start = start
        self._stored = stored
        self._partition = partition
        self._inclusive = inclusive
        self._last: EntryKey | None = None  # delivered or skipped
        self._skips = False  # the broker need not send that entry again
        self.missing_chunks: dict[str, EntryKey] = {}
        self.starts_at_last: bool = starts_at_last
        self.sought_time_ms: int | None = None

    @property
    def start(self) -> MessageId | None:
        """The start id for the next SUBSCRIBE."""
        if self._last is None:
            return self._start
        ledger, entry = (
            min(self._last, *self.missing_chunks.values()) if self.missing_chunks else self._last
        )
        if (ledger, entry) != self._last:
            return MessageId(self._partition, ledger, entry - 1)
        return MessageId(self._partition, ledger, entry + self._skips)

    # Moving

    def begin_at(self, last: MessageId) -> None:
        self._start, self.starts_at_last = last, False

    def move_past(self, ledger: int, entry: int, *, broken: bool = False) -> None:
        """Move past an entry that was delivered or skipped.

        Args:
            broken: The entry cannot be read, so the next SUBSCRIBE starts after it. A readable
                entry is sent again and dropped here. The client cannot tell how many permits the
                broker takes for a broken one.
        """
        self._last, self.sought_time_ms = ((ledger, entry) if self._stored else None), None
        self._skips = broken

    def seek_to(self, target: MessageId | int) -> None:
        """Move to a message id, or to a publish time in ms."""
        self._last, self.starts_at_last, self._skips = None, False, False
        self.missing_chunks.clear()
        if isinstance(target, MessageId):
            self._start, self.sought_time_ms = target, None
        else:
            self._start, self.sought_time_ms = None, target

    # Asking

    def has_passed(self, ledger: int, entry: int) -> bool:
        """Return True if an entry lies before the position, so that it is not delivered."""
        if self._last is not None:
            return (ledger, entry) <= self._last
        start = self._start
        if start is None or self._inclusive or start.batch_index() >= 0:
            return False
        return (ledger, entry) == _entry_of(start)

    def first_index(self, ledger: int, entry: int) -> int:
        """Return the lowest batch index that is delivered."""
        start = self._start
        if start is None or start.batch_index() < 0 or (ledger, entry) != _entry_of(start):
            return 0
        return start.batch_index() + (not self._inclusive)

    def is_before_end(self, answer: pb.CommandGetLastMessageIdResponse) -> bool:
        """Return True if a message is stored after this position.

        `answer` has the end of the topic and the cursor.
        """
        last = answer.last_message_id
        if last.entryId == NO_REQUEST:
            return False
        end = (last.ledgerId, last.entryId)
        if self._last is not None:
            return end > self._last
        start = self._start
        if start is not None and _entry_of(start) == end:
            if start.batch_index() >= 0:
                return last.batch_index >= start.batch_index() + (not self._inclusive)
            return self._inclusive
        if not answer.HasField("consumer_mark_delete_position"):
            return True
        cursor = answer.consumer_mark_delete_position
        if cursor.entryId == NO_REQUEST:  # before the first entry of its ledger
            return last.ledgerId >= cursor.ledgerId or cursor.ledgerId == NO_REQUEST
        return end > (cursor.ledgerId, cursor.entryId)


def _entry_of(message_id: MessageId) -> EntryKey:
    return message_id.ledger_id(), message_id.entry_id()
