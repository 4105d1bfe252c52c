"""Tells durable state what happens to the messages of one topic.

Without durable state, `Observer` is the null object. The path of a plain message calls neither
class: the topic state reads one flag for each entry (`durable` on arrival, `special` on an ack).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from .attempts import Attempts
from .due_index import DueIndex
from .durable import Durable, Recall
from .entry import Entry, EntryKey
from .fingerprint import NO_FINGERPRINT, Identified, fingerprint_of
from .message_key import MessageKey
from .message_states import FORWARDING, HELD

_LAST: Final = (1 << 63) - 1


class Observer:
    """Follows the messages of one topic, and remembers nothing.

    Methods that return a bool return True if acks have to be reported from now on.
    """

    @property
    def has_records(self) -> bool:
        """True if a message of the topic may have a record, also one of another consumer."""
        return False

    # Arrival

    def knows(self, key: EntryKey) -> bool:
        return False

    def arrived(
        self, key: EntryKey, source: Identified | int
    ) -> tuple[Identified | int, Recall | None]:
        """Return the fingerprint of an entry, and its records; None for those of another entry."""
        return source, None

    def recall_attempts(self, key: EntryKey) -> int:
        return 0

    # Acks

    def acked(self, entry: Entry, index: int, before: int) -> None:
        """Note the ack of a message whose state was `before`."""

    def acked_entry(self, key: EntryKey) -> None:
        """Note the ack of a whole entry."""

    def acked_through(self, key: EntryKey) -> None:
        """Note the ack of everything up to an entry."""

    # Waiting

    def note_wait(
        self, entry: Entry, index: int, due_ms: int, bits: int, failed: bool = False
    ) -> bool:
        """Note that a message waits until `due_ms`; `failed` if an attempt ends with that."""
        return False

    def note_wait_unseen(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        return False

    def failed_in_place(self, entry: Entry, index: int) -> None:
        """Note the end of an attempt, whose failure is counted already."""

    def leased(self, entry: Entry, index: int, due_ms: int, bits: int, attempt: int) -> bool:
        return False

    def due(self, keys: Iterable[MessageKey]) -> None:
        """Note that the due times of these messages have come."""

    def ends_waiting(self, keys: Iterable[MessageKey]) -> None:
        """Note that these messages wait no longer, though they may not be due."""

    def returned(self, entry: Entry, indexes: Sequence[int]) -> None:
        """Note that held messages were released without a failure."""

    def rewinds(
        self,
        entries: Iterable[Entry],
        nacks: DueIndex,
        held_back: Collection[MessageKey],
        shared: bool,
    ) -> bool:
        """Note that everything is about to be released; takes everything out of `nacks`."""
        return False

    def one_write(self) -> AbstractContextManager[object]:
        return nullcontext()

    def cleared(self) -> None:
        """Note a seek: nothing from before counts."""


class DurableObserver(Observer):
    def __init__(self, durable: Durable, attempts: Attempts) -> None:
        self._durable = durable
        self._attempts = attempts

    @property
    def has_records(self) -> bool:
        return bool(self._durable) or self._durable.is_shared

    def knows(self, key: EntryKey) -> bool:
        return self._durable.has_record(key)

    def arrived(
        self, key: EntryKey, source: Identified | int
    ) -> tuple[Identified | int, Recall | None]:
        fingerprint = source if isinstance(source, int) else fingerprint_of(source)
        same = self._durable.compare(key, fingerprint)
        return fingerprint, self._durable.recall(key) if same else None

    def recall_attempts(self, key: EntryKey) -> int:
        return self._durable.recall(key).attempts.get(0, 0)

    def acked(self, entry: Entry, index: int, before: int) -> None:
        mask = 1 << index if entry.unacked else None
        if before == FORWARDING:
            self._durable.record_dead_lettered(entry.key, 1 << index, mask is None)
        else:
            self._durable.record_ack(entry.key, mask)

    def acked_entry(self, key: EntryKey) -> None:
        self._durable.record_ack(key)

    def acked_through(self, key: EntryKey) -> None:
        self._durable.record_ack_through(key)

    def note_wait(
        self, entry: Entry, index: int, due_ms: int, bits: int, failed: bool = False
    ) -> bool:
        attempts = self._attempts.count_with_current(entry, index) if failed else 0
        key = entry.due_key(index)
        self._durable.record_nack(key, due_ms, bits, attempts, entry.size, entry.fingerprint())
        return True

    def note_wait_unseen(self, key: MessageKey, due_ms: int, bits: int) -> bool:
        self._durable.record_nack(key, due_ms, bits, 0, 1, NO_FINGERPRINT)
        return True

    def failed_in_place(self, entry: Entry, index: int) -> None:
        attempts, key = self._attempts.count(entry, index), entry.due_key(index)
        self._durable.record_failure(key, attempts, entry.size, entry.fingerprint())

    def leased(self, entry: Entry, index: int, due_ms: int, bits: int, attempt: int) -> bool:
        key = entry.due_key(index)
        self._durable.record_lease(key, due_ms, bits, attempt, entry.size, entry.fingerprint())
        return True

    def due(self, keys: Iterable[MessageKey]) -> None:
        if self._durable:
            self._durable.record_due(keys)

    def ends_waiting(self, keys: Iterable[MessageKey]) -> None:
        self._durable.cancel_due_times(keys)

    def returned(self, entry: Entry, indexes: Sequence[int]) -> None:
        counts = {index: self._attempts.count(entry, index) for index in indexes}
        self._durable.record_return(entry.key, counts)

    def rewinds(
        self,
        entries: Iterable[Entry],
        nacks: DueIndex,
        held_back: Collection[MessageKey],
        shared: bool,
    ) -> bool:
        durable = self._durable
        if durable and held_back:
            durable.cancel_due_times(list(held_back))
        if not durable:
            return False
        leased: list[MessageKey] = []
        for entry in entries:
            if not durable:
                break
            held = [index for index, state in enumerate(entry.state) if state == HELD]
            if held and shared:
                leased += map(entry.due_key, held)
            elif held:  # a rewind is no failure: the broker counts nothing there either
                self.returned(entry, held)
        if leased:
            durable.cancel_due_times(leased)
        if durable and len(nacks):
            durable.cancel_due_times(nacks.pop_due(_LAST))
        return True

    def one_write(self) -> AbstractContextManager[object]:
        return self._durable.one_write()

    def cleared(self) -> None:
        self._durable.clear()
