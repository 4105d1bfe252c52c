"""The result of a triage."""

from __future__ import annotations

from dataclasses import dataclass, field

from .tally import HourGroup


@dataclass(slots=True, kw_only=True)
class TriageReport:
    """Counts of one run.

    Attributes:
        topics: Full names of the dead letter topics.
        missing: Topics among them that do not exist; None if the brokers could not be reached.
        run: Name of the run's folders. With a checkpoint it is the query's id and never changes;
            else each run has its own.
        letters: Failed messages, each counted once per subscription.
        duplicates: Further letters of the same failed messages.
        groups: The letters by fingerprint, real topic and hour; largest first.
        batches: Micro-batches: 1 without a checkpoint, 0 without new letters.
        out: Folder of the Parquet files; None if nothing was stored.
        replay_id: Id written on every message sent; None without a replay.
        dry_run: Nothing was sent; `selected` letters would have been.
        selected: Letters to be sent, without refused ones.
        replayed: Letters stored at their real topics.
        kept: Letters that were not selected.
        refused: Letters that were selected and cannot be sent.
        reasons: Number of refused letters by reason.
    """

    topics: tuple[str, ...]
    run: str = ""
    letters: int = 0
    duplicates: int = 0
    groups: list[HourGroup] = field(default_factory=list)
    batches: int = 0
    out: str | None = None
    replay_id: str | None = None
    dry_run: bool = False
    selected: int = 0
    replayed: int = 0
    kept: int = 0
    refused: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] | None = None
