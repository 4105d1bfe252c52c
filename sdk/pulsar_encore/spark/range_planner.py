"""The end of a micro-batch in each topic, and its split into tasks.

A closed ledger never changes, so a plan over closed ledgers is the same after a crash. Limits are
shared by water filling: every topic gets the same share, and topics that need less leave the rest
to the others. Over several batches no topic starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from .offsets import LAST_ENTRY, Position


class LedgerSize(NamedTuple):
    """A ledger of a topic: its id, its entries so far, its bytes.

    Attributes:
        closed: No entry will be added.
    """

    id: int
    entries: int
    size: int
    closed: bool


class TopicRange(NamedTuple):
    """Consecutive entries of one ledger, `first` to `last` inclusive.

    Attributes:
        size: Mean bytes of an entry; 0 if unknown.
    """

    ledger: int
    first: int
    last: int
    size: float

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class EntrySpan:
    """The part of a topic that is read, from behind `start` up to and including `end`.

    Attributes:
        ledgers: The known ledgers of the topic, in order.
        per_entry: Mean messages per entry.
    """

    start: Position
    end: Position
    ledgers: tuple[LedgerSize, ...] = ()
    per_entry: float = 1.0

    @property
    def empty(self) -> bool:
        return self.start.order >= self.end.order

    def stretches(self) -> list[TopicRange] | None:
        """Return the entries by ledger; None if they cannot be counted."""
        if self.empty:
            return []
        start, end = self.start, self.end
        if end.entry == LAST_ENTRY:
            return None
        # Behind a position within a batch, the rest of that entry is still to be read.
        first = start.entry + (start.batch_index < 0)
        if start.ledger == end.ledger:
            size = next((_mean(each) for each in self.ledgers if each.id == end.ledger), 0.0)
            return [TopicRange(end.ledger, max(0, first), end.entry, size)]
        known = {each.id: each for each in self.ledgers}
        if end.ledger not in known or (start.ledger >= 0 and start.ledger not in known):
            return None
        found = []
        for each in self.ledgers:
            if start.ledger <= each.id <= end.ledger:
                low = max(0, first) if each.id == start.ledger else 0
                high = end.entry if each.id == end.ledger else each.entries - 1
                if low <= high:
                    found.append(TopicRange(each.id, low, high, _mean(each)))
        return found


def _mean(ledger: LedgerSize) -> float:
    return ledger.size / ledger.entries if ledger.entries > 0 else 0.0


def may_be_gone(
    start: Position, stored: Sequence[LedgerSize], entries: int | None, seen: Iterable[int] = ()
) -> bool:
    """Return True if messages behind a position may be gone with their ledgers.

    Brokers delete ledgers from the first on. If the ledger of `start` is stored, everything behind
    `start` is. A missing ledger behind a stored one held no messages.

    Args:
        start: The last message that was read.
        stored: The topic's ledgers, in order; empty if unknown.
        entries: Number of entries of `start`'s ledger; None if unknown.
        seen: Ledgers of the topic that had entries at the last check.
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


def admit(spans: Mapping[str, EntrySpan], quota: Quota) -> dict[str, Position]:
    """Return the end of each topic in this batch, under all limits of the quota.

    A topic with entries that cannot be counted is read to its end. However small the limits are,
    one topic per batch gets its next entry, another one each time. Otherwise a topic with large
    entries would never advance beside topics with small ones.
    """
    ends = {topic: span.end for topic, span in spans.items()}
    counted: dict[str, list[TopicRange]] = {}
    for topic, span in spans.items():
        stretches = span.stretches()
        if stretches:
            counted[topic] = stretches
    for weight, limit in (("entries", quota.entries), ("rows", quota.rows), ("size", quota.size)):
        if limit is None or not counted:
            continue
        costs = {
            topic: [_cost(weight, each, spans[topic].per_entry) for each in stretches]
            for topic, stretches in counted.items()
        }
        wants = {
            topic: sum(
                cost * each.entries for cost, each in zip(costs[topic], stretches, strict=True)
            )
            for topic, stretches in counted.items()
        }
        first = _guaranteed_topic(spans, counted)
        shares = _shares(wants, limit, first, costs[first][0])
        _spend_rest(shares, costs, counted, limit, sum(each.start.entry for each in spans.values()))
        taken = {
            topic: _taken(stretches, costs[topic], shares[topic])
            for topic, stretches in counted.items()
        }
        counted = {topic: part for topic, part in taken.items() if part}
        for topic in taken:
            ends[topic] = _end_of(taken[topic], spans[topic])
    return ends


