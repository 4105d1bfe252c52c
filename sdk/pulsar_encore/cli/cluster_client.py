"""Clients for commands that only look: they never create a topic."""

from __future__ import annotations

from typing import Any, Final

from .. import FileLogger, LoggerLevel
from ..admin import WebService
from ..client import Client
from ..options import ClientOptions
from ..values.topic_names import full_name
from .login import ClusterAccess
from .probe import probe

TIMEOUT_S: Final = 10  # a user waits at the prompt


def silent_logger() -> Any:
    """Return a logger without output: the C++ client would log to stdout."""
    import os

    return FileLogger(LoggerLevel.Error, os.devnull)


def connect(cluster: ClusterAccess) -> Client:
    """Return a client over the native transport."""
    return Client(
        cluster.url,
        operation_timeout_seconds=TIMEOUT_S,
        logger=silent_logger(),
        transport="native",
        **cluster.keywords,
    )


def web_service(cluster: ClusterAccess, admin_url: str) -> WebService:
    options = ClientOptions(
        service_url=cluster.url, operation_timeout_seconds=TIMEOUT_S, **cluster.keywords
    )
    return WebService(options, admin_url)


async def existing_partitions(client: Client, cluster: ClusterAccess, topic: str) -> list[str]:
    """Return the partitions of a topic, or its full name; TopicNotFound if it does not exist."""
    await probe(cluster, full_name(topic), timeout_s=TIMEOUT_S)
    return await client.get_topic_partitions(topic)
