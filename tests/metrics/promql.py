"""The metrics and labels that a PromQL expression names. Only as much of PromQL as we use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_WORDS = {"by", "without", "and", "or", "unless", "on", "ignoring", "group_left", "group_right"}
_LABELLED = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?\s*(\[[^\]]*\])?\s*(\()?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"')


@dataclass(frozen=True)
class Selector:
    """One vector of an expression.

    Attributes:
        labels: The labels that it matches.
    """

    metric: str
    labels: frozenset[str]


def selectors(expression: str) -> Iterator[Selector]:
    """Yield the vectors of an expression, without functions, aggregations and keywords."""
    for found in _SELECTOR.finditer(_LABELLED.sub(" ", expression)):
        name, matchers, _, call = found.groups()
        if call is None and name not in _WORDS:
            yield Selector(name, frozenset(_MATCHER.findall(matchers or "")))


def grouped_labels(expression: str) -> set[str]:
    """Return the labels of all `by`, `without`, `on` and `ignoring` clauses."""
    clauses = _LABELLED.findall(expression)
    return {each.strip() for clause in clauses for each in clause.split(",") if each.strip()}
