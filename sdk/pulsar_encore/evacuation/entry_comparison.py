"""Whether the entries that a topic has are those that a state directory knows.

Owns `Comparison`. Ids begin again in another cluster and in a topic that was made again, so a
directory that meets one names other messages. Pure: reads nothing and lets go of nothing.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from ..errors import StateMismatchError
from ..state.rocks import MOST_DIFFERENT

P = TypeVar("P")


class Comparison(Generic[P]):
    """The comparison of one topic's entries with their records.

    Until one entry is the one that its record was written for, nothing of the topic may be acked,
    moved or let go of. With the wrong cluster all entries are others, or are not there.

    Args:
        topic: Full name.
        count: Entries whose records have a fingerprint; they are read first.

    Attributes:
        sure: One entry was the one of its record, or has a record without a fingerprint.
    """

    def __init__(self, topic: str, count: int) -> None:
        self._topic = topic
        self._remaining = count
        self.sure: bool = False
        self._others = 0
        self._undecided: list[tuple[P, str]] = []

    def same(self) -> list[tuple[P, str]]:
        """Take note of an entry that is the one of its record.

        Returns:
            What can be let go of now, with the reason.
        """
        self._remaining -= 1
        self.sure = True
        return self._take_undecided()

    def missing(self, entry: P, reason: str, *, other: bool) -> list[tuple[P, str]]:
        """Take note of an entry that is not there; returns as `same` does.

        Args:
            part: What waits of it.
            reason: Why it is not there.
            other: Its id is that of another one.

        Raises:
            StateMismatchError: All entries that were compared are others.
        """
        self._remaining -= 1
        self._others += other
        self._undecided.append((entry, reason))
        if (
            not self.sure
            and self._others
            and (self._others == MOST_DIFFERENT or self._remaining <= 0)
        ):
            raise StateMismatchError(
                f"the state is of another cluster, or {self._topic} was deleted and made again: "
                f"all messages that were compared ({self._others}) differ from those that wait. "
                "Nothing of this topic was acked or moved, and the state is unchanged. Pass the "
                "service URL of the cluster that the state belongs to; to go on with other topics, "
                "name them one by one"
            )
        return self._take_undecided()

    def undecided(self) -> list[P]:
        """Return the entries that were not there, while no entry showed the right cluster."""
        return [entry for entry, _ in self._undecided]

    def _take_undecided(self) -> list[tuple[P, str]]:
        if not self.sure:
            return []
        released = self._undecided
        self._undecided = []
        return released
