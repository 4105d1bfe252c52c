"""Grouping of letters and detection of duplicates, as DataFrame code.

The functions take the columns of ``view=dlq`` with ``includeMetadata=full``. Hours are in UTC in
any session.
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
"""Prefix of the metadata columns that a triage reads."""

HOUR_MS: Final = 3_600_000
# A letter is written when its message fails for the last time, or when the dead letter topic
# accepts writes again. The first failure may be as long ago as the retries took. An older time is
# forged or from a wrong clock.
LONGEST_MS: Final = 90 * 24 * HOUR_MS

_PARTITION: Final = "-partition-[0-9]+$"

KIND: Final = f"{PREFIX}keyIsBytes"
"""The column that tells whether a letter's key was sent as text or as bytes."""

HourOf = Literal["last", "first"]
"""The time of a letter that counts: its last failure or its first."""


def column(key: str) -> Column:
    return f.col(PREFIX + key)


def check_columns(letters: DataFrame) -> None:
    present = set(letters.columns)
    needed = [PREFIX + each.key for each in FULL + LETTER]
    needed.remove(KIND)  # missing in letters that an older release stored
    missing = [name for name in needed if name not in present]
    if missing:
        raise ConfigurationError(
            f"these are no letters, {', '.join(missing)} is missing: read them with view=dlq and "
            "includeMetadata=full"
        )


def written_ms() -> Column:
    """Publish time of the letter, in ms since the epoch."""
    return f.unix_millis(column("publishTime"))


def letter_id() -> Column:
    """The letter's id, `ledger:entry:partition[:index]`, as `pulsar-encore dlq` shows it."""
    index = column("batchIndex")
    return f.concat_ws(
        ":",
        column("ledgerId"),
        column("entryId"),
        column("partition"),
        f.when(index >= 0, index),  # `concat_ws` skips null
    )


def hour_ms(hour_of: HourOf) -> Column:
    """Start of the hour of the failure; without a plausible time, of the letter."""
    written = written_ms()
    stated = f.unix_millis(column("lastTime" if hour_of == "last" else "firstTime"))
    plausible = f.when((stated <= written) & (stated >= written - f.lit(LONGEST_MS)), stated)
    return f.floor(f.coalesce(plausible, written) / HOUR_MS).cast("long") * HOUR_MS


def fingerprint() -> Column:
    """Fingerprint of the failure; "-" without evidence."""
    return f.coalesce(f.nullif(column("fingerprint"), f.lit("")), f.lit(NO_FINGERPRINT))


def real_topic() -> Column:
    """Topic that the message failed on; "" if the letter does not tell."""
    return f.coalesce(column("realTopic"), f.lit(""))


def base_topic(topic: Column) -> Column:
    return f.regexp_replace(topic, _PARTITION, "")


def is_duplicate() -> Column:
    """True if a later letter in the same DataFrame stands for the same failed message.

    Such letters agree in dead letter topic, real topic, subscription, origin, value and keys. The
    message was written again after a lost ack, or was replayed and failed again. A message that
    failed in two subscriptions has two letters, because a selection by one failure must find its
    letter. All properties that decide on a refusal are compared, so that a letter that can be sent
    never hides behind a letter that cannot. A letter without an unambiguous origin is never a
    duplicate: it is better sent twice than not at all.
    """
    origin = f.coalesce(
        f.when(_names_a_message(), column("originMessageId")),
        f.concat_ws(" ", f.lit("letter"), column("topic"), letter_id()),
    )
    parts = (f.col("value"), column("key"), column("orderingKey"))
    # A hash skips nulls. Without the flags, a value would equal the same bytes as a key.
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
    """True if the origin names a single message.

    `ledger:entry:partition:index` does, and so do the two ids of a chunked message. An origin
    without an index does only if this package wrote it: some clients leave out the index, and all
    messages of a batch then have the same origin. A letter that passed a retry letter topic may
    have its origin from such a client.
    """
    origin = column("originMessageId")
    has_index = origin.contains(";") | (f.size(f.split(origin, ":")) >= 4)
    reconsumed = f.coalesce(column("reconsumeTimes"), f.lit(0)) > 0
    own = (origin != "") & column("consumer").isNotNull() & ~reconsumed
    return f.coalesce(has_index | own, f.lit(False))


def grouped(letters: DataFrame, hour_of: HourOf = "last") -> DataFrame:
    """Return one row per group, with the columns of `HourGroup`."""
    last = f.max(
        f.struct(
            written_ms().alias("written"),
            column("ledgerId"),
            column("entryId"),
            column("batchIndex"),
            f.coalesce(column("errorClass"), f.lit("")).alias("error_class"),
            # Letters without an exception have only a reason.
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
    rows: list[Row] = (
        groups.drop("hour")
        .orderBy(f.col("count").desc(), "hour_ms", "fingerprint", "real_topic")
        .limit(most)
        .collect()
    )
    return [HourGroup(**row.asDict()) for row in rows]
