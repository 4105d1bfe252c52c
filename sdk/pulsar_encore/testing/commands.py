"""What the transport in memory records and delivers: commands, messages, stored entries.

Owns `Command`, `MemoryMessage` (a `RawMessage`) and `StoredEntry`, the log entry that holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..devbroker.rules.topic_log import LogEntry


@dataclass(frozen=True, slots=True)
class Command:
    """One command as it went over the seam.

    Attributes:
        name: The protocol's type name: ACK, REDELIVER_UNACKNOWLEDGED_MESSAGES, MESSAGE, FLOW ...
        at_ms: The loop's clock.
        topic: Full name.
        subscription: "" where there is none.
        details: For ACK an `AckPlan`; for REDELIVER a list of (ledger, entry), empty for all; for
            MESSAGE a `Delivery`; for FLOW the number of permits.
    """

    name: str
    at_ms: int
    topic: str
    subscription: str
    details: Any = None


@dataclass(slots=True, eq=False)
class MemoryMessage:
    """One stored message; the methods are `RawMessage`'s."""

    payload: bytes | None
    topic: str = ""
    producer: str = ""
    publish_ms: int = 0
    event_ms: int = 0
    key: str = ""
    ordering: str = ""
    attributes: dict[str, str] = field(default_factory=dict)

    def data(self) -> bytes:
        return self.payload or b""

    def length(self) -> int:
        return len(self.payload or b"")

    def properties(self) -> dict[str, str]:
        return dict(self.attributes)

    def partition_key(self) -> str:
        return self.key

    def ordering_key(self) -> str:
        return self.ordering

    def publish_timestamp(self) -> int:
        return self.publish_ms

    def event_timestamp(self) -> int:
        return self.event_ms

    def topic_name(self) -> str:
        return self.topic

    def schema_version(self) -> str:
        return ""

    def int_schema_version(self) -> int:
        return -1

    def producer_name(self) -> str:
        return self.producer

    def has_null_value(self) -> bool:
        return self.payload is None

    def encryption_context(self) -> Any:
        return None


@dataclass(slots=True, eq=False)
class StoredEntry(LogEntry):
    """An entry of the log, with its messages instead of bytes.

    Attributes:
        content: Its messages; none in a chunk that is not the last.
        chunks: (chunk number, how many) of a chunked message.
    """

    content: Sequence[MemoryMessage] = ()
    chunks: tuple[int, int] | None = None
