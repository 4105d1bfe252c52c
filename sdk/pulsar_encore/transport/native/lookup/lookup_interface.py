"""What is asked about topics, whichever way: the contract of the ways, and patterns of names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ....errors import InvalidTopicName
from ....options import RegexSubscriptionMode
from ....values.topic_names import base_name, full_name
from ..connection.session import Session


class TopicListing(NamedTuple):
    """Topics of a namespace.

    Attributes:
        topics: Their full names, partitions singly; None when the list is the one of the hash that
            was sent.
        hash: The broker's, of all of them; "" where it gives none.
    """

    topics: list[str] | None
    hash: str


class Partitions(NamedTuple):
    """The answer to a question for the partitions of a topic.

    Attributes:
        number: The number of partitions; 0 for a topic without.
        tells_missing: True if the broker that answered would have told a missing topic from one
            without partitions. Brokers do since PIP-344 (3.0.6, 3.2.4, 3.3.1), and their web
            services do.
    """

    number: int
    tells_missing: bool


class LookupMethod(Protocol):
    """One way to ask; each call is one attempt, and raises `PulsarException`."""

    async def partitions(self, topic: str, create: bool) -> Partitions:
        """The partitions of a topic."""

    async def topics(self, namespace: str, mode: RegexSubscriptionMode, known: str) -> TopicListing:
        """Those of ``tenant/namespace``; `known` is the hash of a list that is known, or ""."""

    async def owner(self, topic: str) -> Session:
        """A connection to the broker that serves a topic."""


class NamePattern:
    """A regular expression of ``persistent://tenant/namespace/name``; what is before the name is
    literal, and the domain does not count.

    Attributes:
        namespace: ``tenant/namespace``.
        path: The pattern without its domain, as brokers take it.

    Raises:
        InvalidTopicName: It is no regular expression, or names no namespace.
    """

    def __init__(self, pattern: str) -> None:
        self.path: str = full_name(pattern).partition("://")[2]
        parts = self.path.split("/", 2)
        if len(parts) != 3:
            raise InvalidTopicName(f"the pattern {pattern!r} must be tenant/namespace/expression")
        self.namespace: str = "/".join(parts[:2])
        try:
            self._matches: Callable[[str], object] = re.compile(self.path).fullmatch
        except re.error as error:
            raise InvalidTopicName(f"the pattern {pattern!r}: {error}") from error

    def matches(self, topic: str) -> bool:
        """Whether a topic, or the topic of a partition, is of it; by its full name."""
        return bool(self._matches(base_name(topic).partition("://")[2]))
