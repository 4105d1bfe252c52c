"""Batches and streams on the development broker read every message of any kind exactly once."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from reader_kit import TOPIC, Stream, numbered, publish, read_batch, read_ranges, source

import pulsar_encore as encore
from pulsar_encore.devbroker import BrokerSettings, BrokerThread
from pulsar_encore.devbroker.rules.faults import Fault, FaultPlan
from pulsar_encore.message import RawMessage
from pulsar_encore.spark import DataLossError
from pulsar_encore.spark.reader.range_fetch import ReadRange


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with BrokerThread(BrokerSettings(keep_acked=True, max_message_size=70_000)) as started:
        started.create_partitioned_topic("parted", 3)
        yield started


@pytest.fixture
def url(broker: BrokerThread) -> str:
    return broker.url


def values(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in rows]


@pytest.mark.parametrize("batch", [0, 2, 7, 100])
@pytest.mark.parametrize("parts", [1, 4])
def test_a_batch_reads_each_message_once_in_order(url: str, batch: int, parts: int) -> None:
    publish(url, *numbered(250), batch=batch)
    made = source(url, minPartitions=parts)
    reader = made.reader(made.schema())
    ranges = reader.partitions()
    assert len(ranges) == min(parts, -(-250 // max(1, batch)))
    assert values(read_ranges(reader, ranges)) == numbered(250)


def test_columns_contain_the_fields_of_a_message(url: str) -> None:
    event = 1_700_000_000_123
    sent = publish(
        url,
        {"content": b"a", "partition_key": "k", "properties": {"p": "1", "q": ""}},
        {"content": b"b", "event_timestamp": event, "ordering_key": "o"},
        {"content": None},
        b"plain",
        batch=10,
    )
    rows = read_batch(url, includeMetadata="full")
    assert [row["value"] for row in rows] == [b"a", b"b", None, b"plain"]
    assert [row["__key"] for row in rows] == [b"k", None, None, None]
    assert [row["__keyIsBytes"] for row in rows] == [False, None, None, None]
    assert [dict(row["__messageProperties"]) for row in rows] == [{"p": "1", "q": ""}, {}, {}, {}]
    assert [row["__orderingKey"] for row in rows] == [None, b"o", None, None]
    assert [row["__nullValue"] for row in rows] == [False, False, True, False]
    times = [row["__eventTime"] for row in rows]
    assert times == [
        None,
        datetime.datetime.fromtimestamp(event / 1000, datetime.UTC),
        None,
        None,
    ]
    for row, message_id in zip(rows, sent, strict=True):
        assert row["__topic"] == TOPIC
        assert encore.MessageId.deserialize(row["__messageId"]) == message_id
        assert (row["__ledgerId"], row["__entryId"], row["__batchIndex"]) == (
            message_id.ledger_id(),
            message_id.entry_id(),
            message_id.batch_index(),
        )
        assert row["__partition"] == -1
        assert row["__redeliveryCount"] == 0
        assert row["__producerName"]
        age = datetime.datetime.now(datetime.UTC) - row["__publishTime"]
        assert age < datetime.timedelta(minutes=5)


def test_bytes_after_the_last_message_of_the_last_batch_are_ignored(url: str) -> None:
    sent = publish(url, *numbered(10), batch=10)
    place = f"{sent[0].ledger_id()}:{sent[0].entry_id()}"
    for index, rest in ((8, numbered(2, 8)), (9, numbered(1, 9)), (10, [])):
        edge = json.dumps({TOPIC: f"{place}:{index}"})
        began = time.monotonic()
        rows = read_batch(url, startingOffsets=edge, pollTimeoutMs=50_000)
        assert [row["value"] for row in rows] == rest
        query = Stream(url, startingOffsets=edge, pollTimeoutMs=50_000)
        assert query.run().values() == rest
        assert time.monotonic() - began < 25, "it does not wait for what cannot come"


def test_an_unselected_value_is_not_decoded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(url, {"content": b"a", "partition_key": "k"})
    monkeypatch.setattr(RawMessage, "data", lambda each: pytest.fail("looked at"))
    schema = StructType([StructField("__key", BinaryType())])
    assert read_batch(url, schema) == [{"__key": b"k"}]


def test_times_outside_of_sparks_range_do_not_end_a_read(url: str) -> None:
    """For example, a producer wrote nanoseconds instead of milliseconds."""
    wrong = [1_700_000_000_000_000_000, 253_402_300_800_000]
    publish(url, *({"content": b"%d" % at, "event_timestamp": at} for at in [*wrong, 5_000]))
    event_times = {row["value"]: row["__eventTime"] for row in read_batch(url)}
    epoch = datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=datetime.UTC)
    assert event_times == {b"%d" % wrong[0]: None, b"%d" % wrong[1]: None, b"5000": epoch}


def test_a_users_schema_selects_and_orders_columns(url: str) -> None:
    publish(url, {"content": b"a", "partition_key": "k"})
    schema = StructType([StructField("__key", BinaryType()), StructField("value", BinaryType())])
    assert read_batch(url, schema) == [{"__key": b"k", "value": b"a"}]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (StructField("valeu", BinaryType()), "did you mean 'value'"),
        (StructField("value", LongType()), "value is binary, not bigint"),
        (StructField("__entryId", LongType()), "the source has no column '__entryId'"),
    ],
)
def test_an_unsupported_schema_is_an_error(url: str, field: StructField, message: str) -> None:
    made = source(url)
    with pytest.raises(encore.ConfigurationError, match=message):
        made.reader(StructType([field]))


def test_text_is_decoded_and_invalid_text_follows_the_mode(url: str) -> None:
    publish(url, b"caf\xc3\xa9", b"\xff\xfe", {"content": None}, b"ok")
    read = {"valueFormat": "string", "includeMetadata": "none"}
    assert [row["value"] for row in read_batch(url, **read)] == ["café", None, None, "ok"]
    dropped = read_batch(url, mode="DROPMALFORMED", **read)
    assert [row["value"] for row in dropped] == ["café", None, "ok"]
    with pytest.raises(encore.EncoreError, match="no text in UTF-8"):
        read_batch(url, mode="FAILFAST", **read)
    schema = StructType([StructField("value", StringType())])
    assert len(read_batch(url, schema, **read)) == 4


def test_all_or_selected_partitions_are_read(url: str) -> None:
    publish(url, *numbered(30), topic="parted")
    rows = read_batch(url, topic="parted", includeMetadata="full")
    assert sorted(values(rows)) == numbered(30)
    assert {row["__partition"] for row in rows} == {0, 1, 2}
    made = source(url, assign='{"parted": [0, 2]}')
    made.options.pop("topic")
    reader = made.reader(made.schema())
    chosen = read_ranges(reader, reader.partitions())
    assert {row["__topic"][-1] for row in chosen} == {"0", "2"}
    made = source(url, assign='{"parted": [7]}')
    made.options.pop("topic")
    with pytest.raises(encore.ConfigurationError, match="has no partition 7; it has 3"):
        made.reader(made.schema()).partitions()


def test_a_pattern_selects_topics(url: str) -> None:
    for name in ("ab-1", "ab-2", "c-1"):
        publish(url, name.encode(), topic=name)
    rows = read_batch(url, topicsPattern="persistent://public/default/ab-.*")
    assert sorted(values(rows)) == [b"ab-1", b"ab-2"]


def test_the_messages_of_both_end_ids_are_read_also_in_a_batch(url: str) -> None:
    sent = publish(url, *numbered(40), batch=8)
    for first, last in ((0, 39), (3, 4), (8, 15), (13, 13), (7, 24)):
        ends = {
            name: f'{{"t": "{each.ledger_id()}:{each.entry_id()}:{each.batch_index()}"}}'
            for name, each in (("startingOffsets", sent[first]), ("endingOffsets", sent[last]))
        }
        assert values(read_batch(url, **ends)) == numbered(last - first + 1, first)


def test_a_range_can_be_given_by_times(url: str) -> None:
    publish(url, *numbered(5))
    middle = read_batch(url)[2]["__publishTime"]
    after = read_batch(url)[-1]["__publishTime"] + datetime.timedelta(seconds=1)
    ms = round(middle.timestamp() * 1000)
    late = round(after.timestamp() * 1000)
    rows = read_batch(url)
    assert values(read_batch(url, startingTime=ms)) == [
        row["value"] for row in rows if row["__publishTime"] >= middle
    ]
    assert values(read_batch(url, endingTime=ms)) == [
        row["value"] for row in rows if row["__publishTime"] < middle
    ]
    with pytest.raises(encore.ConfigurationError, match="Strategy=latest"):
        read_batch(url, startingTime=late)
    assert read_batch(url, startingTime=late, startingOffsetsByTimestampStrategy="latest") == []


def test_an_empty_topic_gives_no_rows_and_a_missing_one_is_an_error(broker: BrokerThread) -> None:
    url = broker.url
    publish(url)
    assert read_batch(url) == []
    made = source(url)
    # PySpark turns a batch without ranges into this.
    assert read_ranges(made.reader(made.schema()), [InputPartition(None)]) == []
    with pytest.raises(encore.ConfigurationError, match=r"there is no topic .*/nowhere"):
        read_batch(url, topic="nowhere")
    assert read_batch(url, topic="nowhere", waitingForNonExistedTopic="true") == []
    with pytest.raises(
        encore.ConfigurationError, match="which is not among the topics that are read"
    ):
        read_batch(url, startingOffsets='{"other": "1:2"}')
    with pytest.raises(encore.ConfigurationError, match="is not stored"):
        read_batch(url, topic="non-persistent://public/default/t")


def test_an_unreachable_broker_is_a_one_sentence_error() -> None:
    options = {
        "pulsar__client__operationTimeoutMs": 1000,
        "pulsar__client__connectionTimeoutMs": 500,
        "fetchOffset__numRetries": 1,
        "fetchOffset__retryIntervalMs": 10,
    }
    with pytest.raises(encore.TransportError) as error:
        read_batch("pulsar://127.0.0.1:1", **options)
    assert "127.0.0.1:1" in str(error.value)


@pytest.mark.parametrize("transport", ["native", "stock"])
def test_either_transport_reads_a_range_exactly(url: str, transport: str) -> None:
    sent = publish(url, *numbered(60), batch=20)
    ends = {
        name: f'{{"t": "{each.ledger_id()}:{each.entry_id()}:{each.batch_index()}"}}'
        for name, each in (("startingOffsets", sent[7]), ("endingOffsets", sent[44]))
    }
    rows = read_batch(url, pulsar__client__transport=transport, minPartitions=2, **ends)
    assert values(rows) == numbered(38, 7)


# Streams


def test_the_stock_transport_has_keys_as_text(url: str) -> None:
    publish(url, {"content": b"a", "partition_key": "k"}, {"content": b"b"}, batch=2)
    for transport in ("native", "stock"):
        rows = read_batch(url, pulsar__client__transport=transport)
        assert [(row["value"], row["__key"]) for row in rows] == [(b"a", b"k"), (b"b", None)]


def test_a_stream_in_limited_batches_reads_everything_once(url: str) -> None:
    publish(url, *numbered(100))
    query = Stream(url, startingOffsets="earliest", maxEntriesPerTrigger=30, subscription="s")
    assert query.run().sizes == [30, 30, 30, 10]
    publish(url, *numbered(7, 100))
    assert fresh(query).run().values() == numbered(107)
    query.reader.stop()


def fresh(query: Stream) -> Stream:
    """Ask the broker again, even shortly after the last request."""
    query.progress._polled_s = float("-inf")
    return query


def test_a_stream_starts_at_the_end_and_a_crash_in_its_first_batch_skips_nothing(
    url: str,
) -> None:
    publish(url, *numbered(5))
    query = Stream(url, subscription="s")
    query.reader.stop()  # before its first batch was planned
    publish(url, *numbered(5, 5))
    again = Stream(url, subscription="s")
    assert again.run().values() == numbered(5, 5)
    again.reader.stop()


def test_the_subscription_follows_the_checkpoint_and_the_last_batch_is_acked(
    broker: BrokerThread,
) -> None:
    url = broker.url
    publish(url, *numbered(20))
    query = Stream(url, startingOffsets="earliest", subscription="s", maxEntriesPerTrigger=8)
    query.run()
    assert broker.backlog(TOPIC, "s") == 0
    query.reader.stop()
    # A query continues from its checkpoint and takes the subscription again.
    publish(url, *numbered(5, 20))
    again = Stream(url, query.offset, subscription="s")
    assert again.run().values() == numbered(5, 20)
    assert broker.backlog(TOPIC, "s") == 0
    again.reader.stop()


def test_a_stream_on_an_empty_topic_skips_nothing_after_a_crash(
    url: str,
) -> None:
    publish(url)
    Stream(url, subscription="s").reader.stop()  # before its first batch was planned
    publish(url, *numbered(5))
    again = Stream(url, subscription="s")
    assert again.run().values() == numbered(5)
    again.reader.stop()


def test_cursor_commit_batch_acks_when_spark_commits(broker: BrokerThread) -> None:
    url = broker.url
    publish(url, *numbered(20))
    query = Stream(url, startingOffsets="earliest", subscription="s", cursorCommit="batch")
    query.run()
    assert broker.backlog(TOPIC, "s") == 20
    query.reader.commit(query.offset)
    assert broker.backlog(TOPIC, "s") == 0
    query.reader.stop()


def test_cursor_commit_none_does_not_move_the_subscription(broker: BrokerThread) -> None:
    url = broker.url
    publish(url, *numbered(20))
    query = Stream(url, startingOffsets="earliest", subscription="s", cursorCommit="none")
    query.run()
    assert broker.backlog(TOPIC, "s") == 20
    query.reader.stop()


def test_a_second_query_on_one_subscription_is_an_error(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_encore.spark.driver.query_cursor._BUSY_TIMEOUT_S", 0.2)
    publish(url, b"a")
    query = Stream(url, subscription="s")
    with pytest.raises(encore.PulsarException, match="another query or consumer holds it"):
        Stream(url, subscription="s", subscriptionPrefix="other")
    query.reader.stop()


def test_a_repeated_batch_has_the_same_rows(url: str) -> None:
    publish(url, *numbered(30), batch=10)
    query = Stream(url, startingOffsets="earliest")
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    publish(url, *numbered(30, 30))
    for parts in (1, 3):
        again = Stream(url, query.offset, minPartitions=parts)
        rows = read_ranges(again.reader, again.reader.partitions(query.offset, end))
        assert values(rows) == numbered(30)


def test_new_partitions_and_topics_are_read_from_their_beginning(url: str) -> None:
    publish(url, *numbered(3), topic="ab-1")
    options = {
        "topicsPattern": "persistent://public/default/ab-.*",
        "partitionDiscoveryIntervalMs": 0,
        "subscription": "s",
        "latestOffsetPollMs": 0,
        "startingOffsets": "earliest",
    }
    query = Stream(url, **options)
    assert query.run().values() == numbered(3)
    publish(url, *numbered(4, 3), topic="ab-2")
    assert query.run().values() == numbered(7)
    query.reader.stop()


def test_min_rows_delay_a_batch_for_a_limited_time(url: str) -> None:
    publish(url, *numbered(5))
    query = Stream(
        url,
        startingOffsets="earliest",
        minOffsetsPerTrigger=10,
        maxTriggerDelay="10m",
        latestOffsetPollMs=0,
    )
    now = [0.0]
    query.progress._clock = lambda: now[0]
    assert query.step() == 0
    publish(url, *numbered(5, 5))
    assert query.step() == 10
    publish(url, *numbered(5, 10))
    assert query.step() == 0
    now[0] += 601
    assert query.step() == 5


def test_available_now_ends_where_the_topic_ended(url: str) -> None:
    publish(url, *numbered(20))
    query = Stream(
        url,
        startingOffsets="earliest",
        maxEntriesPerTrigger=8,
        minOffsetsPerTrigger=100,
        latestOffsetPollMs=0,
    )
    query.reader.prepareForTriggerAvailableNow()
    publish(url, *numbered(20, 20))
    assert query.run().values() == numbered(20)


@pytest.mark.parametrize("options", [{}, {"subscription": "s"}])
def test_a_new_query_of_available_now_starts_where_configured(
    url: str, options: dict[str, str]
) -> None:
    publish(url, *numbered(5))
    made = source(url, latestOffsetPollMs=0, **options)
    reader = made.streamReader(made.schema())
    reader.prepareForTriggerAvailableNow()  # PySpark asks for the beginning after this.
    publish(url, *numbered(5, 5))
    begin = reader.initialOffset()
    assert begin["p"][TOPIC].split(":")[1] == "9"
    publish(url, *numbered(5, 10))
    assert reader.latestOffset(begin, ReadAllAvailable()) == begin
    reader.stop()
    # Messages published after that belong to the next run.
    query = Stream(url, begin, latestOffsetPollMs=0, **options)
    query.reader.prepareForTriggerAvailableNow()
    assert query.run().values() == numbered(5, 10)
    query.reader.stop()


def test_the_broker_is_not_asked_at_every_poll(broker: BrokerThread) -> None:
    url = broker.url
    publish(url, b"a")
    query = Stream(url, startingOffsets="earliest", latestOffsetPollMs=60_000)
    for _ in range(50):
        query.reader.latestOffset(query.offset, ReadAllAvailable())
    asked = broker.recorded("GET_LAST_MESSAGE_ID", "in")
    assert len(asked) <= 3


# Failures


def test_a_recreated_topic_is_data_loss_unless_allowed(broker: BrokerThread) -> None:
    url = broker.url
    publish(url, *numbered(10))
    checkpoint = {"p": {TOPIC: "900:4:-1"}, "v": 1}
    with pytest.raises(DataLossError, match="was deleted and created again"):
        Stream(url, checkpoint).step()
    query = Stream(url, checkpoint, failOnDataLoss="false")
    assert query.step() == 0


@pytest.mark.parametrize("changed", [{}, {"minPartitions": 7, "maxRecordsPerPartition": 1}])
def test_a_repeated_batch_is_split_in_the_same_way(url: str, changed: dict[str, int]) -> None:
    """The split does not depend on newer knowledge, because Spark numbers the rows of a task and
    drops rows by number.
    """
    for size in (50, 1, 1, 7):
        publish(url, *numbered(100), batch=size)
    options = {"startingOffsets": "earliest", "maxRecordsPerPartition": 40, "latestOffsetPollMs": 0}
    options |= {"maxEntriesPerTrigger": 60}
    query = Stream(url, **options)
    begin = query.offset
    for _ in range(2):
        end = query.reader.latestOffset(begin, query.reader.getDefaultReadLimit())
        publish(url, *numbered(30), batch=10)
        cut = query.reader.partitions(begin, end)
        assert len(cut) > 1
        again = Stream(url, begin, **(options | changed))  # a driver without earlier knowledge
        assert again.reader.partitions(begin, end) == cut
        again.reader.stop()
        begin = end
    assert query.reader.latestOffset(begin, ReadMaxRows(1)) != begin
    query.reader.stop()


def test_an_offset_with_unknown_task_data_is_a_one_sentence_error(url: str) -> None:
    publish(url, b"a")
    query = Stream(url, startingOffsets="earliest")
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    with pytest.raises(encore.ConfigurationError, match="how a batch is split into tasks"):
        query.reader.partitions(query.offset, {**end, "s": "of the moon"})


@pytest.mark.parametrize("transport", ["native", "stock"])
def test_a_subscription_that_must_exist_is_checked(url: str, transport: str) -> None:
    """Without a web service, only the native transport can check it."""
    publish(url, b"a")
    options = {"subscription": "s", "subscriptionCreate": "false"}
    options["pulsar__client__transport"] = transport
    wrong = "has no subscription 's'" if transport == "native" else "needs admin.url with"
    with pytest.raises(encore.ConfigurationError, match=wrong):
        Stream(url, **options)


def test_the_backlog_of_a_subscription_that_acked_nothing_is_not_skipped(url: str) -> None:
    publish(url, *numbered(5))
    Stream(url, startingOffsets="earliest", subscription="s").reader.stop()
    later_ms = int(time.time() * 1000) + 1
    while time.time() * 1000 < later_ms:
        time.sleep(0.001)
    publish(url, *numbered(5, 5))
    options = {"startingTime": later_ms, "latestOffsetPollMs": 0}
    query = Stream(url, subscription="s", **options)
    assert query.run().values() == numbered(10)
    query.reader.stop()
    query = Stream(url, subscription="new", **options)
    assert query.run().values() == numbered(5, 5)
    query.reader.stop()


def test_a_topic_recreated_during_a_query_is_data_loss(broker: BrokerThread) -> None:
    url = broker.url
    publish(url, *numbered(20))
    options = {"subscription": "s", "latestOffsetPollMs": 0, "maxEntriesPerTrigger": 5}
    options |= {"pulsar__client__operationTimeoutMs": 1000}
    query = Stream(url, startingOffsets="earliest", **options)
    assert query.step() == 5
    held = query.progress._cursors
    assert held is not None
    broker.delete_topic(TOPIC)
    while not held._buffers[TOPIC].failed:  # it looks for its topic, which does not exist
        time.sleep(0.02)
    publish(url, *numbered(30, 50))
    with pytest.raises(DataLossError, match="it or the topic was deleted"):
        query.step()
    query.reader.stop()


def test_an_unread_deleted_topic_is_data_loss(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    url = broker.url
    options = {
        "topicsPattern": "persistent://public/default/gone-.*",
        "startingOffsets": "earliest",
        "partitionDiscoveryIntervalMs": 0,
        "latestOffsetPollMs": 0,
        "maxEntriesPerTrigger": 6,
    }
    going = "persistent://public/default/gone-a"
    for topic in (going, "persistent://public/default/gone-b"):
        publish(url, *numbered(5), topic=topic)

    def query(checkpoint: dict[str, Any] | None = None, **more: Any) -> Stream:
        return Stream(url, checkpoint, **options, **more)

    strict, lenient = query(), query(failOnDataLoss="false")
    for each in (strict, lenient):
        assert each.step() == 6
    broker.delete_topic(going)
    with pytest.raises(DataLossError, match=r"gone-a was deleted, and its messages after \d+:2"):
        strict.step()
    assert len(lenient.run().rows) == 8
    assert "failOnDataLoss=false" in caplog.text
    strict.reader.stop()
    # A topic that was read to its end is no loss.
    publish(url, *numbered(5), topic=going)
    whole = query().run()
    broker.delete_topic(going)
    assert whole.step() == 0
    # A deletion while no query runs cannot be detected.
    caplog.clear()
    assert query(whole.offset).step() == 0
    assert "is in the checkpoint but is no longer read" in caplog.text


@pytest.mark.parametrize("lookback", [0, 50])
def test_a_topic_that_starts_with_a_chunked_message_is_read_whole(url: str, lookback: int) -> None:
    big = bytes(range(256)) * 1000
    publish(url, big, b"last", chunking_enabled=True)
    for edge in ({"startingOffsets": "earliest"}, {"startingTime": 0}):
        query = Stream(url, chunkLookbackEntries=lookback, **edge)
        assert query.run().values() == [big, b"last"]


def test_a_chunked_message_across_the_start_of_a_range_is_read_whole(url: str) -> None:
    big = bytes(range(256)) * 1000
    publish(url, b"first")
    sent = publish(url, big, b"last", chunking_enabled=True)
    first = sent[0].first_chunk
    assert first is not None
    start = f'{{"t": "{first.ledger_id()}:{first.entry_id() + 1}"}}'
    rows = read_batch(url, startingOffsets=start)
    assert [len(each) for each in values(rows)] == [len(big), 4]
    # Split anywhere, the parts together contain the message once.
    assert values(read_batch(url, minPartitions=4)) == [b"first", big, b"last"]


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_lost_connections_lose_nothing(step: int) -> None:
    faults = FaultPlan(
        [Fault(kind="close_after", command="MESSAGE", nth=each) for each in range(step, 12, step)]
    )
    with BrokerThread() as broker:
        publish(broker.url, *numbered(200), batch=10)
        broker.faults = faults
        rows = read_batch(broker.url, pulsar__reader__receiverQueueSize=20)
        assert values(rows) == numbered(200)


def test_a_task_that_stops_half_way_leaves_nothing_behind(broker: BrokerThread) -> None:
    url = broker.url
    publish(url, *numbered(5000), batch=100)
    made = source(url, maxRecordsPerBatch=10)
    reader = made.reader(made.schema())
    [whole] = reader.partitions()
    assert isinstance(whole, ReadRange)
    reading = reader.read(whole)
    next(reading)
    reading.close()
    assert len(broker.recorded("CLOSE_CONSUMER", "in")) == len(broker.recorded("SUBSCRIBE", "in"))


@pytest.mark.parametrize("batch", [0, 7, 100])
def test_record_batches_respect_the_configured_size(url: str, batch: int) -> None:
    publish(url, *numbered(500), batch=batch)
    made = source(url, maxRecordsPerBatch=10)
    reader = made.reader(made.schema())
    sizes = [each.num_rows for part in reader.partitions() for each in reader.read(part)]
    assert sum(sizes) == 500 and max(sizes) <= 10
    assert len(sizes) <= 101  # and not much smaller


@pytest.mark.parametrize("parts", range(2, 9))
def test_wherever_the_range_is_split_each_chunked_message_is_read_once(
    url: str, parts: int
) -> None:
    """Messages after an incomplete chunk in one read must not be used before the chunk is seen."""
    bodies = [bytes([number]) * (150_000 if number % 2 else 10) for number in range(7)]
    publish(url, *bodies, chunking_enabled=True)
    assert values(read_batch(url, minPartitions=parts)) == bodies


def test_a_topic_that_was_read_to_its_end_can_be_deleted_and_recreated(
    broker: BrokerThread,
) -> None:
    url = broker.url
    options = {"topicsPattern": "persistent://public/default/of-.*", "latestOffsetPollMs": 0}
    publish(url, *numbered(5), topic="of-one")
    publish(url, *numbered(5), topic="of-two")
    query = Stream(url, startingOffsets="earliest", partitionDiscoveryIntervalMs=0, **options)
    assert len(query.run().rows) == 10
    broker.delete_topic("persistent://public/default/of-one")
    assert query.step() == 0
    publish(url, *numbered(3, 50), topic="of-one")
    assert query.run().values()[10:] == numbered(3, 50)
    query.reader.stop()
