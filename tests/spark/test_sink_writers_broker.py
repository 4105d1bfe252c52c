"""The writers on a development broker, called in the way Spark calls them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from sink_kit import NAMESPACE, Home, batch_of, home, schema_of

import pulsar_encore as encore
from pulsar_encore import letters
from pulsar_encore.devbroker import BrokerSettings, Fault, FaultPlan
from pulsar_encore.errors import ConfigurationError, NotSupportedError, TransportTimeout
from pulsar_encore.exceptions import MessageTooBig, ProducerBusy, TopicTerminated
from pulsar_encore.options import ProducerOptions
from pulsar_encore.spark.sink import SinkCommit, batch_writer
from pulsar_encore.spark.sink.producer_cache import _busy_text, steady_router
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.wire.entries import decode_body

VALUE = schema_of(value="binary")
ROUTED = schema_of(value="binary", __topic="string")
COPY = schema_of(value="binary", __topic="string", __messageId="binary", __messageProperties="map")
ID = MessageId(-1, 7, 8).serialize()


@pytest.fixture
def here() -> Iterator[Home]:
    with home() as made:
        yield made


def values(count: int, start: int = 0) -> list[tuple[bytes]]:
    return [(b"%06d" % number,) for number in range(start, start + count)]


def bodies(here: Home, topic: str) -> list[bytes]:
    return [each.data() for each in here.stored(topic)]


def producers_on(here: Home, topic: str) -> int:
    return here.broker.call(
        lambda broker: len(broker.service.catalogue.topic(NAMESPACE + topic).producers.ready)
    )


def test_rows_are_stored_unchanged_and_in_order(here: Home) -> None:
    schema = schema_of(
        value="string",
        __key="binary",
        __orderingKey="string",
        __eventTime="timestamp",
        __messageProperties="map",
    )
    at = datetime(2024, 5, 6, 7, 8, 9, 120_999, tzinfo=UTC)
    rows = [("a", b"k", "o", at, [("x", "1")]), (None, None, None, None, None)]
    commit = here.write(schema, rows, rows, options={"topic": "t"})
    assert commit == SinkCommit(4, 2, {NAMESPACE + "t": 4})
    found = here.stored("t")
    assert [each.data() for each in found] == [b"a", b"", b"a", b""]
    one, none = found[:2]
    assert (one.partition_key_bytes(), one.partition_key()) == (b"k", "aw==")
    assert one.ordering_key_bytes() == b"o"
    assert one.event_timestamp() == int(at.timestamp() * 1000)
    assert one.properties() == {"x": "1"}
    assert none.has_null_value() and not none.properties() and none.event_timestamp() == 0


def test_thousands_of_rows_keep_their_order(here: Home) -> None:
    rows = [(each, f"t{number % 3}") for number, (each,) in enumerate(values(6000))]
    commit = here.write(ROUTED, rows[:2500], rows[2500:], options={"maxPendingMessages": "700"})
    assert commit.rows == 6000
    for number in range(3):
        assert bodies(here, f"t{number}") == [each for each, topic in rows if topic == f"t{number}"]
        assert commit.topics[f"{NAMESPACE}t{number}"] == 2000


def test_a_task_without_rows_creates_no_producer(here: Home) -> None:
    assert here.write(VALUE, options={"topic": "t"}) == SinkCommit()
    assert here.write(VALUE, [], [], options={"topic": "t"}) == SinkCommit()
    assert here.broker.commands == []


def test_tasks_of_a_process_share_producers(here: Home) -> None:
    for _ in range(3):
        here.write(VALUE, values(2), options={"topic": "t"})
    here.write(VALUE, values(2), options={"topic": "t", "pulsar.producer.compressionType": "ZSTD"})
    assert len(here.broker.recorded("PRODUCER")) == 2
    assert len(bodies(here, "t")) == 8


def test_producers_below_the_limit_are_all_kept(here: Home) -> None:
    rows = [(b"", f"t{number}") for number in range(40)]
    for _ in range(3):
        here.write(ROUTED, rows, options={})
    assert len(here.broker.recorded("PRODUCER")) == 40


def test_no_more_producers_are_kept_than_the_limit(here: Home) -> None:
    rows = [(b"", f"t{number}") for number in range(70)]
    here.write(ROUTED, rows, options={})
    deadline = time.monotonic() + 10
    while (open_ := sum(producers_on(here, f"t{n}") for n in range(70))) > 64:
        assert time.monotonic() < deadline, open_
        time.sleep(0.01)
    assert open_ == 64


def test_a_lost_connection_loses_no_row() -> None:
    faults = FaultPlan([Fault(kind="close_before", command="SEND_RECEIPT", nth=3)])
    with home(faults=faults) as here:
        options = {"topic": "t", "pulsar.producer.batchingMaxMessages": "10"}
        here.write(VALUE, values(200), options=options)
        assert faults.done
        assert list(dict.fromkeys(bodies(here, "t"))) == [each for (each,) in values(200)]


def test_a_row_that_cannot_be_stored_ends_its_task(here: Home) -> None:
    rows = [*values(5), (b"x" * 6_000_000,), *values(5)]
    with pytest.raises(MessageTooBig):
        here.write(VALUE, rows, options={"topic": "t"})
    deadline = time.monotonic() + 10
    while producers_on(here, "t"):  # its producers are closed, with all pending messages
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert here.write(VALUE, values(3), options={"topic": "t"}).rows == 3
    assert bodies(here, "t")[-3:] == [each for (each,) in values(3)]


def test_a_topic_that_accepts_nothing_is_an_error_each_time(here: Home) -> None:
    here.write(VALUE, values(1), options={"topic": "t"})
    here.broker.terminate("t")
    for _ in range(2):
        with pytest.raises(TopicTerminated):
            here.write(VALUE, values(2), options={"topic": "t"})


def test_an_error_in_the_input_rows_ends_the_task(here: Home) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield batch_of(VALUE, values(3))
        raise EOFError("the JVM has gone")

    writer = batch_writer({"service.url": here.broker.url, "topic": "t"}, VALUE, False)
    with pytest.raises(EOFError):
        writer.write(batches())


def test_a_broker_that_does_not_answer_is_waited_for_as_long_as_configured(here: Home) -> None:
    options = {"topic": "t", "sendTimeoutMs": "400"}
    here.write(VALUE, values(1), options=options)
    here.broker.outage()
    started = time.monotonic()
    with pytest.raises(TransportTimeout, match=r"0\.4 s"):
        here.write(VALUE, values(5), options=options)
    assert time.monotonic() - started < 25
    here.broker.resume()
    here.write(VALUE, values(2), options=options)
    assert bodies(here, "t")[-2:] == [each for (each,) in values(2)]


def test_a_row_without_a_topic_ends_the_task(here: Home) -> None:
    with pytest.raises(ConfigurationError, match="null in row 2 of the task"):
        here.write(ROUTED, [(b"a", "t"), (b"b", "t")], [(b"c", None)], options={})


# Numbered rows


class Context:
    """A task of a micro-batch."""

    def __init__(self, partition: int = 3, batch: int | None = 5) -> None:
        self.partition = partition
        self.properties = {"sql.streaming.queryId": "q"}
        if batch is not None:
            self.properties["streaming.sql.batchId"] = str(batch)

    def partitionId(self) -> int:
        return self.partition

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key)


NUMBERED = {"deduplication": "task-sequence", "producerName": "job", "topic": "t"}


def task(monkeypatch: pytest.MonkeyPatch, **of: Any) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: Context(**of))


def numbers(here: Home, topic: str) -> list[tuple[str, int, int]]:
    """Return the producer's name and the first and last sequence id of each entry."""

    def read(broker: Any) -> list[tuple[str, int, int]]:
        found = []
        for entry in broker.service.catalogue.topic(NAMESPACE + topic).log.entries:
            metadata = decode_body(entry.body).metadata
            first = metadata.sequence_id
            found.append((metadata.producer_name, first, metadata.highest_sequence_id or first))
        return found

    return here.broker.call(read)


