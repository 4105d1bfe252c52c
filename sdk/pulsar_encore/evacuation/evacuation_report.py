"""The report of an evacuation: counts, and the first messages that were not moved, by id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ..errors import EncoreError

MAX_NAMED: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class NotMoved:
    """A message that was not moved.

    Attributes:
        topic: Full name of its topic, of the partition if any.
        message_id: `ledger:entry:partition`, in a batch `:index` behind it.
        reason: Why.
    """

    topic: str
    message_id: str
    reason: str


@dataclass(kw_only=True, slots=True)
class EvacuationReport:
    """
    Attributes:
        waiting: Messages that waited when it began, of what was asked for.
        moved: Copied to a retry-letter topic, acked where they were, and let go of by the state.
        gone: In their topic no more; let go of by the state.
        refused: Not copied; they stay where they are, and in the state.
        targets: Messages moved, by retry-letter topic.
        missing: The first of those that are gone.
        refusals: The first of those that were refused.
        reasons: Why messages were refused, and how many for each reason.
    """

    waiting: int = 0
    moved: int = 0
    gone: int = 0
    refused: int = 0
    targets: dict[str, int] = field(default_factory=dict)
    missing: list[NotMoved] = field(default_factory=list)
    refusals: list[NotMoved] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Messages that the state still has."""
        return max(0, self.waiting - self.moved - self.gone)

    def move(self, target: str, count: int) -> None:
        """So many are moved."""
        self.moved += count
        self.targets[target] = self.targets.get(target, 0) + count

    def lose(self, topic: str, ids: Iterable[str], reason: str) -> None:
        """These are in their topic no more."""
        for each in ids:
            self.gone += 1
            if len(self.missing) < MAX_NAMED:
                self.missing.append(NotMoved(topic=topic, message_id=each, reason=reason))

    def refuse(self, topic: str, ids: Iterable[str], reason: str) -> None:
        """These stay."""
        count = 0
        for each in ids:
            count += 1
            if len(self.refusals) < MAX_NAMED:
                self.refusals.append(NotMoved(topic=topic, message_id=each, reason=reason))
        self.refused += count
        if reason in self.reasons or len(self.reasons) < MAX_NAMED:
            self.reasons[reason] = self.reasons.get(reason, 0) + count


class EvacuationStoppedError(EncoreError):
    """The cluster was lost or the client was closed. Another run moves the remaining messages.

    Attributes:
        report: What was moved before.
    """

    def __init__(self, message: str, report: EvacuationReport) -> None:
        super().__init__(message)
        self.report: EvacuationReport = report
