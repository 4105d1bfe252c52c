"""What an application can do with a message that it holds, besides acks and nacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ..core.entry import Entry
from ..core.topic_state import TopicState
from ..errors import ConfigurationError, MessageNotHeldError, UnreadableError
from ..eventloop.alarm import wall_now_ms
from ..letters.evidence import evidence_of
from ..letters.reconsume_counts import reconsume_attempt
from ..message import Held, Message, is_held, next_attempt_of, raw_of
from ..options import ConsumerOptions
from .consumer_status import ConsumerStatus
from .delivery.receive_queue import ReceiveQueue
from .forwarding.last_attempts import LastAttempts
from .leases.lease_record import LeaseRecord
from .leases.lease_table import LeaseTable
from .settlement.ack_timeouts import AckTimeouts
from .settlement.ownership import Ownership


class HeldMessages:
    """The held messages of one consumer.

    Args:
        begin: Called with (entry, indexes) when the application begins an attempt at messages that
            it holds. None without durable state.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        ownership: Ownership,
        queue: ReceiveQueue,
        leases: LeaseTable,
        status: ConsumerStatus,
        loop: asyncio.AbstractEventLoop,
        *,
        timeouts: AckTimeouts | None = None,
        last: LastAttempts | None = None,
        begin: Callable[[Entry, Sequence[int]], None] | None = None,
    ) -> None:
        self._options = options
        self._ownership = ownership
        self._owner = ownership.owner
        self._queue = queue
        self._leases = leases
        self._status = status
        self._loop = loop
        self._timeouts = timeouts
        self._last = last
        self._begin = begin

    def holds(self, message: Message) -> bool:
        found = is_held(message, self._owner) if isinstance(message, Message) else None
        if found is None:
            self._own(message)  # raises
        return bool(found)

    def release(self, message: Message) -> None:
        self._check_unordered("release")
        entry, index, _, number = self._own(message)
        state = entry.topic_state
        if not state.holds(entry, index, number):
            return
        state.requeue_unfailed(entry, index)
        if self._status.refusal is None:  # otherwise nobody can receive it
            self._queue.put_back(entry, index, raw_of(message))
            self._queue.wake(1)

    def fail_in_place(self, message: Message, error: BaseException | str | None) -> Message:
        self._check_unordered("fail_in_place")
        held = self.need(message)
        entry, index = held.entry, held.batch_index
        evidence = None if error is None else evidence_of(error, "failed in place")
        state = entry.topic_state
        state.fail_in_place(entry, index, wall_now_ms(self._loop), evidence)
        again = next_attempt_of(message)
        if self._timeouts is not None:
            self._timeouts.begin(entry, (index,))
        if self._last is not None:
            self._last.keep(entry, index, raw_of(message), state.attempts.count(entry, index))
        return again

    def begin_attempt(self, message: Message) -> None:
        held = self.need(message)
        if self._begin is not None:
            self._begin(held.entry, (held.batch_index,))

    def end_attempt(self, message: Message) -> None:
        held = self.need(message)
        state: TopicState = held.entry.topic_state
        state.attempt_ended(held.entry, held.batch_index)

    def detach(self, message: Message, length_ms: int) -> LeaseRecord:
        if not self._options.shared:
            raise ConfigurationError(
                "detach needs a Shared or Key_Shared consumer, where one message can be "
                f"redelivered alone; this one is {self._options.consumer_type.name}: subscribe "
                "with consumer_type=ConsumerType.Shared, or keep the message and extend its time"
            )
        self._check_unordered("detach")
        self.need(message)
        self._leases.check_open()
        if self._leases.free <= 0:
            raise ConfigurationError(
                f"all {self._leases.most} leases of this consumer are active: settle some first, "
                "or subscribe with a higher max_leases"
            )
        return self._leases.add(message, length_ms)

    def extend(self, message: Message, length_ms: int) -> None:
        held = self.need(message)
        if self._timeouts is not None:
            self._timeouts.extend(held.entry, held.batch_index, length_ms)

    def attempts_by_letters(self, message: Message) -> int:
        """Return how often `reconsume_later` sent a message of the retry letter topic before."""
        if not self._own(message).entry.topic_state.letters:
            return 0
        subscription = self._options.subscription_name
        try:
            return reconsume_attempt(message, subscription, from_retry_topic=True) - 1
        except UnreadableError:  # properties of another client, with raw bytes
            return 0

    def need(self, message: Message) -> Held:
        """Return the entry and batch index of a held message; raise if it is not held."""
        held = self._own(message)
        state = held.entry.topic_state
        if not state.holds(held.entry, held.batch_index, held.delivery_number):
            raise MessageNotHeldError(
                f"{message.message_id()!r} is not held any more: it was settled, is being "
                "forwarded, or was redelivered since. Stop work on it"
            )
        return held

    def _own(self, message: Message) -> Held:
        if not isinstance(message, Message):
            raise ConfigurationError(
                f"expected a received Message, got {type(message).__name__}: an id does not say "
                "which delivery is meant"
            )
        return self._ownership.held(message)

    def _check_unordered(self, call: str) -> None:
        if self._options.ordered_leases:
            raise ConfigurationError(
                f"{call} and ordered_leases contradict each other, because leases keep the order "
                "of their keys. Use Lease.nack, or subscribe without ordered_leases"
            )
