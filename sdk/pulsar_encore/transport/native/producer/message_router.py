"""The partition of a message: chosen by the application's router, by key, or in turn."""

from __future__ import annotations

from random import Random
from typing import Any

from ....errors import ConfigurationError
from ....message import Message
from ....options import PartitionsRoutingMode, ProducerOptions
from ....values.message_id import MessageId
from ....values.outgoing_message import OutgoingMessage, key_bytes, key_text, ordering_key_text
from ....wire.partition_by_key import BatchLimits, PartitionRouter


class MessageRouter:
    """Chooses partitions. `rng` draws the first one, so that producers do not all begin with the
    same."""

    def __init__(self, options: ProducerOptions, rng: Random) -> None:
        self._route = options.message_router
        self._schema = options.schema
        limits = None
        if options.batching_enabled:
            limits = BatchLimits(
                options.batching_max_messages,
                options.batching_max_allowed_size_in_bytes,
                options.batching_max_publish_delay_ms,
            )
        self._router = PartitionRouter(
            start=rng.randrange(1 << 31),
            single=options.message_routing_mode is PartitionsRoutingMode.UseSinglePartition,
            batch=limits,
        )

    def partition(self, message: OutgoingMessage, partitions: int, now_ms: int) -> int:
        """Return the partition of the next message, or raise `ConfigurationError` if
        `message_router` fails."""
        if self._route is not None:
            return self._ask_router(message, partitions)
        return self._router.route(
            _text(message.partition_key),
            size=len(message.payload or b""),
            partitions=partitions,
            now_ms=now_ms,
        )

    def _ask_router(self, message: OutgoingMessage, partitions: int) -> int:
        assert self._route is not None
        try:
            seen = Message.of_reader(OutgoingView(message), self._schema, MessageId())
            chosen = self._route(seen, partitions)
            if not 0 <= chosen < partitions:
                raise ValueError(f"it chose {chosen} of {partitions} partitions")
            return int(chosen)
        except Exception as error:
            raise ConfigurationError(
                f"message_router failed and nothing was sent: {type(error).__name__}: {error}"
            ) from error


def _text(key: str | bytes | None) -> str | None:
    return None if key is None else key_text(key)


def _bytes(key: str | bytes | None) -> bytes | None:
    return None if key is None else key_bytes(key)


class OutgoingView:
    """A `RawMessage` of a message that is not sent yet, for a `message_router`."""

    def __init__(self, message: OutgoingMessage) -> None:
        self._message = message

    def data(self) -> bytes:
        return self._message.payload or b""

    def length(self) -> int:
        return len(self.data())

    def properties(self) -> dict[str, str]:
        return dict(self._message.properties or {})

    def partition_key(self) -> str:
        return _text(self._message.partition_key) or ""

    def partition_key_bytes(self) -> bytes | None:
        return _bytes(self._message.partition_key)

    def ordering_key(self) -> str:
        return ordering_key_text(self.ordering_key_bytes() or b"")

    def ordering_key_bytes(self) -> bytes | None:
        return _bytes(self._message.ordering_key)

    def publish_timestamp(self) -> int:
        return 0

    def event_timestamp(self) -> int:
        return self._message.event_timestamp or 0

    def topic_name(self) -> str:
        return ""

    def schema_version(self) -> str:
        return ""

    def int_schema_version(self) -> int:
        return -1

    def producer_name(self) -> str:
        return ""

    def sequence_id(self) -> None:
        return None

    def has_null_value(self) -> bool:
        return self._message.payload is None

    def encryption_context(self) -> Any:
        return None
