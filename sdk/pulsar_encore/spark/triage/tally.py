"""Groups of letters by hour, added up over the micro-batches of a run.

Owns `HourGroup` and `HourlyTally`. Pure and bounded: a topic with a new fingerprint on every letter
cannot fill the driver's memory, the groups beyond a number are counted as one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ...deadletters.letter_groups import MOST_GROUPS

OTHERS: Final = "(others)"


@dataclass(slots=True, kw_only=True)
class HourGroup:
    """Letters with one fingerprint that died on one topic in one hour.

    Attributes:
        fingerprint: "-" for letters without evidence; "(others)" where there are too many groups.
        real_topic: Full name; "" when they do not say.
        hour_ms: When the hour began, ms since the epoch; None for the others.
        count: How many.
        again: How many of them had been replayed before and died again.
        first_ms, last_ms: When the first and the last was written, ms since the epoch.
        error_class, error_message: Of the last one.
        sample_id: The last one's id, for `pulsar-encore dlq show`.
        dead_topic: The topic that one is on, of a partition its own name.
    """

    fingerprint: str
    real_topic: str
    hour_ms: int | None
    count: int = 0
    again: int = 0
    first_ms: int = 0
    last_ms: int = 0
    error_class: str = ""
    error_message: str = ""
    sample_id: str = ""
    dead_topic: str = ""

    def add(self, other: HourGroup) -> None:
        """Count another group's letters in this one."""
        if not self.count or other.first_ms < self.first_ms:
            self.first_ms = other.first_ms
        if not self.count or other.last_ms >= self.last_ms:
            self.last_ms = other.last_ms
            self.error_class = other.error_class
            self.error_message = other.error_message
            self.sample_id = other.sample_id
            self.dead_topic = other.dead_topic
        self.count += other.count
        self.again += other.again


class HourlyTally:
    """Adds groups up.

    Args:
        most: Groups kept apart; letters of further ones are counted under "(others)".
    """

    def __init__(self, most: int = MOST_GROUPS) -> None:
        self.most: int = most
        self._groups: dict[tuple[str, str, int | None], HourGroup] = {}
        self._others = HourGroup(fingerprint=OTHERS, real_topic=OTHERS, hour_ms=None)

    def add(self, groups: Iterable[HourGroup], unlisted: int = 0) -> None:
        """Count the groups of a batch.

        Args:
            groups: Those that were listed, at most `most`.
            unlisted: Letters in groups that were not.
        """
        for group in groups:
            key = (group.fingerprint, group.real_topic, group.hour_ms)
            found = self._groups.get(key)
            if found is None and len(self._groups) < self.most:
                found = self._groups[key] = HourGroup(
                    fingerprint=group.fingerprint,
                    real_topic=group.real_topic,
                    hour_ms=group.hour_ms,
                )
            (found or self._others).add(group)
        self._others.count += unlisted

    def result(self) -> list[HourGroup]:
        """The groups, largest first; of equal ones the older first."""
        found = [*self._groups.values(), *([self._others] if self._others.count else [])]
        return sorted(
            found,
            key=lambda each: (-each.count, each.hour_ms or 0, each.fingerprint, each.real_topic),
        )
