"""The columns of the source.

The standard columns have the names and types of the JVM connector (pulsar-spark), so that jobs can
move. Pulsar's times are in ms, Spark's timestamps in us.
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
"""The end of the year 9999, the last time that Spark can represent, in us since the epoch."""


@dataclass(frozen=True, slots=True)
class Column:
    """A metadata column; `key` is its name without the prefix, such as "publishTime"."""

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
"""The columns of every read: those of pulsar-spark, and `keyIsBytes`.

A key sent as text and a key sent as bytes (`partition_key_b64_encoded`) are different keys, but may
be the same bytes in the column ``key``. `keyIsBytes` tells the sink which it was. It is null
without a key, and if the transport cannot tell.
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
"""The other columns of `includeMetadata=full`."""

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
"""The other columns of `view=dlq` and `view=retry`: the fields of a letter (see `letters`)."""

FULL: Final = STANDARD + MORE


def chosen_columns(
    include: str | Sequence[str], prefix: str, *, letters: bool
) -> tuple[Column, ...]:
    """Return the metadata columns of a read.

    `include` is "standard", "full", "none", or keys, with or without `prefix`. With `letters`, the
    columns of letters are added to the words, but not to keys.
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
    others = [StructField(prefix + each.key, each.type, each.nullable) for each in columns]
    return StructType([*values, *others])


def projected_schema(wanted: StructType, offered: StructType) -> StructType:
    """Return a user's schema, if it only selects and orders offered columns."""
    known = {field.name: field for field in offered}
    for field in wanted:
        if field.name not in known:
            raise ConfigurationError(
                f"schema: the source has no column {field.name!r}{nearest(field.name, known)}; it "
                f"has {', '.join(known)}"
            )
        offered_type = known[field.name].dataType
        # `simpleString` leaves out the nullability.
        if field.dataType.simpleString() != offered_type.simpleString():
            raise ConfigurationError(
                f"schema: {field.name} is {offered_type.simpleString()}, not "
                f"{field.dataType.simpleString()}; read it so and cast it, or choose another "
                "valueFormat"
            )
    return wanted
