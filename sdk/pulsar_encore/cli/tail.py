"""`pulsar-encore tail`: print the messages of a topic with a reader."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Any, Final

from ..client import Client
from ..codecs.auto_consume import AutoConsume
from ..deadletters import printable
from ..errors import ConfigurationError, EncoreError, ReceiveTimeout
from ..message import Message
from ..options import ConsumerCryptoFailureAction
from ..reader.reader import Reader
from ..values.message_id import MessageId
from ..values.topic_names import partition_of
from .cluster_client import connect, existing_partitions
from .login import ClusterAccess
from .tail_options import TailOptions
from .value_text import iso_time, json_text, time_text

_POLL_MS: Final = 200
_MAX_TEXT: Final = 200
_MAX_PAYLOAD: Final = 500


def run_tail(cluster: ClusterAccess, options: TailOptions) -> int:
    asyncio.run(_tail(cluster, options))
    return 0


async def _tail(cluster: ClusterAccess, options: TailOptions) -> None:
    async with connect(cluster) as client:
        topics = await existing_partitions(client, cluster, options.topic)
        topic = options.topic
        if options.from_id is not None and len(topics) > 1:
            topic = _partition_of_id(topics, options.from_id)
        async with aclosing(_messages(client, topic, options)) as messages:
            await print_messages(messages, options)


async def print_messages(messages: AsyncIterable[Message], options: TailOptions) -> None:
    """Print the selected messages, and return with the last one, so that none is waited for."""
    printed = 0
    async for message in messages:
        if options.takes(_key(message), _properties(message)):
            sys.stdout.write(_json(message) if options.json else _line(message))
            sys.stdout.flush()  # a closed pipe is noticed here
            printed += 1
            if printed == options.limit:
                return


def _partition_of_id(topics: list[str], message_id: MessageId) -> str:
    for topic in topics:
        if partition_of(topic) == message_id.partition():
            return topic
    raise ConfigurationError(
        f"--from-id {message_id} names no partition of this topic: write ledger:entry:partition"
    )


async def _messages(
    client: Client, topic: str, options: TailOptions
) -> AsyncGenerator[Message, None]:
    async with await client.create_reader(
        topic,
        options.from_id or MessageId.earliest,
        schema=AutoConsume(),
        start_message_id_inclusive=True,
        crypto_failure_action=ConsumerCryptoFailureAction.CONSUME,
    ) as reader:
        if options.since_ms is not None:
            await reader.seek(options.since_ms)
        while True:
            message = await _next(reader, wait=options.follow)
            if message is None:
                return
            yield message


async def _next(reader: Reader[Any], *, wait: bool) -> Message | None:
    while True:
        try:
            return await reader.read_next(timeout_millis=_POLL_MS)
        except ReceiveTimeout:
            if not wait and not await reader.has_message_available():
                return None


def _line(message: Message) -> str:
    parts = [str(message.message_id()), time_text(message.publish_timestamp())]
    if key := _key(message):
        parts.append(f"key={printable(key, _MAX_TEXT)}")
    parts += [
        f"{printable(name, _MAX_TEXT)}={printable(value, _MAX_TEXT)}"
        for name, value in _properties(message).items()
    ]
    return f"{'  '.join(parts)}  {_payload(message)}\n"


def _json(message: Message) -> str:
    return json_text(
        {
            "id": str(message.message_id()),
            "topic": message.topic_name(),
            "time": iso_time(message.publish_timestamp()),
            "key": _key(message),
            "properties": _properties(message),
            "payload": _payload(message),
            "payload_bytes": 0 if message.has_null_value() else len(message.data()),
        },
        indent=None,
    )


def _payload(message: Message) -> str:
    if message.has_null_value():
        return "(tombstone)"
    data = message.data()
    value: object = data
    try:
        value = message.value()
    except (EncoreError, ValueError):
        pass  # the bytes are shown instead
    if isinstance(value, bytes):
        try:
            return printable(value.decode(), _MAX_PAYLOAD)
        except UnicodeDecodeError:
            cut = value[: _MAX_PAYLOAD // 2]
            return f"0x{cut.hex()}" + ("..." if len(cut) < len(value) else "")
    return printable(value if isinstance(value, str) else repr(value), _MAX_PAYLOAD)


def _key(message: Message) -> str | None:
    try:
        return message.partition_key() or None
    except EncoreError:
        return None


def _properties(message: Message) -> dict[str, str]:
    try:
        return message.properties()
    except EncoreError:
        return {}