def _guaranteed_topic(spans: Mapping[str, EntrySpan], topics: Iterable[str]) -> str:
    """Choose the topic that surely advances, by a hash of all positions.

    The topic changes with each batch, and is the same when a batch is planned again.
    """
    where = "".join(f"{topic} {spans[topic].start};" for topic in sorted(spans))
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
    counted: Mapping[str, Sequence[TopicRange]],
    limit: float,
    turn: int,
) -> None:
    """Spend the rest of shares that are not whole entries on one more entry of some topics.

    Args:
        shares: By topic; modified.
        costs, counted: By topic, for each range.
        limit: Of all topics together.
        turn: Decides which topic is first. It changes as the positions advance.
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
        topic = topics[(turn + at) % len(topics)]
        next_cost = _next_cost(counted[topic], costs[topic], spent[topic])
        if next_cost is not None and next_cost <= rest:
            shares[topic] = spent[topic] + next_cost
            rest -= next_cost


def _next_cost(
    stretches: Sequence[TopicRange], costs: Sequence[float], spent: float
) -> float | None:
    """Return the cost of the next entry behind those that are paid; None behind the last."""
    for entry_range, cost in zip(stretches, costs, strict=True):
        if spent < entry_range.entries * cost - 1e-6:
            return cost
        spent -= entry_range.entries * cost
    return None


def _cost(weight: str, entry_range: TopicRange, per_entry: float) -> float:
    if weight == "entries":
        return 1.0
    return max(1.0, per_entry) if weight == "rows" else max(1.0, entry_range.size)


def _taken(
    stretches: Iterable[TopicRange], costs: Iterable[float], share: float
) -> list[TopicRange]:
    """Return the first entries of some ranges that a share pays for."""
    taken = []
    for entry_range, cost in zip(stretches, costs, strict=True):
        count = min(entry_range.entries, int(share / cost + 1e-9))
        if count <= 0:
            break
        taken.append(entry_range._replace(last=entry_range.first + count - 1))
        share -= count * cost
        if count < entry_range.entries:
            break
    return taken


def _end_of(taken: Sequence[TopicRange], span: EntrySpan) -> Position:
    """Return the position of the last taken entry; the end of the span if all of it is taken."""
    if not taken:
        return span.start
    last = Position(taken[-1].ledger, taken[-1].last)
    return span.end if last.place == span.end.place else last


def water_fill(wants: Mapping[str, float], limit: float) -> dict[str, float]:
    """Share `limit` as equally as possible, with no share larger than is wanted."""
    shares: dict[str, float] = {}
    rest = float(limit)
    waiting = sorted(wants.items(), key=lambda each: (each[1], each[0]))
    for at, (topic, want) in enumerate(waiting):
        shares[topic] = min(want, rest / (len(waiting) - at))
        rest -= shares[topic]
    return shares


class Slicing(NamedTuple):
    """How a batch is split into tasks.

    A repeated batch must be split in the same way, because rows are numbered by their index in
    their task. The slicing is therefore part of the offset.

    Attributes:
        parts: Minimum number of tasks, if there are as many entries.
        most: Maximum number of entries per task; 0 for no limit.
        by_ledger: Split only between ledgers.
    """

    parts: int = 1
    most: int = 0
    by_ledger: bool = False

    def __str__(self) -> str:
        return f"{self.parts}:{self.most}:{'ledger' if self.by_ledger else 'entry'}"

    @classmethod
    def read(cls, text: str) -> Slicing:
        """Parse the text of a slicing; the default for "". Raises ValueError for other texts."""
        if not text:
            return cls()
        parts, most, unit = text.split(":")
        if unit not in ("ledger", "entry"):
            raise ValueError(f"cut by {unit!r}")
        return cls(int(parts), int(most), unit == "ledger")


def split(
    span: EntrySpan, parts: int, *, by_ledger: bool = False
) -> list[tuple[Position, Position]]:
    """Split a span into at most `parts` ranges with nearly equal numbers of entries.

    A span with few entries, or entries that cannot be counted, gives fewer ranges.

    Returns:
        The start (exclusive) and end of each range, in order; together they are the span.
    """
    if span.empty:
        return []
    stretches = span.stretches()
    if parts <= 1 or not stretches:
        return [(span.start, span.end)]
    total = sum(each.entries for each in stretches)
    cuts: list[Position] = []
    taken = 0
    for at, entry_range in enumerate(stretches):
        if by_ledger:
            if at and taken * parts >= total * (len(cuts) + 1):
                cuts.append(Position(stretches[at - 1].ledger, stretches[at - 1].last))
        else:
            cuts += _cuts_within(entry_range, taken, total, parts, len(cuts))
        taken += entry_range.entries
    edges = [span.start, *(cut for cut in cuts if cut.order < span.end.order), span.end]
    return [(start, end) for start, end in pairwise(edges) if start.order < end.order]


def _cuts_within(
    entry_range: TopicRange, taken: int, total: int, parts: int, made: int
) -> Iterator[Position]:
    for number in range(made + 1, parts):
        goal = -(-total * number // parts)  # entries in the first `number` parts
        if goal <= taken:
            continue
        if goal > taken + entry_range.entries:
            return
        last = entry_range.first + goal - taken - 1
        yield Position(entry_range.ledger, last)


def shared_parts(entries: Mapping[str, int], parts: int, most: int = 0) -> dict[str, int]:
    """Return the number of tasks of each topic.

    Args:
        entries: To be read, by topic; 0 if they cannot be counted, which gives one task.
        parts: Minimum number of tasks in total, if there are as many entries.
        most: Maximum number of entries per task; 0 for no limit.
    """
    shared = dict.fromkeys(entries, 1)
    total = sum(entries.values())
    if total and parts > len(entries):
        for topic, count in entries.items():
            shared[topic] = max(1, round(parts * count / total))
        # Rounding may give fewer than `parts`, which is a minimum.
        while sum(shared.values()) < parts:
            topic = max(sorted(entries), key=lambda each: entries[each] / shared[each])
            if entries[topic] <= shared[topic]:
                break
            shared[topic] += 1
    if most:
        for topic, count in entries.items():
            shared[topic] = max(shared[topic], -(-count // most))
    return {topic: min(shared[topic], max(1, count)) for topic, count in entries.items()}
