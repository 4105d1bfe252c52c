"""The interface of the two lookup methods, and patterns of topic names."""

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
        topics: Full names, each partition by its own; None if the list still has the known hash.
        hash: The broker's hash of the list, or "".
    """

    topics: list[str] | None
    hash: str


class Partitions(NamedTuple):
    """The number of partitions of a topic; 0 for a topic without.

    Attributes:
        tells_missing: True if the broker distinguishes a missing topic from one without partitions.
            Brokers do since PIP-344 (3.0.6, 3.2.4, 3.3.1), and so do their web services.
    """

    number: int
    tells_missing: bool


class LookupMethod(Protocol):
    """Each call is one attempt, and raises `PulsarException`."""

    async def partitions(self, topic: str, create: bool) -> Partitions:
        """Return the partitions of a topic."""

    async def topics(self, namespace: str, mode: RegexSubscriptionMode, known: str) -> TopicListing:
        """List ``tenant/namespace``; `known` is the hash of a known list, or ""."""

    async def owner(self, topic: str) -> Session:
        """Return a connection to the broker that serves a topic."""


class NamePattern:
    """A regular expression for the name in ``persistent://tenant/namespace/name``.

    Tenant and namespace are literal, and the domain is ignored. `path` is the pattern without its
    domain, as brokers take it.

    Args:
        pattern: The expression, with or without domain, tenant and namespace.
        excluded: Endings of full names that do not match.

    Raises:
        InvalidTopicName: if it is not a regular expression, or has no namespace.
    """

    def __init__(self, pattern: str, excluded: tuple[str, ...] = ()) -> None:
        self._excluded = excluded
        self.path: str = full_name(pattern).partition("://")[2]
        parts = self.path.split("/", 2)
        if len(parts) != 3:
            raise InvalidTopicName(f"the pattern {pattern!r} must be tenant/namespace/expression")
        self.namespace: str = "/".join(parts[:2])
        if "|" in parts[2]:  # an alternative of the name, not of the whole path
            self.path = f"{self.namespace}/(?:{parts[2]})"
        try:
            self._matches: Callable[[str], object] = re.compile(self.path).fullmatch
        except re.error as error:
            raise InvalidTopicName(f"the pattern {pattern!r}: {error}") from error

    def matches(self, topic: str) -> bool:
        """Return True if the pattern matches a topic's full name, or the topic of a partition."""
        name = base_name(topic)
        return bool(self._matches(name.partition("://")[2])) and not name.endswith(self._excluded)