def rows_of(here: Home, topic: str) -> Counter[tuple[str, int]]:
    """Producer name and sequence id of each stored row, and how often it was stored.

    A slow machine cuts the rows into more batches than a fast one.
    """
    return Counter(
        (name, number)
        for name, first, last in numbers(here, topic)
        for number in range(first, last + 1)
    )


def test_each_attempt_at_a_task_has_the_same_numbers(
    here: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(monkeypatch)
    for _ in range(2):
        here.write(VALUE, values(3), values(2), options=NUMBERED, streaming=True)
        assert producers_on(here, "t") == 0  # the next attempt may run in another process
    found = rows_of(here, "t")
    first = min(found)[1]
    assert found == dict.fromkeys((("job-q-3", first + each) for each in range(5)), 2)
    assert (first >> 47, first % (1 << 29)) == (5, 0)
    task(monkeypatch, partition=4, batch=6)
    here.write(VALUE, values(1), options=NUMBERED, streaming=True)
    name, first, last = numbers(here, "t")[-1]
    assert (name, first, first >> 47) == ("job-q-4", last, 6)
    here.write(VALUE, values(2), options=NUMBERED, streaming=True)
    assert rows_of(here, "t")["job-q-4", first] == 1  # other rows have other numbers


def test_row_numbers_do_not_depend_on_the_record_batches(
    here: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cuts in ((7,), (1, 2, 4), (3, 4)):
        task(monkeypatch)
        rows, parts = values(7), []
        for cut in cuts:
            parts.append(rows[:cut])
            rows = rows[cut:]
        here.write(VALUE, *parts, options=NUMBERED, streaming=True)
    found = rows_of(here, "t")
    assert len(found) == 7
    assert set(found.values()) == {3}


def test_each_attempt_sends_a_row_to_the_same_partition(
    here: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.broker.create_partitioned_topic("p", 3)
    schema = schema_of(value="binary", __key="string")
    rows = [(each, f"k{n}" if n % 2 else None) for n, (each,) in enumerate(values(40))]
    found = []
    for _ in range(3):
        task(monkeypatch)
        here.write(schema, rows, options={**NUMBERED, "topic": "p"}, streaming=True)
        found.append([bodies(here, f"p-partition-{each}") for each in range(3)])
    once = found[0]
    assert all(once) and sorted(chain(*once)) == sorted(each for each, _ in rows)
    assert found[1] == [each * 2 for each in once]
    assert found[2] == [each * 3 for each in once]


def test_a_partition_added_between_attempts_is_another_producer(
    here: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = schema_of(value="binary", __key="string")
    rows = [(each, f"k{n}" if n % 2 else None) for n, (each,) in enumerate(values(40))]
    here.broker.create_partitioned_topic("two", 2)
    here.broker.create_partitioned_topic("three", 3)
    names = []
    for topic in ("two", "three"):
        task(monkeypatch)
        here.write(schema, rows, options={**NUMBERED, "topic": topic}, streaming=True)
        names.append({name for name, _, _ in numbers(here, f"{topic}-partition-0")})
    assert names == [{"job-q-3-of-2"}, {"job-q-3-of-3"}]


def test_rows_stay_on_the_partition_of_their_producers_name() -> None:
    routes = []
    for now in (2, 3):
        route = steady_router(single=False, partitions=2)
        keys = [f"k{n}" if n % 2 else None for n in range(40)]
        routes.append([route(_Keyed(each), now) for each in keys])
    assert routes[0] == routes[1] and set(routes[0]) == {0, 1}


class _Keyed:
    def __init__(self, key: Any) -> None:
        self._key = key

    def partition_key(self) -> Any:
        return self._key or ""


def test_a_producer_name_in_use_is_waited_for(here: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    task(monkeypatch)
    client = encore.Client(here.broker.url)
    holder = here.runtime.call(_producer(client), "hold the name")
    options = {**NUMBERED, "sendTimeoutMs": "300"}
    with pytest.raises(ProducerBusy, match=r"'job-q-3' stayed in use: .* 0.3 s .sendTimeoutMs."):
        here.write(VALUE, values(2), options=options, streaming=True)
    release = threading.Timer(0.2, lambda: here.runtime.call(holder.close(), "let it go"))
    release.start()
    here.write(VALUE, values(2), options={**options, "sendTimeoutMs": "10s"}, streaming=True)
    release.join()
    assert len(bodies(here, "t")) == 2
    here.runtime.call(client.close(), "close")


def test_the_error_for_too_many_producers_is_the_brokers() -> None:
    limit = ProducerBusy("(broker: Topic 't' reached max producers limit)")
    for name in (None, "job-q-3"):
        commit = _busy_text(ProducerOptions(topic="t", producer_name=name), 0.3, limit)
        assert "stayed in use" not in commit and "reached max producers limit" in commit


async def _producer(client: encore.Client) -> encore.Producer:
    return await client.create_producer("t", producer_name="job-q-3")


def test_only_tasks_of_streams_have_numbers(here: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    task(monkeypatch, batch=None)
    with pytest.raises(ConfigurationError, match="needs a streaming query"):
        here.write(VALUE, values(1), options=NUMBERED, streaming=True)


def test_unnumbered_rows_use_generated_producer_names(here: Home) -> None:
    here.write(VALUE, values(1), options={"topic": "t", "producerName": "job"})
    [producer] = here.broker.recorded("PRODUCER")
    assert producer.command.producer.producer_name.startswith("job-")


# Letters


def test_letters_are_stored_on_their_topics_before_the_task_ends(here: Home) -> None:
    rows = [
        (b"first", NAMESPACE + "orders", ID, [("colour", "red")]),
        (b"last", NAMESPACE + "orders-s-RETRY", ID, [(letters.RECONSUME_TIMES, "16")]),
    ]
    options = {"sinkMode": "reconsume_later", "subscription": "s", "backoff": "1h"}
    here.write(COPY, rows, options={**options, "initialSubscriptionName": "watch"})
    [retry] = here.stored("orders-s-RETRY")
    [dead] = here.stored("orders-s-DLQ")
    assert (retry.data(), dead.data()) == (b"first", b"last")
    assert retry.properties()[letters.DELAY_TIME] == "3600000"
    assert here.broker.backlog("orders-s-DLQ", "watch") == 1
    topic = NAMESPACE + "orders-s-RETRY"
    [entry] = here.broker.call(lambda broker: broker.service.catalogue.topic(topic).log.entries)
    assert entry.deliver_at_ms == pytest.approx(time.time() * 1000 + 3_600_000, abs=60_000)


def test_a_large_letter_is_truncated(here: Home) -> None:
    rows = [(b"x" * 6_000_000, NAMESPACE + "orders", ID, None)]
    here.write(COPY, rows, options={"sinkMode": "dead_letter", "subscription": "s"})
    assert [len(each) for each in bodies(here, "orders-s-DLQ")] == [6_000_000]


def test_dead_letters_can_be_replayed(here: Home) -> None:
    letter = {"sinkMode": "dead_letter", "subscription": "s"}
    rows = [(each, NAMESPACE + "orders", ID, None) for (each,) in values(20)]
    here.write(COPY, rows, options=letter)
    dead = here.stored("orders-s-DLQ")
    again = [
        (
            each.data(),
            each.topic_name(),
            each.message_id().serialize(),
            list(each.properties().items()),
        )
        for each in dead
    ]
    here.write(COPY, again, options={"sinkMode": "replay", "replayId": "r"})
    home_again = here.stored("orders")
    assert [each.data() for each in home_again] == [each for (each,) in values(20)]
    assert {each.properties()[letters.REPLAY_ID] for each in home_again} == {"r"}


def test_copies_have_the_schema_version_of_their_originals(here: Home) -> None:
    schema = schema_of(id="int")
    text = '{"type":"record","name":"O","fields":[{"name":"id","type":"int"}]}'
    avro = {"topic": "orders", "valueFormat": "avro", "valueSchema": text}
    here.write(schema, [(1,)], options=avro)
    [written] = here.stored("orders")
    version = written.int_schema_version()
    assert version >= 0 and written.data() == b"\x02"
    copy = schema_of(
        value="binary",
        __topic="string",
        __messageId="binary",
        __messageProperties="map",
        __schemaVersion="binary",
    )
    row = (written.data(), written.topic_name(), ID, None, version.to_bytes(8, "big"))
    here.write(copy, [row], options={"sinkMode": "dead_letter", "subscription": "s"})
    [dead] = here.stored("orders-s-DLQ")
    assert dead.int_schema_version() >= 0


def test_concurrent_tasks_do_not_disturb_each_other() -> None:
    with home(BrokerSettings(record=False)) as here:
        failures: list[BaseException] = []

        def run(number: int) -> None:
            try:
                here.write(VALUE, values(3000, number * 3000), options={"topic": "t"})
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not failures
        assert sorted(bodies(here, "t")) == [each for (each,) in values(9000)]


def test_the_stock_transport_works_too(here: Home) -> None:
    options = {"topic": "t", "pulsar.client.transport": "stock"}
    schema = schema_of(value="binary", __key="string")
    here.write(schema, [(each, "k") for (each,) in values(50)], options=options)
    assert bodies(here, "t") == [each for (each,) in values(50)]
    with pytest.raises(NotSupportedError):
        here.write(schema_of(value="binary", __key="binary"), [(b"", b"k")], options=options)
    avro = {**options, "valueFormat": "avro"}
    text = '{"type":"record","name":"O","fields":[{"name":"id","type":"int"}]}'
    with pytest.raises(NotSupportedError, match="needs the native transport"):
        here.write(schema_of(id="int"), [(1,)], options={**avro, "valueSchema": text})
