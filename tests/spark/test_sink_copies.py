"""Rows as letters: they equal the letters that a consumer writes for the same message."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pyspark.sql.types import StructType
from sink_kit import URL, batch_of, schema_of

from pulsar_encore import letters
from pulsar_encore.consumer.forwarding.copy_options import Destination
from pulsar_encore.errors import ConfigurationError
from pulsar_encore.letters.letter_form import LetterForm
from pulsar_encore.spark.sink.letter_copies import AttemptTimes, FailureReason, copy_rule
from pulsar_encore.spark.sink.row_batches import CopiedRows
from pulsar_encore.spark.sink.sink_columns import layout_of
from pulsar_encore.spark.sink.sink_options import sink_options
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.values.outgoing_message import OutgoingMessage

NOW = AttemptTimes(1_000_000, 1_000_001)
HOME = "persistent://public/default/orders"
RETRY, DEAD = f"{HOME}-billing-RETRY", f"{HOME}-billing-DLQ"
ID = MessageId(-1, 7, 8, 2, batch_size=5)
SCHEMA = schema_of(
    value="binary",
    __topic="string",
    __messageId="binary",
    __messageProperties="map",
    __key="string",
    __schemaVersion="binary",
    errorClass="string",
    errorMessage="string",
    reason="string",
)
NOTHING: tuple[Any, ...] = (None,) * 3


def copied(
    *row: Any, schema: StructType = SCHEMA, refuse_byte_keys: bool = False, **options: str
) -> tuple[Destination, OutgoingMessage]:
    given = {"service.url": URL, "sinkMode": "reconsume_later", "subscription": "billing"}
    given |= options
    checked = sink_options({name: value for name, value in given.items() if value}, streaming=False)
    rule = copy_rule(checked, refuse_byte_keys=refuse_byte_keys, rng=Random(1))
    rows = CopiedRows(layout_of(schema, checked), checked, rule)
    chunk = rows.read(batch_of(schema, [row]), 0, NOW)
    assert isinstance(chunk.destinations, list)
    return chunk.destinations[0], chunk.messages[0]


def row(
    topic: str = HOME,
    properties: dict[str, str] | None = None,
    key: str | None = "k",
    version: bytes | None = None,
    why: tuple[Any, ...] = NOTHING,
) -> tuple[Any, ...]:
    return (b"v", topic, ID.serialize(), list((properties or {}).items()), key, version, *why)


def test_a_first_failure_goes_to_the_retry_topic() -> None:
    destination, letter = copied(*row(properties={"colour": "red"}), backoff="5s")
    assert destination == Destination(RETRY)
    assert (letter.payload, letter.partition_key) == (b"v", "k")
    assert letter.deliver_at == NOW.wall_from + 5000
    assert letter.properties == {
        "colour": "red",
        letters.ORIGIN_MESSAGE_ID: "7:8:-1:2",
        letters.ORIGIN_MESSAGE_ID_LEGACY: "7:8:-1:2",
        letters.REAL_TOPIC: HOME,
        letters.REAL_SUBSCRIPTION: "billing",
        letters.RECONSUME_TIMES: "1",
        letters.DELAY_TIME: "5000",
        letters.FIRST_TIME: str(NOW.wall_now),
    }


def test_a_long_reason_is_truncated() -> None:
    _, letter = copied(*row(why=("E", "m", "x" * 100_000)), sinkMode="dead_letter")
    assert letter.properties is not None
    assert letter.properties[letters.REASON] == "x" * 1_000


def test_a_letter_continues_the_attempt_count() -> None:
    _, first = copied(*row())
    destination, second = copied(*row(RETRY, first.properties))
    assert destination == Destination(RETRY)
    assert second.properties is not None
    assert second.properties[letters.RECONSUME_TIMES] == "2"
    assert second.properties[letters.DELAY_TIME] == "10000"
    assert second.properties[letters.REAL_TOPIC] == HOME
    destination, last = copied(*row(RETRY, second.properties), maxRedeliverCount="2")
    assert destination == Destination(DEAD)
    assert last.deliver_at is None and last.properties is not None
    assert last.properties[letters.ATTEMPTS] == "3"
    assert last.properties[letters.REASON] == "reconsume_later"


def test_implausible_counts_are_ignored() -> None:
    destination, letter = copied(*row(properties={letters.RECONSUME_TIMES: "99"}))
    assert destination == Destination(RETRY) and letter.properties is not None
    assert letter.properties[letters.RECONSUME_TIMES] == "1"


def test_configured_letter_topics_are_used() -> None:
    own = "persistent://public/default/again"
    destination, letter = copied(*row(), retryLetterTopic="again")
    assert destination == Destination(own)
    destination, letter = copied(*row(own, letter.properties), retryLetterTopic="again")
    assert letter.properties is not None
    assert (destination, letter.properties[letters.RECONSUME_TIMES]) == (Destination(own), "2")
    with pytest.raises(ConfigurationError, match=r"row 0 of the task.*set deadLetterTopic"):
        copied(*row(own, letter.properties), retryLetterTopic="again", maxRedeliverCount="2")
    destination, _ = copied(
        *row(own, letter.properties),
        retryLetterTopic="again",
        deadLetterTopic="over",
        maxRedeliverCount="2",
        initialSubscriptionName="watch",
    )
    assert destination == Destination(
        "persistent://public/default/over", first_subscription="watch"
    )


def test_rows_can_go_directly_to_the_dead_letter_topic() -> None:
    destination, letter = copied(*row(f"{HOME}-partition-3"), sinkMode="dead_letter")
    assert destination == Destination(DEAD)
    assert letter.properties is not None
    assert letter.properties[letters.REAL_TOPIC] == f"{HOME}-partition-3"
    assert letter.properties[letters.REASON] == "dead_letter"
    assert letter.properties[letters.ATTEMPTS] == "1"
    assert letter.properties[letters.CONSUMER] == "spark"


def test_a_row_gives_the_reason_of_its_failure() -> None:
    why = ("ValueError", "no 17", "schema")
    _, letter = copied(*row(why=why), sinkMode="dead_letter", producerName="job")
    assert letter.properties is not None
    message = {name: letter.properties.get(name) for name in (*letters.FAILURE, letters.CONSUMER)}
    assert message.pop(letters.ERROR_STACK) is None
    fingerprint = message.pop(letters.FINGERPRINT)
    assert message == {
        letters.ERROR_CLASS: "ValueError",
        letters.ERROR_MESSAGE: "no 17",
        letters.REASON: "schema",
        letters.CONSUMER: "job",
    }
    same, other = (
        FailureReason("ValueError", "no 18", None, "schema"),
        FailureReason("KeyError", "no 17", None, "schema"),
    )
    assert fingerprint == (same.evidence("x") or pytest.fail()).fingerprint
    assert fingerprint != (other.evidence("x") or pytest.fail()).fingerprint


def test_copies_are_written_with_the_schema_of_their_originals() -> None:
    destination, _ = copied(*row(version=(3).to_bytes(8, "big")))
    assert destination == Destination(RETRY, LetterForm(HOME, 3, True))


def test_a_replay_goes_to_the_original_topic() -> None:
    schema = schema_of(
        value="binary", __topic="string", __messageId="binary", __messageProperties="map"
    )

    def replayed(topic: str, real: str, **options: str) -> tuple[Destination, OutgoingMessage]:
        message = [
            (letters.REAL_TOPIC, real),
            (letters.REAL_SUBSCRIPTION, "billing"),
            (letters.RECONSUME_TIMES, "3"),
            ("colour", "red"),
        ]
        given: dict[str, Any] = {"sinkMode": "replay", "subscription": "", **options}
        return copied(b"v", topic, ID.serialize(), message, schema=schema, **given)

    destination, copy = replayed(DEAD, HOME, replayId="r")
    assert destination == Destination(HOME)
    assert copy.properties == {
        letters.REAL_TOPIC: HOME,
        letters.REAL_SUBSCRIPTION: "billing",
        "colour": "red",
        letters.REPLAY_ID: "r",
        letters.REPLAYED_FROM: "7:8:-1:2",
    }
    kept = replayed(DEAD, HOME, keepCounters="true")[1].properties or {}
    assert kept[letters.RECONSUME_TIMES] == "3"
    elsewhere = "persistent://public/default/secret"
    with pytest.raises(ConfigurationError, match=r"row 0 of the task.*is not the topic that"):
        replayed(DEAD, elsewhere)
    assert replayed(DEAD, elsewhere, realTopics="secret")[0] == Destination(elsewhere)
    assert replayed(DEAD, elsewhere, replayTarget="other")[0] == Destination(
        "persistent://public/default/other"
    )


@pytest.mark.parametrize(
    ("topic", "message_id", "message"),
    [
        (None, ID.serialize(), "__topic is null"),
        (HOME, None, "__messageId is null"),
        (HOME, b"\xff", "not a serialized message id"),
    ],
)
def test_a_row_without_an_original_is_an_error(topic: Any, message_id: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        copied(b"v", topic, message_id, None, None, None, *NOTHING)


def test_the_stock_transport_refuses_keys_that_it_cannot_distinguish() -> None:
    with pytest.raises(ConfigurationError, match="looks like a byte key"):
        copied(*row(key="YWI="), refuse_byte_keys=True)
    assert copied(*row(key="YWI="))[1].partition_key == "YWI="
