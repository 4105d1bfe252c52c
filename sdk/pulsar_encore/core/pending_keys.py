"""The unacked messages of a topic that were delivered: in flight, nacked, or being forwarded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from itertools import chain, islice
from typing import NamedTuple

from ..letters.evidence import Evidence
from .entry import Entry
from .message_key import MessageKey
from .message_states import FORWARDING, HELD
from .topic_state import TopicState


class PendingKey(NamedTuple):
    """One message.

    Attributes:
        state: The topic of the message.
        entry: Its record; None for a nacked message, which may have none.
        attempt: Number of its latest delivery attempt; None if only the broker knows it.
        due_ms: End of its ack timeout, or due time of its nack, on the loop's clock.
    """

    state: TopicState
    key: MessageKey
    entry: Entry | None
    is_forwarding: bool
    attempt: int | None
    due_ms: int | None
    evidence: Evidence | None


def pending_keys(states: Iterable[TopicState], limit: int) -> list[PendingKey]:
    """Return messages that are held or being forwarded, in order of arrival, then nacked ones.

    Nacked messages that are due first come first. Linear in the result, in the records of entries
    in memory, and in the number of different due times. Each topic with nacked messages can name
    `limit` of them, of which the first due are returned.
    """
    topics = list(states)
    found = list(islice(chain.from_iterable(map(_held, topics)), limit))
    left = limit - len(found)
    if left:
        due = [
            (due_ms, at, key)
            for at, state in enumerate(topics)
            if len(state.nacks)
            for due_ms, key in state.nacks.soonest(left)
        ]
        found += (_nacked(topics[at], key, due_ms) for due_ms, at, key in nsmallest(left, due))
    return found


def _held(state: TopicState) -> Iterator[PendingKey]:
    for entry in state.table.entries.values():
        what = entry.state
        if HELD not in what and FORWARDING not in what:
            continue
        for index, each in enumerate(what):
            if each in (HELD, FORWARDING):
                key = entry.due_key(index)
                yield PendingKey(
                    state,
                    key,
                    entry,
                    each == FORWARDING,
                    state.attempts.count(entry, index) + 1,
                    state.timeouts.due_of(key) if len(state.timeouts) else None,
                    _evidence(state, key),
                )


def _nacked(state: TopicState, key: MessageKey, due_ms: int) -> PendingKey:
    ledger, number, index = key
    attempts: int | None = state.attempts.remembered(key)
    entry = state.table.entries.get((ledger, number))
    if entry is not None:
        attempts = state.attempts.count_with_current(entry, max(index, 0))
    elif index >= 0 and (packed := state.table.packed.get((ledger, number))) is not None:
        attempts = max(packed.failed.get(index, 0) + 1, attempts or 0)
    return PendingKey(state, key, None, False, attempts or None, due_ms, _evidence(state, key))


def _evidence(state: TopicState, key: MessageKey) -> Evidence | None:
    failures = state.attempts.failures_of(key)
    return None if failures is None else failures.evidence
