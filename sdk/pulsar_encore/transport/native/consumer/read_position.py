"""Where a subscription goes on of which the broker keeps no position: a reader's. Pure.

Owns `ReadPosition`, of one topic. Delivery at a broker begins at an entry; what of that entry, and
of one that comes again, was not to be delivered is left out here.
"""

from __future__ import annotations

from ....ids import MessageId
from ....wire import pulsar_pb2 as pb
from ....wire.commands import NO_REQUEST

EntryKey = tuple[int, int]


class ReadPosition:
    """A place in one topic.

    Args:
        start: Where it begins; None for what a broker takes without one, the end.
        partition: Of the topic, or -1.
        inclusive: Whether the message of the start id is delivered.
        starts_at_last: It begins at the message that is the last one when it is made: to be asked for.
        stored: False of a topic that keeps nothing: all ids there are the same, and no place.

    Attributes:
        starts_at_last: What has still to be asked for.
        sought_time_ms: The publish time in ms that was sought, and of which nothing came yet; else None.
    """

    __slots__ = (
        "_inclusive",
        "_last",
        "_missing_chunks",
        "_partition",
        "_skips",
        "_start",
        "_stored",
        "sought_time_ms",
        "starts_at_last",
    )

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
        self._last: EntryKey | None = None  # delivered, or done with
        self._skips = False  # that one is not to come again
        # Chunked messages of which a part came, and was lost with its connection: by uuid, where
        # they begin. That may be before what was delivered meanwhile.
        self._missing_chunks: dict[str, EntryKey] = {}
        self.starts_at_last: bool = starts_at_last
        self.sought_time_ms: int | None = None

    @property
    def start(self) -> MessageId | None:
        """Where to begin, or to go on."""
        if self._last is None:
            return self._start
        ledger, entry = (
            min(self._last, *self._missing_chunks.values()) if self._missing_chunks else self._last
        )
        if (ledger, entry) != self._last:
            return MessageId(self._partition, ledger, entry - 1)
        return MessageId(self._partition, ledger, entry + self._skips)

    # What moves it

    def begin_at(self, last: MessageId) -> None:
        """What `starts_at_last` asked for is known."""
        self._start, self.starts_at_last = last, False

    def moved_to(self, ledger: int, entry: int, *, broken: bool = False) -> None:
        """All up to this entry was delivered, or is done with.

        A broker sends the entry that one begins at, though it is not delivered again; of a broken
        one nobody knows what that costs in permits, so it is begun behind that.
        """
        self._last, self.sought_time_ms = ((ledger, entry) if self._stored else None), None
        self._skips = broken

    def add_missing_chunks(self, begun: dict[str, EntryKey]) -> None:
        """Parts of these messages came, and are lost: they are to come again."""
        self._missing_chunks |= begun

    def is_missing_chunks(self, uuid: str) -> bool:
        """Whether pieces of that message are to come again, from before what was delivered."""
        return uuid in self._missing_chunks

    def remove_missing_chunks(self, uuid: str) -> None:
        """A piece of that message came."""
        self._missing_chunks.pop(uuid, None)

    def seek_to(self, target: MessageId | int) -> None:
        """Another place: an id, or a publish time in ms."""
        self._last, self.starts_at_last, self._skips = None, False, False
        self._missing_chunks.clear()
        if isinstance(target, MessageId):
            self._start, self.sought_time_ms = target, None
        else:
            self._start, self.sought_time_ms = None, target

    # What is delivered

    def is_before(self, ledger: int, entry: int) -> bool:
        """Whether nothing of an entry is to be delivered."""
        if self._last is not None:
            return (ledger, entry) <= self._last
        start = self._start
        if start is None or self._inclusive or start.batch_index() >= 0:
            return False
        return (ledger, entry) == _entry_of(start)

    def first_index(self, ledger: int, entry: int) -> int:
        """The lowest index of a batch that is to be delivered."""
        start = self._start
        if start is None or start.batch_index() < 0 or (ledger, entry) != _entry_of(start):
            return 0
        return start.batch_index() + (not self._inclusive)

    def is_before_end(self, answer: pb.CommandGetLastMessageIdResponse) -> bool:
        """Whether something is stored behind it.

        Args:
            answer: What the broker says of the end of the topic, and of the cursor.
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


def _entry_of(place: MessageId) -> EntryKey:
    return place.ledger_id(), place.entry_id()
