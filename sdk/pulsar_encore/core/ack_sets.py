"""Acks waiting to be sent: whole entries, parts of batches, a cumulative position.

Owns `AckTracker`, one per source. Invariant: what is acked is in one place until the transport took
it: `whole` (the entry is done), `dirty` (part of it is), or the cumulative position; and what was
taken in the last moments before a connection is lost is remembered, because it may not have arrived
(a broker answers before it persists, consumer-semantics notes 6.6). What was sent longer ago is no
suspect: when that comes again, somebody wanted it to. A part of a batch is always sent as the
entry's set of remaining indexes, never as an id alone, so an ack cannot cover a sibling.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from .entry import Entry, EntryKey

# Sent acks are remembered this long: one cursor write a second is the broker's default limit.
UNCERTAIN_MS: Final = 1_000
# More than a broker's unacked window cannot be lost with one connection.
_MAX_UNCERTAIN: Final = 100_000


class Cumulative(NamedTuple):
    """Everything up to `key` is acked; `mask` -1: all of that entry, else bit 1 = still unacked."""

    key: EntryKey
    size: int
    mask: int


class Unsent(NamedTuple):
    """What one flush sends."""

    cumulative: Cumulative | None
    whole: list[EntryKey]
    parts: list[Entry]


class AckTracker:
    """What one source has acked and not yet sent, and what it sent a moment ago."""

    __slots__ = (
        "_certain",
        "_cumulative",
        "_cumulative_due",
        "_dirty",
        "_echoes",
        "_expecting",
        "_lost",
        "_mixed",
        "_positions",
        "_sent",
        "_sent_count",
        "_sent_parts",
        "_stale_echoes",
        "_suspect_parts",
        "_suspecting",
        "_suspects",
        "_whole",
    )

    def __init__(self) -> None:
        self._whole: dict[EntryKey, None] = {}
        self._dirty: dict[Entry, None] = {}
        self._cumulative: Cumulative | None = None
        self._cumulative_due = False
        self._positions: deque[tuple[int, Cumulative]] = deque()  # sent in the last moments
        self._certain: Cumulative | None = None  # the last one sent before those
        self._sent: deque[tuple[int, list[EntryKey]]] = deque()
        self._sent_count = 0
        self._sent_parts: deque[tuple[int, list[EntryKey]]] = deque()
        self._suspects: dict[EntryKey, None] = {}
        self._suspect_parts: dict[EntryKey, None] = {}
        self._suspecting = False
        self._lost = False
        self._mixed = False
        self._echoes: dict[EntryKey, None] = {}
        self._stale_echoes: dict[EntryKey, None] = {}
        self._expecting = 0  # calls of `forget_echoes` until none is expected any more

    def __len__(self) -> int:
        """Entries that the next flush would name."""
        return len(self._whole) + len(self._dirty) + self._cumulative_due

    def add_whole(self, key: EntryKey, *, redelivered: bool = False) -> None:
        """The entry is done.

        Args:
            key: Which.
            redelivered: It may be on its way here once more (a request to redeliver it, or a
                reconnect, overtakes the ack), and then has to be recognised.
        """
        self._whole[key] = None
        if redelivered and self._suspecting:
            self._suspects[key] = None
        elif redelivered:
            self._echoes[key] = None

    def add_part(self, entry: Entry) -> None:
        if not entry.dirty:
            entry.dirty = True
            self._dirty[entry] = None

    def drop_part(self, entry: Entry) -> None:
        """The entry is done: one ack of the whole says it, and no part is to be sent or counted."""
        if entry.dirty:
            entry.dirty = False
            self._dirty.pop(entry, None)

    def advance(self, key: EntryKey, size: int, mask: int) -> bool:
        """Ack everything up to `key`; False when that was acked cumulatively before."""
        last = self._cumulative
        if last is not None and key <= last.key:
            if key < last.key or last.mask == -1:
                return False
            if mask != -1:
                mask &= last.mask
                if mask == last.mask:
                    return False
        self._cumulative = Cumulative(key, size, mask)
        self._cumulative_due = True
        return True

    @property
    def expects_echoes(self) -> bool:
        """Whether what arrives now may come once more: a rewind was asked for, or copies from
        before and after a reconnect are mixed."""
        return self._expecting > 0 or self._mixed

    def covers(self, key: EntryKey) -> bool:
        """True when the entry is acked, that may not have arrived, and so it may come again.

        Acks sent long ago do not count: an entry that comes again after those was rewound on
        purpose (an operator's cursor reset), and swallowing it would lose it.
        """
        if key in self._whole or key in self._echoes or key in self._stale_echoes:
            return True
        if self._suspecting and key in self._suspects:
            return True
        if self._cumulative is None:
            return False
        last = self._doubtful_position(key)
        return last is not None and (key < last.key or last.mask == -1)

    def _doubtful_position(self, key: EntryKey) -> Cumulative | None:
        """The cumulative ack that covers `key`, all of it or in part, and may not have arrived."""
        last = self._cumulative
        if last is None or key > last.key:
            return None
        if not (self._cumulative_due or self._suspecting or self._expecting):
            return None
        certain = self._certain
        if certain is not None and (
            key < certain.key or certain == last or (key == certain.key and certain.mask == -1)
        ):
            return None
        return last

    def retract(self, key: EntryKey) -> None:
        """An entry came that nothing in doubt covers: a position past it was taken back.

        By an operator's cursor reset; acks from there on are news to the broker.
        """
        last = self._cumulative
        if last is not None and (key < last.key or (key == last.key and last.mask == -1)):
            self._cumulative = self._certain = None
            self._cumulative_due = False
            self._positions.clear()

    def remaining_of(self, key: EntryKey) -> int:
        """The indexes that a cumulative ack inside this entry left unacked, as a mask; -1: all."""
        last = self._doubtful_position(key)
        return last.mask if last is not None and last.key == key else -1

    def take(self, now_ms: int, most: int = sys.maxsize) -> Unsent:
        """What there is to send, `most` entries of it; what the transport then refuses goes back by
        `put_back`."""
        cumulative = self._cumulative if self._cumulative_due else None
        whole = list(islice(self._whole, most))
        parts = list(islice(self._dirty, most - len(whole)))
        if len(whole) + len(parts) == len(self._whole) + len(self._dirty):
            self._whole.clear()
            self._dirty.clear()
        for key in whole if self._whole else ():
            del self._whole[key]
        for entry in parts if self._dirty else ():
            del self._dirty[entry]
        for entry in parts:
            entry.dirty = False
        self._cumulative_due = False
        if self._lost:  # connected again, though not told yet: these may be on their way here
            _add(self._suspects, whole)
            _add(self._suspect_parts, [entry.key for entry in parts])
        if whole:
            self._remember(now_ms, whole)
        if parts and not self._lost:
            sent = self._sent_parts
            sent.append((now_ms, [entry.key for entry in parts]))
            while sent[0][0] < now_ms - UNCERTAIN_MS:
                sent.popleft()
        if cumulative is not None:
            self._grow_certain(now_ms)
            if self._lost:  # all that is sent until the reconnect is sent once more by the last
                self._positions.clear()
            self._positions.append((now_ms, cumulative))
        return Unsent(cumulative, whole, parts)

    def _grow_certain(self, now_ms: int) -> None:
        """Positions sent long enough ago, with the connection still there, have arrived."""
        positions = self._positions
        while not self._lost and positions and positions[0][0] < now_ms - UNCERTAIN_MS:
            self._certain = positions.popleft()[1]

    def put_back(self, unsent: Unsent) -> None:
        self._whole.update(dict.fromkeys(unsent.whole))
        for entry in unsent.parts:
            self.add_part(entry)
        if unsent.cumulative is not None:
            self._cumulative_due = True
            self._positions.pop()  # as `take` put it there

    def _remember(self, now_ms: int, keys: list[EntryKey]) -> None:
        sent = self._sent
        sent.append((now_ms, keys))
        self._sent_count += len(keys)
        while sent and (sent[0][0] < now_ms - UNCERTAIN_MS or self._sent_count > _MAX_UNCERTAIN):
            self._sent_count -= len(sent.popleft()[1])

    def disconnected(self, now_ms: int) -> None:
        """What was sent in the last moments becomes suspect."""
        self._grow_certain(now_ms)
        self._suspecting = self._lost = True
        for at, keys in self._sent:
            if at >= now_ms - UNCERTAIN_MS:
                _add(self._suspects, keys)
        for _, keys in self._sent_parts:
            _add(self._suspect_parts, keys)
        self._sent_parts.clear()
        self._sent.clear()
        self._sent_count = 0

    def doubtful(self, now_ms: int) -> None:
        """Perhaps this source was disconnected, perhaps not; what it has queued stays."""
        self.disconnected(now_ms)
        self._mixed = True

    def pop_uncertain_parts(self) -> list[EntryKey]:
        """Entries of which a part was acked in the last moments before a loss, or since."""
        keys = [*self._suspect_parts, *(key for _, sent in self._sent_parts for key in sent)]
        self._suspect_parts.clear()
        self._sent_parts.clear()
        return keys

    def reconnected(self, unfinished: Iterable[Entry]) -> None:
        """Make due again: suspects, a doubtful position, the sets of unfinished entries.

        What is due now, or was sent since the loss, may already be on its way here again, so it
        stays suspect when it is sent.
        """
        self._suspecting, self._lost = True, False
        self._expecting = 2  # a copy that is queued somewhere may come beside the new one
        for _, keys in self._sent:
            _add(self._suspects, keys)
        self._whole.update(self._suspects)
        _add(self._suspects, self._whole)
        if self._positions:
            self._cumulative_due = True
            self._positions.clear()
        for entry in unfinished:
            if entry.unacked < entry.size:
                self.add_part(entry)

    @property
    def in_doubt(self) -> int:
        """Entries whose ack was sent and may be lost with the connection that is away now."""
        if not self._lost:
            return 0
        return len(self._suspects) + len(self._suspect_parts) + len(self._positions)

    def trust(self) -> None:
        """Long enough after a reconnect: what comes now is not a leftover of the loss.

        Unless the connection is away again: then what is suspect has yet to be sent once more.
        """
        if not self._lost:
            self._suspecting = self._mixed = False
            self._suspects.clear()

    def expect_echoes(self) -> None:
        """A rewind is about to be asked for, and may overtake the acks of the last moments."""
        self._expecting = 2
        self._echoes.update(self._whole)
        for _, keys in self._sent:
            self._echoes.update(dict.fromkeys(keys))

    def forget_echoes(self) -> bool:
        """Called every few seconds: forgets those of the time before; False when none are left."""
        self._stale_echoes, self._echoes = self._echoes, {}
        self._expecting = max(0, self._expecting - 1)
        return bool(self._stale_echoes) or self._expecting > 0

    def clear(self) -> None:
        """After a seek: what was acked may rightly come again."""
        for entry in self._dirty:
            entry.dirty = False
        self._whole.clear()
        self._dirty.clear()
        self._sent.clear()
        self._sent_count = 0
        self._sent_parts.clear()
        self._cumulative = self._certain = None
        self._cumulative_due = False
        self._positions.clear()
        self._expecting = 0
        self._echoes.clear()
        self._stale_echoes.clear()
        self._suspecting = self._mixed = False
        self._suspects.clear()
        self._suspect_parts.clear()


def _add(suspects: dict[EntryKey, None], keys: Iterable[EntryKey]) -> None:
    """Remember more, within bounds: the oldest are forgotten first."""
    suspects.update(dict.fromkeys(keys))
    for oldest in list(islice(suspects, max(0, len(suspects) - _MAX_UNCERTAIN))):
        del suspects[oldest]
