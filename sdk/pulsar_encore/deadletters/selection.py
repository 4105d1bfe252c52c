"""Select letters by fingerprint, original topic, time or id."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..errors import ConfigurationError
from ..letters.id_text import id_text, parse_id
from ..values.message_id import MessageId
from ..values.topic_names import base_name, full_name
from .dead_letter import Letter
from .letter_groups import NO_FINGERPRINT


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """A filter for letters.

    A letter is selected if every given field matches. A field with several values matches if one of
    them does. `Selection()` selects every letter. An empty list is refused, so that a program whose
    list came out empty does not select all.

    Args:
        fingerprints: Fingerprints of failures; "-" for letters without evidence.
        real_topics: Topics where the messages failed, as short or full names, with or without
            partition.
        since: Earliest publish time on the dead letter topic, inclusive: s since the epoch, or a
            datetime. A naive datetime is local time.
        until: Latest publish time, exclusive.
        ids: Ids of the letters, as text or `MessageId`.

    Raises:
        ConfigurationError: if a list is empty, or a value is of another kind. The text names the
            field.

    Example:
        Letters of one topic from the last hour::

            Selection(real_topics=("orders",), since=time.time() - 3600)
    """

    fingerprints: Iterable[str] | None = None
    real_topics: Iterable[str] | None = None
    since: float | datetime | None = None
    until: float | datetime | None = None
    ids: Iterable[str | MessageId] | None = None

    def __post_init__(self) -> None:
        topics = texts(self.real_topics, "real_topics")
        ids = _as_list(self.ids, "ids")
        since, until = _epoch_seconds(self.since, "since"), _epoch_seconds(self.until, "until")
        if since is not None and until is not None and until <= since:
            raise ConfigurationError("until must be after since: nothing lies between them")
        assign = object.__setattr__
        assign(self, "fingerprints", texts(self.fingerprints, "fingerprints"))
        assign(self, "real_topics", topics and frozenset(base_name(full_name(t)) for t in topics))
        assign(self, "since", since)
        assign(self, "until", until)
        assign(self, "ids", ids and frozenset(_id(each) for each in ids))

    def takes(self, letter: Letter) -> bool:
        """Return True if the letter is selected."""
        written_s = letter.written_ms / 1000
        since, until = self.since, self.until
        assert not isinstance(since, datetime) and not isinstance(until, datetime)
        return (
            (not self.fingerprints or (letter.fingerprint or NO_FINGERPRINT) in self.fingerprints)
            and (not self.real_topics or letter.real_topic in self.real_topics)
            and (since is None or written_s >= since)
            and (until is None or written_s < until)
            and (not self.ids or letter.id in self.ids)
        )

    @property
    def everything(self) -> bool:
        """True if every letter is selected."""
        return not (self.fingerprints or self.real_topics or self.ids) and (
            self.since is None and self.until is None
        )


def _as_list(values: Any, name: str) -> list[Any] | None:
    if values is None:
        return None
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ConfigurationError(f"{name} must be a list, got {type(values).__name__}")
    found = list(values)
    if not found:
        raise ConfigurationError(
            f"{name} is empty, which selects nothing: skip the call, or leave {name} out to "
            "select all"
        )
    return found


def texts(values: Any, name: str) -> frozenset[str] | None:
    """Check a field with a list of texts. None stays None.

    Raises:
        ConfigurationError: if it is empty, or no list of texts. The text names the field.
    """
    items = _as_list(values, name)
    for each in items or ():
        if not isinstance(each, str) or not each.strip():
            raise ConfigurationError(f"{name} must hold strings that are not blank, got {each!r}")
    return None if items is None else frozenset(items)


def _epoch_seconds(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigurationError(
            f"{name} must be seconds since the epoch or a datetime, got {value!r}"
        )
    return float(value)


def _id(value: Any) -> str:
    if isinstance(value, str):
        # An id without partition means -1: the topic has no partitions.
        parsed = parse_id(value)
        return value if value.count(":") > 1 else id_text(parsed)
    return id_text(MessageId.wrap(value))
