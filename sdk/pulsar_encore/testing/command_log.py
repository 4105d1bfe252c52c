"""Record the commands between clients and a broker in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from ..transport.interface import AckPlan
from ..wire import BODY_FIELDS, pb
from ..wire.ack_set_words import from_words
from ..wire.checksum import Data
from ..wire.entries import decode_body

# Commands that a broker sends unrequested and that reach the application.
_UNREQUESTED: Final = ("MESSAGE", "REACHED_END_OF_TOPIC", "ACTIVE_CONSUMER_CHANGE")


@dataclass(frozen=True, slots=True)
class Command:
    """One command on a connection.

    Attributes:
        name: Type name in the protocol: ACK, REDELIVER_UNACKNOWLEDGED_MESSAGES, MESSAGE, FLOW ...
        at_ms: Time on the loop's clock, in ms.
        topic: Full name; "" if the command has no topic.
        subscription: Name of the subscription; "" if the command has none.
        details: For ACK an `AckPlan`; its `topic_number` is the index of the topic in the order in
            which the consumer subscribed. For REDELIVER a list of (ledger, entry), empty for all.
            For FLOW the number of permits. For SEND the entry, with `metadata` and `payload`. For
            any other command its protobuf message, such as a `CommandSubscribe`.
    """

    name: str
    at_ms: int
    topic: str
    subscription: str
    details: Any = None


class CommandLog:
    """The commands that a broker received and sent (`RecordedCommands`).

    Args:
        batch_of: Returns the batch size of an entry, given topic, ledger and entry.

    Attributes:
        every: All commands, oldest first.
        commands: The same without answers, lookups and connection commands.
    """

    def __init__(self, batch_of: Callable[[str, int, int], int]) -> None:
        self.every: list[Command] = []
        self.commands: list[Command] = []
        self._batch_of = batch_of
        # By connection and consumer id: topic, subscription, source.
        self._consumers: dict[tuple[int, int], tuple[str, str, int]] = {}
        self._producers: dict[tuple[int, int], str] = {}
        self._sources: dict[tuple[str, str], dict[str, int]] = {}

    def add(
        self,
        at_ms: float,
        connection: int,
        direction: str,
        name: str,
        content: pb.BaseCommand | bytes,
        body: Data,
    ) -> None:
        command = pb.BaseCommand.FromString(content) if isinstance(content, bytes) else content
        message: Any = getattr(command, BODY_FIELDS[command.type])
        if name == "SUBSCRIBE":
            self._consumers[connection, message.consumer_id] = (
                message.topic,
                message.subscription,
                self._source(message),
            )
        elif name == "PRODUCER":
            self._producers[connection, message.producer_id] = message.topic
        topic, subscription, topic_number = self._origin(connection, message)
        logged = Command(
            name,
            int(at_ms),
            topic,
            subscription,
            self._details(name, message, topic, topic_number, body),
        )
        self.every.append(logged)
        if name in _UNREQUESTED if direction == "out" else _names_consumer_or_producer(message):
            self.commands.append(logged)

    def _source(self, subscribe: pb.CommandSubscribe) -> int:
        known = self._sources.setdefault((subscribe.subscription, subscribe.consumer_name), {})
        return known.setdefault(subscribe.topic, len(known))

    def _origin(self, connection: int, message: Any) -> tuple[str, str, int]:
        fields = message.DESCRIPTOR.fields_by_name
        if "consumer_id" in fields:
            return self._consumers.get((connection, message.consumer_id), ("", "", 0))
        if "producer_id" in fields:
            return self._producers.get((connection, message.producer_id), ""), "", 0
        topic_field = fields.get("topic")
        return (
            (message.topic if topic_field is not None and isinstance(message.topic, str) else ""),
            "",
            0,
        )

    def _details(self, name: str, message: Any, topic: str, topic_number: int, body: Data) -> Any:
        if name == "ACK":
            return self._plan(message, topic, topic_number)
        if name == "REDELIVER_UNACKNOWLEDGED_MESSAGES":
            return [(each.ledgerId, each.entryId) for each in message.message_ids]
        if name == "FLOW":
            return message.messagePermits
        if name == "SEND":
            return decode_body(body, verify=False)
        return message

    def _plan(self, ack: pb.CommandAck, topic: str, topic_number: int) -> AckPlan:
        partial_acks = list(
            self._partial_acks(topic, (each for each in ack.message_id if each.ack_set))
        )
        whole = [(each.ledgerId, _signed(each.entryId)) for each in ack.message_id]
        if ack.ack_type == pb.CommandAck.Cumulative:
            ledger, entry = whole[0]
            size = self._batch_of(topic, ledger, entry)
            return AckPlan(
                topic_number, partial_acks[0] if partial_acks else (ledger, entry, size, -1), [], []
            )
        partial_entries = {each[:2] for each in partial_acks}
        return AckPlan(
            topic_number,
            None,
            [each for each in whole if each not in partial_entries],
            partial_acks,
        )

    def _partial_acks(
        self, topic: str, ids: Iterable[pb.MessageIdData]
    ) -> Iterable[tuple[int, int, int, int]]:
        for each in ids:
            size = self._batch_of(topic, each.ledgerId, each.entryId)
            yield each.ledgerId, each.entryId, size, from_words(each.ack_set)


def _names_consumer_or_producer(message: Any) -> bool:
    fields = message.DESCRIPTOR.fields_by_name
    return "consumer_id" in fields or "producer_id" in fields


def _signed(entry: int) -> int:
    """Convert an unsigned entry id of the wire; -1 is before the first entry of its ledger."""
    return entry - 2**64 if entry >= 2**63 else entry
