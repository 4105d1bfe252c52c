"""The options of consumers and readers that are passed to a transport."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pulsar_encore import (
    BytesSchema,
    ConsumerCryptoFailureAction,
    ConsumerKeySharedPolicy,
    ConsumerType,
    CryptoKeyReader,
    DeadLetterPolicy,
    InitialPosition,
    MessageId,
)
from pulsar_encore.consumer.consumer_factory import open_transport_consumer
from pulsar_encore.options import (
    ConsumerOptions,
    ReaderOptions,
    RegexSubscriptionMode,
    Subscription,
)
from pulsar_encore.reader.reader import subscription_of
from pulsar_encore.testing import MemoryTransport
from pulsar_encore.transport.interface import TransportConsumer

# Other than the default, each.
CHOSEN: dict[str, Any] = {
    "consumer_type": ConsumerType.Failover,
    "schema": BytesSchema(),
    "receiver_queue_size": 77,
    "max_total_receiver_queue_size_across_partitions": 7777,
    "consumer_name": "me",
    "broker_consumer_stats_cache_time_ms": 1,
    "is_read_compacted": True,
    "properties": {"a": "b"},
    "pattern_auto_discovery_period": 7,
    "initial_position": InitialPosition.Earliest,
    "crypto_key_reader": CryptoKeyReader("public.pem", "private.pem"),
    "replicate_subscription_state_enabled": True,
    "max_pending_chunked_message": 3,
    "auto_ack_oldest_chunked_message_on_queue_full": True,
    "start_message_id_inclusive": True,
    "regex_subscription_mode": RegexSubscriptionMode.AllTopics,
    "crypto_failure_action": ConsumerCryptoFailureAction.CONSUME,
}
OF_ENGINES = {"durable", "start_message_id", "priority_level", "force_topic_creation"}


def differing(subscription: Subscription) -> set[str]:
    """Fields that have another value than where nothing was chosen."""
    plain = Subscription(topics=("x",), subscription_name="x")
    return {
        each.name
        for each in fields(Subscription)
        if getattr(subscription, each.name) != getattr(plain, each.name)
    }


class Listening(MemoryTransport):
    """Takes any choice, and obeys none."""

    def __init__(self) -> None:
        super().__init__()
        self.subscriptions: list[Subscription] = []

    async def subscribe(self, subscription: Subscription) -> TransportConsumer:
        self.subscriptions.append(subscription)
        plain = Subscription(
            topics=subscription.topics,
            pattern=subscription.pattern,
            subscription_name=subscription.subscription_name,
        )
        return await super().subscribe(plain)


async def subscribed(**options: Any) -> list[Subscription]:
    checked = ConsumerOptions(**{"topics": ("t",), "pattern": None, **options})
    transport = Listening()
    await open_transport_consumer(transport, checked)
    return transport.subscriptions


async def test_every_option_reaches_the_transport() -> None:
    [subscription] = await subscribed(subscription_name="s", **CHOSEN)
    for name, value in CHOSEN.items():
        assert getattr(subscription, name.removeprefix("is_")) == value
    assert (subscription.topics, subscription.pattern, subscription.subscription_name) == (
        ("t",),
        None,
        "s",
    )
    all_fields = {each.name for each in fields(Subscription)}
    of_others = {"pattern", "excluded_topics", "key_shared_policy"}  # in the next two tests
    assert differing(subscription) == all_fields - OF_ENGINES - of_others


async def test_a_pattern_and_a_key_shared_policy_reach_the_transport() -> None:
    policy = ConsumerKeySharedPolicy()
    [subscription] = await subscribed(
        topics=(),
        pattern="public/default/.*",
        subscription_name="s",
        consumer_type=ConsumerType.KeyShared,
        key_shared_policy=policy,
    )
    assert (subscription.topics, subscription.pattern) == ((), "public/default/.*")
    assert subscription.key_shared_policy is policy


@pytest.mark.parametrize(
    ("policy", "excluded"),
    [
        (None, ()),
        (DeadLetterPolicy(3), ("-s-DLQ", "-s-RETRY")),
        (
            DeadLetterPolicy(3, dead_letter_topic="dead"),
            ("-s-DLQ", "-s-RETRY", "persistent://public/default/dead"),
        ),
    ],
)
async def test_a_pattern_excludes_the_letter_topics_of_the_consumer(
    policy: DeadLetterPolicy | None, excluded: tuple[str, ...]
) -> None:
    options: dict[str, Any] = {"subscription_name": "s", "dead_letter_policy": policy}
    [subscription] = await subscribed(topics=(), pattern="public/default/.*", **options)
    assert subscription.excluded_topics == excluded
    [subscription] = await subscribed(**options)
    assert subscription.excluded_topics == ()


@pytest.mark.parametrize("named", [True, False])
async def test_the_retry_letter_subscription_is_shared_and_otherwise_like_the_main_one(
    named: bool,
) -> None:
    chosen = CHOSEN if named else CHOSEN | {"consumer_name": None}
    policy = DeadLetterPolicy(3, retry_letter_topic="again")
    main, letters = await subscribed(
        subscription_name="s", retry_enable=True, dead_letter_policy=policy, **chosen
    )
    different = {
        each.name
        for each in fields(Subscription)
        if getattr(main, each.name) != getattr(letters, each.name)
    }
    assert different == {"topics", "consumer_type", "read_compacted"}
    assert letters.topics == ("persistent://public/default/again",)
    assert letters.consumer_type is ConsumerType.Shared
    assert not letters.read_compacted
    assert main.consumer_name == letters.consumer_name
    assert main.consumer_name == "me" or (not named and main.consumer_name)


def test_a_reader_is_a_subscription_that_is_not_durable() -> None:
    options = ReaderOptions(
        topic="t",
        start_message_id=MessageId(-1, 4, 2),
        receiver_queue_size=0,
        reader_name="me",
        subscription_role_prefix="role",
        is_read_compacted=True,
        start_message_id_inclusive=True,
    )
    subscription = subscription_of(options)
    assert (subscription.durable, subscription.topics, subscription.start_message_id) == (
        False,
        ("t",),
        MessageId(-1, 4, 2),
    )
    assert subscription.subscription_name.startswith("role-reader-")
    assert (subscription.consumer_name, subscription.receiver_queue_size) == ("me", 1)
    assert subscription.read_compacted and subscription.start_message_id_inclusive
    another = subscription_of(options)
    assert another.subscription_name != subscription.subscription_name
