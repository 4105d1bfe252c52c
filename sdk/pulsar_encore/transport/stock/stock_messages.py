"""Native messages as the `RawMessage` of the transport interface.

The C++ client decodes text on access, so raw bytes fail on access only. It drops the flag for
base64 keys, so bytes cannot be told from text in any partition key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ...errors import UnreadableError
from ..interface import Delivery
from .cpp_ids import StockMessageId

_T = TypeVar("_T")


class CppMessage(Protocol):
    def data(self) -> bytes: ...
    def length(self) -> int: ...
    def properties(self) -> dict[str, str]: ...
    def partition_key(self) -> str: ...
    def ordering_key(self) -> str: ...
    def publish_timestamp(self) -> int: ...
    def event_timestamp(self) -> int: ...
    def topic_name(self) -> str: ...
    def schema_version(self) -> str: ...
    def int_schema_version(self) -> int: ...
    def producer_name(self) -> str: ...
    def has_null_value(self) -> bool: ...
    def encryption_context(self) -> Any: ...


class StockMessage:
    """A received message (`RawMessage`)."""

    __slots__ = ("native",)

    id_class = StockMessageId

    def __init__(self, native: CppMessage) -> None:
        self.native: CppMessage = native

    def data(self) -> bytes:
        return self.native.data()

    def length(self) -> int:
        return self.native.length()

    def properties(self) -> dict[str, str]:
        return _read(self.native.properties, "a property")

    def partition_key(self) -> str:
        return _read(self.native.partition_key, "a partition key")

    def partition_key_bytes(self) -> bytes | None:
        if not self.partition_key():
            return None
        raise UnreadableError(
            "the stock transport does not tell partition keys of bytes from text, and has no bytes "
            "of them: partition_key() is the text, or the base64 of bytes"
        )

    def ordering_key(self) -> str:
        return _read(self.native.ordering_key, "an ordering key")

    def ordering_key_bytes(self) -> bytes | None:
        return self.ordering_key().encode() or None

    def publish_timestamp(self) -> int:
        return self.native.publish_timestamp()

    def event_timestamp(self) -> int:
        return self.native.event_timestamp()

    def topic_name(self) -> str:
        return self.native.topic_name()

    def schema_version(self) -> str:
        return self.native.schema_version()

    def int_schema_version(self) -> int:
        return self.native.int_schema_version()

    def producer_name(self) -> str:
        return self.native.producer_name()

    def sequence_id(self) -> None:
        return None  # the C++ client does not show it

    def has_null_value(self) -> bool:
        return self.native.has_null_value()

    def encryption_context(self) -> Any:
        return self.native.encryption_context()


def wrap_messages(delivery: Delivery) -> None:
    delivery.messages = list(map(StockMessage, delivery.messages))


def _read(text: Callable[[], _T], what: str) -> _T:
    try:
        return text()
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"the message has {what} of raw bytes, which the stock transport cannot read: a copy "
            "would mangle it. Settle it another way, or use text keys"
        ) from error
