"""Write options: known names, allowed combinations, and errors."""

from __future__ import annotations

import pickle
from random import Random

import pytest
from sink_kit import URL

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.options import BatchingType, CompressionType
from pulsar_encore.spark.retry_delays import RetryDelays, retry_delays
from pulsar_encore.spark.sink.sink_options import (
    SinkOptions,
    TransactionOptions,
    sink_options,
)


def options(streaming: bool = False, /, **given: str) -> SinkOptions:
    known = {name.replace("__", "."): value for name, value in given.items()}
    return sink_options({"service.url": URL, **known}, streaming=streaming)


def test_only_a_topic_is_required() -> None:
    found = options(topic="t")
    assert (found.mode, found.topic) == ("produce", "persistent://public/default/t")
    assert found.letters is None and found.replay is None
    assert pickle.loads(pickle.dumps(found)) == found


def test_option_names_are_case_insensitive() -> None:
    found = options(TOPIC="t", SINKMODE="produce", PULSAR__PRODUCER__COMPRESSIONTYPE="zstd")
    assert dict(found.publishing.producer) == {"compression_type": CompressionType.ZSTD}


@pytest.mark.parametrize(
    ("given", "keyword", "value"),
    [
        ({"batchingEnabled": "false"}, "batching_enabled", False),
        ({"batchingMaxMessages": "500"}, "batching_max_messages", 500),
        ({"batchingMaxBytes": "64k"}, "batching_max_allowed_size_in_bytes", 65_536),
        ({"batchingMaxPublishDelayMs": "5"}, "batching_max_publish_delay_ms", 5),
        ({"batchingMaxPublishDelayMicros": "1500"}, "batching_max_publish_delay_ms", 2),
        ({"batcherBuilder": "key_based"}, "batching_type", BatchingType.KeyBased),
        ({"chunkingEnabled": "true"}, "batching_enabled", False),
    ],
)
def test_producer_options_are_accepted(given: dict[str, str], keyword: str, value: object) -> None:
    found = sink_options(
        {"service.url": URL, **{f"pulsar.producer.{k}": v for k, v in given.items()}},
        streaming=False,
    )
    assert dict(found.publishing.producer)[keyword] == value


def test_limits_can_also_be_given_by_the_producers_names() -> None:
    found = options(pulsar__producer__maxPendingMessages="7", pulsar__producer__sendTimeoutMs="5s")
    assert (found.publishing.max_pending, found.publishing.send_timeout_ms) == (7, 5000)


def test_letters_have_options_of_their_own() -> None:
    found = options(
        sinkMode="reconsume_later",
        subscription="s",
        maxRedeliverCount="3",
        backoff="1s,2m",
        retryLetterTopic="r",
        deadLetterTopic="d",
        initialSubscriptionName="first",
    ).letters
    assert found is not None
    assert (found.subscription, found.max_redeliver_count) == ("s", 3)
    assert found.delays == RetryDelays((1000, 120_000))
    assert found.retry_topic == "persistent://public/default/r"
    assert found.dead_topic == "persistent://public/default/d"
    assert found.initial_subscription == "first"


