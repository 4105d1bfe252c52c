"""Names of topics that a pop refuses on a transport that does not know the partitions."""

from __future__ import annotations

from typing import cast

import pytest

from pulsar_encore import ConfigurationError
from pulsar_encore.consumer.leases.topic_choice import TopicChoices
from pulsar_encore.transport.interface import TransportConsumer
from pulsar_encore.transport.stock.deliveries import TopicNames

TOPIC = "persistent://public/default/t"


class Link:
    """Names sources as the stock transport does."""

    def __init__(self, *topics: str) -> None:
        self._sources = TopicNames(topics)

    def came(self, topic: str, partition: int = -1) -> None:
        self._sources.add(topic, partition)

    def topic_of(self, source: int) -> tuple[str, int]:
        return self._sources.name(source)

    def topic_numbers(self) -> range:
        return range(len(self._sources))

    def topic_number_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        return self._sources.find(topic, partition)


def choices(link: Link) -> TopicChoices:
    return TopicChoices(cast("TransportConsumer", link), [TOPIC])


def test_a_partition_without_messages_yet_can_be_named() -> None:
    link = Link(TOPIC)
    assert choices(link).of(f"{TOPIC}-partition-1") is not None
    link.came(f"{TOPIC}-partition-0", 0)
    assert choices(link).of(f"{TOPIC}-partition-2") is not None


def test_a_partition_of_a_topic_known_to_be_unpartitioned_is_refused() -> None:
    link = Link(TOPIC)
    link.came(TOPIC)
    with pytest.raises(ConfigurationError, match=r"does not read .*t-partition-0"):
        choices(link).of(f"{TOPIC}-partition-0")
    assert choices(link).of(TOPIC) is not None


def test_a_partition_that_was_named_does_not_count_as_read() -> None:
    link = Link(TOPIC)
    known = choices(link)
    known.of(f"{TOPIC}-partition-9")
    with pytest.raises(ConfigurationError, match=r"it reads persistent://public/default/t$"):
        known.of("none")


def test_the_error_of_a_pattern_consumer_says_that_it_knows_no_topic_yet() -> None:
    known = TopicChoices(cast("TransportConsumer", Link()), [])
    with pytest.raises(ConfigurationError, match="knows no topic yet that matches its pattern"):
        known.of("none")
