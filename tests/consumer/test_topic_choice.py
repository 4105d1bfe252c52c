"""Names of topics that a pop refuses on a transport that does not know the partitions."""

from __future__ import annotations

from typing import cast

import pytest

from pulsar_encore import ConfigurationError
from pulsar_encore.consumer.leases.topic_choice import TopicChoices
from pulsar_encore.transport.interface import TransportConsumer
from pulsar_encore.transport.stock.deliveries import TopicNames

TOPIC = "persistent://public/default/t"


class FakeTransportConsumer:
    """Names topics as the stock transport does."""

    def __init__(self, *topics: str) -> None:
        self._topic_names = TopicNames(topics)

    def add_topic(self, topic: str, partition: int = -1) -> None:
        self._topic_names.add(topic, partition)

    def topic_of(self, topic_number: int) -> tuple[str, int]:
        return self._topic_names.name(topic_number)

    def topic_numbers(self) -> range:
        return range(len(self._topic_names))

    def topic_number_of(self, topic: str, partition: int, ledger: int = -1) -> int | None:
        return self._topic_names.find(topic, partition)


def choices(transport_consumer: FakeTransportConsumer) -> TopicChoices:
    return TopicChoices(cast("TransportConsumer", transport_consumer), [TOPIC])


def test_a_partition_without_messages_yet_can_be_named() -> None:
    transport_consumer = FakeTransportConsumer(TOPIC)
    assert choices(transport_consumer).of(f"{TOPIC}-partition-1") is not None
    transport_consumer.add_topic(f"{TOPIC}-partition-0", 0)
    assert choices(transport_consumer).of(f"{TOPIC}-partition-2") is not None


def test_a_partition_of_a_topic_known_to_be_unpartitioned_is_refused() -> None:
    transport_consumer = FakeTransportConsumer(TOPIC)
    transport_consumer.add_topic(TOPIC)
    with pytest.raises(ConfigurationError, match=r"does not read .*t-partition-0"):
        choices(transport_consumer).of(f"{TOPIC}-partition-0")
    assert choices(transport_consumer).of(TOPIC) is not None


def test_a_partition_that_was_named_does_not_count_as_read() -> None:
    transport_consumer = FakeTransportConsumer(TOPIC)
    known = choices(transport_consumer)
    known.of(f"{TOPIC}-partition-9")
    with pytest.raises(ConfigurationError, match=r"it reads persistent://public/default/t$"):
        known.of("none")


def test_the_error_of_a_pattern_consumer_says_that_it_knows_no_topic_yet() -> None:
    known = TopicChoices(cast("TransportConsumer", FakeTransportConsumer()), [])
    with pytest.raises(ConfigurationError, match="knows no topic yet that matches its pattern"):
        known.of("none")
