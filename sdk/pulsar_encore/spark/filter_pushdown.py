"""What the filters of a query say of where its messages are. Pure.

Owns `Narrowing`. It only leaves out what no filter could let through, and Spark filters what is
read all the same, so a filter that is not understood costs nothing but time. Known are those of the
topic, the partition, the ledger and, beside one of the ledger, the entry.

Publish times are not: producers set them by their own clocks, so they are in no order within a
topic, and a broker's search by time, which takes them to be, may skip what a filter wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import Any, Final

from .compat import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from .offsets import LAST_ENTRY, Position, later
from .range_planner import LedgerSize

_COMPARED: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: lambda value, given: bool(value == given),
    EqualNullSafe: lambda value, given: bool(value == given),
    GreaterThan: gt,
    GreaterThanOrEqual: ge,
    LessThan: lt,
    LessThanOrEqual: le,
    StringContains: lambda value, given: given in value,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Whole numbers from `low` to `high`, both included; None where there is no such bound."""

    low: int | None = None
    high: int | None = None

    def within(self, low: int | None, high: int | None) -> Bounds:
        """What is in both."""
        lows = [each for each in (self.low, low) if each is not None]
        highs = [each for each in (self.high, high) if each is not None]
        return Bounds(max(lows, default=None), min(highs, default=None))


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What is read at most.

    Attributes:
        topic, partition: Filters of what all messages of a topic or partition have in common.
        ledgers: Where messages are.
        entries: Likewise, in each ledger: of a span, those of its first and its last say something.
    """

    topic: tuple[Filter, ...] = ()
    partition: tuple[Filter, ...] = ()
    ledgers: Bounds = Bounds()
    entries: Bounds = Bounds()

    def keeps(self, topic: str, partition: int) -> bool:
        """Whether a message of this topic or partition may be wanted.

        Args:
            topic: Full name, of the partition if any.
            partition: Its number, or -1.
        """
        return all(_may_hold(each, topic) for each in self.topic) and all(
            _may_hold(each, partition) for each in self.partition
        )

    def span(
        self, start: Position, end: Position, ledgers: Sequence[LedgerSize] = ()
    ) -> tuple[Position, Position]:
        """From behind where, and up to where, something may be wanted; perhaps nothing.

        Args:
            start, end: Of what would be read: behind this, up to that.
            ledgers: Of the topic, in order; those that are known.
        """
        low, high, entries = self.ledgers.low, self.ledgers.high, self.entries
        if low is not None:
            first = max(0, entries.low or 0)
            start = later(start, Position(low, first - 1))
        if high is not None:
            last = LAST_ENTRY if entries.high is None else max(-1, entries.high)
            bound = Position(high, min(last, LAST_ENTRY))
            if bound.order < end.order:
                end = _stored(bound, ledgers)
        return start, end


def narrowing_of(filters: Iterable[Filter], names: Mapping[str, str]) -> Narrowing:
    """What filters, all of which hold, leave of a read.

    Args:
        filters: As Spark pushes them.
        names: The columns that are not of the value: key (such as "topic") by name.
    """
    topic: list[Filter] = []
    partition: list[Filter] = []
    ledgers, entries = Bounds(), Bounds()
    for each in filters:
        key = _key(each, names)
        if key == "topic":
            topic.append(each)
        elif key == "partition":
            partition.append(each)
        elif key == "ledgerId":
            ledgers = ledgers.within(*_bounds(each))
        elif key == "entryId":
            entries = entries.within(*_bounds(each))
    return Narrowing(tuple(topic), tuple(partition), ledgers, entries)


def _key(one: Filter, names: Mapping[str, str]) -> str | None:
    """The column that it is of; a field of the value may be named like one that is not read."""
    if isinstance(one, Not):
        return _key(one.child, names)
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    return names.get(attribute[0]) if len(attribute) == 1 else None


def _may_hold(one: Filter, value: str | int) -> bool:
    return _holds(one, value) is not False


def _holds(one: Filter, value: str | int) -> bool | None:
    """Whether a filter holds for a value that is never null; None where that is not known."""
    if isinstance(one, Not):
        held = _holds(one.child, value)
        return None if held is None else not held
    if isinstance(one, IsNotNull):
        return True
    if isinstance(one, IsNull):
        return False
    if isinstance(one, In):
        if not all(type(each) is type(value) for each in one.value):
            return None
        return value in one.value
    compare = _COMPARED.get(type(one))
    given = getattr(one, "value", None)
    if compare is None or type(given) is not type(value):
        return None
    return compare(value, given)


def _bounds(one: Filter) -> tuple[int | None, int | None]:
    """Numbers outside of which it does not hold."""
    if isinstance(one, In):
        if not one.value or not all(type(each) is int for each in one.value):
            return None, None
        return min(one.value), max(one.value)
    given = getattr(one, "value", None)
    if type(given) is not int:
        return None, None
    if isinstance(one, (EqualTo, EqualNullSafe)):
        return given, given
    if isinstance(one, (GreaterThan, GreaterThanOrEqual)):
        return given + isinstance(one, GreaterThan), None
    if isinstance(one, (LessThan, LessThanOrEqual)):
        return None, given - isinstance(one, LessThan)
    return None, None


def _stored(bound: Position, ledgers: Sequence[LedgerSize]) -> Position:
    """The last entry there is up to a bound, where that is known: so they can be counted."""
    if not any(each.id > bound.ledger for each in ledgers):
        return bound  # what is listed may end before it
    for each in reversed(ledgers):
        if each.id <= bound.ledger and each.entries:
            last = each.entries - 1
            return Position(each.id, min(last, bound.entry) if each.id == bound.ledger else last)
    return bound
