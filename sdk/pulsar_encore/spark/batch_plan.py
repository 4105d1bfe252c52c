"""The end of a micro-batch in each topic.

A closed ledger never changes, so a plan over closed ledgers is the same after a crash. Limits are
shared by water filling: topics that need less than an equal share leave the rest to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from .offsets import LAST_ENTRY, Position


class LedgerSize(NamedTuple):
    """A ledger of a topic; no entry is added once it is `closed`. `size` is in bytes."""

    id: int
    entries: int
    size: int
    closed: bool


class LedgerRange(NamedTuple):
    """Entries `first` to `last` of one ledger.

    `size` is the mean size of an entry in bytes; 0 if unknown.
    """

    ledger: int
    first: int
    last: int
    size: float

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class TopicRange:
    """The part of a topic that is read, from after `start` up to and including `end`.

    `ledgers` are known, and in order. `per_entry` is the mean number of messages in an entry.
    """

    start: Position
    end: Position
    ledgers: tuple[LedgerSize, ...] = ()
    per_entry: float = 1.0

    @property
    def empty(self) -> bool:
        return self.start.order >= self.end.order

    def ledger_ranges(self) -> list[LedgerRange] | None:
        """Return the entries by ledger; None if they cannot be counted."""
        if self.empty:
            return []
        start, end = self.start, self.end
        if end.entry == LAST_ENTRY:
            return None
        # After a position within a batch, the rest of the entry is still to be read.
        first = start.entry + (start.batch_index < 0)
        if start.ledger == end.ledger:
            size = next((_mean(each) for each in self.ledgers if each.id == end.ledger), 0.0)
            return [LedgerRange(end.ledger, max(0, first), end.entry, size)]
        known = {each.id: each for each in self.ledgers}
        if end.ledger not in known or (start.ledger >= 0 and start.ledger not in known):
            return None
        found = []
        for each in self.ledgers:
            if start.ledger <= each.id <= end.ledger:
                low = max(0, first) if each.id == start.ledger else 0
                high = end.entry if each.id == end.ledger else each.entries - 1
                if low <= high:
                    found.append(LedgerRange(each.id, low, high, _mean(each)))
        return found


def _mean(ledger: LedgerSize) -> float:
    return ledger.size / ledger.entries if ledger.entries > 0 else 0.0


def may_be_gone(
    start: Position, stored: Sequence[LedgerSize], entries: int | None, seen: Iterable[int] = ()
) -> bool:
    """Return True if messages after a position may be gone with their ledgers.

    Brokers delete ledgers from the first on. If the ledger of `start` is stored, everything after
    `start` is. A missing ledger after a stored one held no messages.

    Args:
        stored: The topic's ledgers, in order; empty if unknown.
        entries: Number of entries of `start`'s ledger; None if unknown.
        seen: Ledgers that had entries at the last check.
    """
    if start.ledger < 0 or not stored or stored[0].id <= start.ledger:
        return False
    if entries is None or start.batch_index >= 0 or start.entry < entries - 1:
        return True
    return any(start.ledger < each < stored[0].id for each in seen)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """The limits of a batch, in messages (`rows`), entries and bytes; None for no limit."""

    rows: int | None = None
    entries: int | None = None
    size: int | None = None


def admit(topic_ranges: Mapping[str, TopicRange], quota: Quota) -> dict[str, Position]:
    """Return the end of each topic in this batch.

    A topic with entries that cannot be counted is read to its end. However small the limits are,
    one topic per batch gets its next entry, another one each time. Otherwise a topic with large
    entries would never advance beside topics with small ones.
    """
    ends = {topic: each.end for topic, each in topic_ranges.items()}
    counted: dict[str, list[LedgerRange]] = {}
    for topic, topic_range in topic_ranges.items():
        ranges = topic_range.ledger_ranges()
        if ranges:
            counted[topic] = ranges
    for weight, limit in (("entries", quota.entries), ("rows", quota.rows), ("size", quota.size)):
        if limit is None or not counted:
            continue
        costs = {
            topic: [_cost(weight, each, topic_ranges[topic].per_entry) for each in ranges]
            for topic, ranges in counted.items()
        }
        wants = {
            topic: sum(cost * each.entries for cost, each in zip(costs[topic], ranges, strict=True))
            for topic, ranges in counted.items()
        }
        first = _guaranteed_topic(topic_ranges, counted)
        shares = _shares(wants, limit, first, costs[first][0])
        _spend_rest(
            shares, costs, counted, limit, sum(each.start.entry for each in topic_ranges.values())
        )
        taken = {
            topic: _taken(ranges, costs[topic], shares[topic]) for topic, ranges in counted.items()
        }
        counted = {topic: part for topic, part in taken.items() if part}
        for topic in taken:
            ends[topic] = _end_of(taken[topic], topic_ranges[topic])
    return ends


def _guaranteed_topic(topic_ranges: Mapping[str, TopicRange], topics: Iterable[str]) -> str:
    """Choose the topic that surely advances: another one in each batch, by a hash of all positions.

    A batch that is planned again gets the same topic.
    """
    where = "".join(f"{topic} {topic_ranges[topic].start};" for topic in sorted(topic_ranges))
    return min(topics, key=lambda topic: (crc32(f"{where}{topic}".encode()), topic))


def _shares(wants: Mapping[str, float], limit: float, first: str, entry: float) -> dict[str, float]:
    """Return equal shares, except that `first` can pay its next entry, which costs `entry`."""
    shares = water_fill(wants, limit)
    if shares[first] < entry:
        others = {topic: want for topic, want in wants.items() if topic != first}
        shares = {first: entry, **water_fill(others, max(0.0, limit - entry))}
    return shares


def _spend_rest(
    shares: dict[str, float],
    costs: Mapping[str, Sequence[float]],
    counted: Mapping[str, Sequence[LedgerRange]],
    limit: float,
    rotation: int,
) -> None:
    """Spend the parts of `shares` that are not whole entries on one more entry of some topics.

    `rotation` decides which topic is first. It changes as the positions advance.
    """
    topics = sorted(counted)
    spent = {
        topic: sum(
            each.entries * cost
            for each, cost in zip(
                _taken(counted[topic], costs[topic], shares[topic]), costs[topic], strict=False
            )
        )
        for topic in topics
    }
    rest = limit - sum(spent.values())
    for at in range(len(topics)):
        topic = topics[(rotation + at) % len(topics)]
        next_cost = _next_cost(counted[topic], costs[topic], spent[topic])
        if next_cost is not None and next_cost <= rest:
            shares[topic] = spent[topic] + next_cost
            rest -= next_cost


def _next_cost(ranges: Sequence[LedgerRange], costs: Sequence[float], spent: float) -> float | None:
    """Return the cost of the first entry that is not paid; None if all are paid."""
    for ledger_range, cost in zip(ranges, costs, strict=True):
        if spent < ledger_range.entries * cost - 1e-6:
            return cost
        spent -= ledger_range.entries * cost
    return None


def _cost(weight: str, ledger_range: LedgerRange, per_entry: float) -> float:
    if weight == "entries":
        return 1.0
    return max(1.0, per_entry) if weight == "rows" else max(1.0, ledger_range.size)


def _taken(
    ranges: Iterable[LedgerRange], costs: Iterable[float], share: float
) -> list[LedgerRange]:
    """Return the entries that a share pays for."""
    taken = []
    for ledger_range, cost in zip(ranges, costs, strict=True):
        count = min(ledger_range.entries, int(share / cost + 1e-9))
        if count <= 0:
            break
        taken.append(ledger_range._replace(last=ledger_range.first + count - 1))
        share -= count * cost
        if count < ledger_range.entries:
            break
    return taken


def _end_of(taken: Sequence[LedgerRange], topic_range: TopicRange) -> Position:
    """Return the position of the last taken entry; the end of the range if all of it is taken."""
    if not taken:
        return topic_range.start
    last = Position(taken[-1].ledger, taken[-1].last)
    return topic_range.end if last.entry_key == topic_range.end.entry_key else last


def water_fill(wants: Mapping[str, float], limit: float) -> dict[str, float]:
    """Share `limit` as equally as possible, with no share larger than is wanted."""
    shares: dict[str, float] = {}
    rest = float(limit)
    waiting = sorted(wants.items(), key=lambda each: (each[1], each[0]))
    for at, (topic, want) in enumerate(waiting):
        shares[topic] = min(want, rest / (len(waiting) - at))
        rest -= shares[topic]
    return shares
