"""PRODUCER: what a broker is asked to take, and what it is told when it is asked again.

Owns `Registration`; pure. The name, the topic's epoch and the sequence ids of the first time hold
for all times after it: `docs/notes/wire-protocol.md#producer-registration`.
"""

from __future__ import annotations

from ....options import ProducerOptions
from ....wire import key_values, pb
from ..wire_schema import wire_schema


class Registration:
    """One producer of one topic or partition, towards the brokers.

    Args:
        options: The producer's.
        topic: Full name; of the partition, if any.
        producer_id: Its number, never used again in this client.
        name: What the broker called another part of the same producer; "" to let it choose, unless
            the options have one.

    Attributes:
        name: "" until the broker has chosen.
        schema_version: As the broker numbered the schema; b"" without one.
        last_sequence_id: Of the last message that the broker has of this name, -1 for none; known
            from the first answer on.
    """

    def __init__(
        self, options: ProducerOptions, topic: str, producer_id: int, name: str = ""
    ) -> None:
        self.topic: str = topic
        self.producer_id: int = producer_id
        self.name: str = options.producer_name or name
        self.schema_version: bytes = b""
        self.last_sequence_id: int = -1
        self._options = options
        self._schema = wire_schema(options.schema)
        self._access = pb.ProducerAccessMode.ValueType(options.access_mode.value)
        self._topic_epoch: int | None = None
        self._epoch = -1
        self._accepted = False

    @property
    def waits_in_line(self) -> bool:
        """Whether the broker may let it wait for as long as another one has the topic."""
        return self._access == pb.WaitForExclusive

    def command(self, request_id: int) -> pb.CommandProducer:
        """The PRODUCER to send now, one for each attempt."""
        self._epoch += 1
        options = self._options
        return pb.CommandProducer(
            topic=self.topic,
            producer_id=self.producer_id,
            request_id=request_id,
            producer_name=self.name or None,
            user_provided_producer_name=options.producer_name is not None,
            encrypted=True if options.encryption_key is not None else None,
            metadata=key_values(options.properties),
            schema=self._schema,
            epoch=self._epoch,
            producer_access_mode=self._access,
            topic_epoch=self._topic_epoch,
            initial_subscription_name=options.initial_subscription_name,
        )

    def taken(self, answer: pb.CommandProducerSuccess) -> None:
        """The broker took it."""
        if not self._accepted:
            self._accepted = True
            self.last_sequence_id = answer.last_sequence_id
        self.name = answer.producer_name
        self.schema_version = answer.schema_version
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch

    def forget(self) -> None:
        """What came of it is gone, but for its broker, which may not know yet: of another name it
        is another producer."""
        if self._options.producer_name is None:
            self.name = ""
