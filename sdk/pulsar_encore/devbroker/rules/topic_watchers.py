"""Patterns that topics of a namespace are matched with, and who watches which.

Pure. A pattern is matched in full against ``tenant/namespace/topic``: no domain, and a partition by
the name of its topic (wire-protocol.md 4). The dialect is Python's, Pulsar's is Java's: for the
patterns that people write they agree, and clients filter again anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .names import parse
from .refusal import Refusal

MAX_PATTERN = 50
"""Longest pattern a broker applies, in characters: `subscriptionPatternMaxLength`."""


class TopicPattern:
    """A pattern as a client sends it.

    Raises:
        Refusal: InvalidTopicName, when it is no regular expression.
    """

    def __init__(self, pattern: str) -> None:
        try:
            self._expression = re.compile(re.sub(r"^(\^?)[\w-]+://", r"\1", pattern))
        except re.error as error:
            raise Refusal("InvalidTopicName", f"pattern {pattern!r}: {error}") from error

    def matches(self, topic: str) -> bool:
        """Whether a topic or partition belongs to it, by its full name."""
        _, _, path = parse(topic).base.partition("://")
        return self._expression.fullmatch(path) is not None

    def filter(self, topics: Iterable[str]) -> list[str]:
        """Those that match, in the same order."""
        return [topic for topic in topics if self.matches(topic)]


@dataclass(frozen=True, slots=True)
class Watcher:
    """Somebody who is told of the topics of a namespace that match.

    Args:
        id: The client's number for it.
        namespace: ``tenant/namespace``.
    """

    id: int
    namespace: str
    pattern: TopicPattern

    def concerns(self, topic: str) -> bool:
        """Whether a topic, by its full name, is one of those."""
        if not topic.startswith("persistent://"):
            return False  # of the others no broker tells
        return parse(topic).namespace == self.namespace and self.pattern.matches(topic)
