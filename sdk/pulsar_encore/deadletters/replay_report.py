"""Reports of dead letter replays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MAX_REFUSALS: Final = 100  # refusals that are kept with their reason; all are counted
_MAX_REASONS: Final = 100  # distinct reasons that are counted


@dataclass(frozen=True, slots=True)
class RefusedLetter:
    """A selected letter that was not sent and stays on the subscription."""

    letter_id: str
    reason: str


@dataclass(slots=True)
class ReplayReport:
    """Counts of one replay. The progress callback gets this object while the replay runs.

    Attributes:
        replay_id: Written on every message that was sent.
        dry_run: True if nothing was sent, and `selected` counts the letters that would be.
        selected: Letters to be sent, without refused ones.
        replayed: Letters that are acked, with a stored copy at the target.
        passed: Letters that were read and not selected. They stay on the subscription.
        targets: Selected letters by target topic.
        refused: Selected letters that were not sent. They stay on the subscription. If a send timed
            out, the copy may be stored nevertheless.
        refusals: The first 100 refused letters, with reasons.
        reasons: Number of refused letters by reason, for the first 100 reasons.
        reached_end: True if the last letter of the topic was seen. False if the limit came first,
            or if the last letters had been replayed before and no more arrived.
        at_limit: True if the replay stopped at its `limit`. There may be more letters.
        missing: Requested ids for which no letter was seen: the letter does not exist, or was
            replayed before on the subscription. Empty if the limit came first.
        doubtful: Selected letters with unknown outcome: their copies were in flight at the end.
    """

    replay_id: str
    dry_run: bool = False
    selected: int = 0
    replayed: int = 0
    passed: int = 0
    targets: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    refusals: list[RefusedLetter] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    reached_end: bool = False
    at_limit: bool = False
    missing: list[str] = field(default_factory=list)
    doubtful: int = 0

    def refuse(self, letter_id: str, reason: str) -> None:
        self.refused += 1
        if len(self.refusals) < MAX_REFUSALS:
            self.refusals.append(RefusedLetter(letter_id, reason))
        if reason in self.reasons or len(self.reasons) < _MAX_REASONS:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def select(self, target: str) -> None:
        self.selected += 1
        self.targets[target] = self.targets.get(target, 0) + 1

    def unselect(self, target: str) -> None:
        """Undo `select`: the letter could not be sent."""
        self.selected -= 1
        self.targets[target] -= 1
        if not self.targets[target]:
            del self.targets[target]
