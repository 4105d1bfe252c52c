"""The start and end options of a read as positions."""

from __future__ import annotations

from ...errors import ConfigurationError
from ...values.topic_names import base_name
from ..offsets import EARLIEST, Position, before
from ..source_options import (
    EARLIEST_WORD,
    LATEST_WORD,
    Edge,
    ReadOptions,
    edge_position,
)
from .cluster import Cluster


async def begin_of(cluster: Cluster, options: ReadOptions, topic: str, last: Position) -> Position:
    edge_value = edge_position(options.start, topic, base_name(topic))
    if isinstance(edge_value, Position):
        return edge_value
    if isinstance(edge_value, int):
        first = await cluster.first_at(topic, edge_value)
        if first is not None:
            return before(first)
        if options.start_missing == "error" and last != EARLIEST:
            raise ConfigurationError(
                f"startingTime: {topic} has no message of {edge_value} ms or later; set "
                "startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
        return last
    if edge_value == EARLIEST_WORD:
        return EARLIEST
    assert edge_value == LATEST_WORD, edge_value  # `QueryProgress` handles `SUBSCRIPTION_WORD`
    return last


async def countable(cluster: Cluster, topic: str, begin: Position) -> Position:
    """Return an equivalent position from which entries can be counted, if possible.

    From `EARLIEST`, only the web service can count entries. From a position in the topic's only
    ledger, no web service is needed.
    """
    if begin != EARLIEST or cluster.admin is not None:
        return begin
    first = await cluster.first_at(topic, 0)
    return begin if first is None else before(first)


async def end_of(cluster: Cluster, options: ReadOptions, topic: str, last: Position) -> Position:
    """Return the last message that a batch reads of a topic, at most `last`."""
    edge_value = edge_position(options.end, topic, base_name(topic))
    if isinstance(edge_value, Position):
        return edge_value if edge_value.order < last.order else last
    if isinstance(edge_value, int):
        first = await cluster.first_at(topic, edge_value)
        return last if first is None else before(first)
    return last


def gone_text(topic: str, start: Position, first: int, *, sure: bool) -> str:
    """Return the error text for lost messages; without `sure`, they may never have existed."""
    caveat = "" if sure else ", unless that was the last of its ledger, which is no longer known"
    return (
        f"{topic}: messages after {start} are gone{caveat}; the first stored message is in ledger "
        f"{first}: retention or a backlog quota deleted them before they were read"
    )


def check_topics(edge: Edge, name: str, topics: dict[str, int]) -> None:
    known = {"", *topics, *map(base_name, topics)}  # "" stands for all topics
    for topic, _ in (*edge.positions, *edge.times_ms):
        if topic not in known:
            raise ConfigurationError(
                f"{name} names {topic}, which is not among the topics that are read: "
                f"{', '.join(sorted(topics))}"
            )
