"""Whose message is it: from what an application hands in to the source and the record it is of.

Owns `Ownership`. What cannot be settled here is refused by name, before anything changes.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from ...core.entry import Entry, EntryKey
from ...core.topic_state import TopicState
from ...errors import ConfigurationError, MessageNotHeldError, OperationNotSupported
from ...message import Held, Message, held
from ...transport.interface import TransportConsumer
from ...values.message_id import MessageId, check_batch
from ..topic_states import TopicStates

_NO_ID: Final = (1 << 63) - 1  # the ledger and entry of MessageId.latest


class AnyId(Protocol):
    """An id of this package, or the stock client's."""

    def serialize(self) -> bytes: ...


Settleable = Message | AnyId
"""A received message, or an id of one; the stock client's id too."""


class ForeignTopicError(MessageNotHeldError, OperationNotSupported):
    """The id is of no topic that this consumer reads, or does not say of which."""


class NamedMessage(NamedTuple):
    """What an id names: its source, its entry there, the record of that if there is one."""

    state: TopicState
    key: EntryKey
    entry: Entry | None
    message_id: MessageId


class Ownership:
    """Tells the messages of one consumer from others'.

    Args:
        sources: Of the consumer.
        link: Knows which source an id is of.
    """

    def __init__(self, sources: TopicStates, link: TransportConsumer) -> None:
        self._sources = sources
        self._link = link

    def held(self, message: Message) -> Held:
        """A message of this consumer.

        Raises:
            MessageNotHeldError: It is another's, or a reader's.
        """
        found = held(message)
        if found is None:
            raise MessageNotHeldError("a reader's message has nothing to settle")
        if found.entry.source.owner is not self._sources:
            raise MessageNotHeldError(
                "the message was received by another consumer; settle it there, or by "
                "message.message_id() if both read the same subscription"
            )
        return found

    def cumulative(self, message: Message) -> Held:
        """The same, of a topic where everything before it can be settled with it.

        Raises:
            ConfigurationError: Its topic is subscribed Shared.
        """
        found = self.held(message)
        if found.entry.source.shared:
            raise ConfigurationError(
                "a message of the retry-letter topic cannot be acked cumulatively: that topic is "
                "subscribed Shared; settle it alone"
            )
        return found

    def named(self, item: Settleable) -> NamedMessage:
        """What an id is of.

        Raises:
            ConfigurationError: It is no id, or its batch is larger than any can be.
            MessageNotHeldError: It is no message's, or of no topic read here.
        """
        if hasattr(item, "message_id"):  # stock's Message
            raise MessageNotHeldError(
                f"{type(item).__module__}.{type(item).__name__} was not received here; "
                "pass a message of this consumer, or an id"
            )
        if not hasattr(item, "serialize"):
            raise ConfigurationError(
                f"expected a Message or a MessageId, got {type(item).__name__}: acknowledge also "
                "takes a list of them, the other calls one at a time"
            )
        message_id = check_batch(MessageId.wrap(item))
        ledger, number = message_id.ledger_id(), message_id.entry_id()
        if not (0 <= ledger < _NO_ID and 0 <= number < _NO_ID):
            raise MessageNotHeldError(f"{message_id!r} is a position, not the id of a message")
        source = self._link.source_of(message_id.topic, message_id.partition(), ledger)
        if source is None:
            raise ForeignTopicError(
                f"{message_id!r} of topic {message_id.topic!r} is not of a topic this consumer "
                "reads; with several topics give it: MessageId.deserialize(data, topic)"
            )
        state = self._sources.by_number[source]
        key = (ledger, number)
        return NamedMessage(state, key, state.find(key), message_id)


def check_index(entry: Entry, message_id: MessageId) -> int:
    """The batch index of an id.

    Raises:
        ConfigurationError: The entry has no such index.
    """
    index = message_id.batch_index()
    if not 0 <= index < entry.size:
        raise ConfigurationError(
            f"{message_id!r}: the entry holds {entry.size} messages, there is no such index"
        )
    return index


def chunks_unknown(what: str, do: str) -> MessageNotHeldError:
    """The error for a chunked message of which only the last chunk is known."""
    return MessageNotHeldError(
        f"{what} is a chunked message that this consumer does not hold (settled, sought over, or "
        f"received elsewhere): only who holds it knows all its chunks; {do} it there, or when it "
        "comes again"
    )
