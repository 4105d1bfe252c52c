"""What a micro-batch takes of its topics, and how that is cut into tasks. Pure.

Owns `LedgerSize`, `EntrySpan`, `admit`, `Slicing` and `split`. A ledger that is closed never
changes, so that what is planned from closed ledgers is planned the same after a crash. Limits are
shared out by water filling: every topic gets the same share, what one cannot use goes to the
others, and over several batches none starves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from .offsets import LAST_ENTRY, Position


class LedgerSize(NamedTuple):
    """A ledger of a topic.

    Attributes:
        id: Its number.
        entries: In it, so far where it is still open.
        size: In bytes.
        closed: Nothing is added any more.
    """

    id: int
    entries: int
    size: int
    closed: bool


class TopicRange(NamedTuple):
    """Entries of one ledger, one after the other.

    Attributes:
        ledger: Its number.
        first, last: Entries, both included.
        size: Of one, in bytes, on average; 0 where that is not known.
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
    """What of a topic is to be read, from behind one position up to and with another.

    Attributes:
        start, end: The positions.
        ledgers: Of the topic, in order; those that are known.
        per_entry: Messages of an entry on average.
    """

    start: Position
    end: Position
    ledgers: tuple[LedgerSize, ...] = ()
    per_entry: float = 1.0

    @property
    def empty(self) -> bool:
        return self.start.order >= self.end.order

    def stretches(self) -> list[TopicRange] | None:
        """Its entries, ledger by ledger; None where they cannot be counted."""
        if self.empty:
            return []
        start, end = self.start, self.end
        if end.entry == LAST_ENTRY:
            return None
        # A position in a batch leaves the rest of its entry to be read.
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
    """Whether messages behind a position may be gone with their ledgers.

    Brokers delete ledgers from the first on: what is stored has all behind `start` if it has its
    ledger. One that is not there, though one before it is, held nothing.

    Args:
        start: What was read last.
        stored: The topic's ledgers, in order; none where that is not known.
        entries: How many the ledger of `start` had; None where nobody knows.
        seen: Ledgers of the topic that held something when they were last looked at.
    """
    if start.ledger < 0 or not stored or stored[0].id <= start.ledger:
        return False
    if entries is None or start.batch_index >= 0 or start.entry < entries - 1:
        return True
    return any(start.ledger < each < stored[0].id for each in seen)


# Admission


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """How much a batch may take; None for no such limit.

    Attributes:
        rows: Messages.
        entries: Entries.
        size: Bytes.
    """

    rows: int | None = None
    entries: int | None = None
    size: int | None = None


def admit(spans: Mapping[str, EntrySpan], quota: Quota) -> dict[str, Position]:
    """Up to where each topic is read in this batch.

    A topic whose entries cannot be counted is read to its end. One topic, another with each batch,
    has its next entry first, however small the limits: else one with large entries would never
    move beside others that always have small ones.

    Args:
        spans: By topic.
        quota: The limits, each of which holds.
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
        first = _first(spans, counted)
        shares = _shares(wants, limit, first, costs[first][0])
        _round(shares, costs, counted, limit, sum(each.start.entry for each in spans.values()))
        taken = {
            topic: _taken(stretches, costs[topic], shares[topic])
            for topic, stretches in counted.items()
        }
        counted = {topic: part for topic, part in taken.items() if part}
        for topic in taken:
            ends[topic] = _end_of(taken[topic], spans[topic])
    return ends


def _first(spans: Mapping[str, EntrySpan], topics: Iterable[str]) -> str:
    """Whose turn it is: drawn by where all of them are, so that it is another one each time, and
    the same when a batch is planned again."""
    where = "".join(f"{topic} {spans[topic].start};" for topic in sorted(spans))
    return min(topics, key=lambda topic: (crc32(f"{where}{topic}".encode()), topic))


def _shares(wants: Mapping[str, float], limit: float, first: str, entry: float) -> dict[str, float]:
    """Equal shares, but for one topic that is to have an entry in any case.

    Args:
        wants: By topic.
        limit: Of all together.
        first: That topic.
        entry: What its next entry costs.
    """
    shares = water_fill(wants, limit)
    if shares[first] < entry:
        others = {topic: want for topic, want in wants.items() if topic != first}
        shares = {first: entry, **water_fill(others, max(0.0, limit - entry))}
    return shares


def _round(
    shares: dict[str, float],
    costs: Mapping[str, Sequence[float]],
    counted: Mapping[str, Sequence[TopicRange]],
    limit: float,
    turn: int,
) -> None:
    """Let what is left of shares that are no whole entries be an entry more of some topics.

    Args:
        shares: By topic; changed.
        costs, counted: Of each stretch of a topic.
        limit: Of all together.
        turn: Which topic is first; another one each time, as it moves with them.
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
    left = limit - sum(spent.values())
    for at in range(len(topics)):
        topic = topics[(turn + at) % len(topics)]
        more = _next_cost(counted[topic], costs[topic], spent[topic])
        if more is not None and more <= left:
            shares[topic] = spent[topic] + more
            left -= more


def _next_cost(
    stretches: Sequence[TopicRange], costs: Sequence[float], spent: float
) -> float | None:
    """What the next entry costs behind those that were paid for; None where there is none."""
    for stretch, cost in zip(stretches, costs, strict=True):
        if spent < stretch.entries * cost - 1e-6:
            return cost
        spent -= stretch.entries * cost
    return None


