"""Values with schemas of a real registry, in Spark: records as columns, versions, malformed
values.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pulsar_encore as encore
from pulsar_encore.schema import AvroSchema, JsonSchema, Long, Map, Record, String, StringSchema
from tests.harness.admin import Admin, AdminError
from tests.harness.pulsar_server import Server

from .numbered_topics import with_options


class Order(Record):
    id = Long()
    name = String()
    notes = Map(String())


def send(server: Server, topic: str, *values: Any, schema: Any = None, batch: bool = True) -> None:
    """Publish values, and register the schema if there is one."""
    options = {} if schema is None else {"schema": schema}

    async def run() -> None:
        async with encore.Client(server.service_url) as client:
            producer = await client.create_producer(topic, batching_enabled=batch, **options)
            await asyncio.gather(*(producer.send(each) for each in values))

    asyncio.run(run())


def test_avro_rows_of_an_older_schema_have_null_in_new_columns(
    spark: SparkSession, pulsar: Server, topic: str
) -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    more: Any = {"name": "size", "type": ["null", {"type": "int"}], "default": None}
    new = {**old, "fields": [*old["fields"], more]}
    send(pulsar, topic, *({"id": each} for each in range(100)), schema=AvroSchema(None, old))
    grown = [{"id": each, "size": each} for each in range(100, 200)]
    send(pulsar, topic, *grown, schema=AvroSchema(None, new))
    frame = with_options(spark.read, pulsar, topic, valueFormat="schema", minPartitions=2).load()
    assert frame.columns[:3] == ["id", "size", "_corrupt_record"]
    found = sorted((row["id"], row["size"]) for row in frame.select("id", "size").collect())
    assert found == [(each, each if each >= 100 else None) for each in range(200)]
    slim = with_options(spark.read, pulsar, topic, valueFormat="schema").schema("id BIGINT").load()
    assert slim.groupBy().sum("id").collect()[0][0] == sum(range(200))


class Line(Record):
    item = String()


class Before(Record):
    id = Long()
    line = Line()


class LineAfter(Record):
    item = String()
    note = String()


class After(Record):
    note = String()
    id = Long()
    line = LineAfter()


@pytest.mark.parametrize("strategy", ["FORWARD", "FORWARD_TRANSITIVE"])
def test_a_forward_evolution_leaves_old_rows_unchanged(
    spark: SparkSession, pulsar: Server, admin: Admin, folder: Path, strategy: str
) -> None:
    """`String()` is nullable and has no default, so a broker accepts it for forward compatibility
    only.
    """
    namespace = f"public/{uuid.uuid4().hex[:10]}"
    policies = {"schema_compatibility_strategy": strategy, "replication_clusters": ["standalone"]}
    admin.create_namespace(namespace, policies)
    topic = f"persistent://{namespace}/t"
    old = Before(id=1, line=Line(item="a"))
    send(pulsar, topic, old, schema=AvroSchema(Before))
    new = After(id=2, note="x", line=LineAfter(item="b", note="y"))
    send(pulsar, topic, new, schema=AvroSchema(After))
    options = {"valueFormat": "schema", "startingOffsets": "earliest"}
    found = with_options(spark.read, pulsar, topic, **options).load()
    query = (
        with_options(spark.readStream, pulsar, topic, **options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()
    for frame in (found, spark.read.parquet(str(folder / "out"))):
        rows = frame.orderBy("id").select("id", "note", "line", "_corrupt_record").collect()
        assert [(row[0], row[1], tuple(row[2]), row[3]) for row in rows] == [
            (1, None, ("a", None), None),
            (2, "x", ("b", "y"), None),
        ]


@pytest.mark.parametrize("schema", [JsonSchema(Order), AvroSchema(Order)])
def test_a_stream_of_records_is_written_to_parquet(
    spark: SparkSession, pulsar: Server, topic: str, folder: Path, schema: Any
) -> None:
    orders = [Order(id=each, name=f"é{each}", notes={"k": "v"}) for each in range(50)]
    send(pulsar, topic, *orders, schema=schema)
    frame = with_options(
        spark.readStream, pulsar, topic, valueFormat="schema", startingOffsets="earliest"
    ).load()
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    query.awaitTermination()
    found = spark.read.parquet(str(folder / "out")).orderBy("id").collect()
    assert [(row["id"], row["name"], row["notes"]) for row in found] == [
        (each, f"é{each}", {"k": "v"}) for each in range(50)
    ]
    assert {row["_corrupt_record"] for row in found} == {None}


def test_malformed_json_is_kept_dropped_or_fails_by_mode(
    spark: SparkSession, pulsar: Server, topic: str
) -> None:
    values = [json.dumps({"id": each, "at": "2024-01-01T00:00:00Z"}).encode() for each in range(20)]
    values[7] = b'{"id": 7'
    send(pulsar, topic, *values)
    options = {"valueFormat": "json", "valueSchema": "id BIGINT, at TIMESTAMP"}
    frame = with_options(spark.read, pulsar, topic, **options).load()
    assert frame.where("at = timestamp'2024-01-01 00:00:00 UTC'").count() == 19
    [broken] = frame.where("_corrupt_record IS NOT NULL").collect()
    assert (broken["id"], bytes(broken["_corrupt_record"])) == (None, values[7])
    assert (
        with_options(spark.read, pulsar, topic, mode="DROPMALFORMED", **options).load().count()
        == 19
    )
    with pytest.raises(PySparkException, match="MalformedValueError") as error:
        with_options(spark.read, pulsar, topic, mode="FAILFAST", **options).load().collect()
    assert topic in str(error.value)


def test_values_of_a_string_schema_are_one_text_column(
    spark: SparkSession, pulsar: Server, topic: str
) -> None:
    send(pulsar, topic, "a", "b", schema=StringSchema())
    frame = with_options(spark.read, pulsar, topic, valueFormat="schema").load()
    assert [row["value"] for row in frame.select("value").collect()] == ["a", "b"]


def test_a_recreated_topic_has_new_schemas(
    spark: SparkSession, pulsar: Server, admin: Admin, topic: str
) -> None:
    """Versions begin at 0 again, and the session's workers have read the old ones."""
    for names in ("ab", "ba", "abc"):
        fields = [{"name": each, "type": "int"} for each in names]
        schema = AvroSchema(None, {"type": "record", "name": "R", "fields": fields})
        send(pulsar, topic, *[{each: ord(each) for each in names}] * 4, schema=schema)
        frame = with_options(
            spark.read, pulsar, topic, valueFormat="schema", minPartitions=2
        ).load()
        assert {tuple(row) for row in frame.select("a", "b").collect()} == {(97, 98)}
        admin.delete_topic(topic)
        with contextlib.suppress(AdminError):  # the broker may have deleted it with the topic
            path = topic.removeprefix("persistent://")
            admin.call("DELETE", f"/schemas/{path}/schema", force=True)
