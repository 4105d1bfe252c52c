"""PRODUCER: the registration of a producer at a broker.

The name, the topic epoch and the sequence ids of the first one hold for all later ones:
`docs/notes/wire-protocol.md#producer-registration`.
"""

from __future__ import annotations

from ....options import ProducerOptions
from ....wire import key_values, pb
from ..wire_schema import wire_schema


class Registration:
    """The registration of one producer of one topic or partition.

    Args:
        name: The name that the broker gave another part of the same producer; "" lets it choose,
            unless the options have a name.

    Attributes:
        last_sequence_id: Of the last message that the broker has from this name, or -1.
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
    def may_wait_for_access(self) -> bool:
        return self._access == pb.WaitForExclusive

    def command(self, request_id: int) -> pb.CommandProducer:
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

    def close_command(self, request_id: int) -> pb.CommandCloseProducer:
        return pb.CommandCloseProducer(producer_id=self.producer_id, request_id=request_id)

    def accept(self, answer: pb.CommandProducerSuccess) -> None:
        if not self._accepted:
            self._accepted = True
            self.last_sequence_id = answer.last_sequence_id
        self.name = answer.producer_name
        self.schema_version = answer.schema_version
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch

    def forget(self) -> None:
        """Forget a name that the broker chose, because it may not have noticed the end of the old
        producer."""
        if self._options.producer_name is None:
            self.name = ""