def test_a_replay_gets_a_new_id_unless_one_is_given() -> None:
    one, other = options(sinkMode="replay").replay, options(sinkMode="replay").replay
    given = options(sinkMode="replay", replayId="mine", realTopics="a, b").replay
    assert one is not None and other is not None and given is not None
    assert one.replay_id and one.replay_id != other.replay_id
    assert given.replay_id == "mine"
    assert given.real_topics == {"persistent://public/default/a", "persistent://public/default/b"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "service.url is missing"),
        ({"service.url": URL, "topik": "t"}, "no option 'topik' (did you mean 'topic'?)"),
        ({"service.url": URL, "startingOffsets": "earliest"}, "startingOffsets is an option of re"),
        ({"service.url": URL, "pulsar.reader.receiverQueueSize": "1"}, "is an option of reading"),
        ({"service.url": URL, "sinkMode": "replai"}, "did you mean 'replay'"),
        ({"service.url": URL, "serviceUrl": URL}, "service.url was given twice"),
        ({"service.url": URL, "subscription": "s"}, "without effect with sinkMode=produce"),
        ({"service.url": URL, "sinkMode": "replay", "topic": "t"}, "it goes with produce"),
        ({"service.url": URL, "sinkMode": "dead_letter"}, "needs the name of the subscription"),
        (
            {
                "service.url": URL,
                "sinkMode": "dead_letter",
                "subscription": "s",
                "retryLetterTopic": "x",
                "deadLetterTopic": "x",
            },
            "must differ",
        ),
        (
            {
                "service.url": URL,
                "sinkMode": "replay",
                "pulsar.producer.batchingMaxMessages": "2",
            },
            "batchingMaxMessages is without effect",
        ),
        ({"service.url": URL, "valueFormat": "avro"}, "needs valueSchema"),
        ({"service.url": URL, "valueSchema": "{}"}, "goes with valueFormat=avro"),
        ({"service.url": URL, "sendTimeoutMs": "0"}, "sendTimeoutMs must be at least 1 ms"),
        ({"service.url": URL, "maxPendingMessages": "0"}, "maxPendingMessages must be a whole"),
        ({"service.url": URL, "pulsar.producer.blockIfQueueFull": "false"}, "never drops a row"),
        (
            {
                "service.url": URL,
                "pulsar.producer.chunkingEnabled": "true",
                "pulsar.producer.batchingEnabled": "true",
            },
            "chunking_enabled needs batching_enabled=False",
        ),
        (
            {"service.url": URL, "pulsar.producer.encryptionKeys": "k"},
            "encryptionKeys needs their public key",
        ),
        (
            {"service.url": URL, "pulsar.producer.cryptoPublicKeyPath": "/a"},
            "without one nothing would be encrypted",
        ),
        (
            {"service.url": URL, "pulsar.producer.cryptoFailureAction": "SEND"},
            "never sent in clear",
        ),
        ({"service.url": URL, "pulsar.reader.cryptoPrivateKeyPath": "/a"}, "is an option of read"),
        ({"service.url": URL, "flushIntervalRows": "10"}, "maxPendingMessages says how many rows"),
        ({"service.url": URL, "topic": "a/b"}, "topic must be a name"),
        ({"service.url": URL, "pulsar.client.bogus": "1"}, "no option pulsar.client.bogus"),
    ],
)
def test_the_error_names_the_invalid_option(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sink_options(given, streaming=False)
    assert message in str(caught.value)


def test_options_added_by_spark_are_accepted() -> None:
    assert options(topic="t", path="/x", checkpointLocation="/y").topic is not None


def test_numbered_rows_need_a_stream_with_a_name() -> None:
    with pytest.raises(ConfigurationError, match="for streams only"):
        options(deduplication="task-sequence", producerName="p")
    with pytest.raises(ConfigurationError, match="needs producerName"):
        options(True, deduplication="task-sequence")
    with pytest.raises(ConfigurationError, match="KEY_BASED"):
        options(
            True,
            deduplication="task-sequence",
            producerName="p",
            pulsar__producer__batchingType="KEY_BASED",
        )
    assert options(True, deduplication="task-sequence", producerName="p").publishing.sequenced
    assert not options(deduplication="none").publishing.sequenced


@pytest.mark.parametrize(
    ("text", "delays"),
    [
        ("1s,10s,1m", [1000, 10_000, 60_000, 60_000]),
        ("0s", [0, 0, 0, 0]),
        ("250ms, 2", [250, 2000, 2000, 2000]),
        ("exp(1s,1m)", [1000, 2000, 4000, 8000]),
        ("EXP( 1s , 5s , 3 )", [1000, 3000, 5000, 5000]),
    ],
)
def test_delays_by_attempt(text: str, delays: list[int]) -> None:
    found = retry_delays(text, "backoff")
    assert [found.ms(attempt, Random(1)) for attempt in (1, 2, 3, 4)] == delays


def test_jitter_shortens_the_delay() -> None:
    found = retry_delays("exp(1s,1h,2,0.5)", "backoff")
    drawn = {found.ms(5, Random(seed)) for seed in range(20)}
    assert len(drawn) > 10 and all(8000 <= each <= 16_000 for each in drawn)


@pytest.mark.parametrize(
    "text", ["", "soon", "exp(1s)", "exp(1s,2s,x)", "exp(2s,1s)", "exp(1s,2s,1)", "101000d"]
)
def test_an_invalid_delay_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="backoff"):
        retry_delays(text, "backoff")


