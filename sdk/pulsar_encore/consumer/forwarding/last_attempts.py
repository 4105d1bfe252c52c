"""The payloads of batch messages at their last attempt.

An ack timeout, a nack by id and `redeliver_unacknowledged_messages` only name a message, but
dead-lettering needs its payload. A redelivery instead does not work: the broker may send the
message to any consumer, which cannot tell it from a sibling without attempts and would have to
deliver it once more. The number of attempts would grow with the number of consumers. An unbatched
message needs no payload here, because the broker's redelivery count is its own.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from ...core.entry import Entry
from ...core.message_states import HELD, QUEUED
from ...core.nack_verdicts import Verdicts
from ...core.topic_state import TopicState
from ...letters.evidence import evidence_of
from ...message import Held, Message, RawMessage
from .forwarder import Forwarder

# Limit of the kept bytes. Without its payload, a message is redelivered.
MAX_BYTES: Final = 16 * 2**20
# bytes per message in addition to its payload
_OVERHEAD: Final = 500


class LastAttempts:
    def __init__(self, verdicts: Verdicts, forwarder: Forwarder, schema: Any) -> None:
        self._verdicts = verdicts
        self._forwarder = forwarder
        self._schema = schema
        self._kept: OrderedDict[tuple[Entry, int], RawMessage] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, entry: Entry, index: int, raw: RawMessage, failed: int) -> None:
        """Keep the payload of a queued message if its next attempt is the last."""
        if entry.size == 1 or not self._verdicts.is_last(failed):
            return
        self._drop((entry, index))
        self._kept[entry, index] = raw
        self._bytes += raw.length() + _OVERHEAD
        # Settled messages are dropped when they become the oldest.
        while self._kept:
            (oldest, at), _ = key, _ = next(iter(self._kept.items()))
            if self._bytes <= MAX_BYTES and oldest.live and oldest.state[at] in (QUEUED, HELD):
                break
            self._drop(key)

    def dead_letter_if_last(self, entry: Entry, index: int, reason: str) -> bool:
        """Dead-letter a failed message, or return False if it has to be redelivered."""
        raw = self._kept.get((entry, index))
        if raw is None or not entry.live or entry.state[index] != HELD:
            return False
        state: TopicState = entry.topic_state
        failed = state.attempts.count(entry, index)
        if not self._verdicts.is_last(failed):
            return False
        self._drop((entry, index))
        number = entry.delivery_number(index)
        message = Message(raw, self._schema, entry, index, failed, number)
        held = Held(entry, index, failed, number)
        self._forwarder.dead_letter(message, held, evidence_of(None, reason), reason)
        return True

    def fail_all(self, state: TopicState, reason: str) -> None:
        for entry, index in list(self._kept):
            if entry.topic_state is state:
                self.dead_letter_if_last(entry, index, reason)

    def _drop(self, key: tuple[Entry, int]) -> None:
        raw = self._kept.pop(key, None)
        if raw is not None:
            self._bytes -= raw.length() + _OVERHEAD
