"""The topic that a pop names.

Owns `TopicChoice`, the sources that belong to a topic, and `TopicChoices`, which makes one for a
name.
"""

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
    """The sources of one topic, by number: a container that also knows sources to come.

    Args:
        link: Names the sources.
        topic: Full name of a partition or a topic. A topic contains all its partitions.
    """

    __slots__ = ("_found", "_link", "topic")

    def __init__(self, link: TransportConsumer, topic: str) -> None:
        self._link = link
        self._found: dict[int, bool] = {}
        self.topic: str = topic

    def __contains__(self, number: object) -> bool:
        found = self._found.get(number)  # type: ignore[call-overload]  # as of any mapping
        if found is None:
            assert isinstance(number, int)
            name, _ = self._link.topic_of(number)
            found = self._found[number] = self.topic in (name, base_name(name))
        return bool(found)


class TopicChoices:
    """The topics that pops of one consumer have named.

    Args:
        link: Knows which topics are read.
        declared: Topics of the subscription.
    """

    def __init__(self, link: TransportConsumer, declared: Iterable[str]) -> None:
        self._link = link
        self._declared = [full_name(each) for each in declared]
        self._choices: dict[str, TopicChoice] = {}
        self._unsure: set[str] = (
            set()
        )  # accepted, though nobody knows whether there is such a topic

    def of(self, topic: str | None) -> TopicChoice | None:
        """The sources of a topic; None for None.

        Raises:
            ConfigurationError: The consumer does not read the topic; the text names those it reads.
        """
        if topic is None:
            return None
        topic_name(topic, "topic")
        name = full_name(topic)
        choice = self._choices.get(name)
        if choice is None:
            self._check(name)
            choice = self._choices[name] = TopicChoice(self._link, name)
        return choice

    def _check(self, name: str) -> None:
        link = self._link
        come = {link.topic_of(number)[0] for number in link.sources()} - self._unsure
        known = come.union(self._declared)
        if name in known or name in {base_name(each) for each in known}:
            return
        # The stock transport does not know how many partitions a topic has. It names every one of
        # them, also of a topic without partitions, which is known once a message has come.
        unpartitioned = base_name(name) in come
        if not unpartitioned and link.source_of(name, partition_of(name)) is not None:
            self._unsure.add(name)
            return
        if not known:
            raise ConfigurationError(
                f"this consumer does not read {name}, so nothing can be popped of it; it knows no "
                "topic yet that matches its pattern"
            )
        listed = ", ".join(islice(sorted(known), _NAMED))
        more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
        raise ConfigurationError(
            f"this consumer does not read {name}, so nothing can be popped of it; it reads "
            f"{listed}{more}"
        )
