"""The messages of one broker entry, each in one of the states of `message_states`.

`Entry` is the only writer of a message's state, and its methods are the steps of
`message_states.TRANSITIONS`. Two steps are made for each message, where a call would cost a
twentieth of everything: `ReceiveQueue` and `TopicState.ack` make those in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from .fingerprint import NO_FINGERPRINT, Identified, fingerprint_of
from .message_key import set_bits
from .message_states import (
    ACK_PENDING,
    ACKED,
    AWAY,
    FORWARDING,
    HELD,
    NACKED,
    QUEUED,
    TRANSITIONS,
)
from .packed_entries import Packed

EntryKey = tuple[int, int]
"""(ledger, entry)."""

_AWAY: Final = bytes((AWAY,))
_QUEUED: Final = bytes((QUEUED,))
_HELD: Final = bytes((HELD,))
_ACKED_DIGITS: Final = bytes(0x31 if state == ACKED else 0x30 for state in range(256))
_ACKED_OR_AWAY: Final = bytes(ACKED if digit == 0x31 else AWAY for digit in range(256))
_NACKED_DIGITS: Final = bytes(0x31 if state == NACKED else 0x30 for state in range(256))
_UNACKED_DIGITS: Final = bytes(0x30 if state == ACKED else 0x31 for state in range(256))
_READOPTED: Final = bytes(ACKED if state == ACKED else AWAY for state in range(256))


class Entry:
    """State of the messages of one entry, one byte for each.

    Attributes:
        batched: True if the messages have a batch index, also in a batch of one.
        unacked: Number of messages that are not ACKED.
        active: Number of messages that are neither AWAY nor ACKED.
        redelivered: For an unbatched message: failed attempts. For a batch: redeliveries that other
            consumers requested. See `Attempts`.
        failed: For a batch: attempts that failed here, by index, if not 0.
        delivery_numbers: Ended deliveries to the application, by index, if not 0. They tell one
            delivery from the next. The broker's count cannot, because it also changes while a
            message is held here.
        live: False if the record is out of use; its messages are then found by key. The records
            of a topic share `EntryTable.live_records`, a list that is emptied to end all of them at
            once, because an empty list is false.
        era: `TopicState.era` when this record was made.
        unsent_part: A partial ack waits to be sent; written by `Acks`.
        causes: Causes (`Cause`) why another copy may be in flight, 0 for none.
        fingerprint_source: The message from which the fingerprint of the entry is computed on first
            use; then the fingerprint. 0 if unknown, or without durable state.
    """

    __slots__ = (
        "__weakref__",
        "active",
        "batched",
        "causes",
        "delivery_numbers",
        "era",
        "failed",
        "fingerprint_source",
        "first_chunk",
        "key",
        "live",
        "redelivered",
        "size",
        "state",
        "topic_state",
        "unacked",
        "unsent_part",
    )

    def __init__(
        self,
        topic_state: Any,
        key: EntryKey,
        size: int,
        batched: bool,
        redelivered: int = 0,
        first_chunk: EntryKey | None = None,
        era: int = 0,
    ) -> None:
        self.topic_state: Any = topic_state
        self.era: int = era
        self.key: EntryKey = key
        self.size: int = size
        self.batched: bool = batched
        self.state: bytearray = bytearray(size)
        self.unacked: int = size
        self.active: int = 0
        self.redelivered: int = redelivered
        self.failed: dict[int, int] | None = None
        self.delivery_numbers: dict[int, int] | None = None
        self.live: bool | list[bool] = True
        self.unsent_part: bool = False
        self.causes: int = 0
        self.first_chunk: EntryKey | None = first_chunk
        self.fingerprint_source: Identified | int = NO_FINGERPRINT

    # Arrival

    @classmethod
    def plain(
        cls, topic_state: Any, key: EntryKey, era: int, live: list[bool], causes: int
    ) -> Entry:
        """Make a queued record of an unbatched message on its first delivery.

        Equals `__init__` and `queue_all`, without their calls.
        """
        entry: Entry = object.__new__(cls)
        entry.topic_state = topic_state
        entry.era = era
        entry.key = key
        entry.state = bytearray(_QUEUED)
        entry.size = entry.unacked = entry.active = 1
        entry.redelivered = 0
        entry.failed = entry.delivery_numbers = entry.first_chunk = None
        entry.batched = entry.unsent_part = False
        entry.fingerprint_source = NO_FINGERPRINT
        entry.live = live
        entry.causes = causes
        return entry

    def queue_all(self) -> None:
        self.state = bytearray(_QUEUED) * self.size
        self.active = self.size

    def queue(self, index: int) -> None:
        if self.state[index] == AWAY:
            self.active += 1
        self.state[index] = QUEUED

    def wait_on(self, index: int) -> None:
        self.state[index] = NACKED
        self.active += 1

    def learn_acked(self, ack_set: int) -> int:
        """Take over acked indexes from the broker's ack set, for messages that are AWAY.

        Returns:
            Their bit mask.
        """
        learned = 0
        for index, state in enumerate(self.state):
            if state == AWAY and not ack_set >> index & 1:
                self.state[index] = ACKED
                self.unacked -= 1
                learned |= 1 << index
        return learned

    def learn_unacked(self, indexes: Sequence[int]) -> None:
        """Take back acked indexes that `learn_acked` took over."""
        for index in indexes:
            if self.state[index] in TRANSITIONS["learn_unacked"]:
                self.state[index] = AWAY
                self.unacked += 1

    # At the application

    def deliver(self, index: int) -> bool:
        if self.state[index] == QUEUED and self.live:
            self.state[index] = HELD
            return True
        return False

    def deliver_all(self, indexes: range) -> bool:
        """Deliver consecutive messages; return False, without a change, if one is not QUEUED."""
        part = slice(indexes.start, indexes.stop)
        if not self.live or indexes.step != 1 or self.state[part] != _QUEUED * len(indexes):
            return False
        self.state[part] = _HELD * len(indexes)
        return True

    def nack(self, index: int) -> bool:
        if self.state[index] not in TRANSITIONS["nack"]:
            return False
        self.state[index] = NACKED
        return True

    def begin_forwarding(self, index: int) -> bool:
        if not self.live or self.state[index] not in TRANSITIONS["begin_forwarding"]:
            return False
        self.state[index] = FORWARDING
        return True

    def forward_failed(self, index: int) -> bool:
        if not self.live or self.state[index] != FORWARDING:
            return False
        self.state[index] = HELD
        return True

    def ack(self, index: int) -> int:
        before = self.state[index]
        if before != ACKED:
            self.state[index] = ACKED
            self.unacked -= 1
            if before != AWAY:
                self.active -= 1
        return before

    def ack_held(self, indexes: Sequence[int]) -> int:
        state, settled = self.state, 0
        for index in indexes:
            if state[index] == HELD:
                state[index] = ACKED
                settled += 1
        self.unacked -= settled
        self.active -= settled
        return settled

    def ack_all(self) -> int:
        settled = self.unacked
        self.state = bytearray((ACKED,)) * self.size
        self.unacked = self.active = 0
        return settled

    # Acks in transactions

    def begin_pending_ack(self, index: int) -> bool:
        if not self.live or self.state[index] not in TRANSITIONS["begin_pending_ack"]:
            return False
        self.state[index] = ACK_PENDING
        return True

    def pending(self, mask: int) -> list[int]:
        """Return the indexes of a mask whose ack is pending: a plain ack wins, a seek ends all."""
        if not self.live:
            return []
        return [index for index in set_bits(mask) if self.state[index] == ACK_PENDING]

    def give_up_pending_ack(self, mask: int) -> list[int]:
        """Give the messages of an aborted transaction back; return their indexes."""
        given_up = self.pending(mask)
        self._end_deliveries(given_up)
        self.active -= len(given_up)
        return given_up

    def hold_again(self, mask: int) -> None:
        for index in self.pending(mask):
            self.state[index] = HELD

    # Again at the application

    def requeue(self, index: int) -> bool:
        if not self.live or self.state[index] not in TRANSITIONS["requeue"]:
            return False
        self._end_deliveries((index,))
        self.state[index] = QUEUED
        return True

    def fail_in_place(self, index: int) -> bool:
        """End the delivery of a held message and begin the next one."""
        if not self.live or self.state[index] not in TRANSITIONS["fail_in_place"]:
            return False
        self._end_deliveries((index,))
        self.state[index] = HELD
        return True

    # Redelivery

    def release(self, mask: int) -> list[int]:
        """Give the HELD and NACKED messages of a mask back; return their indexes."""
        size, state, steps = self.size, self.state, TRANSITIONS["release"]
        released = [index for index in set_bits(mask) if index < size and state[index] in steps]
        self._end_deliveries(released)
        self.active -= len(released)
        return released

    def release_all(self) -> Sequence[int]:
        """Give back every message not being forwarded; return the indexes of HELD and NACKED."""
        size = self.size
        if self.delivery_numbers is None and self.state == _HELD * size:  # nearly always
            self.delivery_numbers = dict.fromkeys(range(size), 1)
            self.state = bytearray(size)
            self.active = 0
            return range(size)
        released = [index for index, state in enumerate(self.state) if state in (HELD, NACKED)]
        self._end_deliveries(released)
        self.state = self.state.replace(_QUEUED, _AWAY)
        self.active = self.kept
        return released

    def drop_queued(self) -> int:
        dropped = self.state.count(QUEUED)
        self.state = self.state.replace(_QUEUED, _AWAY)
        self.active -= dropped
        return dropped

    def _end_deliveries(self, indexes: Sequence[int]) -> None:
        """End the current deliveries: messages that refer to them are out of date."""
        ended, state = self.delivery_numbers, self.state
        if ended is None:
            ended = self.delivery_numbers = {}
        for index in indexes:
            ended[index] = ended.get(index, 0) + 1
            state[index] = AWAY

    def delivery_number(self, index: int) -> int:
        """Return the number of the current or the next delivery of a message."""
        return 0 if self.delivery_numbers is None else self.delivery_numbers.get(index, 0)

    # Records

    def readopt(self) -> None:
        self.state = bytearray(self.state.translate(_READOPTED))
        self.active = 0
        self.live = True

    @property
    def only_waits(self) -> bool:
        return self.active > 0 and self.state.count(NACKED) == self.active

    def to_packed(self) -> Packed:
        highest_first = self.state[::-1]
        acked = int(highest_first.translate(_ACKED_DIGITS), 2)
        nacked = int(highest_first.translate(_NACKED_DIGITS), 2)
        return Packed(self.size, acked, nacked, self.failed or {})

    @classmethod
    def of_packed(cls, topic_state: Any, key: EntryKey, packed: Packed, era: int = 0) -> Entry:
        entry = cls(topic_state, key, packed.size, True, era=era)
        digits = f"{packed.acked:0{packed.size}b}".encode()
        entry.state = bytearray(digits[::-1].translate(_ACKED_OR_AWAY))
        for index in set_bits(packed.nacked):
            entry.state[index] = NACKED
        entry.unacked = packed.size - packed.acked.bit_count()
        entry.active = packed.nacked.bit_count()
        entry.failed = dict(packed.failed) or None
        return entry

    # Queries

    @property
    def kept(self) -> int:
        """Messages that a release of everything leaves here: FORWARDING or ACK_PENDING."""
        return self.state.count(FORWARDING) + self.state.count(ACK_PENDING)

    def lowest_unacked(self) -> int:
        """Return the first index that a rewind has to bring again, or the size."""
        for index, state in enumerate(self.state):
            if state not in (ACKED, FORWARDING, ACK_PENDING):
                return index
        return self.size

    def remaining(self) -> int:
        """Return the ack set: bit i is 1 while index i is unacked.

        On the wire: `docs/notes/wire-protocol.md#ack-sets`.
        """
        return int(self.state[::-1].translate(_UNACKED_DIGITS), 2)

    def fingerprint(self) -> int:
        """Return the fingerprint of the entry, 0 if it is unknown.

        The first call drops the message, whose payload may be large.
        """
        source = self.fingerprint_source
        if not isinstance(source, int):
            source = self.fingerprint_source = fingerprint_of(source)
        return source

    def due_key(self, index: int) -> tuple[int, int, int]:
        return (*self.key, index if self.size > 1 else -1)

    def _check(self) -> None:
        active = self.size - self.state.count(AWAY) - self.state.count(ACKED)
        assert self.active == active, self.key
        assert self.unacked == self.size - self.state.count(ACKED), self.key


# Steps of many single-message records without a call for each: an application may hold 45,000, and
# the loop is one step of the event loop. A record is out of use after its step.


def ack_singles(entries: Iterable[Entry]) -> tuple[list[Entry], int, int]:
    """Make the step `ack_all`; return the records, and how many were NACKED and active."""
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


def release_singles(entries: Iterable[Entry]) -> tuple[list[Entry], list[EntryKey]]:
    """Make the step `release_all`; return the records, and the keys of those that were QUEUED."""
    done: list[Entry] = []
    queued: list[EntryKey] = []
    for entry in entries:
        if entry.size == 1:
            state = entry.state
            what = state[0]
            if what >= FORWARDING:  # or ACK_PENDING
                continue
            if what == QUEUED:
                queued.append(entry.key)
            state[0] = AWAY
            entry.active = 0
            entry.live = False
            done.append(entry)
    return done, queued
