"""Letters as rows: duplicates, groups and routes, compared with the single-process triage."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from pulsar_encore import letters
from pulsar_encore.deadletters import Letter
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark.triage import GroupSelection, HourGroup
from pulsar_encore.spark.triage.failure_groups import (
    LONGEST_MS,
    HourOf,
    check_columns,
    grouped,
    largest,
)
from pulsar_encore.spark.triage.letter_routes import ITSELF, NO_NAME, NO_TOPIC, NOT_NAMED, routed

from .triage_kit import DEAD, HOME, HOUR_MS, NOON, NOON_MS, at, frame, letter

#: The two cores may be shared with other programs, and the first test starts the session.
pytestmark = pytest.mark.timeout(240)


def groups_of(spark: SparkSession, rows: list[Any], hour_of: HourOf = "last") -> list[HourGroup]:
    return largest(grouped(frame(spark, rows), hour_of), 100)


def routes(
    spark: SparkSession, rows: list[Any], selection: GroupSelection | None = None
) -> dict[int, tuple[str, str | None]]:
    """Return the route and the reason of each row, by entry id."""
    found: list[Row] = routed(frame(spark, rows), selection).collect()
    assert len(found) == len(rows), "no row is lost or doubled"
    return {row["__entryId"]: (row["route"], row["why"]) for row in found}


def test_letters_are_grouped_by_fingerprint_real_topic_and_hour(spark: SparkSession) -> None:
    rows = [
        letter(1, errorMessage="first"),
        letter(59, errorMessage="last", replayId="r1", batchIndex=3, partition=2),
        letter(30, errorMessage="middle"),
        letter(60),  # in another hour
        letter(2, realTopic=HOME + "2"),
        letter(3, fingerprint="bbbbbbbbbbbb"),
    ]
    found = groups_of(spark, rows)
    assert [(each.fingerprint[0], each.real_topic, each.hour_ms, each.count) for each in found] == [
        ("a", HOME, NOON_MS, 3),
        ("a", HOME + "2", NOON_MS, 1),
        ("b", HOME, NOON_MS, 1),
        ("a", HOME, NOON_MS + HOUR_MS, 1),
    ]
    assert found[0] == HourGroup(
        fingerprint="aaaaaaaaaaaa",
        real_topic=HOME,
        hour_ms=NOON_MS,
        count=3,
        again=1,
        first_ms=NOON_MS + 60_000,
        last_ms=NOON_MS + 59 * 60_000,
        error_class="KeyError",
        error_message="last",
        sample_id="5:59:2:3",
        dead_topic=DEAD,
    )


def test_letters_without_evidence_form_a_group(spark: SparkSession) -> None:
    no_evidence = dict.fromkeys(
        ("errorClass", "errorMessage", "fingerprint", "lastTime", "firstTime")
    )
    [found] = groups_of(spark, [letter(61, **no_evidence, realTopic=None)])
    assert (found.fingerprint, found.real_topic, found.error_class) == ("-", "", "")
    assert found.hour_ms == NOON_MS + HOUR_MS, "the hour it was written in"
    assert found.sample_id == "5:61:-1"
    [found] = groups_of(spark, [letter(1, **no_evidence, reason="ack timeout")])
    assert found.error_message == "ack timeout"


def test_the_hour_is_taken_from_the_last_or_first_failure(spark: SparkSession) -> None:
    row = letter(70, firstTime=at(-100), lastTime=at(50))
    assert [each.hour_ms for each in groups_of(spark, [row])] == [NOON_MS]
    assert [each.hour_ms for each in groups_of(spark, [row], "first")] == [NOON_MS - 2 * HOUR_MS]


def test_impossible_failure_times_are_replaced_by_the_publish_time(spark: SparkSession) -> None:
    maximum, moment = timedelta(milliseconds=LONGEST_MS), timedelta(milliseconds=1)
    times = [
        (at(70), True),
        (at(70) - maximum, True),
        (at(70) - maximum - moment, False),
        (at(70) + moment, False),
        (datetime(1970, 1, 1, tzinfo=UTC), False),
        (datetime(9999, 1, 1, tzinfo=UTC), False),
    ]
    rows = [
        letter(70, lastTime=last_time, fingerprint=f"{number}")
        for number, (last_time, _) in enumerate(times)
    ]
    found = {each.fingerprint: each.hour_ms for each in groups_of(spark, rows)}
    for number, (last_time, believed) in enumerate(times):
        taken = int(last_time.timestamp()) // 3600 * HOUR_MS
        assert found[f"{number}"] == (taken if believed else NOON_MS + HOUR_MS), last_time


def test_only_the_last_letter_of_a_message_counts(spark: SparkSession) -> None:
    same_message: dict[str, Any] = {"originMessageId": "1:1:-1", "value": b"1"}
    rows = [
        letter(1, **same_message),
        letter(9, **same_message, replayId="again"),
        # published at the same time, with a lower entry id
        letter(2, **same_message, publishTime=at(9)),
        letter(3, **same_message, realTopic=HOME + "2"),
        letter(4, originMessageId="1:4:-1"),
    ]
    assert {entry: route for entry, (route, _) in routes(spark, rows).items()} == {
        1: "duplicate",
        2: "duplicate",
        9: "kept",
        3: "kept",
        4: "kept",
    }


def test_a_message_dead_lettered_by_two_subscriptions_counts_twice(spark: SparkSession) -> None:
    same_message: dict[str, Any] = {"originMessageId": "1:1:-1", "value": b"1"}
    shipped: dict[str, Any] = {
        "topic": f"{HOME}-shipping-DLQ",
        "realSubscription": "shipping",
        "errorClass": "TimeoutError",
    }
    rows = [
        letter(1, **same_message),
        letter(2, **same_message, **shipped),  # later, and not chosen
        letter(3, **same_message, realSubscription="shipping"),  # on the same dead letter topic
        letter(4, **same_message, topic=f"{HOME}-other-DLQ"),  # refused
        letter(5, **same_message, topic=f"{DEAD}-partition-1", publishTime=at(0)),
    ]
    assert routes(spark, rows, GroupSelection(error_classes=["KeyError"])) == {
        1: ("replay", None),
        2: ("kept", None),
        3: ("refused", NOT_NAMED),
        4: ("refused", NOT_NAMED),
        5: ("duplicate", None),
    }


def test_equal_bytes_in_value_and_key_are_not_duplicates(spark: SparkSession) -> None:
    same_message: dict[str, Any] = {"originMessageId": "1:1:-1"}
    rows = [
        letter(1, **same_message, value=b"a"),
        letter(2, **same_message, value=None, key=b"a"),
        letter(3, **same_message, value=None, orderingKey=b"a"),
    ]
    assert {route for route, _ in routes(spark, rows).values()} == {"kept"}


def test_letters_of_different_messages_are_not_duplicates(spark: SparkSession) -> None:
    # The Go client identifies a batch message by its entry.
    of_a_batch: dict[str, Any] = {"originMessageId": "1:1:-1", "value": b"1"}
    rows = [
        *(letter(each, **of_a_batch, consumer=None) for each in (1, 2)),
        *(letter(each, **of_a_batch, reconsumeTimes=1) for each in (3, 4)),
        *(letter(each, originMessageId="1:1:-1") for each in (5, 6)),  # with different values
        *(letter(each, **of_a_batch, key=b"%d" % each) for each in (7, 8)),
    ]
    assert {route for route, _ in routes(spark, rows).values()} == {"kept"}
    precise: dict[str, Any] = {"value": b"1", "consumer": None, "reconsumeTimes": 1}
    for origin in ("1:1:-1:0", "1:0:-1;1:1:-1"):
        rows = [letter(each, originMessageId=origin, **precise) for each in (1, 2)]
        assert routes(spark, rows)[1] == ("duplicate", None)


def test_letters_without_an_origin_are_not_duplicates(spark: SparkSession) -> None:
    rows = [
        *(letter(each, originMessageId=origin) for each, origin in enumerate([None, None, "", ""])),
        *(letter(9, originMessageId=None, batchIndex=index) for index in (0, 1)),
    ]
    found = routed(frame(spark, rows), None).collect()
    assert [row["route"] for row in found] == ["kept"] * 6


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (GroupSelection(), {1, 2, 3, 4, 5}),
        (GroupSelection(fingerprints=["aaaaaaaaaaaa"]), {1, 2}),
        (GroupSelection(fingerprints=["-", "bbbbbbbbbbbb"]), {3, 5}),
        (GroupSelection(error_classes=["ValueError"]), {3}),
        (GroupSelection(real_topics=["orders-partition-3"]), {1, 3, 4, 5}),
        (GroupSelection(since=NOON + timedelta(minutes=61)), {4}),
        (GroupSelection(since=NOON.timestamp(), until=NOON + timedelta(minutes=60)), {1, 2, 3, 5}),
        (GroupSelection(fingerprints=["aaaaaaaaaaaa"], real_topics=["other"]), {2}),
    ],
)
def test_a_selection_chooses_groups(
    spark: SparkSession, selection: GroupSelection, chosen: set[int]
) -> None:
    other = "persistent://public/default/other"
    rows = [
        letter(1),
        letter(2, realTopic=other, topic=f"{other}-billing-DLQ"),
        letter(3, fingerprint="bbbbbbbbbbbb", errorClass="ValueError"),
        letter(60, fingerprint="cccccccccccc", entryId=4, errorClass=None),
        letter(5, fingerprint=None),
    ]
    found = routes(spark, rows, selection)
    assert {entry for entry, (route, _) in found.items() if route == "replay"} == chosen
    assert {route for route, _ in found.values()} <= {"replay", "kept"}


@pytest.mark.parametrize(
    "given",
    [
        {"fingerprints": "aaaa"},
        {"error_classes": "KeyError"},
        {"error_classes": [" "]},
        {"error_classes": []},
        {"fingerprints": []},
        {"real_topics": [""]},
        {"real_topics": ["a,b"]},
        {"since": 20, "until": 10},
        {"since": -1},
        {"until": 1e18},
    ],
)
def test_an_invalid_selection_names_the_field(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=list(given)[-1]):
        GroupSelection(**given)


class _FakeMessage:
    """A message to be read as a letter."""

    def __init__(self, properties: dict[str, str]) -> None:
        self._properties = properties

    def properties(self) -> dict[str, str]:
        return self._properties

    def message_id(self) -> Any:
        from pulsar_encore import MessageId

        return MessageId(-1, 1, 1)

    def publish_timestamp(self) -> int:
        return 1


# (dead letter topic, real topic, subscription or None if the letter does not have it)
NAMES = [
    (DEAD, HOME, "billing"),
    (DEAD, HOME, None),
    (DEAD, HOME, "shipping"),
    (DEAD, HOME + "2", "billing"),
    (DEAD + "-partition-1", HOME, "billing"),
    (f"{HOME}-partition-2-billing-DLQ", HOME, "billing"),
    (f"{HOME}-partition-2-billing-DLQ", HOME + "-partition-2", "billing"),
    (f"{HOME}-a-b-DLQ", HOME, "a-b"),
    (f"{HOME}-a-b-DLQ", HOME + "-a", "b"),
    (f"{HOME}-a-b-DLQ", HOME, "b"),
    ("persistent://public/default/graveyard", HOME, "billing"),
    ("persistent://public/default/graveyard-DLQ", HOME, "billing"),
    (f"{HOME}--DLQ", HOME, ""),
    (f"{HOME}.billing-DLQ", HOME, "billing"),
    (HOME + "-billing-RETRY", HOME, "billing"),
]


def test_letter_routes_agree_with_the_rule_of_a_replay(spark: SparkSession) -> None:
    """The rule on columns agrees with `deadletters` for the same names."""
    rows, expected = [], {}
    for number, (dead_topic, real, subscription) in enumerate(NAMES):
        properties = {letters.REAL_TOPIC: real}
        if subscription is not None:
            properties[letters.REAL_SUBSCRIPTION] = subscription
        written_letter: Letter = Letter(_FakeMessage(properties))  # type: ignore[arg-type]
        if subscription is None:
            subscription = "billing"  # the source takes it from the topic's name
        row = letter(
            number,
            topic=dead_topic,
            realTopic=written_letter.real_topic,
            realSubscription=subscription,
        )
        rows.append(row)
        expected[number] = "replay" if written_letter.named_by(dead_topic) else "refused"
    found = routes(spark, rows, GroupSelection())
    assert {entry: route for entry, (route, _) in found.items()} == expected
    assert len(set(expected.values())) == 2


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"realTopic": None}, NO_TOPIC),
    ({"realTopic": "persistent://public/default"}, NO_NAME),
    ({"realTopic": "persistent://public/default/a b"}, NO_NAME),
    ({"realTopic": "persistent://public/default/a\x1b[2J"}, NO_NAME),
    ({"realTopic": "persistent://public/default/a\u202eb"}, NO_NAME),
    ({"realTopic": "ftp://public/default/orders"}, NO_NAME),
    ({"realTopic": DEAD}, ITSELF),
    ({"realTopic": DEAD, "topic": DEAD + "-partition-4"}, ITSELF),
    ({"realTopic": "persistent://public/default/payroll"}, NOT_NAMED),
    ({"realSubscription": None}, NOT_NAMED),
    ({"realSubscription": "shipping"}, NOT_NAMED),
]


def test_a_refused_letter_has_a_reason(spark: SparkSession) -> None:
    rows = [letter(number, **values) for number, (values, _) in enumerate(REFUSALS)]
    assert routes(spark, rows, GroupSelection()) == {
        number: ("refused", reason) for number, (_, reason) in enumerate(REFUSALS)
    }


def test_a_real_topic_chosen_by_name_is_allowed(spark: SparkSession) -> None:
    rows = [letter(1, realTopic="persistent://public/default/payroll")]
    selection = GroupSelection(real_topics=["payroll"])
    assert routes(spark, rows, selection) == {1: ("replay", None)}
    rows = [letter(1, realTopic="persistent://public/default/a b")]
    selection = GroupSelection(real_topics=["a b"])
    assert routes(spark, rows, selection) == {1: ("refused", NO_NAME)}


def test_a_duplicate_of_a_chosen_letter_is_not_sent(spark: SparkSession) -> None:
    rows = [letter(1), letter(2, originMessageId="1:1:-1", value=b"1")]
    assert routes(spark, rows, GroupSelection()) == {1: ("duplicate", None), 2: ("replay", None)}


def test_rows_without_letter_columns_are_refused(spark: SparkSession) -> None:
    rows: DataFrame = spark.range(1).toDF("value")
    with pytest.raises(ConfigurationError, match=r"__key.* view=dlq and includeMetadata=full"):
        check_columns(rows)
