"""What went over the connections of a transport in memory, as a test asks for it.

Owns `Command`, and `CommandLog`, which makes one of each command that the broker receives or sends:
whose topic and subscription it was, and what it said in the terms of the seam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from ..transport.interface import AckPlan
from ..wire import BODY_FIELDS, pb
from ..wire.ack_sets import from_words
from ..wire.checksum import Data
from ..wire.entries import decode_body

# What a broker says without being asked, to an application in the end.
_TOLD: Final = ("MESSAGE", "REACHED_END_OF_TOPIC", "ACTIVE_CONSUMER_CHANGE")


@dataclass(frozen=True, slots=True)
class Command:
    """One command as it went over a connection.

    Attributes:
        name: The protocol's type name: ACK, REDELIVER_UNACKNOWLEDGED_MESSAGES, MESSAGE, FLOW ...
        at_ms: The loop's clock.
        topic: Full name; "" where there is none.
        subscription: "" where there is none.
        details: For ACK an `AckPlan`, whose `source` counts the topics of the consumer as they were
            subscribed; for REDELIVER a list of (ledger, entry), empty for all; for FLOW the number
            of permits; for SEND the entry, with its `metadata` and `payload`; for any other the
            command's own message of the protocol, such as a `CommandSubscribe`.
    """

    name: str
    at_ms: int
    topic: str
    subscription: str
    details: Any = None


class CommandLog:
    """What a broker hears and says (`Records`), as `MemoryTransport` tells of it.

    Args:
        batch_of: Tells how many messages an entry is a batch of, by topic, ledger and entry.

    Attributes:
        every: Every command, oldest first.
        commands: Those that consumers and producers send, and what a broker says to them unasked;
            not answers, lookups, and what a connection needs.
    """

    def __init__(self, batch_of: Callable[[str, int, int], int]) -> None:
        self.every: list[Command] = []
        self.commands: list[Command] = []
        self._batch_of = batch_of
        # By connection and the client's number: topic, subscription, source.
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
        said: Any = getattr(command, BODY_FIELDS[command.type])
        if name == "SUBSCRIBE":
            self._consumers[connection, said.consumer_id] = (
                said.topic,
                said.subscription,
                self._source(said),
            )
        elif name == "PRODUCER":
            self._producers[connection, said.producer_id] = said.topic
        topic, subscription, source = self._place(connection, said)
        made = Command(
            name, int(at_ms), topic, subscription, self._details(name, said, topic, source, body)
        )
        self.every.append(made)
        if name in _TOLD if direction == "out" else _is_of_link(said):
            self.commands.append(made)

    def _source(self, asked: pb.CommandSubscribe) -> int:
        known = self._sources.setdefault((asked.subscription, asked.consumer_name), {})
        return known.setdefault(asked.topic, len(known))

    def _place(self, connection: int, said: Any) -> tuple[str, str, int]:
        fields = said.DESCRIPTOR.fields_by_name
        if "consumer_id" in fields:
            return self._consumers.get((connection, said.consumer_id), ("", "", 0))
        if "producer_id" in fields:
            return self._producers.get((connection, said.producer_id), ""), "", 0
        named = fields.get("topic")
        return (said.topic if named is not None and isinstance(said.topic, str) else ""), "", 0

    def _details(self, name: str, said: Any, topic: str, source: int, body: Data) -> Any:
        if name == "ACK":
            return self._plan(said, topic, source)
        if name == "REDELIVER_UNACKNOWLEDGED_MESSAGES":
            return [(each.ledgerId, each.entryId) for each in said.message_ids]
        if name == "FLOW":
            return said.messagePermits
        if name == "SEND":
            return decode_body(body, verify=False)
        return said

    def _plan(self, ack: pb.CommandAck, topic: str, source: int) -> AckPlan:
        partly = list(self._masked(topic, (each for each in ack.message_id if each.ack_set)))
        whole = [(each.ledgerId, _signed(each.entryId)) for each in ack.message_id]
        if ack.ack_type == pb.CommandAck.Cumulative:
            ledger, entry = whole[0]
            size = self._batch_of(topic, ledger, entry)
            return AckPlan(source, partly[0] if partly else (ledger, entry, size, -1), [], [])
        taken = {each[:2] for each in partly}
        return AckPlan(source, None, [each for each in whole if each not in taken], partly)

    def _masked(
        self, topic: str, ids: Iterable[pb.MessageIdData]
    ) -> Iterable[tuple[int, int, int, int]]:
        for each in ids:
            size = self._batch_of(topic, each.ledgerId, each.entryId)
            yield each.ledgerId, each.entryId, size, from_words(each.ack_set)


def _is_of_link(said: Any) -> bool:
    """Whether a command is a consumer's or a producer's, and not its client's."""
    fields = said.DESCRIPTOR.fields_by_name
    return "consumer_id" in fields or "producer_id" in fields


def _signed(entry: int) -> int:
    """An entry id as the wire has it; -1 is before the first of its ledger."""
    return entry - 2**64 if entry >= 2**63 else entry
