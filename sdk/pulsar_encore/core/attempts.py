"""Looks at messages that came back, kept here because the broker forgets its count.

A partial ack, an unload, a restart and the last consumer leaving all set the broker's redelivery
count back to 0 (consumer-semantics notes 3.8), so a poison message might never reach the
dead-letter topic. Owns `Attempts`, one per source; bounded, the oldest are forgotten first (the
broker's count is left).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..evidence import Evidence
from .due import MessageKey

# Twice the broker's unacked window: more cannot wait here at once, unless both were raised.
LIMIT: Final = 100_000


class Attempt(NamedTuple):
    """Failed looks at one message, when the first was, and what the last failure said."""

    looks: int
    first_ms: int
    evidence: Evidence | None


class Attempts(dict[MessageKey, Attempt]):
    """Failed looks by message key. An ordinary dict, oldest first, with two rules on top."""

    def failed(self, key: MessageKey, wall_now: int, evidence: Evidence | None) -> None:
        """One more look at the message failed."""
        before = self.pop(key, None)
        if before is None:
            self[key] = Attempt(1, wall_now, evidence)
            if len(self) > LIMIT:
                del self[next(iter(self))]
        else:
            self[key] = Attempt(before.looks + 1, before.first_ms, evidence or before.evidence)

    def count(self, key: MessageKey) -> int:
        attempt = self.get(key)
        return 0 if attempt is None else attempt.looks
