"""Values of the label `topic`, of which there are few enough for a monitoring system."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..values.topic_names import base_name, full_name
from .error_types import OTHER

MAX_LISTED: Final = 20
"""Largest list of topics whose metrics name each topic."""
MAX_NAMES: Final = 2000
"""Most topics, subscriptions and workers in the labels of one `Metrics`."""


class Names:
    """Names of subscriptions or workers; "_OTHER" for each new one after 2,000.

    The limit is for programs that make names while they run, such as one for each request.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def label_of(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= MAX_NAMES:
                return OTHER
            self._known.add(name)
        return name


class TopicNames(Names):
    """Full names of topics, without partitions; "_OTHER" for each new one after 2,000."""

    def label_of(self, name: str) -> str:
        return super().label_of(base_name(full_name(name)))


@dataclass(frozen=True, slots=True)
class TopicRule:
    """How the topics of one subscription are labelled.

    Attributes:
        names: Known topics of the process.
        common: Label of counts that are known for all topics together only, and of topics that have
            no label of their own.
        listed: Full names of the topics with a label of their own; None for all topics.
    """

    names: TopicNames
    common: str
    listed: frozenset[str] | None = None

    @property
    def is_split(self) -> bool:
        """True if the topics have different labels."""
        return self.listed is None or bool(self.listed)

    def label_of(self, topic: str) -> str:
        if self.listed is not None and base_name(full_name(topic)) not in self.listed:
            return self.common
        return self.names.label_of(topic)


def topic_rule(
    names: TopicNames,
    topics: tuple[str, ...],
    subscription: str,
    *,
    by_topic: bool,
) -> TopicRule:
    """Return the rule for a subscription.

    Args:
        topics: The subscribed topics; empty for a pattern.
        by_topic: True if each topic has a label of its own, however many there are.
    """
    if len(topics) == 1:  # its retry letter topic has the same label
        return TopicRule(names, names.label_of(topics[0]), frozenset())
    if by_topic:
        return TopicRule(names, subscription)
    if len(topics) > MAX_LISTED:
        topics = ()
    listed = frozenset(base_name(full_name(each)) for each in topics)
    return TopicRule(names, subscription, listed)
