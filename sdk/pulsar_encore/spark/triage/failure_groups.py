"""Letters as rows: which of them are the same letter twice, and the groups they fall into.

Pure DataFrame code over the columns of ``view=dlq`` with ``includeMetadata=full``: it reads
nothing, collects nothing, and counts hours in UTC whatever the session's time zone is. What a
letter says of itself is a stranger's word: a time of death that cannot be is not taken.
"""

from __future__ import annotations

from typing import Final, Literal

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

from ...deadletters import NO_FINGERPRINT
from ...errors import ConfigurationError
from ..source_columns import FULL, LETTER
from .tally import HourGroup

PREFIX: Final = "__"
"""Of the columns that a triage reads."""

HOUR_MS: Final = 3_600_000
# A letter is written when its message dies, or when the dead-letter topic can be written to again;
# a first failure may be as long ago as retries go on. What says more is forged, or a broken clock.
LONGEST_MS: Final = 90 * 24 * HOUR_MS

_PARTITION: Final = "-partition-[0-9]+$"

KIND: Final = f"{PREFIX}keyIsBytes"
"""The column that says whether a letter's key was sent as text or as bytes."""

HourOf = Literal["last", "first"]
"""Which time of a letter: of its last failure, or of its first."""


def column(key: str) -> Column:
    """A column of the source."""
    return f.col(PREFIX + key)


def check_columns(letters: DataFrame) -> None:
    """That these are letters as the source reads them.

    Raises:
        ConfigurationError: A column is missing.
    """
    there = set(letters.columns)
    needed = [PREFIX + each.key for each in FULL + LETTER]
    needed.remove(KIND)  # letters that an older release stored are without it
    missing = [name for name in needed if name not in there]
    if missing:
        raise ConfigurationError(
            f"these are no letters, {', '.join(missing)} is missing: read them with view=dlq and "
            "includeMetadata=full"
        )


def written_ms() -> Column:
    """When it was written to the dead-letter topic, ms since the epoch."""
    return f.unix_millis(column("publishTime"))


def letter_id() -> Column:
    """Its own id as text, as `pulsar-encore dlq` shows it: `ledger:entry:partition[:index]`."""
    index = column("batchIndex")
    return f.concat_ws(
        ":",
        column("ledgerId"),
        column("entryId"),
        column("partition"),
        f.when(index >= 0, index),  # null is left out
    )


def hour_ms(hour_of: HourOf) -> Column:
    """When the hour of its failure began, ms since the epoch; of its writing without evidence."""
    written = written_ms()
    said = f.unix_millis(column("lastTime" if hour_of == "last" else "firstTime"))
    believed = f.when((said <= written) & (said >= written - f.lit(LONGEST_MS)), said)
    return f.floor(f.coalesce(believed, written) / HOUR_MS).cast("long") * HOUR_MS


def fingerprint() -> Column:
    """Of the failure; "-" without evidence."""
    return f.coalesce(f.nullif(column("fingerprint"), f.lit("")), f.lit(NO_FINGERPRINT))


def real_topic() -> Column:
    """The topic it died on; "" when it does not say."""
    return f.coalesce(column("realTopic"), f.lit(""))


def base_topic(topic: Column) -> Column:
    """A topic's name without the partition."""
    return f.regexp_replace(topic, _PARTITION, "")


def is_duplicate() -> Column:
    """Whether a later letter in the same DataFrame is of the same death.

    That is one on the same dead-letter topic, of the same real topic, subscription, origin, value
    and keys: its letter was written again because an ack was lost, or it was replayed and died
    again. The last one counts. A message that died in two subscriptions has two letters, with a
    failure each: who chooses the one must not find it hidden by the other. What decides on a
    refusal is part of this, so no letter that can be sent hides behind one that cannot. A letter
    that does not say its origin, or may name a whole batch by it, is like no other: better sent
    twice than not.
    """
    origin = f.coalesce(
        f.when(_names_a_message(), column("originMessageId")),
        f.concat_ws(" ", f.lit("letter"), column("topic"), letter_id()),
    )
    parts = (f.col("value"), column("key"), column("orderingKey"))
    # A hash passes by what is null: without the flags a value would be like a key.
    content = f.xxhash64(*parts, *(each.isNull() for each in parts))
    death = (base_topic(column("topic")), real_topic(), column("realSubscription"), origin, content)
    latest_first = Window.partitionBy(*death).orderBy(
        column("publishTime").desc(),
        column("ledgerId").desc(),
        column("entryId").desc(),
        column("batchIndex").desc(),
        column("topic").desc(),
    )
    return f.row_number().over(latest_first) > 1


def _names_a_message() -> Column:
    """Whether the origin is one message's for sure.

    `ledger:entry:partition:index` is, and the two ids of one in chunks. Without an index it is only
    where this package wrote it: some clients leave the index out, and the messages of a batch have
    the same origin then. A letter that came by a retry letter may have it from such a client.
    """
    origin = column("originMessageId")
    whole = origin.contains(";") | (f.size(f.split(origin, ":")) >= 4)
    reconsumed = f.coalesce(column("reconsumeTimes"), f.lit(0)) > 0
    ours = (origin != "") & column("consumer").isNotNull() & ~reconsumed
    return f.coalesce(whole | ours, f.lit(False))


def grouped(letters: DataFrame, hour_of: HourOf = "last") -> DataFrame:
    """The groups of some letters, one row each, with the columns of `HourGroup`.

    Args:
        letters: Each message once.
        hour_of: Which time decides on the hour.
    """
    last = f.max(
        f.struct(
            written_ms().alias("written"),
            column("ledgerId"),
            column("entryId"),
            column("batchIndex"),
            f.coalesce(column("errorClass"), f.lit("")).alias("error_class"),
            # Letters without an exception have a reason alone.
            f.coalesce(
                f.nullif(column("errorMessage"), f.lit("")), column("reason"), f.lit("")
            ).alias("error_message"),
            letter_id().alias("sample_id"),
            column("topic").alias("dead_topic"),
        )
    ).alias("last")
    replayed = f.coalesce(column("replayId"), f.lit("")) != ""
    return (
        letters.groupBy(
            fingerprint().alias("fingerprint"),
            real_topic().alias("real_topic"),
            hour_ms(hour_of).alias("hour_ms"),
        )
        .agg(
            f.count(f.lit(1)).alias("count"),
            f.count_if(replayed).alias("again"),
            f.min(written_ms()).alias("first_ms"),
            f.max(written_ms()).alias("last_ms"),
            last,
        )
        .select(
            "fingerprint",
            "real_topic",
            "hour_ms",
            f.timestamp_millis(f.col("hour_ms")).alias("hour"),
            "count",
            "again",
            "first_ms",
            "last_ms",
            "last.error_class",
            "last.error_message",
            "last.sample_id",
            "last.dead_topic",
        )
    )


def largest(groups: DataFrame, most: int) -> list[HourGroup]:
    """The largest groups, at most so many, as values on the driver."""
    rows: list[Row] = (
        groups.drop("hour")
        .orderBy(f.col("count").desc(), "hour_ms", "fingerprint", "real_topic")
        .limit(most)
        .collect()
    )
    return [HourGroup(**row.asDict()) for row in rows]
