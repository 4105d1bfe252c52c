"""What may come twice, and why: the causes by name, and what is remembered for each.

Owns `Duplicates`, one per source. A copy of something that is settled here, or that waits, may be
on its way all the same:
- RECONNECTED: a new connection brings everything unacked again;
- ASKED: its redelivery was asked for, and an ack after that does not overtake it;
- REWOUND: all of the source was asked for, which overtakes the acks of the last moments;
- UNKNOWN: it was acked while it was not here, by an old hand-over or by an id;
- a lost connection: an ack sent in its last moments may not have arrived (a broker answers before
  it persists, consumer-semantics notes 6.6), nor one that was not confirmed, where acks are; so
  what it covers is in doubt until the ack was sent again and a while has passed.
What was acked longer ago is no duplicate: when that comes again, somebody wanted it to (an
operator's cursor reset), and swallowing it would lose it. All of it is bounded, the oldest is
forgotten first; forgetting costs a duplicate at the application.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from enum import Enum
from itertools import islice
from typing import Final

from .due import MessageKey
from .entry import EntryKey

# Causes, as bits of `Entry.again`; plain numbers because an enum's cost more than the rest.
RECONNECTED: Final = 1
ASKED: Final = 2
REWOUND: Final = 4
UNKNOWN: Final = 8

# Sent acks are remembered this long: one cursor write a second is the broker's default limit.
UNCERTAIN_MS: Final = 1_000
_UNCONFIRMED: Final = sys.maxsize  # later than any time
# More than a broker's unacked window cannot be lost with one connection.
_MOST_IN_DOUBT: Final = 100_000
# Redeliveries that never came (another consumer got them).
_MOST_ASKED: Final = 100_000


class Connection(Enum):
    """What is known of the connection, as far as acks go.

    Attributes:
        SURE: What was sent more than a moment ago has arrived.
        LOST: It is away, perhaps, and with it what was sent in the last moments.
        BACK: It is there again since a short while, and what was in doubt was sent once more.
    """

    SURE = 0
    LOST = 1
    BACK = 2


class Flush:
    """Acks that left together, and how sure it is that they arrived.

    Attributes:
        at_ms: When they left; where receipts are given, when theirs came, and until then later than
            anything, so that they stay in doubt however old they are.
    """

    __slots__ = ("at_ms",)

    def __init__(self, at_ms: int) -> None:
        self.at_ms: int = at_ms

    def await_receipt(self) -> None:
        """The broker is going to confirm them."""
        self.at_ms = _UNCONFIRMED

    def confirmed(self, now_ms: int) -> None:
        """It did. That is no durability: from here on they are as acks without a receipt."""
        self.at_ms = now_ms

    @property
    def unconfirmed(self) -> bool:
        """A receipt is to come."""
        return self.at_ms == _UNCONFIRMED


class Duplicates:
    """What one source may get again though it is settled, or waits.

    Attributes:
        connection: What is known of it.
        expects: Causes, why what arrives now may come once more; 0 for none.
        overtaken: Entries acked while a copy was on its way, in this while.
        overtaken_before: The same of the while before.
        asked: Messages whose redelivery was asked for, and when it can be here at the earliest.
        asked_all: On this connection everything was asked for, so that the broker counts each copy
            that comes now of a message that is here.
    """

    __slots__ = (
        "_lost",
        "_lost_parts",
        "_mixed",
        "_sent",
        "_sent_count",
        "_sent_parts",
        "_watched",
        "_watching",
        "asked",
        "asked_all",
        "connection",
        "expects",
        "overtaken",
        "overtaken_before",
    )

    def __init__(self) -> None:
        self.connection: Connection = Connection.SURE
        self.expects: int = 0
        self.asked_all: bool = False
        self._mixed = False  # copies from before and after a reconnect: whose it was is not known
        # Acks sent a moment ago, or not confirmed: of whole entries, and of parts of batches.
        self._sent: deque[tuple[Flush, list[EntryKey]]] = deque()
        self._sent_count = 0
        self._sent_parts: deque[tuple[Flush, list[EntryKey]]] = deque()
        # Those of them that a lost connection may have taken along.
        self._lost: dict[EntryKey, None] = {}
        self._lost_parts: dict[EntryKey, None] = {}
        # Acked, with a copy on its way that the ack did not overtake: in this while, and the last.
        self.overtaken: dict[EntryKey, None] = {}
        self.overtaken_before: dict[EntryKey, None] = {}
        self._watching = 0  # calls of `forget_overtaken` until no copy is expected any more
        self._watched = 0  # the cause
        self.asked: dict[MessageKey, int] = {}

    # What is settled

    def _watch(self, cause: int) -> None:
        self._watching, self._watched = 2, cause
        self._expect()

    def _expect(self) -> None:
        self.expects = (self._watched if self._watching else 0) | (
            RECONNECTED if self._mixed else 0
        )

    def doubtful(self) -> None:
        """It cannot be told which source lost its connection."""
        self._mixed = True
        self._expect()

    @property
    def in_doubt(self) -> bool:
        """Whether an ack of a moment ago may not have arrived, or may have been overtaken."""
        return self._watching > 0 or self.connection is not Connection.SURE

    def settled(self, key: EntryKey) -> None:
        """The entry is acked while a copy may be on its way: it has to be recognised."""
        if self.connection is Connection.SURE:
            self.overtaken[key] = None
        else:
            self._lost[key] = None

    def covers(self, key: EntryKey) -> bool:
        """Whether the entry was acked, and what comes of it is a duplicate."""
        if key in self.overtaken or key in self.overtaken_before:
            return True
        return self.connection is not Connection.SURE and key in self._lost

    # Acks and their connection

    def sent(self, flush: Flush, whole: list[EntryKey], parts: list[EntryKey]) -> None:
        """Acks leave, now: of whole entries, and of parts."""
        lost = self.connection is Connection.LOST
        if lost:  # connected again, though not told yet: these may be on their way here
            _add(self._lost, whole)
            _add(self._lost_parts, parts)
        since = flush.at_ms - UNCERTAIN_MS
        if whole:
            sent = self._sent
            sent.append((flush, whole))
            self._sent_count += len(whole)
            while sent[0][0].at_ms < since or (
                self._sent_count > _MOST_IN_DOUBT and not sent[0][0].unconfirmed
            ):
                self._sent_count -= len(sent.popleft()[1])
                if not sent:
                    break
        if parts and not lost:
            self._sent_parts.append((flush, parts))
            while self._sent_parts[0][0].at_ms < since:
                self._sent_parts.popleft()

    def forget(self, flush: Flush) -> None:
        """These acks did not leave for good: they wait again."""
        for sent in (self._sent, self._sent_parts):
            kept = [each for each in sent if each[0] is not flush]
            sent.clear()
            sent.extend(kept)
        self._sent_count = sum(len(keys) for _, keys in self._sent)

    def disconnected(self, now_ms: int) -> None:
        """What was sent in the last moments may be lost, and what was not confirmed."""
        self.connection = Connection.LOST
        for flush, keys in self._sent:
            if flush.unconfirmed:
                self._lost.update(dict.fromkeys(keys))  # somebody may wait for it: without bounds
            elif flush.at_ms >= now_ms - UNCERTAIN_MS:
                _add(self._lost, keys)
        for _, keys in self._sent_parts:
            _add(self._lost_parts, keys)
        self._sent_parts.clear()
        self._sent.clear()
        self._sent_count = 0

    def take_lost_parts(self) -> list[EntryKey]:
        """Entries of which a part was acked in the last moments before a loss, or since."""
        keys = [*self._lost_parts, *(key for _, sent in self._sent_parts for key in sent)]
        self._lost_parts.clear()
        self._sent_parts.clear()
        return keys

    def reconnected(self, unsent: dict[EntryKey, None]) -> None:
        """Everything unacked comes again.

        What is due now, or was sent since the loss, may already be on its way here again, so it
        stays in doubt when it is sent.

        Args:
            unsent: Acks of whole entries that wait; those that may be lost are added.
        """
        self.connection = Connection.BACK
        self._watch(RECONNECTED)  # a copy that is queued somewhere may come beside the new one
        for _, keys in self._sent:
            _add(self._lost, keys)
        unsent.update(self._lost)
        _add(self._lost, unsent)

    @property
    def lost(self) -> int:
        """Entries whose ack may be lost with the connection that is away now."""
        if self.connection is not Connection.LOST:
            return 0
        return len(self._lost) + len(self._lost_parts)

    def trust(self) -> None:
        """Long enough after a reconnect: what comes now is not a leftover of the loss.

        Unless the connection is away again: then what is in doubt has yet to be sent once more.
        """
        if self.connection is not Connection.LOST:
            self.connection = Connection.SURE
            self._mixed = False
            self._expect()
            self._lost.clear()

    # Everything asked for

    def rewound(self, unsent: Iterable[EntryKey]) -> None:
        """Everything is about to be asked for, which may overtake the acks of the last moments.

        Args:
            unsent: Acks of whole entries that wait.
        """
        self._watch(REWOUND)
        self.overtaken.update(dict.fromkeys(unsent))
        for _, keys in self._sent:
            self.overtaken.update(dict.fromkeys(keys))

    def forget_overtaken(self) -> bool:
        """Called every few seconds: forgets those of the time before; False when none are left."""
        self.overtaken_before, self.overtaken = self.overtaken, {}
        self._watching = max(0, self._watching - 1)
        self._expect()
        return bool(self.overtaken_before) or self._watching > 0

    # Single messages asked for

    def ask(self, due_key: MessageKey, earliest_ms: int) -> None:
        """The message's redelivery is asked for, and can be here at `earliest_ms` at the earliest.

        When what was asked for before did not come, nothing that comes this time is too early.
        """
        self.asked[due_key] = 0 if due_key in self.asked else earliest_ms

    def earliest(self, due_key: MessageKey) -> int | None:
        """When what was asked for can be here; None when nobody asked."""
        return self.asked.get(due_key)

    def came(self, due_key: MessageKey) -> bool:
        """A copy of the message came in time; whether it was asked for."""
        return self.asked.pop(due_key, None) is not None

    def bound_asked(self) -> None:
        """Forget all that was asked for when it is too much."""
        if len(self.asked) > _MOST_ASKED:
            self.asked.clear()

    # Endings

    def clear(self) -> None:
        """After a seek: what was acked may rightly come again.

        While the connection is away it stays so: what is acked from now on may be lost with it.
        """
        self._sent.clear()
        self._sent_count = 0
        self._sent_parts.clear()
        self._watching = 0
        self.overtaken.clear()
        self.overtaken_before.clear()
        if self.connection is Connection.BACK:
            self.connection = Connection.SURE
        self._mixed = self.asked_all = False
        self._expect()
        self._lost.clear()
        self._lost_parts.clear()
        self.asked.clear()


def _add(doubtful: dict[EntryKey, None], keys: Iterable[EntryKey]) -> None:
    """Remember more, within bounds: the oldest are forgotten first."""
    doubtful.update(dict.fromkeys(keys))
    for oldest in list(islice(doubtful, max(0, len(doubtful) - _MOST_IN_DOUBT))):
        del doubtful[oldest]
