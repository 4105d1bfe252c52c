"""Seeks of one topic, by message id or publish time, with retries.

A broker handles SEEK in two steps. First it sends CLOSE_CONSUMER: to every consumer of a Shared or
Key_Shared subscription, and to the active consumer of an Exclusive or Failover one. Then it answers
SEEK. A standby that seeks is not closed. A closed consumer attaches again after the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ....errors import NotConnected, PulsarException
from ....values.message_id import MessageId
from ....wire import pb
from .ack_writer import AckWriter
from .broker_consumer import BrokerConsumer
from .consumer_states import State, Step
from .subscribe_commands import SubscribeCommands

# A broker that is still writing an ack may answer SEEK with success without seeking (4.2.4: 2 of
# 540 seeks right after acks). The first ack of a cursor takes the broker about 40 ms.
_WRITTEN_S: Final = 0.5
#: The broker's refusal of a seek while another one runs. It has no error code of its own.
FENCED: Final = "Failed to fence subscription"
_RETRY_S: Final = 0.1


class Seek:
    """Seeks one topic, one call after the other.

    Args:
        succeeded: Called with the target as soon as the broker has answered, before the consumer
            attaches again.
        begin_attach: Attaches at once, without backoff.
        lost: Called when the seek failed and no broker holds the consumer any more.
    """

    def __init__(
        self,
        broker: BrokerConsumer,
        commands: SubscribeCommands,
        acks: AckWriter,
        succeeded: Callable[[MessageId | int], None],
        begin_attach: Callable[[], None],
        lost: Callable[[], None],
        reattach: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._commands = commands
        self._acks = acks
        self._succeeded = succeeded
        self._begin_attach = begin_attach
        self._lost = lost
        self._reattach = reattach
        self._lock = asyncio.Lock()

    @property
    def is_running(self) -> bool:
        """True while a call to `to` runs. Acks are held back meanwhile.

        Such acks refer to the old position. After a failed seek they are sent.
        """
        return self._lock.locked()

    async def to(self, target: MessageId | int) -> None:
        """Seek to a message id, or to a publish time in ms.

        Raises:
            PulsarException: if the broker refused, or the seek did not succeed in time.
            ClosedError: if the consumer was closed.
        """
        async with self._lock:
            deadline = self._broker.loop.time() + self._broker.timeout_s
            while not await self._try(target, deadline):
                pass

    async def _try(self, target: MessageId | int, deadline: float) -> bool:
        """Make one attempt. Return False if another one is needed."""
        broker = self._broker
        session = await broker.until_attached(deadline)
        await self._until_acks_written()
        if session is not broker.session or broker.state is not State.ATTACHED:
            return False
        broker.step(Step.SEND_SEEK)
        try:
            await session.request(
                lambda request_id: self._command(request_id, target),
                f"seek on {broker.topic}",
                self._broker.timeout_s,
            )
        except NotConnected:
            # The connection ended before the answer. The broker may have sought or not; a second
            # seek to the same target does no harm.
            self._failed()
            if self._broker.loop.time() >= deadline:
                raise
            return False
        except PulsarException as error:
            self._failed()
            # An earlier seek still runs at the broker: its connection was lost, or its call was
            # cancelled.
            if FENCED not in str(error) or self._broker.loop.time() + _RETRY_S >= deadline:
                raise
            await asyncio.sleep(_RETRY_S)
            return False
        except BaseException:
            self._failed()
            raise
        self._succeeded(target)
        before = broker.step(Step.SEEK_DONE)
        if before is State.CLOSED_BY_SEEK:
            # Nothing was lost, so there is no backoff, however often the application seeks.
            self._begin_attach()
        elif before is State.SEEKING_BROKEN:
            self._reattach()
        return True

    def _failed(self) -> None:
        """Stay at the old position. If no broker holds the consumer now, attach with backoff."""
        before = self._broker.step(Step.SEEK_FAILED)
        if before in (State.CLOSED_BY_SEEK, State.LOST_IN_SEEK):
            self._lost()
        elif before is State.SEEKING_BROKEN:
            self._reattach()

    async def _until_acks_written(self) -> None:
        """Wait until the broker has had time to write the last ack.

        The wait is bounded, because entries without messages are acked as they arrive.
        """
        end = self._broker.loop.time() + 4 * _WRITTEN_S
        while True:
            rest = min(self._acks.written_s + _WRITTEN_S, end) - self._broker.loop.time()
            if rest <= 0:
                return
            await asyncio.sleep(rest)

    def _command(self, request_id: int, target: MessageId | int) -> pb.CommandSeek:
        consumer_id = self._broker.consumer_id
        if isinstance(target, int):
            return pb.CommandSeek(
                consumer_id=consumer_id, request_id=request_id, message_publish_time=target
            )
        message_id = self._commands.seek_target(target)
        return pb.CommandSeek(consumer_id=consumer_id, request_id=request_id, message_id=message_id)
