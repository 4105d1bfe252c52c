"""Sums of groups of letters by hour, over the micro-batches of a run.

The number of groups is limited: a topic with a new fingerprint on every letter would fill the
driver's memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ...deadletters.letter_groups import MAX_GROUPS

OTHERS: Final = "(others)"


@dataclass(slots=True, kw_only=True)
class HourGroup:
    """Letters with one fingerprint that failed on one topic in one hour.

    Attributes:
        fingerprint: "-" for letters without evidence; "(others)" for the groups above the limit.
        real_topic: Full name; "" if the letters do not tell.
        hour_ms: Start of the hour, in ms since the epoch; None for "(others)".
        count: Number of letters.
        again: Number of letters that were replayed before and failed again.
        first_ms, last_ms: When the first and the last letter was written, in ms since the epoch.
        error_class, error_message: From the last letter.
        sample_id: Id of the last letter, for `pulsar-encore dlq show`.
        dead_topic: Topic of the last letter, with its partition.
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
    """Adds groups. Beyond `max_groups` groups, letters count as "(others)"."""

    def __init__(self, max_groups: int = MAX_GROUPS) -> None:
        self.max_groups: int = max_groups
        self._groups: dict[tuple[str, str, int | None], HourGroup] = {}
        self._others = HourGroup(fingerprint=OTHERS, real_topic=OTHERS, hour_ms=None)

    def add(self, groups: Iterable[HourGroup], unlisted: int = 0) -> None:
        """Add the groups of a batch; `unlisted` counts letters in further groups."""
        for group in groups:
            key = (group.fingerprint, group.real_topic, group.hour_ms)
            found = self._groups.get(key)
            if found is None and len(self._groups) < self.max_groups:
                found = self._groups[key] = HourGroup(
                    fingerprint=group.fingerprint,
                    real_topic=group.real_topic,
                    hour_ms=group.hour_ms,
                )
            (found or self._others).add(group)
        self._others.count += unlisted

    def result(self) -> list[HourGroup]:
        found = [*self._groups.values(), *([self._others] if self._others.count else [])]
        return sorted(
            found,
            key=lambda each: (-each.count, each.hour_ms or 0, each.fingerprint, each.real_topic),
        )
