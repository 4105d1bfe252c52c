"""The ledgers and cursors of a topic, from its `internalStats`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .answer_fields import named, number, position

_RANGE: Final = re.compile(r"([(\[])(\d+):(-?\d+)\.\.(\d+):(-?\d+)([)\]])")


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """A ledger of a topic; no entry is added once it is `closed`. `size` is in bytes."""

    id: int
    entries: int
    size: int
    closed: bool


@dataclass(frozen=True, slots=True)
class CursorStats:
    """The acks of one durable subscription.

    Attributes:
        acked_through: (ledger, entry) up to which every message is acked; None if not told.
        acked_ranges: Entries after it that are acked whole: (first, last) positions, each
            (ledger, entry), of which the first is excluded and the last included.
        read_position: The next entry that the broker reads for the subscription; None if not told.
    """

    acked_through: tuple[int, int] | None
    acked_ranges: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    read_position: tuple[int, int] | None = None

    def is_acked(self, ledger: int, entry: int) -> bool:
        """Return True if the whole entry is acked. A batch that is acked in part is not."""
        at = (ledger, entry)
        if self.acked_through is not None and at <= self.acked_through:
            return True
        return any(first < at <= last for first, last in self.acked_ranges)


@dataclass(frozen=True, slots=True)
class InternalStats:
    """The stored ledgers in order, the (ledger, entry) of the last entry, and the cursors."""

    ledgers: tuple[LedgerStats, ...]
    last: tuple[int, int]
    cursors: Mapping[str, CursorStats]

    def may_have_had(self, ledger: int, entry: int) -> bool:
        """Return False if the topic never had this entry, which is at or before `last`.

        Ledgers are deleted from the first on. A missing ledger after the first one is another
        topic's, or had no entries.
        """
        for each in self.ledgers:
            if each.id == ledger:
                return not each.closed or entry < each.entries
        return not self.ledgers or ledger < self.ledgers[0].id


def internal_stats(answer: Mapping[str, Any]) -> InternalStats:
    """Parse an answer.

    Raises:
        KeyError, TypeError, ValueError: if it has no ledgers or no last entry.
    """
    listed = [
        (int(each["ledgerId"]), int(each.get("entries", 0)), int(each.get("size", 0)))
        for each in answer["ledgers"]
    ]
    ledgers = []
    for at, (ledger_id, entries, size) in enumerate(sorted(listed)):
        closed = at < len(listed) - 1
        if not closed:  # the list has 0 for the open ledger
            entries = max(entries, number(answer, "currentLedgerEntries"))
            size = max(size, number(answer, "currentLedgerSize"))
        ledgers.append(LedgerStats(ledger_id, entries, size, closed))
    last = position(answer["lastConfirmedEntry"])
    if last is None:
        raise ValueError("lastConfirmedEntry")
    cursors = {name: _cursor(each) for name, each in named(answer, "cursors").items()}
    return InternalStats(tuple(ledgers), last, cursors)


def _cursor(answer: Mapping[str, Any]) -> CursorStats:
    ranges = []
    for opening, *numbers, closing in _RANGE.findall(
        str(answer.get("individuallyDeletedMessages", ""))
    ):
        ledger, entry, last_ledger, last_entry = map(int, numbers)
        first = (ledger, entry - (opening == "["))
        ranges.append((first, (last_ledger, last_entry - (closing == ")"))))
    return CursorStats(
        position(answer.get("markDeletePosition")),
        tuple(ranges),
        position(answer.get("readPosition")),
    )
