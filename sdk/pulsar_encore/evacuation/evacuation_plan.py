"""What of a state directory is to go where: sources, filters, retry-letter topics.

Owns `evacuation_plan` and the choice of sources. Looks at a directory as `StateReader` does: it
changes nothing, also beside a live owner, and holds nothing in memory but a line for each source.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError
from ..options.checks import text
from ..state.rocks import FoundTopic, StateReader
from ..values.topic_names import base_name, full_name, retry_topic_of


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicPlan:
    """One source, and where what waits of it goes.

    Attributes:
        topic: Full name, of the partition if any.
        subscription: Its name.
        consumer: Which of its consumers, where they are kept apart; else "".
        retry_topic: Full name of the retry-letter topic.
        waiting: Messages that wait.
        earliest_ms: When the first of them is due, ms since the epoch; None where none waits.
        latest_ms: When the last of them is due.
    """

    topic: str
    subscription: str
    consumer: str
    retry_topic: str
    waiting: int
    earliest_ms: int | None
    latest_ms: int | None

    @property
    def from_retry_topic(self) -> bool:
        """Its topic is a retry-letter topic of its subscription: what waits is a letter."""
        return base_name(self.topic) == self.retry_topic or _is_retry(self.topic, self.subscription)


def evacuation_plan(
    path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    subscription: str | None = None,
    retry_topic: str | None = None,
) -> list[TopicPlan]:
    """What an evacuation would move, and where to; nothing is asked of a broker. Blocks.

    Args:
        path: The state directory; it may have a live owner.
        topic: Only this topic, with its partitions, or this partition.
        subscription: Only this subscription.
        retry_topic: Where everything goes; None takes `<topic>-<subscription>-RETRY` of each.

    Raises:
        StateFormatError: There is no state in it, or a newer version's.
        StateDamagedError: Files are lost or damaged.
        ConfigurationError: Nothing is kept of the topic or subscription; `rocksdict` is missing.
    """
    target = None if retry_topic is None else full_name(text(retry_topic, "retry_topic"))
    with StateReader(path) as state:
        chosen = {each.number: each for each in choose(state.sources(), topic, subscription)}
        counts = dict.fromkeys(chosen, 0)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for due_ms, number, _ in state.waiting():
            if number in counts:
                counts[number] += 1
                first.setdefault(number, due_ms)
                last[number] = due_ms
    return [
        TopicPlan(
            topic=each.topic,
            subscription=each.subscription,
            consumer=each.consumer,
            retry_topic=target or _retry_topic(each.topic, each.subscription),
            waiting=counts[number],
            earliest_ms=first.get(number),
            latest_ms=last.get(number),
        )
        for number, each in chosen.items()
    ]


def choose(
    sources: Sequence[FoundTopic], topic: str | None, subscription: str | None
) -> list[FoundTopic]:
    """The sources of a topic and a subscription; None for any.

    Raises:
        ConfigurationError: There are none.
    """
    chosen = list(sources)
    if topic is not None:
        wanted = full_name(text(topic, "topic"))
        chosen = [each for each in chosen if wanted in (each.topic, base_name(each.topic))]
        if not chosen:
            raise _unknown("topic", wanted, (base_name(each.topic) for each in sources))
    if subscription is not None:
        wanted = text(subscription, "subscription")
        of_topic, chosen = chosen, [each for each in chosen if each.subscription == wanted]
        if not chosen:
            raise _unknown("subscription", wanted, (each.subscription for each in of_topic))
    return chosen


def _unknown(kind: str, wanted: str, available: Iterable[str]) -> ConfigurationError:
    names = sorted(set(available))
    known = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return ConfigurationError(
        f"the state has nothing of the {kind} {wanted!r}; it has {known or 'no source at all'}"
    )


def _is_retry(topic: str, subscription: str) -> bool:
    return base_name(topic).endswith(f"-{subscription}-RETRY")


def _retry_topic(topic: str, subscription: str) -> str:
    if _is_retry(topic, subscription):
        return base_name(topic)
    return retry_topic_of([topic], subscription)
