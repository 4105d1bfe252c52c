"""Pattern subscriptions find new and deleted topics by a watch or by the topic list."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from native_kit import Collector, Rig, run, settle, subscription

from pulsar_encore.devbroker import BrokerSettings, Fault, FaultPlan
from pulsar_encore.exceptions import AuthorizationError, InvalidTopicName
from pulsar_encore.options import RegexSubscriptionMode
from pulsar_encore.transport.native.lookup.pattern_watch import PatternWatch
from pulsar_encore.values.topic_names import base_name
from pulsar_encore.wire import pb
from pulsar_encore.wire.checksum import topics_hash

NAMESPACE = "persistent://public/default"
PATTERN = f"{NAMESPACE}/a.*"
LONG = f"{NAMESPACE}/a.*(, a pattern that is longer than brokers take)?"


def topic(name: str) -> str:
    return f"{NAMESPACE}/{name}"


class Following:
    """A consumer of a pattern, and its messages."""

    def __init__(self, rig: Rig, **chosen: Any) -> None:
        self.rig = rig
        self.chosen = {"topics": (), "pattern": PATTERN, **chosen}
        self.listener = Collector()

    async def start(self) -> Following:
        self.transport_consumer: Any = await self.rig.transport.subscribe(
            subscription(**self.chosen)
        )
        self.transport_consumer.start(self.listener)
        await settle()
        return self

    def topics(self) -> set[str]:
        """Return the topics of the received messages."""
        return {
            self.transport_consumer.topic_of(each.topic_number)[0]
            for each in self.listener.deliveries
        }


def commands_in(rig: Rig, name: str) -> list[Any]:
    return list(rig.service.recorder.find(name, "in"))


def test_updates_of_a_watch_do_not_delay_the_topic_list() -> None:
    async def main() -> None:
        rig = Rig()
        await Following(rig, pattern_auto_discovery_period=10).start()
        before = len(commands_in(rig, "GET_TOPICS_OF_NAMESPACE"))
        for number in range(12):
            rig.store(b"1", topic=topic(f"a{number}"))
            await settle(3)
        assert len(commands_in(rig, "GET_TOPICS_OF_NAMESPACE")) - before == 3

    run(main())


def test_a_new_topic_is_subscribed_as_soon_as_it_exists() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"1", topic=topic("a1"))
        rig.store(b"no", topic=topic("b"))
        following = await Following(rig).start()
        rig.store(b"2", topic=topic("a2"))
        rig.store(b"no", topic=topic("c"))
        await settle(0.1)
        assert following.listener.payloads == [b"1", b"2"]
        assert ("new_topic", 1) in following.listener.calls
        assert len(commands_in(rig, "GET_TOPICS_OF_NAMESPACE")) == 1
        await following.transport_consumer.close()
        await settle()
        assert commands_in(rig, "WATCH_TOPIC_LIST_CLOSE")

    run(main())


def test_all_partitions_of_a_matching_topic_are_subscribed_also_later_ones() -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.catalogue.create_partitioned(topic("a"), 2)
        following = await Following(rig).start()
        rig.service.catalogue.create_partitioned(topic("a"), 4)
        rig.service.catalogue.create_partitioned(topic("ab"), 2)
        await settle(0.1)
        for name in ("a-partition-0", "a-partition-3", "ab-partition-1"):
            rig.store(b"x", topic=topic(name))
        await settle(0.1)
        assert following.topics() == {
            topic("a-partition-0"),
            topic("a-partition-3"),
            topic("ab-partition-1"),
        }
        assert len(following.transport_consumer.topic_numbers()) == 6

    run(main())


def test_a_deleted_topic_is_removed_and_is_subscribed_again_when_it_returns() -> None:
    async def main() -> None:
        rig = Rig()
        for name in ("a1", "a2"):
            rig.store(b"1", topic=topic(name))
        following = await Following(rig).start()
        rig.service.delete(topic("a1"))
        await asyncio.sleep(5)
        assert topic("a1") not in rig.service.catalogue.in_namespace("public/default")
        assert "failed" not in following.listener.names
        assert following.transport_consumer.is_connected()
        subscribes = len(commands_in(rig, "SUBSCRIBE"))
        await asyncio.sleep(300)
        assert len(commands_in(rig, "SUBSCRIBE")) == subscribes, "nobody asks for it any more"
        rig.store(b"again", topic=topic("a1"))
        rig.store(b"other", topic=topic("a2"))
        await asyncio.sleep(1)
        assert sorted(following.listener.payloads) == [b"1", b"1", b"again", b"other"]
        rig.service.delete(topic("a2"))
        await asyncio.sleep(5)
        await following.transport_consumer.seek(0)
        await asyncio.sleep(1)
        await following.transport_consumer.unsubscribe()

    run(main())


def test_changes_during_a_lost_connection_are_reported_after_it() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"1", topic=topic("a1"))
        following = await Following(rig).start()
        rig.dialer.reachable = False
        rig.dialer.drop()
        await settle(0.2)
        rig.store(b"2", topic=topic("a2"))
        rig.dialer.reachable = True
        await asyncio.sleep(2)
        assert following.topics() == {topic("a1"), topic("a2")}
        hashes = [
            each.command.watchTopicList.topics_hash for each in commands_in(rig, "WATCH_TOPIC_LIST")
        ]
        assert hashes == ["00000000", topics_hash([topic("a1")])]
        assert len(commands_in(rig, "GET_TOPICS_OF_NAMESPACE")) == 1

    run(main())


def test_a_lost_update_is_noticed_with_the_next_one() -> None:
    async def main() -> None:
        rig = Rig()
        following = await Following(rig).start()
        rig.service.faults = FaultPlan(
            [Fault(kind="drop", command="WATCH_TOPIC_UPDATE", direction="out")]
        )
        rig.store(b"1", topic=topic("a1"))
        await settle(0.1)
        assert following.listener.payloads == []
        rig.store(b"2", topic=topic("a2"))
        await settle(0.1)
        assert sorted(following.listener.payloads) == [b"1", b"2"]
        assert len(commands_in(rig, "GET_TOPICS_OF_NAMESPACE")) == 1

    run(main())


@pytest.mark.parametrize(
    ("broker", "chosen"),
    [
        (BrokerSettings(topic_watchers=False), {}),
        (BrokerSettings(), {"pattern": LONG}),
        (BrokerSettings(), {"regex_subscription_mode": RegexSubscriptionMode.AllTopics}),
    ],
)
def test_without_a_watch_the_topic_list_finds_changes_in_time(
    broker: BrokerSettings, chosen: dict[str, Any]
) -> None:
    async def main() -> None:
        rig = Rig(broker)
        rig.store(b"1", topic=topic("a1"))
        following = await Following(rig, pattern_auto_discovery_period=20, **chosen).start()
        rig.store(b"2", topic=topic("a2"))
        await asyncio.sleep(21)
        assert following.topics() == {topic("a1"), topic("a2")}
        await asyncio.sleep(100)
        lists = commands_in(rig, "GET_TOPICS_OF_NAMESPACE")
        assert 5 <= len(lists) <= 7
        assert lists[-1].command.getTopicsOfNamespace.topics_hash, "asked whether it has changed"
        assert len(commands_in(rig, "WATCH_TOPIC_LIST")) <= 1
        assert len(commands_in(rig, "PARTITIONED_METADATA")) == 2, "of each topic once"

    run(main())


def test_a_refused_watch_is_not_requested_repeatedly() -> None:
    async def main() -> None:
        rig = Rig()
        rig.service.faults = FaultPlan(
            [Fault(kind="drop", command="WATCH_TOPIC_LIST", times=2)]  # no answer within 30 s
        )
        following = await Following(rig).start()
        await asyncio.sleep(59)
        assert len(commands_in(rig, "WATCH_TOPIC_LIST")) == 2
        assert len(commands_in(rig, "WATCH_TOPIC_LIST_CLOSE")) == 1, "it may have come about"
        await asyncio.sleep(10)
        rig.store(b"1", topic=topic("a1"))
        await settle(0.1)
        assert following.listener.payloads == [b"1"]

    run(main())


def test_a_topic_deleted_before_its_subscribe_does_not_fail_the_pattern_consumer() -> None:
    async def main() -> None:
        rig = Rig()
        for name in ("a1", "a2"):
            rig.store(b"1", topic=topic(name))
        rig.service.faults = FaultPlan(
            [
                Fault(kind="refuse", command="SUBSCRIBE", error="TopicNotFound", topic=topic("a1")),
                Fault(
                    kind="refuse",
                    command="PARTITIONED_METADATA",
                    error="TopicNotFound",
                    topic=topic("a3"),
                ),
            ]
        )
        following = await Following(rig).start()
        assert following.transport_consumer.is_connected()
        rig.store(b"1", topic=topic("a3"))
        await asyncio.sleep(1)
        assert following.topics() == {topic("a1"), topic("a2")}, "at the next look"
        await asyncio.sleep(60)
        assert following.topics() == {topic("a1"), topic("a2"), topic("a3")}

    run(main())


def test_an_authorization_error_or_an_invalid_pattern_fails_the_subscribe() -> None:
    async def main() -> None:
        rig = Rig()
        rig.store(b"1", topic=topic("a1"))
        rig.service.faults = FaultPlan(
            [Fault(kind="refuse", command="SUBSCRIBE", error="AuthorizationError")]
        )
        with pytest.raises(AuthorizationError):
            await Following(rig).start()
        with pytest.raises(InvalidTopicName, match="the pattern"):
            await Following(rig, pattern=f"{NAMESPACE}/[").start()

    run(main())


def test_the_client_decides_which_topics_match() -> None:
    """The broker's regex dialect may differ, and a watch accepts every topic that it sends."""

    async def main() -> None:
        rig = Rig()
        lookup = rig.lookup
        watched = PatternWatch(lookup, PATTERN, RegexSubscriptionMode.PersistentOnly, 60.0)
        assert await watched.first() == []
        await settle()
        session = lookup.pool.sessions[0]
        assert not session.idle
        names = [topic("b"), topic("a1"), "non-persistent://public/default/a2"]
        update = pb.CommandWatchTopicUpdate(
            watcher_id=1, new_topics=names, topics_hash=topics_hash(names)
        )
        watched.on_topics_changed(update)
        assert await watched.changed() == [names[2], names[1]]
        await watched.stop()
        assert session.idle

    run(main())


def test_many_new_topics_cause_one_request_each() -> None:
    async def main() -> None:
        rig = Rig(BrokerSettings(record_limit=100_000))
        following = await Following(rig).start()
        for each in range(150):
            rig.store(b"x", topic=topic(f"a{each}"))
        await asyncio.sleep(5)
        assert len(following.listener.deliveries) == 150
        assert len(commands_in(rig, "PARTITIONED_METADATA")) == 150
        assert len({base_name(each) for each in following.topics()}) == 150

    run(main())
