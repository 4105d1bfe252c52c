"""Options of a consumer: every value is checked, and errors name the option."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pulsar
import pytest

from pulsar_encore import (
    Backoff,
    BatchReceivePolicy,
    ConfigurationError,
    ConsumerType,
    MessageId,
)
from pulsar_encore.options import ConsumerOptions, Subscription, parse_topics
from pulsar_encore.options.enums import InitialPosition


def options(**given: Any) -> ConsumerOptions:
    return ConsumerOptions(**{"topics": ("t",), "pattern": None, "subscription_name": "s", **given})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topics", ()),
        ("topics", ("",)),
        ("topics", (3,)),
        ("subscription_name", ""),
        ("subscription_name", None),
        ("consumer_name", "  "),
        ("consumer_type", "Shared"),
        ("consumer_type", 1),
        ("initial_position", "Earliest"),
        ("receiver_queue_size", -1),
        ("receiver_queue_size", 1.5),
        ("receiver_queue_size", True),
        ("negative_ack_redelivery_delay_ms", -1),
        ("negative_ack_redelivery_delay_ms", "60000"),
        ("unacked_messages_timeout_ms", 999),
        ("unacked_messages_timeout_ms", -1),
        ("pattern_auto_discovery_period", 0),
        ("max_pending_chunked_message", -1),
        ("ack_group_time_ms", -1),
        ("ack_group_max_size", 0),
        ("max_unacked_messages", 0),
        ("negative_ack_precision_bit_cnt", -1),
        ("negative_ack_precision_bit_cnt", 33),
        ("negative_ack_redelivery_backoff", 3),
        ("ack_timeout_redelivery_backoff", object()),
        ("is_read_compacted", 1),
        ("batch_index_ack_enabled", None),
        ("properties", ["a"]),
        ("properties", {"a": 1}),
        ("properties", {1: "a"}),
        ("message_listener", 3),
        ("batch_receive_policy", object()),
        ("key_shared_policy", object()),
        ("crypto_failure_action", "FAIL"),
        ("regex_subscription_mode", 0),
    ],
)
def test_a_wrong_value_raises_an_error_with_the_option(name: str, value: object) -> None:
    word = name.rstrip("s") if name == "topics" else name
    with pytest.raises(ConfigurationError, match=word):
        options(**{name: value})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"ack_timeout_redelivery_backoff": Backoff()}, "unacked_messages_timeout_ms"),
        ({"is_read_compacted": True, "consumer_type": ConsumerType.Shared}, "Exclusive"),
        ({"message_listener": print, "receiver_queue_size": 0}, "receiver_queue_size"),
        ({"pattern": "("}, "pattern"),
    ],
)
def test_conflicting_options_are_errors(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        options(**given)


def test_defaults_are_those_of_pulsar_client_and_java() -> None:
    made = options()
    assert made.consumer_type is ConsumerType.Exclusive
    assert made.initial_position is InitialPosition.Latest
    assert made.receiver_queue_size == 1000
    assert made.negative_ack_redelivery_delay_ms == 60_000
    assert (made.ack_group_time_ms, made.ack_group_max_size) == (100, 1000)
    assert made.max_unacked_messages == 50_000


def test_options_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        options().subscription_name = "x"  # type: ignore[misc]


def test_an_ack_timeout_of_0_is_none() -> None:
    assert options(unacked_messages_timeout_ms=0).unacked_messages_timeout_ms is None
    assert options(unacked_messages_timeout_ms=1000).unacked_messages_timeout_ms == 1000


def test_enums_of_pulsar_client_are_accepted() -> None:
    made = options(
        consumer_type=pulsar.ConsumerType.KeyShared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    assert made.consumer_type is ConsumerType.KeyShared
    assert made.initial_position is InitialPosition.Earliest
    assert made.shared


def test_the_batch_receive_policy_of_pulsar_client_is_converted() -> None:
    made = options(batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(7, 800, 90))
    assert made.batch_receive_policy == BatchReceivePolicy(7, 800, 90)


@pytest.mark.parametrize("limits", [(0, 0, 0), (-1, -1, -1)])
def test_a_batch_needs_a_limit(limits: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigurationError, match="BatchReceivePolicy"):
        BatchReceivePolicy(*limits)


@pytest.mark.parametrize(
    ("topic", "is_pattern", "expected"),
    [
        ("a", False, (("a",), None)),
        (["a", "b"], False, (("a", "b"), None)),
        (("a",), False, (("a",), None)),
        ("a.*", True, ((), "a.*")),
        (re.compile("a.*"), False, ((), "a.*")),
        (re.compile("a.*"), True, ((), "a.*")),
    ],
)
def test_topics_are_accepted_as_in_pulsar_client(
    topic: object, is_pattern: bool, expected: object
) -> None:
    assert parse_topics(topic, is_pattern) == expected


@pytest.mark.parametrize(
    ("topic", "is_pattern"),
    [(None, False), (3, False), ("", False), ([""], False), ([3], False), (["a"], True)],
)
def test_invalid_topics_are_errors(topic: object, is_pattern: bool) -> None:
    with pytest.raises(ConfigurationError, match="topic"):
        parse_topics(topic, is_pattern)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"topics": ()}, "topics or a pattern"),
        ({"pattern": "x.*"}, "not both"),
        ({"start_message_id": MessageId.earliest}, "needs durable=False"),
        ({"durable": False}, "needs a start_message_id"),
        (
            {
                "durable": False,
                "start_message_id": MessageId.latest,
                "consumer_type": ConsumerType.Shared,
            },
            "Exclusive or Failover",
        ),
    ],
)
def test_a_contradictory_subscription_is_an_error(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        Subscription(**{"topics": ("t",), "subscription_name": "s", **given})
