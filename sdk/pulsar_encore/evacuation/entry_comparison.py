"""Compare the entries of a topic with the records of a state directory.

Ledger and entry ids start again in another cluster and in a recreated topic. A state directory from
elsewhere therefore names different messages by the same ids.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from ..errors import StateMismatchError
from ..state.rocks import MAX_DIFFERENT

P = TypeVar("P")


class Comparison(Generic[P]):
    """The comparison of one topic's entries with their records.

    Nothing of the topic may be acked, moved or removed from the state until one entry matches its
    record. In the wrong cluster every entry is missing or different.

    Args:
        count: Number of entries with a fingerprint in their record. They are read first.

    Attributes:
        sure: True if one entry matched its record, or has a record without a fingerprint.
    """

    def __init__(self, topic: str, count: int) -> None:
        self._topic = topic
        self._remaining = count
        self.sure: bool = False
        self._others = 0
        self._undecided: list[tuple[P, str]] = []

    def note_same(self) -> list[tuple[P, str]]:
        """Note an entry that matches its record.

        Returns missing entries that may be removed from the state now, with reasons.
        """
        self._remaining -= 1
        self.sure = True
        return self._take_undecided()

    def note_missing(self, entry: P, reason: str, *, other: bool) -> list[tuple[P, str]]:
        """Note an entry that is missing; return as `note_same` does.

        `other` is True if another entry has its id. Raises StateMismatchError if all compared
        entries are different ones.
        """
        self._remaining -= 1
        self._others += other
        self._undecided.append((entry, reason))
        if (
            not self.sure
            and self._others
            and (self._others == MAX_DIFFERENT or self._remaining <= 0)
        ):
            raise StateMismatchError(
                f"the state belongs to another cluster, or {self._topic} was deleted and "
                f"recreated: all compared messages ({self._others}) differ from the waiting ones. "
                "Nothing of this topic was acked or moved, and the state is unchanged. Pass the "
                "service URL of the cluster that the state belongs to; to go on with other topics, "
                "name them one by one"
            )
        return self._take_undecided()

    def undecided(self) -> list[P]:
        """Return the missing entries; none once an entry has matched its record."""
        return [entry for entry, _ in self._undecided]

    def _take_undecided(self) -> list[tuple[P, str]]:
        if not self.sure:
            return []
        released = self._undecided
        self._undecided = []
        return released
