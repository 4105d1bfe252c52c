"""Narrowing of a read by the filters of a query.

Spark applies all filters again, so a filter that is not used only costs time. Filters on the topic,
the partition, the ledger and, together with a ledger, the entry are used.

Filters on the publish time are not used. Producers set it by their own clocks, so it is not in
order within a topic. A broker's search by time assumes that order and may skip matching messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import contains, eq, ge, gt, le, lt
from typing import Any, Final

from .batch_plan import LedgerSize
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

_COMPARISONS: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: eq,
    EqualNullSafe: eq,
    GreaterThan: gt,
    GreaterThanOrEqual: ge,
    LessThan: lt,
    LessThanOrEqual: le,
    StringContains: contains,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers from `low` to `high`, both included; None for no bound."""

    low: int | None = None
    high: int | None = None

    def within(self, low: int | None, high: int | None) -> Bounds:
        lows = [each for each in (self.low, low) if each is not None]
        highs = [each for each in (self.high, high) if each is not None]
        return Bounds(max(lows, default=None), min(highs, default=None))


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The part of a read that the filters allow.

    `topic` and `partition` are filters on those columns. `entries` bounds the entry ids in the
    first and the last ledger.
    """

    topic: tuple[Filter, ...] = ()
    partition: tuple[Filter, ...] = ()
    ledgers: Bounds = Bounds()
    entries: Bounds = Bounds()

    def keeps(self, topic: str, partition: int) -> bool:
        """Return True if the filters allow messages of this topic and partition number, or -1."""
        return all(_may_hold(each, topic) for each in self.topic) and all(
            _may_hold(each, partition) for each in self.partition
        )

    def span(
        self, start: Position, end: Position, ledgers: Sequence[LedgerSize] = ()
    ) -> tuple[Position, Position]:
        """Return the narrowed start and end; `ledgers` are the known ledgers, in order."""
        low, high, entries = self.ledgers.low, self.ledgers.high, self.entries
        if low is not None:
            first = max(0, entries.low or 0)
            start = later(start, Position(low, first - 1))
        if high is not None:
            last = LAST_ENTRY if entries.high is None else max(-1, entries.high)
            bound = Position(high, min(last, LAST_ENTRY))
            if bound.order < end.order:
                end = _last_stored(bound, ledgers)
        return start, end


def narrowing_of(filters: Iterable[Filter], names: Mapping[str, str]) -> Narrowing:
    """Return the narrowing by filters; `names` has the keys of metadata columns by name."""
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


def _key(condition: Filter, names: Mapping[str, str]) -> str | None:
    """Return the column key of a filter. Fields of structs in the value are never metadata."""
    if isinstance(condition, Not):
        return _key(condition.child, names)
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    return names.get(attribute[0]) if len(attribute) == 1 else None


def _may_hold(condition: Filter, value: str | int) -> bool:
    return _holds(condition, value) is not False


def _holds(condition: Filter, value: str | int) -> bool | None:
    """Return whether a filter holds for a value that is never null; None if unknown."""
    if isinstance(condition, Not):
        holds = _holds(condition.child, value)
        return None if holds is None else not holds
    if isinstance(condition, IsNotNull):
        return True
    if isinstance(condition, IsNull):
        return False
    if isinstance(condition, In):
        if not all(type(each) is type(value) for each in condition.value):
            return None
        return value in condition.value
    compare = _COMPARISONS.get(type(condition))
    operand = getattr(condition, "value", None)
    if compare is None or type(operand) is not type(value):
        return None
    return compare(value, operand)


def _bounds(condition: Filter) -> tuple[int | None, int | None]:
    """Return the numbers outside of which a filter cannot hold."""
    if isinstance(condition, In):
        if not condition.value or not all(type(each) is int for each in condition.value):
            return None, None
        return min(condition.value), max(condition.value)
    operand = getattr(condition, "value", None)
    if type(operand) is not int:
        return None, None
    if isinstance(condition, (EqualTo, EqualNullSafe)):
        return operand, operand
    if isinstance(condition, (GreaterThan, GreaterThanOrEqual)):
        return operand + isinstance(condition, GreaterThan), None
    if isinstance(condition, (LessThan, LessThanOrEqual)):
        return None, operand - isinstance(condition, LessThan)
    return None, None


def _last_stored(bound: Position, ledgers: Sequence[LedgerSize]) -> Position:
    """Return the last stored entry up to a bound, if known, so that entries can be counted."""
    if not any(each.id > bound.ledger for each in ledgers):
        return bound  # the listed ledgers may end before the bound
    for each in reversed(ledgers):
        if each.id <= bound.ledger and each.entries:
            last = each.entries - 1
            return Position(each.id, min(last, bound.entry) if each.id == bound.ledger else last)
    return bound
