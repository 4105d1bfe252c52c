"""SUBSCRIBE commands, and message ids as brokers expect them."""

from __future__ import annotations

from typing import Final

from ....options import ConsumerType, InitialPosition, Subscription
from ....values.message_id import MessageId, check_batch
from ....wire import ack_set_words, key_values, message_id, pb
from ..wire_schema import wire_schema
from .read_position import ReadPosition

_TYPES: Final = {
    ConsumerType.Exclusive: pb.CommandSubscribe.Exclusive,
    ConsumerType.Shared: pb.CommandSubscribe.Shared,
    ConsumerType.Failover: pb.CommandSubscribe.Failover,
    ConsumerType.KeyShared: pb.CommandSubscribe.Key_Shared,
}
_Position = pb.CommandSubscribe.InitialPosition
_MOST: Final = (1 << 63) - 1


class SubscribeCommands:
    """The SUBSCRIBE commands of one subscription.

    Args:
        consumer_name: The consumer's name at the broker; "" lets the broker choose one.

    Attributes:
        creates: Subscribing for the first time may create a topic.
    """

    def __init__(self, subscription: Subscription, consumer_name: str) -> None:
        self.name: str = subscription.subscription_name
        self.durable: bool = subscription.durable
        self.shared: bool = subscription.shared
        self._inclusive = subscription.start_message_id_inclusive
        self.subscription: Subscription = subscription
        self._consumer_name = consumer_name
        # A topic of a pattern must not be created again by subscribing after it was deleted.
        self.creates: bool = subscription.force_topic_creation and subscription.pattern is None
        self._key_shared = _key_shared(subscription)
        self._schema = wire_schema(subscription.schema)

    def read_position(self, topic: str, partition: int, *, is_new: bool = False) -> ReadPosition:
        """Return the position at which a reader starts in a topic.

        Args:
            is_new: The topic was created after the reader. Reading begins at its first message.
        """
        start = self.subscription.start_message_id
        # "Latest, inclusive" means the last message. A broker starts after that message, so its id
        # has to be requested. A non-persistent topic has no last message.
        stored = not topic.startswith("non-persistent://")
        if is_new:
            start = MessageId.earliest
        return ReadPosition(
            start,
            partition,
            inclusive=self._inclusive,
            starts_at_last=stored and self._inclusive and start == MessageId.latest,
            stored=stored,
        )

    def command(
        self,
        topic: str,
        consumer_id: int,
        request_id: int,
        epoch: int,
        start: MessageId | None,
        *,
        creates: bool,
        from_start: bool,
    ) -> pb.CommandSubscribe:
        """Make SUBSCRIBE.

        Args:
            epoch: The consumer epoch; not sent for Shared and Key_Shared.
            start: The start id of a reader.
            from_start: The topic is newer than the consumer. A durable subscription that the broker
                has to create starts at the first message.
        """
        chosen = self.subscription
        initial = InitialPosition.Earliest if from_start else chosen.initial_position
        return pb.CommandSubscribe(
            topic=topic,
            subscription=self.name,
            consumer_id=consumer_id,
            request_id=request_id,
            subType=_TYPES[chosen.consumer_type],
            consumer_name=self._consumer_name,
            priority_level=chosen.priority_level or None,
            durable=None if self.durable else False,
            start_message_id=None if start is None else self.start_entry(start),
            metadata=key_values(chosen.properties),
            read_compacted=chosen.read_compacted or None,
            schema=self._schema,
            # For a reader it would take precedence over the start id:
            # `docs/notes/wire-protocol.md#subscribe`.
            initialPosition=_Position.Value(initial.name) if self.durable else None,
            replicate_subscription_state=chosen.replicate_subscription_state_enabled or None,
            force_topic_creation=None if creates else False,
            keySharedMeta=self._key_shared,
            consumer_epoch=None if self.shared else epoch,
        )

    def probe(
        self, topic: str, consumer_id: int, request_id: int, *, creates: bool
    ) -> pb.CommandSubscribe:
        """Make SUBSCRIBE for a consumer that only asks for the last message."""
        return pb.CommandSubscribe(
            topic=topic,
            subscription=f"{self.name}-last-{consumer_id}",
            consumer_id=consumer_id,
            request_id=request_id,
            subType=pb.CommandSubscribe.Exclusive,
            durable=False,
            start_message_id=message_id(_MOST, _MOST, partition=None),
            read_compacted=self.subscription.read_compacted or None,
            force_topic_creation=None if creates else False,
        )

    def start_entry(self, start: MessageId) -> pb.MessageIdData:
        """Return the entry of a start id. `ReadPosition` drops its earlier messages."""
        first = start.first_chunk if self._inclusive and start.first_chunk else start
        return message_id(first.ledger_id(), first.entry_id(), partition=None)

    def seek_target(self, target: MessageId) -> pb.MessageIdData:
        """Return the id that SEEK has to name: the target, or the message after it.

        SEEK is inclusive, and moves into a batch by an ack set
        (`docs/notes/wire-protocol.md#seek`).
        """
        inclusive = self._inclusive
        check_batch(target)
        where = target.first_chunk if inclusive and target.first_chunk else target
        ledger, entry, index = where.ledger_id(), where.entry_id(), where.batch_index()
        if entry in (-1, _MOST):
            return message_id(ledger, entry, partition=None)
        if index < 0:
            return message_id(ledger, entry + (not inclusive), partition=None)
        first, size = index + (not inclusive), target.batch_size
        if size and first >= size:
            return message_id(ledger, entry + 1, partition=None)
        if not first:
            return message_id(ledger, entry, partition=None)
        # If the batch size is unknown, assume the next multiple of 64, the bits of a word.
        size = size or max(first + 1, 64 * (first // 64 + 1))
        mask = ack_set_words.full(size) >> first << first
        words = ack_set_words.to_words(mask, size)
        return message_id(ledger, entry, partition=None, ack_set=words)


def _key_shared(subscription: Subscription) -> pb.KeySharedMeta | None:
    if subscription.consumer_type is not ConsumerType.KeyShared:
        return None
    meta = pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT)
    policy = subscription.key_shared_policy
    if policy is not None:
        meta.allowOutOfOrderDelivery = policy.allow_out_of_order_delivery
        for start, end in policy.sticky_ranges or ():
            meta.keySharedMode = pb.STICKY
            meta.hashRanges.add(start=start, end=end)
    return meta
