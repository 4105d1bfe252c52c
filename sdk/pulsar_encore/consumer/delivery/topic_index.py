"""The queued deliveries of each topic, for callers that take messages of certain topics only."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator

from .queued_deliveries import QueuedDelivery


class TopicIndex:
    def __init__(self, deliveries: Iterable[QueuedDelivery]) -> None:
        self._by_number: defaultdict[int, deque[QueuedDelivery]] = defaultdict(deque)
        for each in deliveries:
            self.add(each)

    def add(self, delivery: QueuedDelivery) -> None:
        self._by_number[delivery.entry.topic_state.number].append(delivery)

    def remove_if_first(self, delivery: QueuedDelivery) -> None:
        of_topic = self._by_number[delivery.entry.topic_state.number]
        if of_topic and of_topic[0] is delivery:
            of_topic.popleft()

    def has(self, only: Container[int]) -> bool:
        return any(queued and number in only for number, queued in self._by_number.items())

    def highest(self, rank: Callable[[str], int]) -> Collection[int] | None:
        """Return the queued topics with the highest rank; None if all have the same.

        Args:
            rank: Returns the rank of a topic by its full name.
        """
        ranks = {
            number: rank(queued[0].entry.topic_state.topic)
            for number, queued in self._by_number.items()
            if queued
        }
        best = max(ranks.values(), default=0)
        highest = [number for number, each in ranks.items() if each == best]
        return None if len(highest) == len(ranks) else highest

    def in_turn(self, only: Container[int]) -> Iterator[deque[QueuedDelivery]]:
        """Yield the deliveries of each of these topics; a topic that is used goes to the end."""
        by_number = self._by_number
        for number in [number for number, queued in by_number.items() if queued and number in only]:
            queued = by_number[number] = by_number.pop(number)
            yield queued
