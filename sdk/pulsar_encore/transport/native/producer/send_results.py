"""Gives each sent message's future its id or its error. Cancelled futures are skipped."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Final

from ....errors import ClosedError
from ....values.message_id import MessageId
from ....wire import pulsar_pb2 as pb
from .unconfirmed_frames import SendFrame, Waiter

#: Sends that fail in one step of the loop: about 2 ms.
FAILURES_PER_STEP: Final = 500

_U63: Final = 1 << 63  # larger numbers are negative ids; -1 is unknown


def set_stored(frame: SendFrame, place: pb.MessageIdData, topic: str, partition: int) -> None:
    """Set the ids of an entry that the broker has stored.

    Both numbers of `place` are -1 if the broker had the entry before and does not say where.
    """
    ledger, entry = place.ledgerId, place.entryId
    if ledger >= _U63:
        for waiter in frame.waiters:
            if not waiter.done():
                waiter.set_result(MessageId(partition, topic=topic))
        return
    frame.stored = (ledger, entry)
    if frame.batched:
        size = len(frame.waiters)
        for index, waiter in enumerate(frame.waiters):
            if not waiter.done():
                waiter.set_result(
                    MessageId(partition, ledger, entry, index, batch_size=size, topic=topic)
                )
        return
    for waiter in frame.waiters:
        if not waiter.done():
            begin = frame.first_chunk and frame.first_chunk.stored
            first = MessageId(partition, *begin, topic=topic) if begin else None
            waiter.set_result(MessageId(partition, ledger, entry, topic=topic, first_chunk=first))


def set_failed(waiters: Iterable[Waiter], error: Exception) -> None:
    """Set a copy of the error for each message, so that each is raised with its own traceback."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(copy.copy(error))


def closed_error() -> ClosedError:
    return ClosedError("the producer was closed before the send ended")
