"""Letters as rows, as the source reads them, for the tests of the triage."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from pulsar_encore.spark.compat import arrow_schema
from pulsar_encore.spark.source_columns import FULL, LETTER, schema_of

HOME: Final = "persistent://public/default/orders"
DEAD: Final = f"{HOME}-billing-DLQ"
NOON: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOON_MS: Final = int(NOON.timestamp() * 1000)
HOUR_MS: Final = 3_600_000
SCHEMA: Final[StructType] = schema_of([StructField("value", BinaryType())], FULL + LETTER, "__")


def at(minutes: float) -> datetime:
    """Return a time in minutes after noon."""
    return NOON + timedelta(minutes=minutes)


def letter(number: int, **columns: Any) -> dict[str, Any]:
    """Return a row with the letter of order `number`, in an entry of its own.

    Args:
        columns: Values that differ, by column name without the prefix.
    """
    row: dict[str, Any] = {
        "key": None,
        "topic": DEAD,
        "messageId": b"id",
        "publishTime": at(number),
        "messageProperties": {"colour": "red"},
        "partition": -1,
        "ledgerId": 5,
        "entryId": number,
        "batchIndex": -1,
        "redeliveryCount": 0,
        "nullValue": False,
        "realTopic": HOME,
        "realSubscription": "billing",
        "originMessageId": f"1:{number}:-1",
        "errorClass": "KeyError",
        "errorMessage": "'price'",
        "fingerprint": "aaaaaaaaaaaa",
        "firstTime": at(number - 90),
        "lastTime": at(number),
        "consumer": "worker",
    }
    value = columns.pop("value", b"%d" % number)
    return {"value": value, **{f"__{key}": each for key, each in (row | columns).items()}}


def frame(spark: SparkSession, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """Return the rows as a batch read returns them."""
    complete_rows = [{name: row.get(name) for name in SCHEMA.names} for row in rows]
    # With Arrow, which needs no worker.
    return spark.createDataFrame(pa.Table.from_pylist(complete_rows, arrow_schema(SCHEMA)), SCHEMA)


def stream(spark: SparkSession, folder: str, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """Return the rows as a stream. Each call adds a file, which is a micro-batch of its own."""
    frame(spark, rows).coalesce(1).write.mode("append").parquet(folder)
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.parquet(folder)
