"""Stop dead-lettering when every message is rejected. Pure.

After a schema change, or on a wrong topic, a worker would reject a whole backlog in seconds. When
`limit` messages in a row were rejected and none was processed, the cause is more likely the
publisher or the worker than the messages. From then on rejected messages are kept, and one message
each 30 seconds is tried, until one is processed.
"""

from __future__ import annotations

from typing import Final

TRIAL_PAUSE_MS: Final = 30_000


class RejectStreak:
    """Rejected messages in a row.

    Attributes:
        limit: None if there is no limit.
        in_row: Rejections since the last success.
        is_reached: True if only trials may start, and rejected messages are kept.
        due_ms: Earliest start of the next trial, while the limit is reached.
        error: The latest rejection.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit: int | None = limit
        self.in_row: int = 0
        self.is_reached: bool = False
        self.due_ms: int = 0
        self.error: BaseException | None = None

    def rejected(self, error: BaseException, now_ms: int) -> bool:
        """Count a rejection; return True if the message must be kept instead of dead-lettered."""
        self.in_row += 1
        self.error = error
        if self.limit is not None and self.in_row >= self.limit and not self.is_reached:
            self.is_reached = True
            self.due_ms = now_ms + TRIAL_PAUSE_MS
        return self.is_reached

    def succeeded(self) -> None:
        if self.in_row:
            self.in_row = 0
            self.is_reached = False
            self.error = None

    def trial_started(self, now_ms: int) -> None:
        self.due_ms = now_ms + TRIAL_PAUSE_MS