# Transactions


def transactions(streaming: bool = True, /, **given: str) -> TransactionOptions:
    found = options(streaming, transactional="true", **given).transactions
    assert found is not None
    return found


def test_a_write_has_no_transactions_by_default() -> None:
    assert options(topic="t").transactions is None
    assert options(topic="t", transactional="false").transactions is None


def test_a_batch_can_share_one_transaction() -> None:
    assert not transactions(journalTopic="j").shared
    batch = options(True, transactional=" Batch", journalTopic="j").transactions
    assert batch is not None and batch.shared
    with pytest.raises(ConfigurationError, match="transactional must be false, true or batch"):
        options(True, transactional="task", journalTopic="j")


def test_the_journal_is_named_after_the_checkpoint_of_the_query() -> None:
    found = transactions(topic="a/b/t", checkpointLocation="s3://lake/orders")
    assert found.timeout_ms == 900_000
    assert found.journal_topic.startswith("persistent://a/b/spark-")
    assert found.marker_topic == f"{found.journal_topic}-markers"
    assert transactions(topic="a/b/t", checkpointLocation="s3://lake/orders/") == found
    other = transactions(topic="a/b/t", checkpointLocation="s3://lake/prices")
    assert other.journal_topic != found.journal_topic
    default = transactions(CHECKPOINTLOCATION="c")
    assert default.journal_topic.startswith("persistent://public/default/spark-")


def test_batch_writes_of_a_topic_share_a_journal() -> None:
    found = transactions(False, topic="t")
    assert found.journal_topic == "persistent://public/default/t-spark-journal"
    assert transactions(False).journal_topic == "persistent://public/default/batches-spark-journal"


def test_names_and_timeout_of_transactions_can_be_given() -> None:
    found = transactions(journalTopic="j", markerTopic="m", transactionTimeout="2m")
    assert (found.journal_topic, found.marker_topic, found.timeout_ms) == (
        "persistent://public/default/j",
        "persistent://public/default/m",
        120_000,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "set journalTopic"),
        ({"journalTopic": "j", "markerTopic": "j"}, "must differ"),
        ({"journalTopic": "t", "topic": "t"}, "journalTopic must be a persistent topic of its own"),
        ({"journalTopic": "non-persistent://a/b/j"}, "must be a persistent topic"),
        ({"journalTopic": "j", "transactionTimeout": "10ms"}, "at least 1000 ms"),
        (
            {"journalTopic": "j", "deduplication": "task-sequence", "producerName": "p"},
            "does not go with transactional=true",
        ),
        ({"journalTopic": "j", "pulsar.client.transport": "stock"}, "needs the native transport"),
        ({"transactional": "false", "journalTopic": "j"}, "journalTopic goes with transactional"),
        ({"transactional": "false", "transactionTimeout": "1m"}, "goes with transactional=true"),
        (
            {
                "transactional": "batch",
                "journalTopic": "j",
                "deduplication": "task-sequence",
                "producerName": "p",
            },
            "does not go with transactional=batch",
        ),
    ],
)
def test_wrong_combinations_with_transactions_raise(given: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        sink_options({"service.url": URL, "transactional": "true", **given}, streaming=True)
