"""Read the journal topic of a transactional Spark sink, beside its driver."""

from __future__ import annotations

from typing import Any, Final

from ..client import Client
from ..errors import ReceiveTimeout
from ..reader.reader import Reader
from ..spark.sink.commit_journal import Record, decode
from ..values.message_id import MessageId
from ..values.topic_names import full_name
from .cluster_client import connect, existing_partitions
from .login import ClusterAccess

_POLL_MS: Final = 200


async def read_journal(cluster: ClusterAccess, topic: str) -> list[Record]:
    """Return the stored records. The driver is not disturbed, and no subscription remains.

    Raises:
        TopicNotFound: if the topic does not exist.
        ConfigurationError: if it has messages that are no records.
    """
    name = full_name(topic)
    async with connect(cluster) as client:
        await existing_partitions(client, cluster, name)
        return await _records(client, name)


async def _records(client: Client, topic: str) -> list[Record]:
    found = []
    reader: Reader[Any]
    async with await client.create_reader(topic, MessageId.earliest) as reader:
        while await reader.has_message_available():
            try:
                message = await reader.read_next(timeout_millis=_POLL_MS)
            except ReceiveTimeout:
                continue
            found.append(decode(message.data(), topic))
    return found
