"""Batch messages at their last attempt: dead-lettered when that fails without a negative ack.

Owns `LastAttempts`. A negative ack by message hands the payload in; an ack timeout, a negative ack
by id and `redeliver_unacknowledged_messages` name a message only. Its payload is kept here, so that
the consumer that made the last attempt writes the dead letter. The broker cannot be asked for the
message instead: it would go to any consumer, and that consumer cannot tell it from a sibling that
nobody tried, so it would have to hand it out once more. The number of attempts would then grow with
the number of consumers. A message that is an entry of its own needs none of this, because the
broker's redelivery count is its own.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from ...core.entry import HELD, QUEUED, Entry
from ...core.topic_state import TopicState
from ...core.verdicts import Verdicts
from ...letters.evidence import evidence_of
from ...message import Held, Message, RawMessage
from .forwarder import Forwarder

# Payloads that are kept, in bytes. The message of a payload that was let go is redelivered instead.
MOST_BYTES: Final = 16 * 2**20
# Beside its payload.
_OVERHEAD: Final = 500


class LastAttempts:
    """Payloads of the batch messages of one consumer that may not fail any more.

    Args:
        verdicts: The rules.
        forwarder: Writes dead letters.
        schema: Of the subscription.
    """

    def __init__(self, verdicts: Verdicts, forwarder: Forwarder, schema: Any) -> None:
        self._verdicts = verdicts
        self._forwarder = forwarder
        self._schema = schema
        self._kept: OrderedDict[tuple[Entry, int], RawMessage] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        """Payloads that are kept."""
        return len(self._kept)

    def keep(self, entry: Entry, index: int, raw: RawMessage, failed: int) -> None:
        """Keep the payload of a message that was queued, if the next attempt is its last.

        Args:
            entry: The record of its batch.
            index: Its place in there.
            raw: The payload.
            failed: Attempts at it that failed.
        """
        if entry.size == 1 or not self._verdicts.is_last(failed):
            return
        self._drop((entry, index))
        self._kept[entry, index] = raw
        self._bytes += raw.length() + _OVERHEAD
        # Acked messages are not removed at once. They are dropped when they become the oldest.
        while self._kept:
            (oldest, at), _ = key, _ = next(iter(self._kept.items()))
            if self._bytes <= MOST_BYTES and oldest.live and oldest.state[at] in (QUEUED, HELD):
                break
            self._drop(key)

    def failed(self, entry: Entry, index: int, reason: str) -> bool:
        """Dead-letter a message that failed and is known by id only, if this was its last attempt.

        Args:
            entry: The record of its entry.
            index: Its place in there.
            reason: How it failed, for the evidence.

        Returns:
            Whether a dead letter is written of it; otherwise it has to be redelivered.
        """
        raw = self._kept.get((entry, index))
        if raw is None or not entry.live or entry.state[index] != HELD:
            return False
        state: TopicState = entry.source
        failed = state.attempts.count(entry, index)
        if not self._verdicts.is_last(failed):
            return False
        self._drop((entry, index))
        number = entry.hand_over_number(index)
        message = Message(raw, self._schema, entry, index, failed, number)
        held = Held(entry, index, failed, number)
        self._forwarder.dead_letter(message, held, evidence_of(None, reason), reason)
        return True

    def all_failed(self, state: TopicState, reason: str) -> None:
        """All messages of a source that the application holds failed.

        Args:
            state: The source.
            reason: How they failed, for the evidence.
        """
        for entry, index in list(self._kept):
            if entry.source is state:
                self.failed(entry, index, reason)

    def _drop(self, key: tuple[Entry, int]) -> None:
        raw = self._kept.pop(key, None)
        if raw is not None:
            self._bytes -= raw.length() + _OVERHEAD
