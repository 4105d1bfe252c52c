"""Recognises copies of acked messages, and tells which copy answers a requested redelivery.

A second copy of a message can be in flight for one of three reasons (`Cause`):

- RECONNECT: after a reconnect the broker sends every unacked message again. An ack sent just before
  the loss may not have arrived: a broker answers before it persists
  (`docs/notes/consumer-semantics.md#ack-receipts`). An ack without a receipt may be lost however
  old it is. The window covers these acks until they have been sent again and a while has passed.
- REWIND: a redelivery of everything was requested, and the request overtakes the acks of the last
  moments.
- REDELIVERY: a redelivery of one message was requested, and the message was acked meanwhile; or it
  was acked by id, or by an old delivery, while it was away. On Pulsar 4.2.4, 1 to 3 % of the
  messages redelivered under load arrive twice.

If a message arrives that was acked longer ago, an operator has reset the cursor, and the
application must see the message again. Forgetting too early costs a duplicate at the application.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import Final

from .entry import EntryKey
from .message_key import MessageKey

# By default a broker persists a cursor once a second.
UNCERTAIN_MS: Final = 1_000
_UNCONFIRMED: Final = sys.maxsize  # later than any time
# Twice the broker's default unacked window: one connection rarely loses more acks. Unconfirmed acks
# are not bounded by it, see `disconnected`.
_MOST_LOST: Final = 100_000
# Requested redeliveries that never arrived, because another consumer got them.
_MOST_REQUESTED: Final = 100_000
MOST_UNATTEMPTED: Final = 50_000  # the broker's default unacked window


class Cause:
    """Reasons why another copy of a message may arrive, as bits of `Entry.causes`.

    Plain integers, because `|` of an `IntFlag` costs as much as the rest of a message's arrival.
    """

    RECONNECT: Final = 1
    REDELIVERY: Final = 2
    REWIND: Final = 4


class Connection(Enum):
    """State of the connection, for acks.

    Attributes:
        SURE: Acks that were sent more than a moment ago have arrived.
        LOST: The connection is or may be down, and the acks of the last moments may be lost.
        BACK: The connection was restored a short while ago, and those acks were sent again.
    """

    SURE = 0
    LOST = 1
    BACK = 2


class Flush:
    """Acks that were sent together.

    Attributes:
        at_ms: Time of sending. With receipts: time of the receipt; before it `_UNCONFIRMED`, so
            that the acks count as uncertain however old they are.
    """

    __slots__ = ("at_ms",)

    def __init__(self, at_ms: int) -> None:
        self.at_ms: int = at_ms

    def await_receipt(self) -> None:
        self.at_ms = _UNCONFIRMED

    def confirmed(self, now_ms: int) -> None:
        """Treat the acks as sent now: a receipt does not mean that the broker persisted them."""
        self.at_ms = now_ms

    @property
    def unconfirmed(self) -> bool:
        return self.at_ms == _UNCONFIRMED


class DuplicateWindow:
    """Copies that may still arrive on one topic.

    Attributes:
        covers_nothing: True if `covers` is False for every entry. Read for every entry.
        causes: Causes why a message that arrives now may arrive again, 0 for none.
        requested: Requested messages, with the earliest time of arrival in ms.
        all_requested: A redelivery of everything was requested on this connection. The broker
            therefore counts a redelivery for each copy that arrives, even if the message is still
            tracked here.
        unattempted: Copies that were never handed to the application, by entry, oldest first. The
            broker counts them; delivery attempts must not.
    """

    __slots__ = (
        "_acked",
        "_acked_before",
        "_cause",
        "_lost",
        "_lost_parts",
        "_periods",
        "_sent",
        "_sent_count",
        "_sent_parts",
        "_unclear",
        "all_requested",
        "causes",
        "connection",
        "covers_nothing",
        "requested",
        "unattempted",
    )

    def __init__(self) -> None:
        self.connection: Connection = Connection.SURE
        self.covers_nothing: bool = True
        self.causes: int = 0
        self.all_requested: bool = False
        # The transport could not tell which topic lost its connection.
        self._unclear = False
        # Acks sent a moment ago, or not confirmed.
        self._sent: deque[tuple[Flush, list[EntryKey]]] = deque()
        self._sent_count = 0
        self._sent_parts: deque[tuple[Flush, list[EntryKey]]] = deque()
        # Acks that a lost connection may have taken with it.
        self._lost: dict[EntryKey, None] = {}
        self._lost_parts: dict[EntryKey, None] = {}
        # Entries acked while a copy was in flight, in this period and in the one before.
        self._acked: dict[EntryKey, None] = {}
        self._acked_before: dict[EntryKey, None] = {}
        self._periods = 0  # calls of `advance` until copies of `_cause` are no longer expected
        self._cause = 0
        self.requested: dict[MessageKey, int] = {}
        # A plain dictionary, because a rewind adds 45,000 in one step; see `ignore_copy`.
        self.unattempted: dict[EntryKey, int] = {}

    # Acked entries

    def _expect(self, cause: int) -> None:
        self._periods, self._cause = 2, cause
        self._set_causes()

    def _set_causes(self) -> None:
        cause = self._cause if self._periods else 0
        self.causes = cause | (Cause.RECONNECT if self._unclear else 0)

    def connection_unclear(self) -> None:
        self._unclear = True
        self._set_causes()

    @property
    def is_open(self) -> bool:
        return self._periods > 0 or self.connection is not Connection.SURE

    def _set_covers_nothing(self) -> None:
        sure = self.connection is Connection.SURE
        self.covers_nothing = sure and not self._acked and not self._acked_before

    def acked(self, key: EntryKey) -> None:
        self.covers_nothing = False
        if self.connection is Connection.SURE:
            self._acked[key] = None
        else:
            self._lost[key] = None

    def covers(self, key: EntryKey) -> bool:
        if key in self._acked or key in self._acked_before:
            return True
        return self.connection is not Connection.SURE and key in self._lost

    def advance(self) -> bool:
        """Begin the next period, every few seconds; return False if nothing is left to forget."""
        self._acked_before, self._acked = self._acked, {}
        self._periods = max(0, self._periods - 1)
        self._set_causes()
        self._set_covers_nothing()
        return bool(self._acked_before) or self._periods > 0

    # RECONNECT

    def sent(self, flush: Flush, whole: list[EntryKey], parts: list[EntryKey]) -> None:
        # RACE: the transport may have reconnected before it says so. These acks can then cross with
        # the redelivery of their messages.
        lost = self.connection is Connection.LOST
        if lost:
            _add(self._lost, whole)
            _add(self._lost_parts, parts)
        since = flush.at_ms - UNCERTAIN_MS
        if whole:
            sent = self._sent
            sent.append((flush, whole))
            self._sent_count += len(whole)
            while sent[0][0].at_ms < since or (
                self._sent_count > _MOST_LOST and not sent[0][0].unconfirmed
            ):
                self._sent_count -= len(sent.popleft()[1])
                if not sent:
                    break
        if parts and not lost:
            self._sent_parts.append((flush, parts))
            while self._sent_parts[0][0].at_ms < since:
                self._sent_parts.popleft()

    def forget(self, flush: Flush) -> None:
        for sent in (self._sent, self._sent_parts):
            kept = [each for each in sent if each[0] is not flush]
            sent.clear()
            sent.extend(kept)
        self._sent_count = sum(len(keys) for _, keys in self._sent)

    def disconnected(self, now_ms: int) -> None:
        """Treat recent and unconfirmed acks as lost."""
        self.connection = Connection.LOST
        self.covers_nothing = False
        for flush, keys in self._sent:
            if flush.unconfirmed:
                self._lost.update(dict.fromkeys(keys))  # unbounded: the application may await it
            elif flush.at_ms >= now_ms - UNCERTAIN_MS:
                _add(self._lost, keys)
        for _, keys in self._sent_parts:
            _add(self._lost_parts, keys)
        self._sent_parts.clear()
        self._sent.clear()
        self._sent_count = 0

    def take_lost_parts(self) -> list[EntryKey]:
        """Return batches with a partial ack that was sent shortly before the loss, or since."""
        keys = [*self._lost_parts, *(key for _, sent in self._sent_parts for key in sent)]
        self._lost_parts.clear()
        self._sent_parts.clear()
        return keys

    def reconnected(self, unsent: dict[EntryKey, None]) -> None:
        """Expect a copy of every unacked message, and add lost acks to `unsent`.

        Acks that are due now, or were sent since the loss, stay covered after they are sent: their
        messages may already be on the way.
        """
        self.connection = Connection.BACK
        self.covers_nothing = False
        # A copy that is queued on the way here may arrive beside the new one.
        self._expect(Cause.RECONNECT)
        for _, keys in self._sent:
            _add(self._lost, keys)
        unsent.update(self._lost)
        _add(self._lost, unsent)

    @property
    def lost(self) -> int:
        if self.connection is not Connection.LOST:
            return 0
        return len(self._lost) + len(self._lost_parts)

    def end_reconnect(self) -> None:
        """Forget the last loss, long enough after a reconnect. A new loss is kept."""
        if self.connection is not Connection.LOST:
            self.connection = Connection.SURE
            self._unclear = False
            self._set_causes()
            self._set_covers_nothing()
            self._lost.clear()

    # REWIND

    def rewound(self, unsent: Iterable[EntryKey]) -> None:
        """Expect a copy of every message whose ack is due (`unsent`) or was just sent."""
        self._expect(Cause.REWIND)
        self._acked.update(dict.fromkeys(unsent))
        for _, keys in self._sent:
            self._acked.update(dict.fromkeys(keys))
        self._set_covers_nothing()

    # REDELIVERY

    def request(self, due_key: MessageKey, earliest_ms: int) -> None:
        """Note a requested redelivery, whose copy cannot arrive before `earliest_ms`.

        If an earlier request brought nothing, any copy counts as the requested one.
        """
        self.requested[due_key] = 0 if due_key in self.requested else earliest_ms

    def request_each(self, key: EntryKey, indexes: Iterable[int], earliest_ms: int) -> list[int]:
        """Note requests for messages of a batch; return the indexes that were not requested."""
        ledger, entry = key
        requested, new = self.requested, []
        for index in indexes:
            due_key = (ledger, entry, index)
            if due_key in requested:
                requested[due_key] = 0
            else:
                requested[due_key] = earliest_ms
                new.append(index)
        return new

    def earliest(self, due_key: MessageKey) -> int | None:
        return self.requested.get(due_key)

    def arrived(self, due_key: MessageKey) -> bool:
        return self.requested.pop(due_key, None) is not None

    def bound_requested(self) -> None:
        if len(self.requested) > _MOST_REQUESTED:
            self.requested.clear()

    # Copies that are no delivery attempt

    def ignore_copy(self, key: EntryKey) -> None:
        self.unattempted[key] = self.unattempted.pop(key, 0) + 1
        if len(self.unattempted) > MOST_UNATTEMPTED:
            # An eighth at once: to find the first key, a dictionary walks over all deleted ones.
            for oldest in list(islice(self.unattempted, max(1, MOST_UNATTEMPTED // 8))):
                del self.unattempted[oldest]

    def ignore_copies(self, keys: Sequence[EntryKey]) -> None:
        if self.unattempted:
            for key in keys:
                self.ignore_copy(key)
        else:
            self.unattempted = dict.fromkeys(keys[-MOST_UNATTEMPTED:], 1)

    def attempts_in(self, key: EntryKey, redelivery_count: int) -> int:
        """Return the broker's redelivery count of an entry without the unattempted copies.

        A count below the number of copies means that the broker began again at 0, after an unload
        or when the last consumer left. Earlier copies are forgotten then.
        """
        copies = self.unattempted.get(key, 0)
        if copies > redelivery_count:
            copies = redelivery_count
            if copies:
                self.unattempted[key] = copies
            else:
                del self.unattempted[key]
        return redelivery_count - copies

    # Endings

    def clear(self) -> None:
        """Forget everything after a seek, because acked messages may rightly arrive again.

        A connection that is down stays down: acks from now on may be lost with it.
        """
        self._sent.clear()
        self._sent_count = 0
        self._sent_parts.clear()
        self._periods = 0
        self._acked.clear()
        self._acked_before.clear()
        if self.connection is Connection.BACK:
            self.connection = Connection.SURE
        self._unclear = self.all_requested = False
        self._set_causes()
        self._set_covers_nothing()
        self._lost.clear()
        self._lost_parts.clear()
        self.requested.clear()
        self.unattempted.clear()


def _add(lost: dict[EntryKey, None], keys: Iterable[EntryKey]) -> None:
    lost.update(dict.fromkeys(keys))
    for oldest in list(islice(lost, max(0, len(lost) - _MOST_LOST))):
        del lost[oldest]
