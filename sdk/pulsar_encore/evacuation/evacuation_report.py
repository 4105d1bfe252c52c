"""Reports of evacuations."""

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
        message_id: `ledger:entry:partition`, and `:index` in a batch.
        reason: Why it was not moved.
    """

    topic: str
    message_id: str
    reason: str


@dataclass(kw_only=True, slots=True)
class EvacuationReport:
    """Counts of one evacuation, and the first 100 messages that were not moved.

    Attributes:
        waiting: Selected messages that waited at the start.
        moved: Messages that were copied to a retry letter topic, acked, and removed from the state.
        gone: Messages that their topic no longer has. They were removed from the state.
        refused: Messages that were not copied. They stay in their topic and in the state.
        targets: Moved messages by retry letter topic.
        missing: The first of the `gone` messages.
        refusals: The first of the `refused` messages.
        reasons: Number of refused messages by reason.
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
        """Messages that are still in the state."""
        return max(0, self.waiting - self.moved - self.gone)

    def move(self, target: str, count: int) -> None:
        self.moved += count
        self.targets[target] = self.targets.get(target, 0) + count

    def lose(self, topic: str, ids: Iterable[str], reason: str) -> None:
        for each in ids:
            self.gone += 1
            if len(self.missing) < MAX_NAMED:
                self.missing.append(NotMoved(topic=topic, message_id=each, reason=reason))

    def refuse(self, topic: str, ids: Iterable[str], reason: str) -> None:
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
        report: The messages that were moved before.
    """

    __module__ = "pulsar_encore.evacuation"

    def __init__(self, message: str, report: EvacuationReport) -> None:
        super().__init__(message)
        self.report: EvacuationReport = report
