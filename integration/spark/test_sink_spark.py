"""The sink in Spark: batches, streams, and the topics after drivers and workers were killed."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructField, StructType

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.consumer.forwarding.copy_options import Destination
from pulsar_encore.devbroker import BrokerSettings, BrokerThread, run_in_thread
from pulsar_encore.exceptions import MessageTooBig
from pulsar_encore.spark.sink import data_writers as writers
from pulsar_encore.spark.sink.row_batches import RowChunk
from pulsar_encore.spark.sink.row_spool import RowSpool
from pulsar_encore.spark.sink.sequence_ids import numbering_of
from pulsar_encore.values.outgoing_message import OutgoingMessage
from pulsar_encore.wire.entries import decode_body
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Server

from .numbered_topics import KILLS
from .sink_driver import TOTAL, read, run_with_kills
from .sink_source import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    with run_in_thread(BrokerSettings(keep_acked=True, record=False)) as running:
        yield running


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(Sink)
    return spark


def test_a_batch_is_written_with_all_its_columns(
    session: SparkSession, broker: BrokerThread
) -> None:
    at = datetime(2024, 5, 6, 7, 8, 9, 120_000, tzinfo=UTC)
    rows_frame = session.range(0, 2000, numPartitions=2).select(
        F.col("id").cast("string").alias("value"),
        F.concat(F.lit("t"), F.col("id") % 2).alias("__topic"),
        F.col("id").cast("string").cast("binary").alias("__key"),
        F.lit(at).alias("__eventTime"),
        F.create_map(F.lit("n"), F.col("id").cast("string")).alias("__messageProperties"),
    )
    rows_frame.write.format("sink").option("service.url", broker.url).mode("append").save()
    for number in range(2):
        found = read(broker.url, f"t{number}")
        assert Counter(int(each.data()) for each in found) == Counter(range(number, 2000, 2))
        assert all(each.partition_key_bytes() == each.data() for each in found)
        assert {each.event_timestamp() for each in found} == {int(at.timestamp() * 1000)}
        assert all(each.properties() == {"n": each.data().decode()} for each in found)
        for task in (range(1000), range(1000, 2000)):  # in the order of the rows in each task
            numbers = [number for each in found if (number := int(each.data())) in task]
            assert numbers == sorted(numbers)


def test_rows_are_encoded_as_json_records(session: SparkSession, broker: BrokerThread) -> None:
    rows_frame = session.createDataFrame([(1, "a"), (2, None)], "id int, name string").coalesce(1)
    options = {"service.url": broker.url, "topic": "t", "valueFormat": "json"}
    rows_frame.write.format("sink").options(**options).mode("append").save()
    assert [each.data() for each in read(broker.url, "t")] == [
        b'{"id":1,"name":"a"}',
        b'{"id":2,"name":null}',
    ]


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        ("append", {"topic": "t", "bogus": "1"}, "there is no option 'bogus'"),
        ("append", {}, "rows have no destination"),
        ("overwrite", {"topic": "t"}, "a topic cannot be overwritten"),
    ],
)
def test_wrong_sink_options_raise_when_the_write_is_planned(
    session: SparkSession, broker: BrokerThread, mode: str, options: dict[str, str], expected: str
) -> None:
    rows_frame = session.range(1).select(F.col("id").cast("string").alias("value"))
    writer = rows_frame.write.format("sink").option("service.url", broker.url).options(**options)
    with pytest.raises(PySparkException) as caught:
        writer.mode(mode).save()
    assert expected in str(caught.value)
    assert broker.topics() == []


def test_rows_of_a_stream_are_dead_lettered_and_replayed(
    session: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    source = tmp_path / "rows"
    session.range(0, 50, numPartitions=2).write.parquet(str(source))
    orders = "persistent://public/default/orders"
    failing = (
        session.readStream.schema("id long")
        .parquet(str(source))
        .select(
            F.col("id").cast("string").alias("value"),
            F.lit(orders).alias("__topic"),
            F.lit(encore.MessageId(-1, 7, 8).serialize()).alias("__messageId"),
            F.create_map(F.lit("n"), F.col("id").cast("string")).alias("__messageProperties"),
            F.lit("ValueError").alias("errorClass"),
            F.concat(F.lit("no "), F.col("id")).alias("errorMessage"),
        )
    )
    options = {"service.url": broker.url, "sinkMode": "dead_letter", "subscription": "billing"}
    query = (
        failing.writeStream.format("sink")
        .options(checkpointLocation=str(tmp_path / "checkpoint"), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    dead = read(broker.url, f"{orders}-billing-DLQ")
    assert Counter(int(each.data()) for each in dead) == Counter(range(50))
    assert {each.properties()[letters.ERROR_CLASS] for each in dead} == {"ValueError"}
    assert len({each.properties()[letters.FINGERPRINT] for each in dead}) == 1
    rows = [
        (each.data(), each.topic_name(), each.message_id().serialize(), each.properties())
        for each in dead
    ]
    columns = (
        "value binary, __topic string, __messageId binary, __messageProperties map<string,string>"
    )
    session.createDataFrame(rows, columns).write.format("sink").options(
        **{"service.url": broker.url, "sinkMode": "replay", "replayId": "r"}
    ).mode("append").save()
    replayed = read(broker.url, orders)
    assert Counter(int(each.data()) for each in replayed) == Counter(range(50))
    assert {each.properties()[letters.REPLAY_ID] for each in replayed} == {"r"}


def test_copies_keep_keys_times_and_properties_of_their_messages(
    session: SparkSession, pulsar: Server, topic: str
) -> None:
    """The copies show whether a key was text or bytes without an option."""
    sent: dict[bytes, dict[str, Any]] = {
        b"text": {"partition_key": "aw=="},  # text that looks like base64
        b"bytes": {"partition_key": b"k"},
        b"binary": {"partition_key": b"\xff\x00", "ordering_key": b"\xfe"},
        b"none": {"event_timestamp": 1_700_000_000_123, "properties": {"p": "1", "q": ""}},
        b"": {"partition_key": "é", "ordering_key": "o"},
        b"null": {"partition_key": "null", "content": None},
    }

    async def publish() -> None:
        async with encore.Client(pulsar.service_url) as client:
            producer = await client.create_producer(topic)
            for value, given in sent.items():
                await producer.send(**{"content": value, **given})

    def facts(message: encore.Message) -> tuple[Any, ...]:
        return (
            None if message.has_null_value() else message.data(),
            message.partition_key(),
            message.partition_key_bytes(),
            message.ordering_key_bytes(),
            message.event_timestamp(),
            {k: v for k, v in message.properties().items() if k in ("p", "q")},
        )

    asyncio.run(publish())
    url = {"service.url": pulsar.service_url}
    rows = (
        session.read.format("pulsar").options(topic=topic, includeMetadata="full", **url).load()
    ).coalesce(1)
    letters = {"sinkMode": "reconsume_later", "subscription": "s"}
    copies = {f"{topic}-copy": {"topic": f"{topic}-copy"}, f"{topic}-s-RETRY": letters}
    for options in copies.values():
        kept = rows if "topic" not in options else rows.drop("__topic")
        kept.write.format("pulsar").options(**url, **options).mode("append").save()
    originals = [facts(each) for each in read(pulsar.service_url, topic)]
    assert len(originals) == len(sent)
    for copy in copies:
        assert [facts(each) for each in read(pulsar.service_url, copy)] == originals


# Kills


@pytest.mark.timeout(700)
def test_no_row_is_lost_when_drivers_and_workers_are_killed(
    broker: BrokerThread, tmp_path: Path
) -> None:
    topic = "persistent://public/default/t"
    broker.create_topic(topic)

    def stored() -> int:
        return broker.call(
            lambda running: sum(
                each.messages for each in running.service.catalogue.topic(topic).log.entries
            )
        )

    options = {
        "service.url": broker.url,
        "topic": topic,
        "deduplication": "task-sequence",
        "producerName": "job",
    }
    assert run_with_kills(tmp_path / "checkpoint", options, stored) == KILLS
    found = Counter(int(each.data()) for each in read(broker.url, topic))
    assert sorted(found) == list(range(TOTAL))
    duplicates = found.total() - TOTAL
    print(
        f"{KILLS} kills, {TOTAL} rows: none lost, {duplicates} stored twice without deduplication"
    )
    # A deduplicating broker would drop all of them, because each has an id that was stored before.
    assert duplicates == _stored_again(broker, topic)


def _stored_again(broker: BrokerThread, topic: str) -> int:
    """Count the messages whose sequence id is not above their producer's highest stored id.

    A deduplicating broker drops a batch as a whole, but it also tells a new producer the highest
    id. The producer then sends each message that may be stored as an entry of its own. This broker
    tells nothing, so a batch may contain stored rows and new ones: how the rows were cut into
    batches depends on time.
    """

    def count(running: Any) -> int:
        highest: dict[str, int] = {}
        again = 0
        for entry in running.service.catalogue.topic(topic).log.entries:
            metadata = decode_body(entry.body).metadata
            before = highest.get(metadata.producer_name, -1)
            last = metadata.highest_sequence_id or metadata.sequence_id
            ids = range(metadata.sequence_id, last + 1)
            assert len(ids) == entry.messages
            again += sum(each <= before for each in ids)
            highest[metadata.producer_name] = max(before, last)
        return again

    return broker.call(count)


class Context:
    """The task context that Spark provides."""

    def partitionId(self) -> int:
        return 0

    def getLocalProperty(self, key: str) -> str:
        return {"sql.streaming.queryId": "q", "streaming.sql.batchId": "3"}[key]


VALUE = StructType([StructField("value", BinaryType())])


def attempt(options: dict[str, str], rows: Sequence[bytes], killed_after: int = -1) -> None:
    """Run one attempt of a task whose worker dies after `killed_after` rows."""
    sent = rows if killed_after < 0 else rows[:killed_after]
    numbering = numbering_of(Context(), options["producerName"])
    all_rows = RowSpool(lambda batch, first: _chunk(batch), copies=False)
    all_rows.add(_batch(rows))
    all_rows.close()

    class TruncatedSpool(RowSpool):
        digest = all_rows.digest  # the digest of all rows, although it sends only some

    with patch.object(writers, "RowSpool", TruncatedSpool):
        checked = writers._checked(options, VALUE, streaming=True)
        writers.write_rows(*checked, iter([_batch(sent)]), numbering)


def _batch(rows: Sequence[bytes]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(rows, pa.binary())], names=["value"])


def _chunk(batch: pa.RecordBatch) -> RowChunk:
    messages = [OutgoingMessage(payload=each) for each in batch.column(0).to_pylist()]
    return RowChunk(messages, Destination(TOPIC_OF_ATTEMPTS), 0)


TOPIC_OF_ATTEMPTS = "persistent://public/dedup/attempts"


@pytest.mark.parametrize("partitions", [0, 2])
def test_rows_changed_between_attempts_are_stored_despite_deduplication(
    pulsar: Server, admin: Admin, partitions: int
) -> None:
    """A deduplicating broker drops messages by their sequence id, whatever they contain."""
    namespace = f"public/dedup-{uuid.uuid4().hex[:8]}"
    admin.create_namespace(namespace)
    admin.set_namespace_policy(namespace, "deduplication", True)
    rows = [b"%d" % each for each in range(60)]
    changed_rows = [*rows[:30], b"mended", *rows[31:]]
    try:
        for name, second_rows in (
            ("alike", rows),
            ("other-cut", rows[30:]),
            ("changed_rows", changed_rows),
        ):
            topic = f"persistent://{namespace}/{name}"
            if partitions:
                admin.create_partitioned_topic(topic, partitions)
            else:
                admin.create_topic(topic)
            options = {
                "service.url": pulsar.service_url,
                "topic": topic,
                "deduplication": "task-sequence",
                "producerName": "job",
            }
            with patch(f"{__name__}.TOPIC_OF_ATTEMPTS", topic):
                attempt(options, rows, killed_after=40)
                attempt(options, second_rows)
                attempt(options, second_rows)
            found = Counter(each.data() for each in read(pulsar.service_url, topic))
            assert set(second_rows) <= found.keys(), name
            if second_rows is rows:
                assert max(found.values()) == 1
    finally:
        admin.delete_namespace(namespace)


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_failed_row_is_stored_in_a_later_attempt_despite_deduplication(
    pulsar: Server, admin: Admin, partitions: int
) -> None:
    """Later rows were stored, and a broker drops ids that are not above the highest id."""
    namespace = f"public/dedup-{uuid.uuid4().hex[:8]}"
    admin.create_namespace(namespace)
    admin.set_namespace_policy(namespace, "deduplication", True)
    rows = [b"%d" % each for each in range(300)]
    rows[100] = bytes(6_000_000)
    topic = f"persistent://{namespace}/t"
    try:
        if partitions:
            admin.create_partitioned_topic(topic, partitions)
        else:
            admin.create_topic(topic)
        options = {
            "service.url": pulsar.service_url,
            "topic": topic,
            "deduplication": "task-sequence",
            "producerName": "job",
        }
        with patch(f"{__name__}.TOPIC_OF_ATTEMPTS", topic):
            for _ in range(2):
                with pytest.raises(MessageTooBig, match="row 100 of the task"):
                    attempt(options, rows)
            attempt({**options, "pulsar.producer.compressionType": "ZSTD"}, rows)
        found = {each.data() for each in read(pulsar.service_url, topic)}
        assert found == set(rows)
    finally:
        admin.delete_namespace(namespace)


@pytest.mark.timeout(700)
def test_no_row_is_stored_twice_on_a_deduplicating_broker(
    pulsar: Server, admin: Admin, tmp_path: Path
) -> None:
    namespace = f"public/dedup-{uuid.uuid4().hex[:8]}"
    admin.create_namespace(namespace)
    admin.set_namespace_policy(namespace, "deduplication", True)
    topic = f"persistent://{namespace}/t"
    admin.create_topic(topic)

    def stored() -> int:
        return int(admin.stats(topic)["msgInCounter"])

    options = {
        "service.url": pulsar.service_url,
        "topic": topic,
        "deduplication": "task-sequence",
        "producerName": "job",
    }
    try:
        assert run_with_kills(tmp_path / "checkpoint", options, stored) == KILLS
        found = Counter(int(each.data()) for each in read(pulsar.service_url, topic))
        assert sorted(found) == list(range(TOTAL))
        assert found.total() == TOTAL
    finally:
        admin.delete_namespace(namespace)
