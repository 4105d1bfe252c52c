"""The checked options of a reader, with the names and defaults of `pulsar-client`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..codecs.bound_codec import bind
from ..errors import ConfigurationError
from ..values.message_id import MessageId
from .checks import (
    check_booleans,
    check_crypto_key_reader,
    check_event_listener,
    integer,
    optional_text,
    topic_name,
)
from .enums import ConsumerCryptoFailureAction, coerce_fields


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderOptions:
    """Checked options of a reader. `Client.create_reader` documents the fields."""

    topic: str
    start_message_id: MessageId
    schema: Any = None
    receiver_queue_size: int = 1000
    reader_name: str | None = None
    subscription_role_prefix: str | None = None
    is_read_compacted: bool = False
    crypto_key_reader: Any = None
    start_message_id_inclusive: bool = False
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    event_listener: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        topic_name(self.topic, "topic")
        try:
            start = MessageId.wrap(self.start_message_id)
        except ConfigurationError as error:
            raise ConfigurationError(
                "start_message_id must be a MessageId, such as MessageId.earliest or "
                f"MessageId.latest, got {type(self.start_message_id).__name__}"
            ) from error
        object.__setattr__(self, "start_message_id", start)
        object.__setattr__(self, "schema", bind(self.schema, reads=True))
        integer(self.receiver_queue_size, "receiver_queue_size", low=0, high=2**31 - 1)
        optional_text(self.reader_name, "reader_name")
        optional_text(self.subscription_role_prefix, "subscription_role_prefix")
        check_booleans(self)
        check_crypto_key_reader(self.crypto_key_reader)
        check_event_listener(self.event_listener)
        coerce_fields(self, crypto_failure_action=ConsumerCryptoFailureAction)
