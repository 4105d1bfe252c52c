"""The topics of a consumer that are paused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container

from ...values.topic_names import base_name


class PausedTopics:
    """The paused topics, by the rules of `pause` and `resume` in the order of the calls.

    The latest rule that covers a topic decides. A rule for a partitioned topic covers all its
    partitions, also those that are found later. A new rule replaces the rules that it covers.

    Args:
        name_of: Returns the full name of a topic by its number.
        declared: Full names of all topics that the consumer reads; empty for a pattern.

    Attributes:
        is_everything: True if no topic is left that delivers messages.
    """

    def __init__(self, name_of: Callable[[int], str], declared: Collection[str] = ()) -> None:
        self._name_of = name_of
        self._declared = declared
        self.is_everything: bool = False
        self._all = False
        self._rules: dict[str, bool] = {}
        self._found: dict[int, bool] = {}

    def __bool__(self) -> bool:
        return self._all or any(self._rules.values())

    def set(self, name: str | None, paused: bool) -> None:
        """Pause or resume a topic by its full name, or all topics (None)."""
        self._found.clear()
        self._set(name, paused)
        covered = bool(self._declared) and all(map(self.covers, self._declared))
        self.is_everything = (self._all or covered) and all(self._rules.values())

    def _set(self, name: str | None, paused: bool) -> None:
        if name is None:
            self._all = paused
            self._rules.clear()
            return
        for each in [each for each in self._rules if name in (each, base_name(each))]:
            del self._rules[each]
        if paused != self.covers(name):
            self._rules[name] = paused

    def covers(self, name: str) -> bool:
        """Return True if a topic with this full name is paused."""
        rule = self._rules.get(name)
        if rule is None:
            rule = self._rules.get(base_name(name), self._all)
        return rule

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        found = self._found.get(number)
        if found is None:
            found = self._found[number] = self.covers(self._name_of(number))
        return found


class Unpaused:
    """The topics that are not paused.

    Args:
        only: Numbers of the topics to choose from; None for all.
    """

    def __init__(self, paused: PausedTopics, only: Container[int] | None) -> None:
        self._paused = paused
        self._only = only

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        return number not in self._paused and (self._only is None or number in self._only)