def _cost(weight: str, stretch: TopicRange, per_entry: float) -> float:
    if weight == "entries":
        return 1.0
    return max(1.0, per_entry) if weight == "rows" else max(1.0, stretch.size)


def _taken(
    stretches: Iterable[TopicRange], costs: Iterable[float], share: float
) -> list[TopicRange]:
    """The first of some stretches, as far as a share goes."""
    taken = []
    for stretch, cost in zip(stretches, costs, strict=True):
        count = min(stretch.entries, int(share / cost + 1e-9))
        if count <= 0:
            break
        taken.append(stretch._replace(last=stretch.first + count - 1))
        share -= count * cost
        if count < stretch.entries:
            break
    return taken


def _end_of(taken: Sequence[TopicRange], span: EntrySpan) -> Position:
    """The last position of what is taken; that of the span where it is all of it."""
    if not taken:
        return span.start
    last = Position(taken[-1].ledger, taken[-1].last)
    return span.end if last.place == span.end.place else last


def water_fill(wants: Mapping[str, float], limit: float) -> dict[str, float]:
    """Shares of `limit`: as equal as they can be, and none more than is wanted.

    Args:
        wants: By topic, 0 or more.
        limit: To be shared out.
    """
    shares: dict[str, float] = {}
    left = float(limit)
    waiting = sorted(wants.items(), key=lambda each: (each[1], each[0]))
    for at, (topic, want) in enumerate(waiting):
        shares[topic] = min(want, left / (len(waiting) - at))
        left -= shares[topic]
    return shares


# Tasks


class Slicing(NamedTuple):
    """How a batch is cut into tasks. A batch that is done again has to be cut as it was the first
    time, whatever is known and chosen by then: rows are numbered by their place in their task.

    Attributes:
        parts: Tasks, at least, as far as there are entries.
        most: Entries of a task at most; 0 for no such limit.
        by_ledger: Cut between ledgers only.
    """

    parts: int = 1
    most: int = 0
    by_ledger: bool = False

    def __str__(self) -> str:
        return f"{self.parts}:{self.most}:{'ledger' if self.by_ledger else 'entry'}"

    @classmethod
    def read(cls, text: str) -> Slicing:
        """The slicing that was written so; none at all where nothing was.

        Raises:
            ValueError: It is not written so.
        """
        if not text:
            return cls()
        parts, most, unit = text.split(":")
        if unit not in ("ledger", "entry"):
            raise ValueError(f"cut by {unit!r}")
        return cls(int(parts), int(most), unit == "ledger")


def split(
    span: EntrySpan, parts: int, *, by_ledger: bool = False
) -> list[tuple[Position, Position]]:
    """Cut a span into at most so many ranges of nearly as many entries each.

    Args:
        span: What is to be read.
        parts: At most; fewer where there are not so many entries, or they cannot be counted.
        by_ledger: Cut between ledgers only.

    Returns:
        (behind this, up to that) of each, in order; together they are the span.
    """
    if span.empty:
        return []
    stretches = span.stretches()
    if parts <= 1 or not stretches:
        return [(span.start, span.end)]
    total = sum(each.entries for each in stretches)
    cuts: list[Position] = []
    taken = 0
    for at, stretch in enumerate(stretches):
        if by_ledger:
            if at and taken * parts >= total * (len(cuts) + 1):
                cuts.append(Position(stretches[at - 1].ledger, stretches[at - 1].last))
        else:
            cuts += _cuts_in(stretch, taken, total, parts, len(cuts))
        taken += stretch.entries
    edges = [span.start, *(cut for cut in cuts if cut.order < span.end.order), span.end]
    return [(start, end) for start, end in pairwise(edges) if start.order < end.order]


def _cuts_in(
    stretch: TopicRange, taken: int, total: int, parts: int, made: int
) -> Iterator[Position]:
    """The cuts that lie in a stretch: the end of a part each."""
    for number in range(made + 1, parts):
        goal = -(-total * number // parts)  # entries in the first so many parts
        if goal <= taken:
            continue
        if goal > taken + stretch.entries:
            return
        last = stretch.first + goal - taken - 1
        yield Position(stretch.ledger, last)


def shared_parts(entries: Mapping[str, int], parts: int, most: int = 0) -> dict[str, int]:
    """How many tasks each topic gets.

    Args:
        entries: To be read, by topic; 0 for what cannot be counted, which is one task.
        parts: Tasks in all, at least, as far as there are entries.
        most: Entries of a task at most; 0 for no such limit.
    """
    shared = dict.fromkeys(entries, 1)
    total = sum(entries.values())
    if total and parts > len(entries):
        for topic, count in entries.items():
            shared[topic] = max(1, round(parts * count / total))
        # Rounding may leave some out, and "at least" was asked for.
        while sum(shared.values()) < parts:
            topic = max(sorted(entries), key=lambda each: entries[each] / shared[each])
            if entries[topic] <= shared[topic]:
                break
            shared[topic] += 1
    if most:
        for topic, count in entries.items():
            shared[topic] = max(shared[topic], -(-count // most))
    return {topic: min(shared[topic], max(1, count)) for topic, count in entries.items()}
