"""Read the letters that a memory transport has stored, without a consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..codecs.bound_codec import bind
from ..devbroker.rules.refusal import Refusal
from ..devbroker.rules.topic_log import TopicLog
from ..errors import ConfigurationError
from ..message import Message, RawMessage
from ..options import Subscription
from ..transport.native.consumer.decryption import Decryption
from ..transport.native.consumer.entry_contents import (
    BatchEntry,
    ChunkEntry,
    CompressedEntry,
    EntryContent,
)
from ..transport.native.consumer.entry_reader import EntryReader
from ..transport.native.consumer.message_views import PlainMessage
from ..values.message_id import MessageId
from .memory_transport import MemoryTransport

if TYPE_CHECKING:
    from ..deadletters import Letter


def letters(transport: MemoryTransport, topic: str, schema: Any = None) -> list[Letter]:
    """Return the letters of a dead letter topic or retry letter topic, oldest first.

    Letters stay readable after they were acked, until their ledger is trimmed.

    Args:
        topic: Name of the letter topic, with or without partitions, such as
            ``"orders-billing-DLQ"``. A topic that does not exist has no letters.
        schema: Decodes `letter.message.value()`, such as `Json(Order)`. None gives bytes.

    Returns:
        The `deadletters.Letter` of each message: `error_class`, `error_message`, `evidence()`,
        `user_properties()`, `real_topic`, `message`.

    Raises:
        ConfigurationError: if a letter is encrypted, `topic` is not a topic name, or `schema` is
            neither a codec nor a schema.

    Example:
        ::

            (letter,) = testing.letters(pulsar_memory.transport, "orders-billing-DLQ")
            assert letter.error_class == "ValueError"
    """
    from ..deadletters import Letter  # lazy: most tests have no letters

    decoder = bind(schema, reads=True)
    try:
        states = transport.catalogue.states(topic)
    except Refusal as refusal:
        if refusal.code == "TopicNotFound":
            return []
        raise ConfigurationError(f"no letters of {topic!r}: {refusal.message}") from refusal
    return [
        Letter(Message.of_reader(raw, decoder, message_id))
        for state in states
        for message_id, raw in _messages(state.log)
    ]


def entry_reader(topic: str) -> EntryReader:
    """Return a reader of entries that are not encrypted."""
    subscription = Subscription(topics=(topic,), subscription_name="letters")
    return EntryReader(topic, Decryption(subscription), max_size=2**31 - 1)


def _messages(log: TopicLog) -> Iterator[tuple[MessageId, RawMessage]]:
    """Yield the messages of a log with their ids."""
    reader = entry_reader(log.name)
    chunks: dict[str, list[tuple[MessageId, ChunkEntry]]] = {}
    for entry in log.entries:
        reader.begin_step()
        content: EntryContent = reader.open(entry.body, 0, len(entry.body))
        first = None
        if isinstance(content, ChunkEntry):
            message_id = MessageId(log.partition, entry.ledger, entry.entry, topic=log.name)
            metadata = content.metadata
            parts = chunks.setdefault(metadata.uuid, [])
            parts.append((message_id, content))
            if len(parts) < metadata.num_chunks_from_msg:
                continue
            del chunks[metadata.uuid]
            first = parts[0][0]
            payload = b"".join(part.payload for _, part in parts)
            content = reader.read_chunked(content, payload, sealed=False)
        if isinstance(content, CompressedEntry):
            content = reader.unpack(content)
        if isinstance(content, PlainMessage):
            yield (
                MessageId(
                    log.partition, entry.ledger, entry.entry, topic=log.name, first_chunk=first
                ),
                content,
            )
        elif isinstance(content, BatchEntry):
            for index, raw in zip(
                content.indexes or range(len(content.messages)), content.messages, strict=True
            ):
                yield (
                    MessageId(
                        log.partition,
                        entry.ledger,
                        entry.entry,
                        index,
                        batch_size=content.batch_size,
                        topic=log.name,
                    ),
                    raw,
                )
        else:
            raise ConfigurationError(
                f"an entry of {log.name} is encrypted: read the letters with a consumer that has a "
                "crypto_key_reader"
            )
