"""What a replay did so far, and in the end. Values; no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

MOST_REFUSALS: Final = 100  # kept with their reasons; all are counted
_MAX_REASONS: Final = 100  # counted each


@dataclass(frozen=True, slots=True)
class RefusedLetter:
    """A selected letter that was not sent and stays where it is."""

    letter_id: str
    reason: str


@dataclass(slots=True)
class ReplayReport:
    """Counts of one replay; its callback gets the same object while it runs.

    Attributes:
        replay_id: Written on every message sent.
        dry_run: Nothing was sent; `selected` would have been.
        selected: Letters to be sent, refused ones aside.
        replayed: Letters persisted at their target and acked.
        passed: Letters looked at and not selected; they stay.
        targets: Selected letters by the topic they go to.
        refused: Letters that were chosen and not sent; they stay. Of one whose sending timed out
            the copy may be there all the same.
        refusals: The first 100 of those, with reasons.
        reasons: How many were refused for each reason; the first 100 reasons.
        reached_end: The topic's last letter was seen. False when the limit came first, or when the
            last letters had been replayed before and nothing more came.
        at_limit: It stopped at its `limit`; there may be more.
        missing: Ids asked for of which no letter was met: there is none, or it was replayed before
            under the subscription. Empty when the limit came first.
        doubtful: Selected letters whose sending had begun and whose outcome is not known.
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
        """Count a letter that stays, and keep its reason while there is room."""
        self.refused += 1
        if len(self.refusals) < MOST_REFUSALS:
            self.refusals.append(RefusedLetter(letter_id, reason))
        if reason in self.reasons or len(self.reasons) < _MAX_REASONS:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def select(self, target: str) -> None:
        """Count a letter that goes to `target`."""
        self.selected += 1
        self.targets[target] = self.targets.get(target, 0) + 1

    def unselect(self, target: str) -> None:
        """It could not be sent after all."""
        self.selected -= 1
        self.targets[target] -= 1
        if not self.targets[target]:
            del self.targets[target]
