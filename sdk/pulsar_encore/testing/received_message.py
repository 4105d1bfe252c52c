"""Make a received message without a broker, a client or an event loop."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ..codecs.bound_codec import bind
from ..errors import ConfigurationError
from ..eventloop.affinity import running_loop
from ..eventloop.alarm import wall_now_ms
from ..message import Message, RawMessage
from ..options.checks import integer, string_map, topic_name
from ..transport.native.consumer.message_views import PlainMessage
from ..values.message_id import MessageId
from ..values.topic_names import full_name, partition_of
from ..wire import pulsar_pb2 as pb
from .stored_entries import entry_body
from .stored_letters import entry_reader

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_entry_ids = itertools.count()


def message(
    value: Any = b"",
    *,
    schema: Any = None,
    attempt: int = 1,
    key: str | bytes | None = None,
    properties: dict[str, str] | None = None,
    topic: str = "test",
    published_at: datetime | None = None,
    event_at: datetime | None = None,
) -> Message:
    """Return a message as a consumer receives it, to call a handler with.

    No consumer holds it, so it cannot be acked or nacked. Each call makes another message id.

    Args:
        value: What `message.value()` returns; None makes a message without a value. Bytes are also
            the payload.
        schema: Encodes the value, so that `value()` decodes it again, and `data()` is the payload.
            Without a schema, `data()` of a value that is not bytes raises `ConfigurationError`.
        attempt: Number of this delivery attempt, from 1. `redelivery_count()` is one less.
        key: Partition key.
        topic: Topic or partition that the message comes from.
        published_at: Publish time, with a time zone; None for now, by the clock of the running
            event loop if there is one.
        event_at: Event time, with a time zone; None for none.

    Raises:
        ConfigurationError: if an argument is wrong, or the schema does not encode the value.

    Example:
        ::

            assert await bill(testing.message(Order(total=5), attempt=3)) is None
    """
    count = integer(attempt, "attempt", low=1) - 1
    if key is not None and not isinstance(key, (str, bytes)):
        raise ConfigurationError(f"key must be str, bytes or None, got {type(key).__name__}")
    checked_properties = string_map(properties, "properties")
    name = full_name(topic_name(topic, "topic"))
    number = next(_entry_ids)
    payload = _payload(value, schema)
    published_ms = _milliseconds(published_at, "published_at")
    body = entry_body(
        [payload],
        batched=False,
        sequence_id=number,
        publish_ms=_current_ms() if published_ms is None else published_ms,
        key=key or "",
        properties=checked_properties,
        event_ms=_milliseconds(event_at, "event_at") or 0,
        deliver_at_ms=0,
    )
    raw = entry_reader(name).open(body, 0, len(body))
    assert isinstance(raw, PlainMessage)  # neither a batch nor compressed
    decoder = bind(schema, reads=True)
    if schema is None and value is not None and not isinstance(value, bytes):
        raw, decoder = _WithoutPayload(name, raw.entry_metadata, value), _GivenValue(value)
    message_id = MessageId(partition_of(name), 0, number, topic=name)
    return Message.of_reader(raw, decoder, message_id, count)


class _WithoutPayload(PlainMessage):
    """A message with a value that no schema has encoded."""

    __slots__ = ("_value",)

    def __init__(self, topic: str, metadata: pb.MessageMetadata, value: object) -> None:
        super().__init__(topic, b"", metadata, b"")
        self._value = value

    def data(self) -> bytes:
        raise ConfigurationError(
            f"this message was made from a {type(self._value).__name__} without a schema, so it "
            "has a value and no payload: give testing.message the schema that encodes it"
        )


class _GivenValue:
    """The schema of a message that was made with its value."""

    def __init__(self, value: object) -> None:
        self._value = value

    def decode_message(self, raw: RawMessage) -> object:
        return self._value


def _payload(value: Any, schema: Any) -> bytes | None:
    if value is None or (isinstance(value, bytes) and schema is None):
        return value
    if schema is None:
        return b""
    if isinstance(schema, type) or not callable(getattr(schema, "encode", None)):
        raise ConfigurationError(f"schema must be a schema object with encode(), got {schema!r}")
    try:
        encoded: object = schema.encode(value)
    except Exception as error:
        raise ConfigurationError(
            f"value does not fit {schema}: {error}. Give the value that a producer with this "
            "schema sends"
        ) from error
    if not isinstance(encoded, bytes):
        raise ConfigurationError(f"{schema} must encode to bytes, gave {type(encoded).__name__}")
    return encoded


def _current_ms() -> int:
    """Return ms since the epoch, by the running loop's own wall clock if there is one."""
    loop = running_loop()
    return time.time_ns() // 1_000_000 if loop is None else wall_now_ms(loop)


def _milliseconds(moment: datetime | None, name: str) -> int | None:
    """Return a time in ms since the epoch."""
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ConfigurationError(
            f"{name} must be a datetime with a time zone, such as datetime.now(UTC), got {moment!r}"
        )
    if moment < _EPOCH:
        raise ConfigurationError(f"{name} must not be before 1970, got {moment}")
    return (moment - _EPOCH) // timedelta(milliseconds=1)
