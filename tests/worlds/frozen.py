"""The state of a consumer as one hashable value, so that a search sees where it has been before.

Every attribute of the core's classes is walked, including attributes added later. State that cannot
affect later events is left out or made relative: delivery counts, absolute times, and how often
something has happened so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pulsar_encore.core.acks import Acks
from pulsar_encore.core.cumulative import CumulativeAck, Position
from pulsar_encore.core.duplicate_window import UNCERTAIN_MS, DuplicateWindow
from pulsar_encore.core.entry import Entry
from pulsar_encore.core.entry_records import EntryTable
from pulsar_encore.core.held_back import OrderedLeases
from pulsar_encore.core.packing import PackedBatches
from pulsar_encore.core.pending_acks import PendingAcks
from pulsar_encore.core.rewind_check import Rewind, _Owed
from pulsar_encore.core.topic_state import TopicState
from pulsar_encore.core.withheld_indexes import WithheldIndexes

if TYPE_CHECKING:
    from small_world import App, ReceivedMessage

_PLAIN = frozenset((int, str, bool, float, type(None), bytes))
# Attributes that are not state: constants and back references.
_CONSTANT = {
    TopicState: {
        "owner",
        "number",
        "topic",
        "partition",
        "shared",
        "volatile",
        "lead_ms",
        "era",
        "attempts",  # decides counts only
        "_forwarded",  # whether many records may be ended at once
        "_observer",  # no state outlives these worlds
        # Counts so far. Their difference follows from the states of the messages.
        "acked",
        "redelivered",
        "_entered",
    },
    # How records are ended and freed if there are many.
    EntryTable: {
        "_dispose",
        "_release_order",
        "_topic_state",
        "all_single",
        "away",
        "live_records",
    },
    Entry: {
        "topic_state",
        "size",
        "batched",
        "key",
        "delivery_numbers",
        "redelivered",
        "failed",
        "causes",
        "era",
        "__weakref__",
    },
    Rewind: {"owed_arrived", "_reach"},
    Acks: {"_window"},
    CumulativeAck: {"_window", "_sent"},
    WithheldIndexes: {"_in_use"},
    # `all_requested` and `unattempted` decide counts only; `causes` follows from the others.
    DuplicateWindow: {
        "_sent",
        "_sent_parts",
        "_sent_count",
        "all_requested",
        "causes",
        "covers_nothing",
        "requested",
        "unattempted",
        "_cause",
    },
}


def freeze(app: App, now: float) -> Any:
    """Return all state of one consumer and its application that affects later events."""
    topic_state, connection = app.topic_state, app.connection
    at_ms = int(now * 1000)
    queue = tuple(
        (
            type(cursor).__name__,
            tuple(
                (
                    entry.key,
                    index,
                    bool(entry.live),
                    entry is topic_state.table.entries.get(entry.key),
                )
                for entry, index in map(cursor.entry_at, range(cursor.at, cursor.end))
            ),
        )
        for cursor in app.queue._deliveries
    )
    down = tuple(
        (each.entry, tuple(each.indexes), each.ack_set, each.redelivery_count > 0)
        for each in connection.down
    )
    up = tuple((command, _command(details)) for command, details in connection.up)
    patience = app.rewinds._progress.get(0)
    waited = None
    if patience is not None and topic_state.rewind is not None:
        waited = (
            round(now - patience.since_s),
            patience.rewinds,
            patience.owed_arrived == topic_state.rewind.owed_arrived,
        )
    timers = frozenset(
        (each.callback.__name__, round(each.at - now, 1))
        for each in app.loop.timers
        if each.callback.__name__ != "_ring"
    )
    return (
        _value(topic_state, at_ms),
        frozenset(app.nacks.keys),
        frozenset(app.timeouts.keys),
        queue,
        (connection.line, connection.seeking, down, up),
        frozenset(app.acks._rejected_topics),
        waited,
        timers,
        frozenset(_received(each, topic_state) for each in app.received),
        frozenset(app.acked),
        frozenset(app.may_ack),
        frozenset(app.seen),
        frozenset(app.may_repeat),
    )


def _command(details: Any) -> Any:
    if details is None:
        return None
    if isinstance(details, list):
        return frozenset(details)
    return details.cumulative, frozenset(details.entries), frozenset(details.partial)


def _received(received: ReceivedMessage, topic_state: TopicState) -> Any:
    entry = received.message._entry
    assert entry is not None
    # `find` would take it out of the store.
    known = entry is topic_state.table.entries.get(entry.key)
    record = None
    if not known:  # the rest of its record
        record = (bool(entry.live), entry.era == topic_state.era, entry.unacked, bytes(entry.state))
    deliveries = entry.delivery_number(received.spot[1]) - received.message._delivery_number
    flags = received.nacked, received.leaving, received.current, received.void
    return received.spot, flags, known, record, min(deliveries, 2)


def _entry(entry: Entry, now: int) -> Any:
    failed, again = entry.failed is not None, entry.causes != 0
    return (
        entry.key,
        failed,
        again,
        tuple(_value(getattr(entry, name), now) for name in _names(Entry)),
    )


def _rewind(rewind: Rewind, now: int) -> Any:
    return rewind._reach > 0, tuple(_value(getattr(rewind, name), now) for name in _names(Rewind))


def _cumulative(cumulative: CumulativeAck, now: int) -> Any:
    since = now - UNCERTAIN_MS
    positions = tuple((flush.at_ms >= since, position) for flush, position in cumulative._sent)
    return positions, tuple(
        _value(getattr(cumulative, name), now) for name in _names(CumulativeAck)
    )


def _duplicates(duplicates: DuplicateWindow, now: int) -> Any:
    since = now - UNCERTAIN_MS
    sent = tuple(
        (flush.at_ms >= since, frozenset(keys))
        for flush, keys in (*duplicates._sent, *duplicates._sent_parts)
    )
    asked = frozenset((key, earliest > now) for key, earliest in duplicates.requested.items())
    names = _names(DuplicateWindow)
    return sent, asked, tuple(_value(getattr(duplicates, name), now) for name in names)


# Frozen by themselves, or told by the rest.
_ELSEWHERE: Final = ("nacks", "timeouts")

_SPECIAL: dict[type, Callable[[Any, int], Any]] = {
    Entry: _entry,
    Rewind: _rewind,
    CumulativeAck: _cumulative,
    DuplicateWindow: _duplicates,
    _Owed: lambda owed, now: tuple(owed.items()),
}


@cache
def _names(kind: type) -> tuple[str, ...]:
    left_out = _CONSTANT.get(kind, set())
    return tuple(name for name in getattr(kind, "__slots__", ()) if name not in left_out)


def _value(value: Any, now: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        if not value:
            return ()
        return frozenset([(_key(key), _value(each, now)) for key, each in value.items()])
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(value, now)
    if kind is bytearray:
        return bytes(value)
    if kind in (tuple, list, deque, Position):
        return tuple([_value(each, now) for each in value])
    if kind is set:
        return frozenset(value)
    if isinstance(value, Enum):
        return value
    if kind is PackedBatches:
        return tuple((key, each.acked, each.nacked, frozenset(each.failed)) for key, each in value)
    if isinstance(value, dict):
        return frozenset([(_key(key), _value(each, now)) for key, each in value.items()])
    if kind is TopicState:
        names: Iterable[str] = vars(value)
        left_out = _CONSTANT[TopicState]
        return tuple(
            [
                _value(getattr(value, name), now)
                for name in names
                if name not in left_out and name not in _ELSEWHERE
            ]
        )
    if kind in (Acks, EntryTable, OrderedLeases, PendingAcks, WithheldIndexes):
        return tuple([_value(getattr(value, name), now) for name in _names(kind)])
    raise TypeError(f"no way to freeze a {kind.__name__}")


def _key(key: Any) -> Any:
    return key.key if type(key) is Entry else key
