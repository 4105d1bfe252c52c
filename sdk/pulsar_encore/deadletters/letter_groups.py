"""Count letters by failure and topic.

The number of groups is bounded: each letter could have a new fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .dead_letter import Letter

NO_FINGERPRINT: Final = "-"
"""The fingerprint of letters without evidence, in listings and selections."""

MAX_GROUPS: Final = 10_000
_OTHERS: Final = ("(others)", "(others)")


@dataclass(slots=True)
class LetterGroup:
    """Letters with one fingerprint that failed on one topic.

    Attributes:
        fingerprint: "-" for letters without evidence.
        real_topic: Full name; "" if the letters do not name their topic.
        count: Number of letters.
        again: Number of letters that were replayed before and failed again.
        first_ms, last_ms: Publish times of the first and the last letter, in ms since the epoch.
        error_class, error_message: Failure of the last letter.
        sample_id: Id of the last letter, for `show`.
    """

    fingerprint: str
    real_topic: str
    count: int = 0
    again: int = 0
    first_ms: int = 0
    last_ms: int = 0
    error_class: str = ""
    error_message: str = ""
    sample_id: str = ""

    def add(self, letter: Letter) -> None:
        written = letter.written_ms
        if not self.count or written < self.first_ms:
            self.first_ms = written
        if not self.count or written >= self.last_ms:
            self.last_ms = written
            self.error_class = letter.error_class
            self.error_message = letter.error_message
            self.sample_id = letter.id
        self.count += 1
        self.again += bool(letter.replay_id)


class Grouping:
    """Groups letters. Letters of further groups than `most` are counted under "(others)"."""

    def __init__(self, most: int = MAX_GROUPS) -> None:
        self._max_groups = most
        self._groups: dict[tuple[str, str], LetterGroup] = {}

    def add(self, letter: Letter) -> None:
        key = (letter.fingerprint or NO_FINGERPRINT, letter.real_topic)
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= self._max_groups:
                key = _OTHERS
            group = self._groups.setdefault(key, LetterGroup(*key))
        group.add(letter)

    def result(self) -> list[LetterGroup]:
        """Return the groups, largest first."""
        groups = self._groups.values()
        return sorted(groups, key=lambda each: (-each.count, each.fingerprint, each.real_topic))
