"""Receive the letters of one partition that are left on a subscription.

An Exclusive subscription delivers in order, has no unacked window that skipped letters could fill,
and admits one run at a time. The broker remembers each single ack, so a second run continues where
the first one was interrupted. A letter that is not acked costs memory until the run ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from ..client import Client
from ..consumer.consumer import Consumer
from ..errors import ConsumerBusy, ReceiveTimeout
from ..eventloop.shielded_work import to_its_end
from ..message import Message
from ..options import ConsumerCryptoFailureAction, ConsumerType, InitialPosition

# After a kill, letters whose acks had not left are processed again. The C++ client holds acks for
# up to 100 ms, and no setting changes that: `docs/notes/cpp-client.md#acks`.
_ACK_GROUP_MS: Final = 10
_NO_WINDOW: Final = 2**62  # brokers limit unacked messages on Shared and Key_Shared only


async def receive_unacked(
    client: Client,
    partition: str,
    subscription: str,
    *,
    crypto_key_reader: Any,
    quiet_s: float,
    process: Callable[[Consumer, Message], Awaitable[None]],
    is_stopped: Callable[[], bool],
    before_close: Callable[[], Awaitable[None]],
) -> bool:
    """Process the remaining letters of one partition; return True if its last letter was seen.

    `before_close` runs before the consumer closes, also after a cancellation.
    """
    consumer = await _subscribe(client, partition, subscription, crypto_key_reader)

    async def end() -> None:
        await before_close()
        await consumer.close()

    try:
        last = await consumer.get_last_message_id()
        last_position = (last.ledger_id(), last.entry_id())
        if last_position[1] < 0:
            return True
        while not is_stopped():
            try:
                message = await consumer.receive(timeout=quiet_s)
            except ReceiveTimeout:
                if consumer.is_connected():
                    return False
                continue
            await process(consumer, message)
            if _is_last(message, last_position):
                return True
        return False
    finally:
        await to_its_end(end())


def _is_last(message: Message, end: tuple[int, int]) -> bool:
    message_id = message.message_id()
    position = (message_id.ledger_id(), message_id.entry_id())
    whole = message_id.batch_index() >= message_id.batch_size - 1
    return position > end or (position == end and whole)


async def _subscribe(
    client: Client, partition: str, subscription: str, crypto_key_reader: Any
) -> Consumer:
    try:
        return await client.subscribe(
            partition,
            subscription,
            ConsumerType.Exclusive,
            initial_position=InitialPosition.Earliest,
            batch_index_ack_enabled=True,
            ack_group_time_ms=_ACK_GROUP_MS,
            max_unacked_messages=_NO_WINDOW,
            crypto_key_reader=crypto_key_reader,
            crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
        )
    except ConsumerBusy as error:
        raise ConsumerBusy(
            f"the subscription {subscription!r} of {partition} is in use: another "
            "replay runs, or it is not a replay's; wait for it, or name another subscription"
        ) from error
