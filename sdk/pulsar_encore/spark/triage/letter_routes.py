"""The choice of the letters to replay, and the route of every letter, as DataFrame code.

The publisher of a message may have chosen the target of its letter, and a replay has an operator's
permissions. The rules are therefore those of `deadletters.Letter`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from ...deadletters import Selection, printable
from ...deadletters.selection import texts
from ...errors import ConfigurationError
from ...options.checks import topic_name
from .failure_groups import (
    HOUR_MS,
    KIND,
    HourOf,
    base_topic,
    column,
    fingerprint,
    hour_ms,
    is_duplicate,
    real_topic,
)

REPLAY: Final = "replay"
"""Selected, and sent to the topic that the message failed on."""
REFUSED: Final = "refused"
"""Selected, but cannot be sent; the column `why` has the reason."""
KEPT: Final = "kept"
"""Not selected."""
DUPLICATE: Final = "duplicate"
"""A later letter of the same failed message exists."""

ROUTE: Final = "route"
WHY: Final = "why"

_TOPIC: Final = r"^(non-)?persistent://[^/\s\p{C}\p{Z}]+/[^/\s\p{C}\p{Z}]+/[^\s\p{C}\p{Z}]+$"

NO_TOPIC: Final = "it has no REAL_TOPIC"
NO_NAME: Final = "its REAL_TOPIC is not the name of a topic"
ITSELF: Final = "its REAL_TOPIC is the dead-letter topic itself"
NO_TEXT: Final = "its key is no text (UTF-8), and its kind or text_keys says that it is"
NOT_NAMED: Final = (
    "the dead-letter topic is not named after its REAL_TOPIC and subscription, and the "
    "publisher of the message may have written that: choose the topic by its name to send letters "
    "there (real_topics, --real-topic)"
)


_MAX_S: Final = 253_402_300_800  # the year 10000, beyond datetime and any broker's clock


def check_topic(topic: str, name: str) -> None:
    """Raise ConfigurationError if a full topic name cannot be an option of the source.

    Pulsar allows any characters, but in the option commas separate names. `name` is for the error.
    """
    topic_name(topic, name)
    last = topic.rpartition("/")[2]
    if "," in topic or not last.strip() or last != last.strip() or not _one_line(topic):
        raise ConfigurationError(
            f"{name} must be names without commas, control characters, and blanks around them, got "
            f"'{printable(topic, 100)}': list each topic separately"
        )


def _one_line(text: str) -> bool:
    return not any(each < " " or "\x7f" <= each <= "\x9f" for each in text)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSelection:
    """A choice of groups; each group is chosen as a whole or not at all.

    A group must match every given field. It matches a field if it has one of its values. An empty
    list is refused.

    Args:
        fingerprints: Fingerprints of failures; "-" for letters without evidence.
        error_classes: Names of exception classes as in the letters, such as "KeyError".
        real_topics: Topics that messages failed on, short or full, with or without partition.
        since: Groups from the hour that contains this time: s since the epoch, or a datetime (naive
            ones are local time).
        until: Groups of hours that began before this time.

    Raises:
        ConfigurationError: if a list is empty, or a value has the wrong type or range; the error
            names the field.

    Example:
        ::

            GroupSelection(error_classes=["KeyError"], since=datetime(2026, 5, 1, tzinfo=UTC))
    """

    fingerprints: Iterable[str] | None = None
    error_classes: Iterable[str] | None = None
    real_topics: Iterable[str] | None = None
    since: float | datetime | None = None
    until: float | datetime | None = None

    def __post_init__(self) -> None:
        # For the same errors as in `deadletters`.
        checked = Selection(
            fingerprints=self.fingerprints,
            real_topics=self.real_topics,
            since=self.since,
            until=self.until,
        )
        classes = texts(self.error_classes, "error_classes")
        for topic in checked.real_topics or ():
            check_topic(topic, "real_topics")
        for name, value in (("since", checked.since), ("until", checked.until)):
            assert not isinstance(value, datetime)
            if value is not None and not 0 <= value < _MAX_S:
                raise ConfigurationError(f"{name} must be a time of the years 1970 to 9999")
        assign = object.__setattr__
        assign(self, "fingerprints", checked.fingerprints)
        assign(self, "error_classes", classes)
        assign(self, "real_topics", checked.real_topics)
        assign(self, "since", checked.since)
        assign(self, "until", checked.until)

    @property
    def everything(self) -> bool:
        return not (self.fingerprints or self.error_classes or self.real_topics) and (
            self.since is None and self.until is None
        )

    def takes(self, hour_of: HourOf) -> Column:
        chosen = f.lit(True)
        if self.fingerprints:
            chosen &= fingerprint().isin(*sorted(self.fingerprints))
        if self.error_classes:
            error_class = f.coalesce(column("errorClass"), f.lit(""))
            chosen &= error_class.isin(*sorted(self.error_classes))
        if self.real_topics:
            chosen &= real_topic().isin(*sorted(self.real_topics))
        since, until = self.since, self.until
        assert not isinstance(since, datetime) and not isinstance(until, datetime)
        if since is not None:
            chosen &= hour_ms(hour_of) >= int(since * 1000) // HOUR_MS * HOUR_MS
        if until is not None:
            chosen &= hour_ms(hour_of) < int(until * 1000)
        return chosen


def refusal(allowed: Iterable[str], *, text_keys: bool | None = None) -> Column:
    """Return why a letter cannot be sent to its real topic; null if it can.

    `allowed` has full names of further topics. `text_keys` is for letters that do not tell.
    """
    topic = real_topic()
    names = sorted(allowed)
    named = topic.isin(*names) if names else f.lit(False)
    is_bytes = f.coalesce(f.col(KIND), f.lit(not text_keys))
    no_text = ~is_bytes & ~f.is_valid_utf8(column("key").cast("string"))
    return (
        f.when(topic == "", NO_TOPIC)
        .when(~topic.rlike(_TOPIC), NO_NAME)
        .when(topic == base_topic(column("topic")), ITSELF)
        .when(~(named | named_by()), NOT_NAMED)
        .when(no_text, NO_TEXT)  # null, and so not true, without a key
    )


def named_by() -> Column:
    """True if the dead letter topic is named `<topic>-<subscription>-DLQ` after the letter.

    The topic may be a partition, as in Java.
    """
    dead = base_topic(column("topic"))
    stem = f.regexp_replace(dead, "-DLQ$", "")
    tail = f.concat(f.lit("-"), column("realSubscription"))
    head = f.substring(stem, f.lit(1), f.length(stem) - f.length(tail))
    named = (stem != dead) & stem.endswith(tail) & (base_topic(head) == real_topic())
    return f.coalesce(named, f.lit(False))


def routed(
    letters: DataFrame,
    selection: GroupSelection | None,
    hour_of: HourOf = "last",
    *,
    text_keys: bool | None = None,
) -> DataFrame:
    """Return the letters with the columns `route` and `why`."""
    marked = letters.withColumn(ROUTE, f.when(is_duplicate(), DUPLICATE))
    if selection is None:
        chosen, reason = f.lit(False), f.lit(None).cast("string")
    else:
        chosen, reason = (
            selection.takes(hour_of),
            refusal(selection.real_topics or (), text_keys=text_keys),
        )
    undecided = f.col(ROUTE).isNull()
    return marked.withColumn(WHY, f.when(undecided & chosen, reason)).withColumn(
        ROUTE,
        f.when(~undecided, f.col(ROUTE))
        .when(~chosen, KEPT)
        .when(f.col(WHY).isNotNull(), REFUSED)
        .otherwise(REPLAY),
    )
