"""Read options: their meaning, and the error for an invalid value."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from pulsar_encore import ConfigurationError
from pulsar_encore.spark import PulsarDataSource
from pulsar_encore.spark.admin import Admin
from pulsar_encore.spark.offsets import EARLIEST, LATEST, Position
from pulsar_encore.spark.source_options import ReadOptions, edge_position, read_options

URL = "pulsar://localhost:6650"
TOPIC = "persistent://public/default/orders"


def options(streaming: bool | None = True, **given: str) -> ReadOptions:
    named = {name.replace("__", "."): value for name, value in given.items()}
    return read_options({"service.url": URL, "topic": "orders", **named}, streaming=streaming)


def test_option_names_are_case_insensitive() -> None:
    given = {"SERVICE.URL": URL, "Topics": "a, b,a", "failondataloss": "FALSE"}
    read = read_options(given, streaming=True)
    assert read.topics.names == (
        "persistent://public/default/a",
        "persistent://public/default/b",
    )
    assert not read.fail_on_data_loss


def test_option_names_of_other_connectors_are_accepted() -> None:
    assert read_options(
        {
            "service.url": URL,
            "subscribe": "orders",
            "startingTimestamp": "5",
            "predefinedSubscription": "s",
            "maxRowsPerTrigger": "7",
        },
        streaming=True,
    ) == read_options(
        {
            "serviceUrl": URL,
            "topics": "orders",
            "startingTime": "5",
            "subscription": "s",
            "maxOffsetsPerTrigger": "7",
        },
        streaming=True,
    )


def test_a_batch_starts_at_the_beginning_and_a_stream_at_the_end() -> None:
    assert options(streaming=False).start.word == "earliest"
    assert options(streaming=True).start.word == "latest"


def test_options_can_be_pickled_and_show_no_secret() -> None:
    read = options(
        pulsar__client__authPluginClassName="AuthenticationToken",
        pulsar__client__authParams="token:sesame",
    )
    assert pickle.loads(pickle.dumps(read)) == read
    assert "sesame" not in repr(read)
    assert "authentication" in read.connection.keywords()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"maxEntriesPerTriger": "5"}, "did you mean 'maxEntriesPerTrigger'"),
        ({"zzz": "5"}, "there is no option 'zzz' of the pulsar source"),
        ({"pulsar.client.tlsTrustCertsPath": "x"}, "did you mean 'tlsTrustCertsFilePath'"),
        ({"maxEntriesPerTrigger": "0"}, "at least 1; got '0'"),
        ({"maxEntriesPerTrigger": "many"}, "maxEntriesPerTrigger must be a whole number"),
        ({"maxBytesPerTrigger": "10 potatoes"}, "number of bytes such as 100m"),
        ({"maxBytesPerTrigger": "10m"}, "maxBytesPerTrigger needs admin.url"),
        ({"maxTriggerDelay": "soon"}, "a time such as 250ms"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"valueFormat": "jsn"}, "did you mean 'json'"),
        ({"valueFormat": "json"}, "needs valueSchema"),
        ({"valueSchema": "id INT"}, "goes with valueFormat json and avro"),
        ({"topics": "a"}, "topic and topics were given"),
        ({"startingOffsets": "earlest"}, "did you mean 'earliest'"),
        ({"startingOffsets": "{"}, "must be a JSON object"),
        ({"startingOffsets": '{"orders": "x:y"}'}, "startingOffsets of orders must be"),
        ({"startingOffsets": "earliest", "startingTime": "5"}, "not both"),
        ({"startingOffsets": "subscription"}, "needs the name of a subscription"),
        ({"startingTime": "yesterday"}, "in ms since the epoch"),
        ({"startingTime": "1764000000"}, "of seconds it would be 1764000000000"),
        ({"kafka.bootstrap.servers": "b:9092"}, "service.url is Pulsar's"),
        ({"startingTime": str(1 << 63)}, "startingTime must be in ms since the epoch"),
        ({"endingOffsets": "latest"}, "an option of spark.read only"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than"),
        ({"service.url": "localhost"}, "service.url must look like"),
        ({"pulsar.client.transport": "x"}, "pulsar.client.transport must be one of"),
        ({"clientFactory": "nothing"}, "module:function"),
        ({"clientFactory": "os:getcwd"}, "clientFactory os:getcwd was called with"),
        ({"pulsar.client.authPluginClassName": "AuthenticationToken"}, "token must be token:..."),
        ({"startingOffsets": '{"orders": "é"}'}, "startingOffsets of orders must be"),
        ({"startingOffsets": '{"a":' * 9000}, "JSON object, got "),
        ({"startingTime": "1_0"}, "startingTime must be in ms since the epoch"),
        ({"startingTime": "9" * 5000}, "startingTime must be in ms since the epoch"),
        ({"maxEntriesPerTrigger": "9" * 5000}, "(5002 characters)"),
        ({"pollTimeoutMs": "0"}, "at least 1 ms"),
        ({"pollTimeoutMs": "9" * 400 + "h"}, "pollTimeoutMs must be a time such as"),
        ({"maxBytesPerTrigger": "9" * 5000, "admin.url": "http://h"}, "a number of bytes such as"),
        ({"pulsar.client.authParams": "token:x"}, "needs pulsar.client.authPluginClassName"),
        ({"pulsar.client.authPluginClassName": "Kerberos"}, "is not known here"),
        ({"includeMetadata": " "}, "must not be blank"),
        ({"pulsar.reader.cryptoFailureAction": "IGNORE"}, "FAIL, DISCARD or CONSUME, got 'IGNORE'"),
        (
            {"pulsar.reader.cryptoFailureAction": "CONSUME", "valueFormat": "string"},
            "goes with valueFormat=raw and not with string",
        ),
        ({"pulsar.reader.cryptoKeyReader": "vault"}, "cryptoKeyReader must be module:function"),
        (
            {"pulsar.reader.cryptoKeyReader": "a:b", "pulsar.reader.cryptoPrivateKeyPath": "/a"},
            "give pulsar.reader.cryptoPrivateKeyPath or pulsar.reader.cryptoKeyReader, not both",
        ),
        ({"pulsar.reader.cryptoPrivateKey": "/a"}, "did you mean 'pulsar.reader.cryptoPrivateKey"),
        ({"pulsar.producer.encryptionKeys": "k"}, "no option 'pulsar.producer.encryptionKeys'"),
        ({"predefinedSubscription": "a", "subscription": "b"}, "subscription was given twice"),
    ],
)
def test_an_invalid_option_is_one_sentence(given: dict[str, str], message: str) -> None:
    base = {"service.url": URL, "topic": "orders"}
    with pytest.raises(ConfigurationError) as error:
        read = read_options({**base, **given}, streaming=True)
        read.connection.open()
    assert message in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_a_batch_cannot_start_at_a_subscription() -> None:
    given = {"service.url": URL, "topic": "orders", "startingOffsets": "subscription"}
    for more in ({}, {"subscription": "s"}):
        with pytest.raises(ConfigurationError, match=r"is for spark\.readStream only: a batch"):
            read_options({**given, **more}, streaming=False)
    assert read_options({**given, "subscription": "s"}, streaming=True).start.word == "subscription"


@pytest.mark.parametrize(
    "given",
    ["-----BEGIN PRIVATE KEY-----\nsesame\n-----END", "data:;base64,sesame", "x\nsesame"],
)
def test_a_key_in_place_of_a_path_is_refused_and_not_shown(given: str) -> None:
    with pytest.raises(ConfigurationError, match="takes the path of a PEM file") as error:
        options(pulsar__reader__cryptoPrivateKeyPath=given)
    assert "sesame" not in str(error.value)


def test_a_long_line_in_place_of_a_file_is_not_shown() -> None:
    key = "sesame" * 50
    read = options(pulsar__reader__cryptoPrivateKeyPath=key)
    assert "sesame" not in repr(read)
    assert read.reading.keys is not None
    with pytest.raises(ConfigurationError, match="cannot read that file") as error:
        read.reading.keys.check()
    assert "sesame" not in str(error.value)


@pytest.mark.parametrize("name", ["maxEntriesPerTrigger", "cursorCommit", "latestOffsetPollMs"])
def test_an_option_of_streams_is_refused_in_a_batch(name: str) -> None:
    value = "eager" if name == "cursorCommit" else "5"
    with pytest.raises(ConfigurationError, match=rf"{name} is an option of spark\.readStream only"):
        options(streaming=False, **{name: value})


@pytest.mark.parametrize(
    ("value_format", "nested", "message"),
    [("json", "a " + "ARRAY<" * 9000, "types in types"), ("avro", '{"type":' * 9000, "no Avro")],
    ids=["json", "avro"],
)
def test_an_unbounded_schema_is_refused(value_format: str, nested: str, message: str) -> None:
    given = {"service.url": URL, "topic": "orders", "valueformat": value_format}
    with pytest.raises(ConfigurationError, match=message):
        PulsarDataSource({**given, "valueschema": nested}).schema()


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:99999", "http://[::"])
def test_the_error_for_an_invalid_web_address_names_its_option(url: str) -> None:
    def admin() -> Admin:
        given = {"service.url": URL, "topic": "a", "admin.url": url}
        return Admin(read_options(given, streaming=True).connection)

    with pytest.raises(ConfigurationError, match=r"^admin\.url (must be like http|'http)"):
        admin()


def test_an_invalid_web_address_is_an_error_before_spark_runs() -> None:
    given = {"service.url": URL, "topic": "a", "admin.url": "nonsense"}
    with pytest.raises(ConfigurationError, match=r"^admin\.url must be like http"):
        read_options(given, streaming=True)


def test_a_topic_given_under_two_names_is_refused() -> None:
    chosen = f'{{"orders": [0], "{TOPIC}": [1]}}'
    with pytest.raises(ConfigurationError, match=r"assign names .*orders twice"):
        read_options({"service.url": URL, "assign": chosen}, streaming=True)


def test_a_missing_url_or_topic_is_an_error_that_names_the_option() -> None:
    with pytest.raises(ConfigurationError, match=r"service\.url is missing"):
        read_options({"topic": "a"}, streaming=True)
    with pytest.raises(ConfigurationError, match="none was given"):
        read_options({"service.url": URL}, streaming=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"orders": "3:4"}', Position(3, 3)),
        ('{"orders": "3:4:2"}', Position(3, 4, 1)),
        ('{"orders": "3:4:0"}', Position(3, 3)),
        (f'{{"{TOPIC}": {{"ledgerId": 3, "entryId": 0}}}}', Position(3, -1)),
        ('{"orders": -2}', "earliest"),
        ('{"orders": -1}', "latest"),
        ('{"other": "3:4"}', "latest"),
    ],
)
def test_a_read_starts_with_the_named_message(text: str, expected: Any) -> None:
    assert edge_position(options(startingOffsets=text).start, TOPIC, TOPIC) == expected


def test_positions_of_a_partition_override_those_of_its_topic() -> None:
    part = f"{TOPIC}-partition-1"
    text = f'{{"orders": "3:4", "{part}": "5:6"}}'
    start = options(startingOffsets=text).start
    assert edge_position(start, part, TOPIC) == Position(5, 5)
    assert edge_position(start, f"{TOPIC}-partition-0", TOPIC) == Position(3, 3)


def test_the_message_of_an_end_position_is_read() -> None:
    end = options(streaming=False, endingOffsets='{"orders": "3:4:2"}').end
    assert edge_position(end, TOPIC, TOPIC) == Position(3, 4, 2)


def test_times_apply_to_all_topics_or_to_each() -> None:
    assert edge_position(options(startingTime="77").start, TOPIC, TOPIC) == 77
    start = options(startingTime='{"orders": 77}').start
    assert edge_position(start, TOPIC, TOPIC) == 77
    assert edge_position(start, "persistent://public/default/b", "b") == "latest"


def test_earliest_and_latest_sort_outside_of_all_positions() -> None:
    assert EARLIEST.order < Position(0, 0).order < LATEST.order
