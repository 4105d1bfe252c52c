"""Small pure parts: encodings, names, schemas, ids of the log, producers and the process."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.devbroker.frame_encoders import MessageEncoder, ReceiptEncoder
from pulsar_encore.devbroker.rules.names import parse
from pulsar_encore.devbroker.rules.refusal import Refusal
from pulsar_encore.devbroker.rules.schema_log import SchemaLog
from pulsar_encore.devbroker.rules.topic_log import EARLIEST, LATEST, LogEntry, TopicLog
from pulsar_encore.devbroker.rules.topic_producers import AccessMode, Producers, Publisher
from pulsar_encore.wire import pulsar_pb2 as pb
from pulsar_encore.wire.ack_set_words import from_words

U63 = st.integers(0, 2**63 - 1)


def entry_of(ledger: int, number: int, batch: int = 0) -> LogEntry:
    entry = LogEntry(b"", batch)
    entry.ledger, entry.entry = ledger, number
    return entry


@given(U63, U63, U63, st.integers(-1, 10_000), st.integers(0, 2**32 - 1), st.none() | U63)
def test_message_bytes_equal_protobufs(
    consumer: int, ledger: int, number: int, partition: int, count: int, epoch: int | None
) -> None:
    encoded = MessageEncoder(consumer, partition).encode(
        entry_of(ledger, number, 70), count, 1 << 65 | 5, epoch
    )
    command = pb.BaseCommand.FromString(encoded)
    message = command.message
    assert command.type == pb.BaseCommand.MESSAGE
    assert message.consumer_id == consumer
    place = message.message_id
    assert (place.ledgerId, place.entryId, place.partition) == (ledger, number, partition)
    assert message.redelivery_count == count
    assert from_words(message.ack_set) == 1 << 65 | 5
    assert (message.consumer_epoch if message.HasField("consumer_epoch") else None) == epoch


@given(U63, st.integers(0, 2**64 - 1), st.none() | st.integers(0, 2**64 - 1), U63, U63)
def test_receipt_bytes_equal_protobufs(
    producer: int, sequence: int, highest: int | None, ledger: int, number: int
) -> None:
    encoded = ReceiptEncoder(producer, -1).encode(sequence, highest, entry_of(ledger, number))
    receipt = pb.BaseCommand.FromString(encoded).send_receipt
    assert (receipt.producer_id, receipt.sequence_id) == (producer, sequence)
    assert (receipt.message_id.ledgerId, receipt.message_id.entryId) == (ledger, number)
    assert receipt.highest_sequence_id == (highest or 0)


@pytest.mark.parametrize(
    ("given_name", "full", "partition"),
    [
        ("t", "persistent://public/default/t", -1),
        ("a/b/c", "persistent://a/b/c", -1),
        ("persistent://a/b/c-partition-12", "persistent://a/b/c-partition-12", 12),
    ],
)
def test_topic_names_are_parsed(given_name: str, full: str, partition: int) -> None:
    name = parse(given_name)
    assert (name.full, name.partition) == (full, partition)


@pytest.mark.parametrize(
    "bad", ["", " ", "a/b", "persistent://t", "odd://a/b/c", "a//c", "a/b/c/d"]
)
def test_invalid_topic_names_are_errors(bad: str) -> None:
    with pytest.raises(Refusal, match="InvalidTopicName"):
        parse(bad)


def test_schemas_get_versions_and_incompatible_types_are_refused() -> None:
    log = SchemaLog()
    json = pb.Schema(name="s", schema_data=b"{}", type=pb.Schema.Json)
    assert log.register(json) == bytes(8)
    json.schema_data = b"[]"
    assert log.register(json) == bytes(7) + b"\x01"
    assert log.get(None)[1] == bytes(7) + b"\x01"
    assert log.get(bytes(8))[0].schema_data == b"{}"
    with pytest.raises(Refusal, match="IncompatibleSchema"):
        log.register(pb.Schema(name="s", schema_data=b"", type=pb.Schema.String))
    with pytest.raises(Refusal, match="TopicNotFound"):
        log.get(bytes(7) + b"\x09")


def log_of(count: int, per_ledger: int = 4) -> TopicLog:
    topic = TopicLog("t", itertools.count(10, 5).__next__, entries_per_ledger=per_ledger)
    for i in range(count):
        topic.append(LogEntry(b"", publish_ms=i * 10))
    return topic


def test_every_id_finds_exactly_its_entry() -> None:
    topic = log_of(10)
    assert [(e.ledger, e.entry) for e in topic.entries[3:5]] == [(10, 3), (15, 0)]
    for entry in topic.entries:
        assert topic.locate(entry.ledger, entry.entry) == entry.seq
    for place in [(10, 4), (12, 0), (20, 2), (25, 0), EARLIEST, LATEST]:
        assert topic.locate(*place) is None


@pytest.mark.parametrize(
    ("place", "seq"),
    [
        (EARLIEST, 0),
        (LATEST, 10),
        ((10, 2), 2),
        ((10, 99), 4),
        ((12, 0), 4),
        ((15, 2**64 - 1), 4),
        ((1, 0), 0),
        ((20, 50), 10),
    ],
)
def test_reading_starts_at_an_id_or_after_it(place: tuple[int, int], seq: int) -> None:
    assert log_of(10).locate_from(*place) == seq


def test_reading_starts_at_a_time() -> None:
    topic = log_of(10)
    assert [topic.locate_time(ms) for ms in (-5, 0, 15, 90, 91)] == [0, 0, 2, 9, 10]


def test_trim_drops_closed_ledgers_and_keeps_their_numbers() -> None:
    topic = log_of(10)
    topic.trim(3)
    assert topic.base == 0
    topic.trim(9)
    assert (topic.base, topic.at(8).entry) == (8, 0)
    assert topic.locate(10, 0) is None
    assert topic.locate_from(10, 0) == 8
    topic.trim(10)
    assert topic.base == 8


def test_unloading_starts_a_new_ledger_only_after_a_non_empty_one() -> None:
    topic = log_of(1)
    topic.roll_ledger()
    topic.roll_ledger()
    assert topic.append(LogEntry(b"")).ledger == 15


def test_producer_names_and_replacement_by_a_later_epoch() -> None:
    producers = Producers()
    producers.add(Publisher((1, 1), "a", epoch=0))
    for other in (Publisher((2, 1), "a", epoch=5), Publisher((1, 1), "a", epoch=0)):
        with pytest.raises(Refusal, match="ProducerBusy"):
            producers.add(other)
    newer = Publisher((1, 1), "a", epoch=1)
    producers.add(newer)
    assert producers.ready == {"a": newer}


def test_fencing_raises_the_epoch_of_the_topic() -> None:
    producers = Producers()
    first = Publisher((1, 1), "a", AccessMode.EXCLUSIVE)
    producers.add(first)
    producers.add(Publisher((2, 1), "b", AccessMode.FENCING))
    assert first.fenced and producers.topic_epoch == 1
    with pytest.raises(Refusal, match="ProducerFenced"):
        producers.add(Publisher((1, 1), "c", AccessMode.WAIT), topic_epoch=0)


def test_the_broker_runs_as_a_process_and_prints_its_address() -> None:
    command = [sys.executable, "-m", "pulsar_encore.devbroker", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().strip()
        client = pulsar.Client(url)
        client.create_producer("t").send(b"x")
        client.close()
        process.terminate()
        assert process.wait(10) == 0
        assert "not for production" in process.stderr.read()
