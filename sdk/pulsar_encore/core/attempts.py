"""Looks at messages that came back, kept here because the broker forgets its count.

A partial ack, an unload, a restart and the last consumer leaving all set the broker's redelivery
count back to 0 (consumer-semantics notes 3.8), so a poison message might never reach the
dead-letter topic. Owns `Attempts`, one per source; bounded twice, by messages and by the bytes of
what their failures said. The oldest are forgotten first: of the first bound the broker's count is
left, of the second our own.
"""

from __future__ import annotations

from collections import OrderedDict
from sys import getsizeof
from typing import Final, NamedTuple

from ..letters.evidence import Evidence
from .due import MessageKey

# Twice the broker's unacked window: more cannot wait here at once, unless both were raised.
LIMIT: Final = 100_000
# Class, message and stack of a failure take up to 20 kB: a hundred thousand would be 2 GB.
EVIDENCE_BYTES: Final = 16 * 2**20


class Attempt(NamedTuple):
    """Failed looks at one message, when the first was, and what the last failure said."""

    looks: int
    first_ms: int
    evidence: Evidence | None


class Attempts:
    """Failed looks by message key, oldest first.

    About 350 bytes a message, so at most 35 MB, and `EVIDENCE_BYTES` more.
    """

    def __init__(self) -> None:
        # Plain dictionaries would walk over all that was forgotten to find the oldest.
        self._attempts: OrderedDict[MessageKey, Attempt] = OrderedDict()
        # Bytes of the evidence, where it has a text.
        self._weights: OrderedDict[MessageKey, int] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._attempts)

    def failed(self, key: MessageKey, wall_now: int, evidence: Evidence | None) -> None:
        """One more look at the message failed."""
        before = self.pop(key, None)
        if before is None:
            attempt = Attempt(1, wall_now, evidence)
            if len(self._attempts) >= LIMIT:
                self.pop(next(iter(self._attempts)), None)
        else:
            attempt = Attempt(before.looks + 1, before.first_ms, evidence or before.evidence)
        self._attempts[key] = attempt
        weight = _weight(attempt.evidence)
        if weight:
            self._weights[key] = weight
            self._weight += weight
            while self._weight > EVIDENCE_BYTES:
                self._forget_evidence(next(iter(self._weights)))

    def _forget_evidence(self, key: MessageKey) -> None:
        self._weight -= self._weights.pop(key)
        self._attempts[key] = self._attempts[key]._replace(evidence=None)

    def get(self, key: MessageKey) -> Attempt | None:
        return self._attempts.get(key)

    def pop(self, key: MessageKey, default: None = None) -> Attempt | None:
        """Forget a message; what was known of it, or None."""
        self._weight -= self._weights.pop(key, 0)
        return self._attempts.pop(key, default)

    def clear(self) -> None:
        self._attempts.clear()
        self._weights.clear()
        self._weight = 0

    def count(self, key: MessageKey) -> int:
        attempt = self.get(key)
        return 0 if attempt is None else attempt.looks


def _weight(evidence: Evidence | None) -> int:
    if evidence is None:
        return 0
    texts = (evidence.error_class, evidence.error_message, evidence.error_stack)
    return sum(getsizeof(text) for text in texts if text)
