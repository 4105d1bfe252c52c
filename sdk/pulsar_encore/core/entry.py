"""One broker entry that something is going on with: its messages' states, and what may follow.

Owns `Entry`, the writer of a message's state, and `TRANSITIONS`, the table of what may follow what:
each row is a method of `Entry`, each field of it what that step makes of a state. A step that meets
a state which its row does not name leaves the message as it is; but `queue`, `queue_all` and
`wait_on` trust their caller. (Two steps are made for each message, and a call would cost a
twentieth of all: there `ReceiveQueue` and `SourceState.ack` write the table's value.) State is kept
per entry, one byte for each message of a batch, because acks, redelivery and permits are entries'
business on the wire; a message is an (entry, index) pair. What a step means for the source is
`SourceState`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from .fingerprint import NO_FINGERPRINT, Identified, fingerprint_of
from .packed import Packed

EntryKey = tuple[int, int]
"""(ledger, entry)."""

AWAY: Final = 0  # with the broker, or on its way here
QUEUED: Final = 1  # here, not yet handed to the application
HELD: Final = 2  # handed over, not settled
NACKED: Final = 3  # waiting here for its due time
ACKED: Final = 4
LEAVING: Final = 5  # a copy is on its way to a letter topic; acked once that is persisted

TRANSITIONS: Final[Mapping[str, Mapping[int, int]]] = {
    # It came, and the application shall see it; what waits only where it was asked for.
    "queue": {AWAY: QUEUED, NACKED: QUEUED},
    # All of an entry that was not known came.
    "queue_all": {AWAY: QUEUED},
    # It was asked for ahead of its time and came sooner for another reason: it waits on.
    "wait_on": {AWAY: NACKED},
    # The broker's delivery says which of the others are acked.
    "learn_acked": {AWAY: ACKED},
    # The application got it. From here on only this hand-over can nack it.
    "hand_over": {QUEUED: HELD},
    "hand_over_all": {QUEUED: HELD},
    # By the application, or the broker's delay was too coarse; by an id also what is queued.
    "nack": {QUEUED: NACKED, HELD: NACKED, NACKED: NACKED},
    # A copy of it is about to be sent to a letter topic.
    "leave": {QUEUED: LEAVING, HELD: LEAVING},
    # That failed.
    "stay": {LEAVING: HELD},
    # By a message or an id, in whichever state it is.
    "ack": {AWAY: ACKED, QUEUED: ACKED, HELD: ACKED, NACKED: ACKED, LEAVING: ACKED},
    # Of several, those that nothing else waits for.
    "ack_held": {HELD: ACKED},
    # The same for all of the entry.
    "ack_all": {AWAY: ACKED, QUEUED: ACKED, HELD: ACKED, NACKED: ACKED, LEAVING: ACKED},
    # It failed and stays here, to be handed over again before what follows it.
    "offer_again": {HELD: QUEUED},
    # Due, or timed out: it is asked for again.
    "release": {HELD: AWAY, NACKED: AWAY},
    # Everything is asked for again. What is being copied stays, or it would be copied twice.
    "release_all": {QUEUED: AWAY, HELD: AWAY, NACKED: AWAY},
    # The connection is gone that it came by: it comes again.
    "drop_queued": {QUEUED: AWAY},
    # A record that was out of use is used again, to ack a part of a batch that is not here.
    "readopt": {QUEUED: AWAY, HELD: AWAY, NACKED: AWAY, LEAVING: AWAY},
}
"""What each step of `Entry` makes of a state; of any other it makes nothing."""

_AWAY: Final = bytes((AWAY,))
_QUEUED: Final = bytes((QUEUED,))
_HELD: Final = bytes((HELD,))
_ACKED_DIGITS: Final = bytes(0x31 if state == ACKED else 0x30 for state in range(256))
_ACKED_OR_AWAY: Final = bytes(ACKED if digit == 0x31 else AWAY for digit in range(256))
_NACKED_DIGITS: Final = bytes(0x31 if state == NACKED else 0x30 for state in range(256))
_UNACKED_DIGITS: Final = bytes(0x30 if state == ACKED else 0x31 for state in range(256))
_READOPTED: Final = bytes(ACKED if state == ACKED else AWAY for state in range(256))


def set_bits(mask: int) -> Iterator[int]:
    """Numbers of the bits of a mask, ascending."""
    while mask:
        lowest = mask & -mask
        mask ^= lowest
        yield lowest.bit_length() - 1


class Entry:
    """State of the messages of one entry.

    Attributes:
        source: The `SourceState` this entry belongs to.
        key: (ledger, entry).
        size: Messages in the entry, 1 for a message that is no batch.
        batched: True when the messages have a batch index (also in a batch of one).
        state: One state for each index; written here only.
        unacked: Indexes not ACKED.
        active: Indexes QUEUED, HELD, NACKED or LEAVING.
        redelivered: Of a message that is its entry: attempts at it that failed, as `Attempts` makes
            them of the broker's count. Of a batch: redeliveries that other consumers asked for.
        failed: In a batch, attempts at each index that failed here, where not 0. Both are written
            by `Attempts`.
        hand_overs: Of each index, hand-overs that have ended, where not 0: tells one from the next.
            No count of the broker's does, because it also moves while a message is held here.
        live: False once the record is out of use; the ids it gave out then go by key. A packed one
            (see `SourceState`) comes to life again. Records of one message share
            `SourceState.live_alone`, a list that is emptied to end all of them in one step; an
            empty list is false, like `live = False`.
        era: `SourceState.era` when this record was made.
        unsent_part: A partial ack waits to be sent; written by `Acks`.
        again: Why a copy of it may be on its way here besides (`duplicates`), 0 for no reason.
        first_chunk: (ledger, entry) of the first chunk of a chunked message, else None.
        came_as: A message of the entry, until its fingerprint is asked for, and the fingerprint
            from then on; 0 where it is unknown, and where nothing outlives the process.
    """

    __slots__ = (
        "__weakref__",
        "active",
        "batched",
        "came_as",
        "causes",
        "era",
        "failed",
        "first_chunk",
        "hand_overs",
        "key",
        "live",
        "redelivered",
        "size",
        "source",
        "state",
        "unacked",
        "unsent_part",
    )

    def __init__(
        self,
        source: Any,
        key: EntryKey,
        size: int,
        batched: bool,
        redelivered: int = 0,
        first_chunk: EntryKey | None = None,
        era: int = 0,
    ) -> None:
        self.source: Any = source
        self.era: int = era
        self.key: EntryKey = key
        self.size: int = size
        self.batched: bool = batched
        self.state: bytearray = bytearray(size)
        self.unacked: int = size
        self.active: int = 0
        self.redelivered: int = redelivered
        self.failed: dict[int, int] | None = None
        self.hand_overs: dict[int, int] | None = None
        self.live: bool | list[bool] = True
        self.unsent_part: bool = False
        self.causes: int = 0
        self.first_chunk: EntryKey | None = first_chunk
        self.came_as: Identified | int = NO_FINGERPRINT

    # Coming

    @classmethod
    def alone(cls, source: Any, key: EntryKey, era: int, live: list[bool], causes: int) -> Entry:
        """A new record of a message that is its entry and came for the first time: QUEUED.

        As `__init__` and `queue_all`, in one step, because there is one for each such message.
        """
        entry: Entry = object.__new__(cls)
        entry.source = source
        entry.era = era
        entry.key = key
        entry.state = bytearray(_QUEUED)
        entry.size = entry.unacked = entry.active = 1
        entry.redelivered = 0
        entry.failed = entry.hand_overs = entry.first_chunk = None
        entry.batched = entry.unsent_part = False
        entry.came_as = NO_FINGERPRINT
        entry.live = live
        entry.causes = causes
        return entry

    def queue_all(self) -> None:
        """Of a new record: all of it came."""
        self.state = bytearray(_QUEUED) * self.size
        self.active = self.size

    def queue(self, index: int) -> None:
        """It came, and was away, or waited and was asked for."""
        if self.state[index] == AWAY:
            self.active += 1
        self.state[index] = QUEUED

    def wait_on(self, index: int) -> None:
        """It came too early: it goes on waiting."""
        self.state[index] = NACKED
        self.active += 1

    def learn_acked(self, ack_set: int) -> None:
        """The broker says which indexes are acked; only what is not here is taken from it."""
        for index, state in enumerate(self.state):
            if state == AWAY and not ack_set >> index & 1:
                self.state[index] = ACKED
                self.unacked -= 1

    # At the application

    def hand_over(self, index: int) -> bool:
        """The application gets it; False where it was settled or given back while queued."""
        if self.state[index] == QUEUED and self.live:
            self.state[index] = HELD
            return True
        return False

    def hand_over_all(self, indexes: range) -> bool:
        """The same for each of some that follow one another; False, and nothing done, where one of
        them is in another state."""
        part = slice(indexes.start, indexes.stop)
        if not self.live or indexes.step != 1 or self.state[part] != _QUEUED * len(indexes):
            return False
        self.state[part] = _HELD * len(indexes)
        return True

    def nack(self, index: int) -> bool:
        """It waits; False in a state in which there is nothing to wait for."""
        if self.state[index] not in TRANSITIONS["nack"]:
            return False
        self.state[index] = NACKED
        return True

    def leave(self, index: int) -> bool:
        """A copy of it is about to be sent; False in a state in which it is not here."""
        if not self.live or self.state[index] not in TRANSITIONS["leave"]:
            return False
        self.state[index] = LEAVING
        return True

    def stay(self, index: int) -> bool:
        """The copy failed; False when the message was settled meanwhile."""
        if not self.live or self.state[index] != LEAVING:
            return False
        self.state[index] = HELD
        return True

    def ack(self, index: int) -> int:
        """It is done; returns the state it was in."""
        before = self.state[index]
        if before != ACKED:
            self.state[index] = ACKED
            self.unacked -= 1
            if before != AWAY:
                self.active -= 1
        return before

    def ack_held(self, indexes: Sequence[int]) -> int:
        """What is held of several is done; returns how many that were."""
        state, settled = self.state, 0
        for index in indexes:
            if state[index] == HELD:
                state[index] = ACKED
                settled += 1
        self.unacked -= settled
        self.active -= settled
        return settled

    def ack_all(self) -> int:
        """All of it is done; returns how many were not."""
        settled = self.unacked
        self.state = bytearray((ACKED,)) * self.size
        self.unacked = self.active = 0
        return settled

    def offer_again(self, index: int) -> bool:
        """It failed and is queued here again; False where the application does not have it."""
        if not self.live or self.state[index] not in TRANSITIONS["offer_again"]:
            return False
        self._end_hand_over(index)
        self.state[index] = QUEUED
        return True

    # Back to the broker

    def release(self, mask: int) -> int:
        """What is held or waits of the indexes of a bit mask is away; returns the mask of those."""
        released = 0
        for index in set_bits(mask):
            if index < self.size and self.state[index] in TRANSITIONS["release"]:
                self._end_hand_over(index)
                released |= 1 << index
        self.active -= released.bit_count()
        return released

    def release_all(self) -> int:
        """All that is here is away, but for what is being copied.

        Returns:
            Mask of those that the application had.
        """
        size = self.size
        if self.hand_overs is None and self.state == _HELD * size:  # nearly always
            self.hand_overs = dict.fromkeys(range(size), 1)
            self.state = bytearray(size)
            self.active = 0
            return (1 << size) - 1
        released = 0
        for index, state in enumerate(self.state):
            if state in (HELD, NACKED):
                self._end_hand_over(index)
                released |= 1 << index
            elif state == QUEUED:
                self.state[index] = AWAY
        self.active = self.state.count(LEAVING)
        return released

    def drop_queued(self) -> int:
        """What is queued is away; returns how many that were."""
        dropped = self.state.count(QUEUED)
        self.state = self.state.replace(_QUEUED, _AWAY)
        self.active -= dropped
        return dropped

    def _end_hand_over(self, index: int) -> None:
        """Who still has the message has it from an old hand-over."""
        ended = self.hand_overs
        if ended is None:
            ended = self.hand_overs = {}
        ended[index] = ended.get(index, 0) + 1
        self.state[index] = AWAY

    def hand_over_number(self, index: int) -> int:
        """Number of the hand-over of `index` that is current, or comes next."""
        return 0 if self.hand_overs is None else self.hand_overs.get(index, 0)

    # A record that changes its place

    def readopt(self) -> None:
        """A record out of use is used again; what is not acked is away."""
        self.state = bytearray(self.state.translate(_READOPTED))
        self.active = 0
        self.live = True

    @property
    def only_waits(self) -> bool:
        """Some of it waits for its due time, and the rest is acked or away."""
        return self.active > 0 and self.state.count(NACKED) == self.active

    def to_packed(self) -> Packed:
        """What there is to keep of a batch that only waits."""
        highest_first = self.state[::-1]
        acked = int(highest_first.translate(_ACKED_DIGITS), 2)
        nacked = int(highest_first.translate(_NACKED_DIGITS), 2)
        return Packed(self.size, acked, nacked, self.failed or {})

    @classmethod
    def of_packed(cls, source: Any, key: EntryKey, packed: Packed, era: int = 0) -> Entry:
        """A new record of what `to_packed` kept."""
        entry = cls(source, key, packed.size, True, era=era)
        digits = f"{packed.acked:0{packed.size}b}".encode()
        entry.state = bytearray(digits[::-1].translate(_ACKED_OR_AWAY))
        for index in set_bits(packed.nacked):
            entry.state[index] = NACKED
        entry.unacked = packed.size - packed.acked.bit_count()
        entry.active = packed.nacked.bit_count()
        entry.failed = dict(packed.failed) or None
        return entry

    # To look at

    def lowest_unacked(self) -> int:
        """The first index that is not acked and not being copied; the size when there is none."""
        for index, state in enumerate(self.state):
            if state not in (ACKED, LEAVING):
                return index
        return self.size

    def remaining(self) -> int:
        """The ack set as a bit mask: bit i is 1 while index i is unacked (wire notes 5.4)."""
        return int(self.state[::-1].translate(_UNACKED_DIGITS), 2)

    def fingerprint(self) -> int:
        """Return the fingerprint of the entry, 0 where it is unknown. Computed once, and then the
        message is let go of, whose payload may be large."""
        came_as = self.came_as
        if not isinstance(came_as, int):
            came_as = self.came_as = fingerprint_of(came_as)
        return came_as

    def due_key(self, index: int) -> tuple[int, int, int]:
        """The `DueIndex` key of a message: without an index where the message is the entry."""
        return (*self.key, index if self.size > 1 else -1)

    def _check(self) -> None:
        """Walk the counters; for tests."""
        active = sum(self.state.count(each) for each in (QUEUED, HELD, NACKED, LEAVING))
        assert self.active == active, self.key
        assert self.unacked == self.size - self.state.count(ACKED), self.key


# Steps of many records that are one message each. One loop without a call for each record, because
# an application may hold 45,000 of them and the loop is one step of the event loop. Every record
# that makes its step is out of use afterwards.


def ack_alone(entries: Iterable[Entry]) -> tuple[list[Entry], int, int]:
    """`ack_all` of those records that are one message.

    Returns:
        These records, how many were NACKED, and how many were active.
    """
    done: list[Entry] = []
    nacked = active = 0
    for entry in entries:
        if entry.size == 1:
            state = entry.state
            nacked += state[0] == NACKED
            state[0] = ACKED
            active += entry.active
            entry.unacked = entry.active = 0
            entry.live = False
            done.append(entry)
    return done, nacked, active


def release_alone(entries: Iterable[Entry]) -> tuple[list[Entry], list[EntryKey]]:
    """`release_all` of those records that are one message, which is not being copied.

    Returns:
        These records, and the keys of those that were QUEUED.
    """
    done: list[Entry] = []
    queued: list[EntryKey] = []
    for entry in entries:
        if entry.size == 1:
            state = entry.state
            what = state[0]
            if what == LEAVING:
                continue
            if what == QUEUED:
                queued.append(entry.key)
            state[0] = AWAY
            entry.active = 0
            entry.live = False
            done.append(entry)
    return done, queued


def drop_queued_alone(entries: Iterable[Entry]) -> list[Entry]:
    """`drop_queued` of those records that are one message and QUEUED; returns these records."""
    done: list[Entry] = []
    for entry in entries:
        state = entry.state
        if state[0] == QUEUED and entry.size == 1:
            state[0] = AWAY
            entry.active = 0
            entry.live = False
            done.append(entry)
    return done
