"""The options of `pulsar-encore tail`, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError
from ..letters.id_text import parse_id
from ..values.message_id import MessageId
from ..values.topic_names import full_name
from .moments import moment


@dataclass(frozen=True, kw_only=True, slots=True)
class TailOptions:
    """A start, an end and a filter.

    Attributes:
        since_ms: Publish time to start at, in ms since the epoch; None starts at `from_id`.
        follow: Wait for new messages at the end.
    """

    topic: str
    since_ms: int | None
    from_id: MessageId | None
    limit: int | None
    follow: bool
    key: str | None
    properties: Mapping[str, str]
    json: bool

    def takes(self, key: str | None, properties: Mapping[str, str]) -> bool:
        """Return True if a message with this key and these properties is printed."""
        return (self.key is None or key == self.key) and all(
            properties.get(name) == value for name, value in self.properties.items()
        )


def tail_options(
    topic: str,
    *,
    since: str | None,
    from_id: str | None,
    limit: int | None,
    follow: bool,
    key: str | None,
    properties: Sequence[str],
    json: bool,
) -> TailOptions:
    if full_name(topic).startswith("non-persistent:"):
        raise ConfigurationError(
            f"{topic} stores no messages: only a consumer sees those of a non-persistent topic"
        )
    if since is not None and from_id is not None:
        raise ConfigurationError("give --since or --from-id, not both")
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit must be 1 or more, got {limit}")
    pairs = [each.partition("=") for each in properties]
    for name, mark, _ in pairs:
        if not name or not mark:
            raise ConfigurationError(f"--property must be name=value, got {name[:100]!r}")
    start = None if from_id is not None else moment(since or "10m", "since")
    first = None
    if from_id is not None:
        parsed = parse_id(from_id)
        first = parsed.first_chunk or parsed
    return TailOptions(
        topic=topic,
        since_ms=None if start is None else max(0, round(start * 1000)),
        from_id=first,
        limit=limit,
        follow=follow,
        key=key,
        properties={name: value for name, _, value in pairs},
        json=json,
    )
