"""ACK commands of one topic, for the application's acks and for entries without messages."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from ....wire import message_id, pb
from ...interface import AckPlan
from . import ack_commands as commands
from .broker_consumer import BrokerConsumer
from .chunked_messages import ChunkedMessages

ValidationError: TypeAlias = pb.CommandAck.ValidationError.ValueType


class AckWriter:
    """Writes the ACK commands of one topic.

    Attributes:
        written_s: Loop time of the last ACK.
    """

    def __init__(self, broker: BrokerConsumer, chunked: ChunkedMessages, *, durable: bool) -> None:
        self._broker = broker
        self._chunked = chunked
        self._durable = durable
        self.written_s: float = -math.inf

    def ack(self, plan: AckPlan) -> list[asyncio.Future[Any]]:
        """Send the acks of a flush, and return the broker's answers to the commands.

        Raises:
            NotConnected: if no broker holds the consumer; then nothing was sent.
        """
        session, consumer_id = self._broker.ready(), self._broker.consumer_id
        self.written_s = self._broker.loop.time()
        answers: list[asyncio.Future[Any]] = []

        def request() -> int:
            request_id = session.requests.new_id()
            doing = f"ack on {self._broker.topic}"
            answers.append(session.requests.begin(request_id, doing, self._broker.timeout_s))
            return request_id

        partial, most = plan.partial, commands.MOST_IDS
        if plan.cumulative is not None:
            ledger, entry, size, mask = plan.cumulative
            self._chunked.forget_up_to((ledger, entry))
            if mask != -1:
                # A cumulative ack inside a batch undoes single acks of later batch messages (seen
                # on 4.2.4). So ack the entry before it cumulatively, and this one partially.
                partial = [(ledger, entry, size, mask), *partial]
                entry -= 1
            session.write(commands.cumulative_ack(consumer_id, ledger, entry, request()))
        entries = self._chunked.expand(plan.entries)
        for at in range(0, max(len(entries), len(partial)), most):
            part = slice(at, at + most)
            session.write(
                commands.individual_acks(consumer_id, entries[part], partial[part], request())
            )
        if entries is not plan.entries:
            acked = plan.entries

            def forget(_: asyncio.Future[Any]) -> None:
                if all(each.done() and _is_confirmed(each) for each in answers):
                    self._chunked.forget(acked)

            for answer in answers:
                answer.add_done_callback(forget)
        return answers

    def ack_skipped(self, entries: list[tuple[int, int]]) -> None:
        """Ack entries that hold no messages for the application, unless this is a reader."""
        session = self._broker.session
        if session is not None and self._durable:
            self.written_s = self._broker.loop.time()
            session.write(commands.individual_acks(self._broker.consumer_id, entries))

    def ack_unreadable(self, entries: Sequence[tuple[int, int]], error: ValidationError) -> None:
        """Ack entries that cannot be read, unless this is a reader."""
        if self._durable:
            for entry in entries:
                self.discard(entry, error)

    def discard(self, entry: tuple[int, int], error: ValidationError) -> None:
        """Ack an entry that cannot be read, for a reader too."""
        session = self._broker.session
        if session is not None:
            self.written_s = self._broker.loop.time()
            session.send(
                pb.CommandAck(
                    consumer_id=self._broker.consumer_id,
                    message_id=[message_id(*entry)],
                    validation_error=error,
                    ack_type=pb.CommandAck.Individual,
                )
            )


def _is_confirmed(answer: asyncio.Future[Any]) -> bool:
    return not answer.cancelled() and answer.exception() is None
