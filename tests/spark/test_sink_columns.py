"""Input columns of the sink, and the errors about them when the query is planned."""

from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, DecimalType, StringType, StructField, StructType
from sink_kit import URL, schema_of

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark.sink import batch_writer, stream_writer
from pulsar_encore.spark.sink.sink_columns import ColumnLayout, layout_of
from pulsar_encore.spark.sink.sink_options import sink_options

LETTER = {"value": "binary", "__topic": "string", "__messageId": "binary"}
LETTER_OPTIONS = {"sinkMode": "dead_letter", "subscription": "s"}
FULL = {**LETTER, "__messageProperties": "map"}


def layout(schema: StructType, **given: str) -> ColumnLayout:
    return layout_of(schema, sink_options({"service.url": URL, **given}, streaming=False))


def test_the_sources_own_columns_can_be_written() -> None:
    schema = schema_of(
        **FULL,
        __key="binary",
        __publishTime="timestamp",
        __eventTime="timestamp",
        __redeliveryCount="int",
        __orderingKey="binary",
    )
    found = layout(schema)
    assert set(found.metadata) == {"topic", "key", "eventTime", "messageProperties", "orderingKey"}
    assert [each.name for each in found.values] == ["value"]


def test_a_record_consists_of_all_columns_without_the_prefix() -> None:
    schema = schema_of(id="long", value="string", __key="string", pulsar_key="string")
    found = layout(schema, topic="t", valueFormat="json")
    assert [each.name for each in found.values] == ["id", "value", "pulsar_key"]
    other = layout(
        schema_of(id="long", pulsar_key="string"),
        topic="t",
        valueFormat="json",
        metadataPrefix="pulsar_",
    )
    assert other.metadata == {"key": "pulsar_key"}


def test_reasons_are_for_letters_only() -> None:
    schema = schema_of(**FULL, errorClass="string", reason="string")
    assert layout(schema, **LETTER_OPTIONS).evidence == ("errorClass", "reason")
    with pytest.raises(ConfigurationError, match="errorClass, reason would not be sent"):
        layout(schema, sinkMode="replay")


@pytest.mark.parametrize(
    ("columns", "given", "message"),
    [
        ({"value": "binary"}, {}, "rows have no destination"),
        ({"__key": "string"}, {"topic": "t"}, "there is no column value"),
        ({"value": "int"}, {"topic": "t"}, "column value must be binary or string, it is int"),
        ({"value": "binary", "id": "int"}, {"topic": "t"}, "the columns id would not be sent"),
        ({"value": "binary", "__topik": "string"}, {"topic": "t"}, "did you mean '__topic'"),
        ({"value": "binary", "__key": "long"}, {"topic": "t"}, "__key must be binary or string"),
        ({"value": "binary", "__eventTime": "long"}, {"topic": "t"}, "must be timestamp"),
        ({"value": "binary", "__messageProperties": "string"}, {"topic": "t"}, "map<string,str"),
        (
            {"value": "binary", "__deliverAt": "timestamp", "__deliverAfterMs": "long"},
            {"topic": "t"},
            "not both",
        ),
        ({"__key": "string"}, {"topic": "t", "valueFormat": "json"}, "there are none"),
        (LETTER, LETTER_OPTIONS, "missing are __messageProperties"),
        ({"value": "binary"}, {"sinkMode": "replay"}, "missing are __topic, __messageId, __me"),
        ({**FULL, "__deliverAt": "timestamp"}, LETTER_OPTIONS, "has no meaning for sinkMode=dead"),
    ],
)
def test_an_invalid_column_is_a_one_sentence_error(
    columns: dict[str, str], given: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        layout(schema_of(**columns), **given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_columns_of_one_name_are_refused() -> None:
    schema = StructType([StructField("value", BinaryType()), StructField("value", StringType())])
    with pytest.raises(ConfigurationError, match="there twice"):
        layout(schema, topic="t")


def test_the_key_encoding_of_a_copy_is_not_guessed() -> None:
    given = {"service.url": URL, **LETTER_OPTIONS}
    binary, text = schema_of(**FULL, __key="binary"), schema_of(**FULL, __key="string")
    with pytest.raises(ConfigurationError, match="textKeys"):
        batch_writer(given, binary, False)
    batch_writer({**given, "textKeys": "false"}, binary, False)
    batch_writer(given, schema_of(**FULL, __key="binary", __keyIsBytes="boolean"), False)
    batch_writer(given, text, False)
    batch_writer(
        {"service.url": URL, "topic": "t"}, schema_of(value="binary", __key="binary"), False
    )


def test_an_unencodable_type_is_an_error_before_the_query_runs() -> None:
    given = {"service.url": URL, "topic": "t", "valueFormat": "json"}
    schema = StructType([StructField("price", DecimalType(10, 2))])
    with pytest.raises(ConfigurationError, match="price is decimal"):
        batch_writer(given, schema, False)


def test_no_column_overwrites_another() -> None:
    schema, given = schema_of(value="binary"), {"service.url": URL, "topic": "t"}
    with pytest.raises(ConfigurationError, match=r'mode\("append"\)'):
        batch_writer(given, schema, True)
    with pytest.raises(ConfigurationError, match=r'outputMode\("complete"\)'):
        stream_writer(given, schema, True)
