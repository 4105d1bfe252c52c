"""A message on its way out, whoever wrote it and whichever transport takes it. A value; no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """A message to publish; None means absent. `payload` None is a tombstone."""

    payload: bytes | None
    properties: dict[str, str] | None = None
    partition_key: str | None = None
    ordering_key: str | None = None
    sequence_id: int | None = None
    replication_clusters: list[str] | None = None
    disable_replication: bool = False
    event_timestamp: int | None = None
    deliver_at: int | None = None
