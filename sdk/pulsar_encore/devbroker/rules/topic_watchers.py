"""Match topics of a namespace with patterns, for lists and watchers.

A pattern is matched in full against ``tenant/namespace/topic``, without the domain; a partition is
matched by the name of its topic (wire-protocol.md 4). The dialect is Python's and not Java's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .names import parse
from .refusal import Refusal

MAX_PATTERN = 50
"""Maximum length of a pattern, in characters: `subscriptionPatternMaxLength`."""


class TopicPattern:
    def __init__(self, pattern: str) -> None:
        try:
            self._expression = re.compile(re.sub(r"^(\^?)[\w-]+://", r"\1", pattern))
        except re.error as error:
            raise Refusal("InvalidTopicName", f"pattern {pattern!r}: {error}") from error

    def matches(self, topic: str) -> bool:
        _, _, path = parse(topic).base.partition("://")
        return self._expression.fullmatch(path) is not None

    def filter(self, topics: Iterable[str]) -> list[str]:
        return [topic for topic in topics if self.matches(topic)]


@dataclass(frozen=True, slots=True)
class Watcher:
    """A watch of the matching topics of a namespace."""

    id: int
    namespace: str
    pattern: TopicPattern

    def concerns(self, topic: str) -> bool:
        if not topic.startswith("persistent://"):
            return False  # brokers report only persistent topics
        return parse(topic).namespace == self.namespace and self.pattern.matches(topic)
