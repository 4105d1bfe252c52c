"""The topic that a call names."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from ...errors import ConfigurationError
from ...options.checks import topic_name
from ...transport.interface import TransportConsumer
from ...values.topic_names import base_name, full_name, partition_of

_NAMED: Final = 10  # topics that an error lists


class TopicChoice:
    """The numbers of one topic and its partitions, future ones included."""

    __slots__ = ("_found", "_transport_consumer", "topic")

    def __init__(self, transport_consumer: TransportConsumer, topic: str) -> None:
        self._transport_consumer = transport_consumer
        self._found: dict[int, bool] = {}
        self.topic: str = topic

    def __contains__(self, number: object) -> bool:
        found = self._found.get(number)  # type: ignore[call-overload]  # as of any mapping
        if found is None:
            assert isinstance(number, int)
            name, _ = self._transport_consumer.topic_of(number)
            found = self._found[number] = self.topic in (name, base_name(name))
        return bool(found)


class TopicChoices:
    def __init__(self, transport_consumer: TransportConsumer, declared: Iterable[str]) -> None:
        self._transport_consumer = transport_consumer
        self.declared: list[str] = [full_name(each) for each in declared]
        self._choices: dict[str, TopicChoice] = {}
        # Accepted names of topics that may not exist.
        self._unsure: set[str] = set()

    def of(self, topic: str | None) -> TopicChoice | None:
        """Return the numbers of a topic; raise if the consumer does not read it."""
        return None if topic is None else self._named(topic)

    def name_of(self, topic: str | None) -> str | None:
        """Return the full name of a topic; raise if the consumer does not read it."""
        return None if topic is None else self._named(topic).topic

    def _named(self, topic: str) -> TopicChoice:
        topic_name(topic, "topic")
        name = full_name(topic)
        choice = self._choices.get(name)
        if choice is None:
            self._check(name)
            choice = self._choices[name] = TopicChoice(self._transport_consumer, name)
        return choice

    def _check(self, name: str) -> None:
        transport_consumer = self._transport_consumer
        come = {
            transport_consumer.topic_of(number)[0] for number in transport_consumer.topic_numbers()
        } - self._unsure
        known = come.union(self.declared)
        if name in known or name in {base_name(each) for each in known}:
            return
        # The stock transport does not know how many partitions a topic has. It accepts every
        # partition number until a message has arrived.
        unpartitioned = base_name(name) in come
        if (
            not unpartitioned
            and transport_consumer.topic_number_of(name, partition_of(name)) is not None
        ):
            self._unsure.add(name)
            return
        listed = ", ".join(islice(sorted(known), _NAMED))
        more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
        reads = f"reads {listed}{more}" if known else "knows no topic yet that matches its pattern"
        raise ConfigurationError(f"this consumer does not read {name}; it {reads}")
