"""Blocks of messages: processing messages one by one costs several times more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

from ...message import RawMessage
from ...transport.interface import Delivery
from ...transport.native.consumer.message_views import BatchMessage, BatchMessages
from .plain_messages import PlainMessages, plain_messages
from .range_filter import DeliverySlice

_MAX_MESSAGES: Final = 1024
_MAX_BYTES: Final = 1024 * 1024
_MIN_PLAIN_MESSAGES: Final = 48  # from here on, reading all at once pays


class MessageBlock:
    """Consecutive messages of entries that are all batches, or all not.

    `counts` has the number of messages of each entry. `plain` is set if each message has only a
    value and a sequence id.
    """

    def __init__(self, slices: Sequence[DeliverySlice]) -> None:
        self._slices = slices
        self.deliveries: list[Delivery] = [delivery for delivery, _, _ in slices]
        self.counts: list[int] = [stop - first for _, first, stop in slices]
        self.count: int = sum(self.counts)
        self.plain: PlainMessages | None = (
            _plain(slices) if self.count >= _MIN_PLAIN_MESSAGES else None
        )

    @cached_property
    def firsts(self) -> list[RawMessage]:
        return [each.messages[0] for each in self.deliveries]

    @cached_property
    def messages(self) -> Sequence[RawMessage]:
        if self.count == len(self._slices) and self.deliveries[0].batch_size == 0:
            return self.firsts
        found: list[Any] = []
        for delivery, first, stop in self._slices:
            found += delivery.messages[first:stop]
        if isinstance(found[0], BatchMessage):
            return [each.decoded() for each in found]
        return found

    @cached_property
    def indexes(self) -> Sequence[int]:
        """The batch index of each message; -1 for a message outside a batch."""
        if self.deliveries[0].batch_size == 0:
            return [-1] * self.count
        found: list[int] = []
        for delivery, first, stop in self._slices:
            found += delivery.indexes[first:stop]
        return found


def blocks(slices: Iterable[DeliverySlice], max_messages: int) -> Iterator[MessageBlock]:
    """Group the messages into blocks of at most `max_messages`.

    A block also has a limit in bytes, which a single message may exceed.
    """
    max_messages = min(max_messages, _MAX_MESSAGES)
    pending: list[DeliverySlice] = []
    kind, count, size = (False, False), 0, 0
    for delivery, begin, end in slices:
        messages = delivery.messages
        is_unbatched = delivery.batch_size == 0
        is_batch = isinstance(messages, BatchMessages)
        if isinstance(messages, BatchMessages):
            entry_size = len(messages.source.buffer)
        else:
            entry_size = sum(each.length() for each in messages[begin:end])
        for first in range(begin, end, max_messages):
            stop = min(end, first + max_messages)
            if pending and (
                kind != (is_unbatched, is_batch)
                or count + stop - first > max_messages
                or size + entry_size > _MAX_BYTES
            ):
                yield MessageBlock(pending)
                pending, count, size = [], 0, 0
            pending.append((delivery, first, stop))
            kind = (is_unbatched, is_batch)
            count += stop - first
            size += entry_size
    if pending:
        yield MessageBlock(pending)


def _plain(slices: Sequence[DeliverySlice]) -> PlainMessages | None:
    starts: list[int] = []
    buffers: list[bytes] = []
    base = 0
    for delivery, first, stop in slices:
        messages = delivery.messages
        if not isinstance(messages, BatchMessages):
            return None
        offsets = messages.places[first:stop]
        starts += [start + base for start in offsets] if base else offsets
        buffers.append(messages.source.buffer)
        base += len(messages.source.buffer)
    return plain_messages(buffers[0] if len(buffers) == 1 else b"".join(buffers), starts)
