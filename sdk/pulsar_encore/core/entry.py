"""One broker entry that something is going on with: the state of each of its messages.

Owns `Entry`. State is kept per entry, one byte for each message of a batch, because acks,
redelivery and permits are entries' business on the wire; a message is an (entry, index) pair. Rules
about what may follow what live in `in_flight`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from .parked import Parked

EntryKey = tuple[int, int]
"""(ledger, entry)."""

AWAY: Final = 0  # with the broker, or on its way here
QUEUED: Final = 1  # here, not yet handed to the application
HELD: Final = 2  # handed over, not settled
NACKED: Final = 3  # waiting here for its due time
ACKED: Final = 4
LEAVING: Final = 5  # a copy is on its way to a letter topic; acked once that is persisted

_AWAY: Final = bytes((AWAY,))
_QUEUED: Final = bytes((QUEUED,))
_ACKED_DIGITS: Final = bytes(0x31 if state == ACKED else 0x30 for state in range(256))
_ACKED_OR_AWAY: Final = bytes(ACKED if digit == 0x31 else AWAY for digit in range(256))
_NACKED_DIGITS: Final = bytes(0x31 if state == NACKED else 0x30 for state in range(256))
_UNACKED_DIGITS: Final = bytes(0x30 if state == ACKED else 0x31 for state in range(256))


def set_bits(mask: int) -> Iterator[int]:
    """Numbers of the bits of a mask, ascending."""
    while mask:
        lowest = mask & -mask
        mask ^= lowest
        yield lowest.bit_length() - 1


class Entry:
    """State of the messages of one entry.

    Attributes:
        home: The `InFlight` this entry belongs to.
        key: (ledger, entry).
        size: Messages in the entry, 1 for a message that is no batch.
        batched: True when the messages have a batch index (also in a batch of one).
        state: One state for each index.
        unacked: Indexes not ACKED.
        active: Indexes QUEUED, HELD, NACKED or LEAVING.
        base: The broker's redelivery count, of a message that is its entry. In a batch it says
            nothing of one message, and is 0 here.
        looks: In a batch, looks at each index that failed here, where not 0.
        turns: Times each index was given back, where not 0: tells one hand-over from the next. No
            count of the broker's does, because it also moves while a message is held here.
        live: False once the record is out of use; the ids it gave out then go by key. A parked one
            (see `InFlight`) comes to life again.
        era: `InFlight.era` when this record was made.
        dirty: A partial ack waits to be sent.
        doubled: It may be on its way here once more: a reconnect sent it, or it was asked for.
        first_chunk: (ledger, entry) of the first chunk of a chunked message, else None.
    """

    __slots__ = (
        "__weakref__",
        "active",
        "base",
        "batched",
        "dirty",
        "doubled",
        "era",
        "first_chunk",
        "home",
        "key",
        "live",
        "looks",
        "size",
        "state",
        "turns",
        "unacked",
    )

    def __init__(
        self,
        home: Any,
        key: EntryKey,
        size: int,
        batched: bool,
        base: int,
        first_chunk: EntryKey | None = None,
        era: int = 0,
    ) -> None:
        self.home: Any = home
        self.era: int = era
        self.key: EntryKey = key
        self.size: int = size
        self.batched: bool = batched
        self.state: bytearray = bytearray(size)
        self.unacked: int = size
        self.active: int = 0
        self.base: int = base
        self.looks: dict[int, int] | None = None
        self.turns: dict[int, int] | None = None
        self.live: bool = True
        self.dirty: bool = False
        self.doubled: bool = False
        self.first_chunk: EntryKey | None = first_chunk

    def redelivery_count(self, index: int) -> int:
        """How often this very message came back, as known here.

        In a batch only failed looks here count: the broker counts entries, raises the count for
        every sibling, and starts again at every partial ack (consumer-semantics 3.8).
        """
        if self.size == 1:
            return self.base
        looks = 0 if self.looks is None else self.looks.get(index, 0)
        attempts = self.home.attempts
        return max(looks, attempts.count(self.due_key(index))) if attempts else looks

    def count_look(self, index: int) -> None:
        looks = self.looks
        if looks is None:
            looks = self.looks = {}
        looks[index] = looks.get(index, 0) + 1

    def turn(self, index: int) -> int:
        """Number of the hand-over of `index` that is current, or comes next."""
        return 0 if self.turns is None else self.turns.get(index, 0)

    def end_turn(self, index: int) -> None:
        """HELD, NACKED or QUEUED -> AWAY: who still has the message has it from an old turn."""
        turns = self.turns
        if turns is None:
            turns = self.turns = {}
        turns[index] = turns.get(index, 0) + 1
        self.state[index] = AWAY

    # Steps that concern all indexes; those of one index are `InFlight`'s.

    @property
    def only_waits(self) -> bool:
        """Some of it waits for its due time, and the rest is acked or away."""
        return self.active > 0 and self.state.count(NACKED) == self.active

    def to_parked(self) -> Parked:
        """What there is to keep of a batch that only waits."""
        highest_first = self.state[::-1]
        acked = int(highest_first.translate(_ACKED_DIGITS), 2)
        nacked = int(highest_first.translate(_NACKED_DIGITS), 2)
        return Parked(self.size, acked, nacked, self.looks or {})

    def restore(self, parked: Parked) -> None:
        """Into a new record: what `to_parked` kept."""
        digits = f"{parked.acked:0{self.size}b}".encode()
        self.state = bytearray(digits[::-1].translate(_ACKED_OR_AWAY))
        for index in set_bits(parked.nacked):
            self.state[index] = NACKED
        self.unacked = self.size - parked.acked.bit_count()
        self.active = parked.nacked.bit_count()
        self.looks = dict(parked.looks) or None

    def learn_acked(self, ack_set: int) -> None:
        """The broker says which indexes are acked; only what is not here is taken from it."""
        for index, state in enumerate(self.state):
            if state == AWAY and not ack_set >> index & 1:
                self.state[index] = ACKED
                self.unacked -= 1

    def settle(self) -> int:
        """Everything -> ACKED; returns how many were not."""
        settled = self.unacked
        self.state = bytearray([ACKED]) * self.size
        self.unacked = self.active = 0
        return settled

    def release(self, mask: int, seen: int = -1) -> int:
        """HELD or NACKED -> AWAY, for the indexes of a bit mask; returns the mask of those.

        Args:
            mask: Which.
            seen: Those of them that ended a look.
        """
        released = 0
        for index in set_bits(mask):
            if index < self.size and self.state[index] in (HELD, NACKED):
                if seen >> index & 1:
                    self.count_look(index)
                self.end_turn(index)
                released |= 1 << index
        self.active -= released.bit_count()
        self.doubled = self.doubled or released > 0
        return released

    def release_all(self, *, count_looks: bool) -> None:
        """Everything unacked -> AWAY, but for what is being copied: it would be copied twice."""
        for index, state in enumerate(self.state):
            if state in (HELD, NACKED):
                if count_looks:
                    self.count_look(index)
                self.end_turn(index)
            elif state == QUEUED:
                self.state[index] = AWAY
        self.active = self.state.count(LEAVING)
        self.doubled = True

    def lowest_unacked(self) -> int:
        """The first index that is not acked and not being copied; the size when there is none."""
        for index, state in enumerate(self.state):
            if state not in (ACKED, LEAVING):
                return index
        return self.size

    def drop_queued(self) -> int:
        """QUEUED -> AWAY; returns how many that were."""
        dropped = self.state.count(QUEUED)
        self.state = self.state.replace(_QUEUED, _AWAY)
        self.active -= dropped
        return dropped

    def _check(self) -> None:
        """Walk the counters; for tests."""
        active = sum(self.state.count(each) for each in (QUEUED, HELD, NACKED, LEAVING))
        assert self.active == active, self.key
        assert self.unacked == self.size - self.state.count(ACKED), self.key

    def remaining(self) -> int:
        """The ack set as a bit mask: bit i is 1 while index i is unacked (wire notes 5.4)."""
        return int(self.state[::-1].translate(_UNACKED_DIGITS), 2)

    def due_key(self, index: int) -> tuple[int, int, int]:
        """The `DueIndex` key of a message: without an index where the message is the entry."""
        return (*self.key, index if self.size > 1 else -1)
