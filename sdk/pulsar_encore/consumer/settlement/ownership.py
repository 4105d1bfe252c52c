"""The topic and the entry of each message or id that an application settles.

A message that this consumer cannot settle is rejected before any change.
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
    def serialize(self) -> bytes: ...


Settleable = Message | AnyId
"""A received message, or the id of one; ids of the stock client too."""


class ForeignTopicError(MessageNotHeldError, OperationNotSupported):
    """The consumer does not read the topic of the id, or the id does not name it."""


class NamedMessage(NamedTuple):
    state: TopicState
    key: EntryKey
    entry: Entry | None
    message_id: MessageId


class Ownership:
    def __init__(self, topic_states: TopicStates, transport_consumer: TransportConsumer) -> None:
        self._topic_states = topic_states
        self.owner: object = topic_states
        self._transport_consumer = transport_consumer

    def held(self, message: Message) -> Held:
        """Return the entry and batch index of a message; raise if it was received elsewhere."""
        found = held(message)
        if found is None:
            raise MessageNotHeldError("a reader's message has nothing to settle")
        if found.entry.topic_state.owner is not self._topic_states:
            raise MessageNotHeldError(
                "the message was received by another consumer; settle it there, or by "
                "message.message_id() if both read the same subscription"
            )
        return found

    def cumulative(self, message: Message) -> Held:
        """Do the same for a cumulative ack; raise if the topic is subscribed Shared."""
        found = self.held(message)
        if found.entry.topic_state.shared:
            raise ConfigurationError(
                "a message of the retry-letter topic cannot be acked cumulatively: that topic is "
                "subscribed Shared; settle it alone"
            )
        return found

    def named(self, item: Settleable) -> NamedMessage:
        """Return the topic and entry of an id; raise if this consumer does not read the topic."""
        if hasattr(item, "message_id"):  # a message of the stock client
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
        topic_number = self._transport_consumer.topic_number_of(
            message_id.topic, message_id.partition(), ledger
        )
        if topic_number is None:
            raise ForeignTopicError(
                f"{message_id!r} of topic {message_id.topic!r} is not of a topic this consumer "
                "reads; with several topics give it: MessageId.deserialize(data, topic)"
            )
        state = self._topic_states.by_number[topic_number]
        key = (ledger, number)
        return NamedMessage(state, key, state.find(key), message_id)


def check_index(entry: Entry, message_id: MessageId) -> int:
    """Return the batch index of an id; raise if the entry has no such index."""
    index = message_id.batch_index()
    if not 0 <= index < entry.size:
        raise ConfigurationError(
            f"{message_id!r}: the entry holds {entry.size} messages, there is no such index"
        )
    return index


def chunks_unknown(what: str, do: str) -> MessageNotHeldError:
    """Return the error for a chunked message that is known by its last chunk only."""
    return MessageNotHeldError(
        f"{what} is a chunked message that this consumer does not hold (settled, sought over, or "
        f"received elsewhere): only the consumer that holds it knows all its chunks; {do} it "
        "there, or when it is redelivered"
    )
