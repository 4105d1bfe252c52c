"""All topics of a broker. A partitioned topic has no log of its own."""

from __future__ import annotations

from collections.abc import Callable

from .attached_consumers import Notice
from .names import PARTITION_MARK, TopicName, parse
from .refusal import Refusal
from .rule_settings import BrokerRules
from .schema_log import SchemaLog
from .subscriptions import Subscription
from .topic_log import TopicLog
from .topic_producers import Producers

MAX_PARTITIONS = 10_000


class BrokerTopic:
    """One topic or partition."""

    def __init__(self, log: TopicLog) -> None:
        self.log = log
        self.name: str = log.name
        self.subscriptions: dict[str, Subscription] = {}
        self.producers: Producers = Producers()
        self.schemas: SchemaLog = SchemaLog()
        self.body_bytes = 0

    def terminate(self) -> list[Notice]:
        """Accept no more messages; return notices for consumers that have acked all."""
        self.log.terminated = True
        return [each for one in self.subscriptions.values() for each in one.end_of_topic()]

    def trim(self) -> None:
        """Drop closed ledgers that all subscriptions have acked; none without subscriptions."""
        if self.subscriptions:
            self.log.trim(min(s.cursor.mark for s in self.subscriptions.values()))


class Catalogue:
    """Finds and creates topics and subscriptions.

    Args:
        next_ledger: Returns ledger ids, unique in the broker.
        created: Called with the full name of each new topic or partition.
    """

    def __init__(
        self,
        rules: BrokerRules,
        next_ledger: Callable[[], int],
        created: Callable[[str], None] | None = None,
    ) -> None:
        self._rules = rules
        self._created = created
        self._next_ledger = next_ledger
        self.topics: dict[str, BrokerTopic] = {}
        self.partitioned: dict[str, int] = {}

    def name(self, topic: str) -> TopicName:
        """Parse a name and check that its namespace exists."""
        name = parse(topic)
        allowed = self._rules.namespaces
        if allowed is not None and name.namespace not in allowed:
            raise Refusal(
                "TopicNotFound",
                f"namespace {name.namespace} does not exist; "
                "add it to BrokerSettings.namespaces or set that to None",
            )
        return name

    def partitions(self, topic: str, create: bool) -> int:
        """Return the number of partitions, 0 for a topic without. May create the topic."""
        name = self.name(topic)
        if name.full in self.partitioned:
            return self.partitioned[name.full]
        if name.full in self.topics:
            return 0
        if not (create and self._rules.auto_create):
            raise Refusal("TopicNotFound", f"{name.full} does not exist")
        count = self._rules.auto_create_partitions
        if name.partition >= 0 or not count or name.full.endswith(("-DLQ", "-RETRY")):
            if name.partition < 0:
                self._create(name)
            return 0
        self.create_partitioned(name.full, count)
        return count

    def create_partitioned(self, topic: str, count: int) -> None:
        """Create a partitioned topic, or add partitions, with the durable subscriptions.

        Raises:
            Refusal: NotAllowedError for an invalid count or name.
        """
        name = self.name(topic)
        have = self.partitioned.get(name.full, 0)
        if not have < count <= MAX_PARTITIONS or name.partition >= 0:
            raise Refusal("NotAllowedError", f"{name.full} cannot have {count} partitions")
        if PARTITION_MARK in name.full:
            raise Refusal(
                "NotAllowedError",
                f"{name.full} cannot be partitioned: its name must not contain {PARTITION_MARK!r}",
            )
        if name.full in self.topics:
            raise Refusal("NotAllowedError", f"{name.full} exists and is not partitioned")
        self.partitioned[name.full] = count
        first = self.topics.get(f"{name.full}-partition-0")
        for partition in range(have, count):
            state = self._create(parse(f"{name.full}-partition-{partition}"))
            for known in first.subscriptions.values() if first else ():
                if known.durable and state is not first:
                    self.subscription(state, known.name, start=0)

    def create(self, topic: str) -> None:
        """Create a topic without partitions, even if automatic creation is off."""
        name = self.name(topic)
        self._check_partition(name)
        self._create(name)

    def _check_partition(self, name: TopicName) -> None:
        """Refuse a partition of a topic that is not partitioned, or has fewer partitions."""
        if name.partition < 0:
            return
        count = self.partitioned.get(name.base)
        if count is None:
            raise Refusal(
                "NotAllowedError",
                f"{name.full} is a partition by its name, and {name.base} is not partitioned; "
                "create that, or choose a name that does not end so",
            )
        if name.partition >= count:
            raise Refusal("TopicNotFound", f"{name.base} has {count} partitions")

    def _create(self, name: TopicName) -> BrokerTopic:
        state = self.topics.get(name.full)
        if state is None:
            log = TopicLog(
                name.full,
                self._next_ledger,
                entries_per_ledger=self._rules.entries_per_ledger,
                partition=name.partition,
            )
            state = self.topics[name.full] = BrokerTopic(log)
            if self._created is not None:
                self._created(name.full)
        return state

    def topic(self, topic: str, *, create: bool = True) -> BrokerTopic:
        """Return the topic to publish to or subscribe to.

        Raises:
            Refusal: TopicNotFound; NotAllowedError for the base name of a partitioned topic, or for
                a partition of another topic.
        """
        state = self.topics.get(topic)
        if state is not None:
            return state
        name = self.name(topic)
        state = self.topics.get(name.full)
        if state is not None:
            return state
        if name.full in self.partitioned:
            raise Refusal("NotAllowedError", f"{name.full} is partitioned; use its partitions")
        if not (create and self._rules.auto_create):
            raise Refusal("TopicNotFound", f"{name.full} does not exist")
        self._check_partition(name)
        return self._create(name)

    def states(self, topic: str) -> list[BrokerTopic]:
        """Return the topic, or all its partitions."""
        name = self.name(topic)
        count = self.partitioned.get(name.full)
        if count is None:
            return [self.topic(name.full, create=False)]
        return [self.topics[f"{name.full}-partition-{i}"] for i in range(count)]

    def delete(self, topic: str) -> list[BrokerTopic]:
        """Delete a topic with all its partitions, and return them.

        Raises:
            Refusal: NotAllowedError for a single partition.
        """
        states = self.states(topic)
        name = self.name(topic)
        if name.base in self.partitioned and name.partition >= 0:
            raise Refusal("NotAllowedError", f"{name.full} goes with {name.base} only")
        self.partitioned.pop(name.full, None)
        for state in states:
            del self.topics[state.name]
        return states

    def subscription(
        self, state: BrokerTopic, name: str, *, start: int, durable: bool = True
    ) -> Subscription:
        """Create a subscription. `start` is clamped to the stored entries."""
        created = Subscription(state.log, name, self._rules, durable=durable, start=start)
        state.subscriptions[name] = created
        return created

    def in_namespace(self, namespace: str, domain: str = "persistent") -> list[str]:
        """Return the full names of topics and partitions."""
        prefix = f"{domain}://{namespace}/"
        return sorted(name for name in self.topics if name.startswith(prefix))
