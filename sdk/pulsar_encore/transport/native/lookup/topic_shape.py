"""Whether a topic exists and how many partitions it has, looked up without creating it.

A deleted topic must stay deleted until it is created again on purpose. So consumers and producers
that were attached look it up with creation off (`metadata_auto_creation_enabled=false`, PIP-344).
Creation is allowed only after the topic was missing for `ClientSettings.recreate_after_s`, because
brokers delete inactive topics.

A broker without PIP-344 ignores the field: it answers 0 partitions for a missing topic, and creates
the topic if `allowAutoTopicCreationType` is `partitioned`. Its answer 0 for a topic that had
partitions counts as missing. With such a broker, a producer of a topic without partitions creates a
deleted topic again.
"""

from __future__ import annotations

from typing import Final

from ....errors import TopicNotFound
from ....values.topic_names import partition_of
from .lookup import Lookup

LOG_NAME: Final = "pulsar_encore.lookup"

# Between two lookups of a missing topic.
_MISSING_S: Final = 5.0


class TopicShape:
    """The current partitions of one topic.

    Args:
        creates: True if the topic may be created after it was missing for long.
        name: The consumer or producer, for log lines; None for no lines.

    Attributes:
        missing_s: Loop time since when the topic is missing; None while it exists.
        may_create: True if attaching to the topic may create it now.
    """

    def __init__(
        self,
        lookup: Lookup,
        topic: str,
        *,
        creates: bool,
        partitions: int = 0,
        name: str | None = None,
    ) -> None:
        self.topic: str = topic
        self.partitions: int = partitions
        self.missing_s: float | None = None
        self.may_create: bool = False
        self._lookup = lookup
        self._creates = creates
        self._name = name
        self._recreate_after_s = lookup.pool.settings.recreate_after_s

    async def ask(self) -> int | None:
        """Return the number of partitions, 0 for a topic without; None if the topic is missing."""
        try:
            count, tells_missing = await self._lookup.ask_partitions(self.topic, create=False)
        except TopicNotFound:
            return await self._ask_missing()
        if self.partitions and not count and not tells_missing:
            return await self._ask_missing()
        if self.missing_s is not None:
            self._log("the topic %s exists again after %.1f s", self._missing_for_s())
        self.missing_s, self.may_create = None, False
        self.partitions = count
        return count

    async def _ask_missing(self) -> int | None:
        now_s = self._lookup.pool.loop.time()
        if self.missing_s is None:
            self.missing_s = now_s
            if self._creates:
                self._log(
                    "the topic %s does not exist any more. This client waits for it, and "
                    "creates it after %g s (recreate_after) if it is still missing then",
                    self._recreate_after_s,
                )
            else:
                self._log(
                    "the topic %s does not exist any more. This client waits for it, and does "
                    "not create it"
                )
        if not self.is_due(self.missing_s):
            return None
        try:
            count = await self._lookup.partitions(self.topic, create=True)
        except TopicNotFound:
            return None
        if not self.may_create:
            text = "the topic %s is created again after %.1f s without it (recreate_after)"
            self._log(text, self._missing_for_s())
        self.may_create = True
        self.partitions = count
        return count

    def _missing_for_s(self) -> float:
        since_s = self.missing_s
        return 0.0 if since_s is None else self._lookup.pool.loop.time() - since_s

    def _log(self, text: str, *values: object) -> None:
        if self._name is not None:
            self._lookup.pool.settings.logger_of(LOG_NAME).warning(
                "%s: %s", self._name, text % (self.topic, *values)
            )

    def is_due(self, missing_s: float | None) -> bool:
        """Return True if a topic that is missing since a loop time may be created again."""
        return self._creates and missing_s is not None and self._is_overdue(missing_s)

    def _is_overdue(self, missing_s: float) -> bool:
        return self._lookup.pool.loop.time() - missing_s >= self._recreate_after_s

    def next_look_s(self, delay_s: float) -> float:
        """Return the delay before the next lookup: at most 5 s until the topic may be created
        here."""
        if self.missing_s is not None and self._is_overdue(self.missing_s):
            return delay_s
        return min(delay_s, _MISSING_S)

    def topics(self, count: int) -> list[tuple[str, int]]:
        if not count:
            return [(self.topic, partition_of(self.topic))]
        return [(f"{self.topic}-partition-{each}", each) for each in range(count)]
