"""Read a stretch of a topic with a reader: no subscription remains, and no message is taken."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ...client import Client
from ...errors import ReceiveTimeout
from ...message import Message
from ...options import ConsumerCryptoFailureAction
from ...values.message_id import MessageId

_POLL_MS = 50
_ENTRY_MS = 2000


async def read_since(
    client: Client, topic: str, since_ms: int, until_ms: int
) -> AsyncGenerator[Message, None]:
    """Yield the messages that were published since then, and stop at the end or after `until_ms`.

    Args:
        topic: A topic without partitions, or one partition.
    """
    async with await client.create_reader(
        topic,
        MessageId.earliest,
        start_message_id_inclusive=True,
        crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
    ) as reader:
        if since_ms > 0:
            await reader.seek(since_ms)
        while True:
            try:
                entry = await reader.read_entry(timeout_millis=_POLL_MS)
            except ReceiveTimeout:
                if not await reader.has_message_available():
                    return
                continue
            for message in entry:
                if message.publish_timestamp() > until_ms:
                    return
                if message.publish_timestamp() >= since_ms:
                    yield message


async def read_at(client: Client, topic: str, message_id: MessageId) -> list[Message]:
    """Return the messages of the entry with this id; an empty list if it is not stored."""
    start = message_id.first_chunk or message_id
    first = MessageId(start.partition(), start.ledger_id(), start.entry_id())
    async with await client.create_reader(
        topic,
        first,
        start_message_id_inclusive=True,
        crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
    ) as reader:
        if not await reader.has_message_available():
            return []
        try:
            entry = await reader.read_entry(timeout_millis=_ENTRY_MS)
        except ReceiveTimeout:
            return []
    found = entry[0].message_id()
    wanted = (message_id.ledger_id(), message_id.entry_id())
    return entry if (found.ledger_id(), found.entry_id()) == wanted else []
