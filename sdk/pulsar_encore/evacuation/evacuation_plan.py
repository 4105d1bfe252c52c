"""Plan an evacuation: count the waiting messages and name their retry letter topics."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError
from ..options.checks import text
from ..state.rocks import FoundTopic, StateReader
from ..values.letter_topic_names import retry_topic_of
from ..values.topic_names import base_name, full_name


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicPlan:
    """The waiting messages of one topic and subscription, and their target.

    Attributes:
        topic: Full name, of the partition if any.
        consumer: Name of the consumer, if consumers are kept apart; else "".
        retry_topic: Full name of the retry letter topic.
        waiting: Number of waiting messages.
        earliest_ms: First due time, in ms since the epoch; None if no message waits.
        latest_ms: Last due time.
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
        """True if `topic` is a retry letter topic: the waiting messages are letters."""
        return base_name(self.topic) == self.retry_topic or _is_retry(self.topic, self.subscription)


def evacuation_plan(
    path: str | os.PathLike[str],
    *,
    topic: str | None = None,
    subscription: str | None = None,
    retry_topic: str | None = None,
) -> list[TopicPlan]:
    """Return the messages that an evacuation would move, by topic. Blocks; needs no broker.

    The directory may have a live owner. It is not changed.

    Args:
        path: The state directory.
        topic: Only this topic with its partitions, or this partition.
        subscription: Only this subscription.
        retry_topic: The target for all messages; None takes `<topic>-<subscription>-RETRY` of each
            topic.

    Raises:
        StateFormatError: if the directory has no state, or the state of a newer version.
        StateDamagedError: if files are missing or corrupted.
        ConfigurationError: if the state has nothing of the topic or subscription, or `rocksdict` is
            not installed.
    """
    target = None if retry_topic is None else full_name(text(retry_topic, "retry_topic"))
    with StateReader(path) as state:
        chosen = {each.number: each for each in choose(state.topics(), topic, subscription)}
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
    """Return the topics in the state that match the topic and the subscription; None matches all.

    Raises ConfigurationError if none matches.
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
        f"the state has nothing of the {kind} {wanted!r}; it has {known or 'no topic at all'}"
    )


def _is_retry(topic: str, subscription: str) -> bool:
    return base_name(topic).endswith(f"-{subscription}-RETRY")


def _retry_topic(topic: str, subscription: str) -> str:
    if _is_retry(topic, subscription):
        return base_name(topic)
    return retry_topic_of([topic], subscription)
