"""Where a read begins and ends, as options say it, as positions.

Owns `begin_of` and `end_of`.
"""

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
    unknown_topics,
)
from .cluster import Cluster


async def begin_of(cluster: Cluster, options: ReadOptions, topic: str, last: Position) -> Position:
    """The position from behind which a topic is read.

    Args:
        cluster: To ask.
        options: Of the read.
        topic: Full name, of the partition if any.
        last: Its last message.

    Raises:
        ConfigurationError: Nothing is as late as it is to begin at, and that is an error.
    """
    said = edge_position(options.start, topic, base_name(topic))
    if isinstance(said, Position):
        return said
    if isinstance(said, int):
        first = await cluster.first_at(topic, said)
        if first is not None:
            return before(first)
        if options.start_missing == "error" and last != EARLIEST:
            raise ConfigurationError(
                f"startingTime: {topic} has no message of {said} ms or later; set "
                "startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
        return last
    if said == EARLIEST_WORD:
        return EARLIEST
    assert said == LATEST_WORD, said  # `Progress` asks the cursor for `SUBSCRIPTION_WORD`
    return last


async def countable(cluster: Cluster, topic: str, begin: Position) -> Position:
    """The same place, of which it is known how many entries are behind it, if that can be had.

    From the beginning of a topic nobody can count, but for the web service; from behind a place in
    its only ledger everybody can.
    """
    if begin != EARLIEST or cluster.admin is not None:
        return begin
    first = await cluster.first_at(topic, 0)
    return begin if first is None else before(first)


async def end_of(cluster: Cluster, options: ReadOptions, topic: str, last: Position) -> Position:
    """The last message that a batch reads of a topic.

    Args:
        cluster: To ask.
        options: Of the read.
        topic: Full name, of the partition if any.
        last: Its last message: nothing behind it is waited for.
    """
    said = edge_position(options.end, topic, base_name(topic))
    if isinstance(said, Position):
        return said if said.order < last.order else last
    if isinstance(said, int):
        first = await cluster.first_at(topic, said)
        return last if first is None else before(first)
    return last


def gone_text(topic: str, start: Position, first: int, *, sure: bool) -> str:
    """What is said of a topic whose messages are gone.

    Args:
        topic: Full name.
        start: What was read last.
        first: The first ledger that is stored.
        sure: That there were any.
    """
    doubt = "" if sure else ", unless that was the last of its ledger, which nobody knows by now"
    return (
        f"{topic}: messages behind {start} are gone{doubt}; the first that is stored is in ledger "
        f"{first}: retention or a backlog quota deleted them before they were read"
    )


def check_topics(edge: Edge, name: str, topics: dict[str, int]) -> None:
    """That positions are of topics that are read.

    Raises:
        ConfigurationError: One is of another.
    """
    known = [*topics, *map(base_name, topics)]
    unknown = unknown_topics(edge, known)
    if unknown:
        raise ConfigurationError(
            f"{name} names {unknown[0]}, which is not read; read are {', '.join(sorted(topics))}"
        )
