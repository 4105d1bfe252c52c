"""The columns of the source: their names and types, and which of them a read yields.

Owns `Column`, the sets `STANDARD` and `FULL`, and the check of a schema that a user gives, which is
taken as a projection. The names and types of the standard ones are those of the JVM connector
(pulsar-spark), so that a job can be moved; Pulsar's own clock is in ms, Spark's timestamps in us.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ..errors import ConfigurationError
from .option_parsers import nearest

VALUE: Final = "value"
CORRUPT: Final = "_corrupt_record"
LAST_US: Final = 253_402_300_799_999_999
"""The last time that Spark has, the end of the year 9999, in us since the epoch."""


@dataclass(frozen=True, slots=True)
class Column:
    """Something that a message tells beside its value.

    Attributes:
        key: Its name without the prefix, such as "publishTime".
        type: In Spark.
        nullable: Whether a message may be without.
    """

    key: str
    type: DataType
    nullable: bool = True


STANDARD: Final = (
    Column("key", BinaryType()),
    Column("topic", StringType(), nullable=False),
    Column("messageId", BinaryType(), nullable=False),
    Column("publishTime", TimestampType(), nullable=False),
    Column("eventTime", TimestampType()),
    Column("messageProperties", MapType(StringType(), StringType(), True)),
    Column("keyIsBytes", BooleanType()),
)
"""What every read yields: pulsar-spark's columns, and `keyIsBytes`.

A key that was sent as text and one that was sent as bytes (`partition_key_b64_encoded`) are
different keys, and the same bytes in the column ``key``. `keyIsBytes` tells them apart, so that the
sink writes each as it was. It is null without a key, and where the transport cannot tell.
"""

MORE: Final = (
    Column("partition", IntegerType(), nullable=False),
    Column("ledgerId", LongType(), nullable=False),
    Column("entryId", LongType(), nullable=False),
    Column("batchIndex", IntegerType(), nullable=False),
    Column("redeliveryCount", IntegerType(), nullable=False),
    Column("producerName", StringType()),
    Column("sequenceId", LongType()),
    Column("schemaVersion", BinaryType()),
    Column("orderingKey", BinaryType()),
    Column("nullValue", BooleanType(), nullable=False),
)
"""What `includeMetadata=full` adds."""

LETTER: Final = (
    Column("realTopic", StringType()),
    Column("realSubscription", StringType()),
    Column("originMessageId", StringType()),
    Column("reconsumeTimes", IntegerType()),
    Column("delayTime", LongType()),
    Column("dueTime", TimestampType()),
    Column("attempts", IntegerType()),
    Column("reason", StringType()),
    Column("errorClass", StringType()),
    Column("errorMessage", StringType()),
    Column("errorStack", StringType()),
    Column("fingerprint", StringType()),
    Column("firstTime", TimestampType()),
    Column("lastTime", TimestampType()),
    Column("consumer", StringType()),
    Column("replayId", StringType()),
)
"""What `view=dlq` and `view=retry` add: what a letter says of its way (`letters`)."""

FULL: Final = STANDARD + MORE


def chosen(include: str | Sequence[str], prefix: str, *, letters: bool) -> tuple[Column, ...]:
    """The columns beside the value.

    Args:
        include: "standard", "full", "none", or keys one by one.
        prefix: Of their names, which may be given with a key.
        letters: Those of a letter too.

    Raises:
        ConfigurationError: There is no such column.
    """
    if isinstance(include, str):
        base = {"standard": STANDARD, "full": FULL, "none": ()}[include]
        return base + (LETTER if letters else ())
    known = {each.key: each for each in FULL + LETTER}
    found = []
    for name in include:
        key = name.removeprefix(prefix)
        if key not in known:
            raise ConfigurationError(
                f"includeMetadata: there is no column {name!r}{nearest(key, known)}; there are "
                f"{', '.join(known)}, or the words standard, full and none"
            )
        found.append(known[key])
    return tuple(found)


def schema_of(values: Sequence[StructField], columns: Sequence[Column], prefix: str) -> StructType:
    """The schema of a read.

    Args:
        values: What becomes of a message's value: one column, or one for each field.
        columns: The others.
        prefix: Of their names.
    """
    others = [StructField(prefix + each.key, each.type, each.nullable) for each in columns]
    return StructType([*values, *others])


def projected(asked: StructType, offered: StructType) -> StructType:
    """The schema that a user gave, which names some of what there is, in an order of its own.

    Raises:
        ConfigurationError: It names something else, or asks for another type.
    """
    known = {field.name: field for field in offered}
    for field in asked:
        if field.name not in known:
            raise ConfigurationError(
                f"schema: the source has no column {field.name!r}{nearest(field.name, known)}; it "
                f"has {', '.join(known)}"
            )
        theirs = known[field.name].dataType
        if _bare(field.dataType) != _bare(theirs):
            raise ConfigurationError(
                f"schema: {field.name} is {theirs.simpleString()}, not "
                f"{field.dataType.simpleString()}; read it so and cast it, or choose another "
                "valueFormat"
            )
    return asked


def _bare(data_type: DataType) -> str:
    """The type without what may be null in it."""
    return data_type.simpleString()
