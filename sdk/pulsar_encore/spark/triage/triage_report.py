"""What a triage found and did. A value; no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from .tally import HourGroup


@dataclass(slots=True, kw_only=True)
class TriageReport:
    """Counts of one run.

    Attributes:
        topics: The dead-letter topics, by full name.
        missing: Those of them that do not exist; None where nobody could be asked.
        run: Names the run's folders. With a checkpoint it is the query's id and stays the same,
            else each run has its own.
        letters: Deaths of messages, each counted once; in two subscriptions a message dies twice.
        duplicates: Further letters of the same deaths.
        groups: The letters by fingerprint, real topic and hour; largest first.
        batches: Micro-batches; 1 without a checkpoint, 0 where there was nothing new.
        out: The folder with the Parquet; None where nothing was stored.
        replay_id: Written on every message sent; None where none was to be.
        dry_run: Nothing was sent; `selected` would have been.
        selected: Letters to be sent, refused ones aside.
        replayed: Letters persisted at their real topics.
        kept: Letters that were not selected.
        refused: Letters that were selected and cannot be sent.
        reasons: How many were refused for each reason.
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
