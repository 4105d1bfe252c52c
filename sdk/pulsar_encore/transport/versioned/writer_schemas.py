"""The schemas that messages were written with, fetched before the messages are delivered.

With another schema than their writer's, Avro bytes decode to wrong values without an error.
`pulsar-client` fetches a version while it decodes the first value, which blocks, and falls back to
the reader's schema. Here decoding a value of an unknown version is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ...codecs.codec import SchemaInfo
from ...errors import SchemaVersionError, TransportTimeout

#: A topic without its partition, a version of its schema, and how often the topic was deleted. A
#: topic that is created again numbers its versions from 0.
Version = tuple[str, int, int]

Fetch = Callable[[str, int], Awaitable[SchemaInfo]]

#: Longest wait of messages for their schema, in s. They are then delivered without it.
WAIT_S: Final = 15.0
_RETRY_DELAY_S: Final = 5.0  # before a failed fetch is retried


class WriterSchemas:
    """The schema versions of one client's topics, for all event loops."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch_definition = fetch
        self._known: dict[Version, SchemaInfo] = {}
        self._deletions: dict[str, int] = {}  # how often each topic was deleted
        self._failed: dict[Version, tuple[float, Exception]] = {}
        # An event loop waits for its own tasks only.
        self._fetching: dict[tuple[Version, asyncio.AbstractEventLoop], asyncio.Task[None]] = {}

    def lacks(self, version: Version | None) -> bool:
        """Return True if a version must be fetched, also after a failure."""
        if version is None or version in self._known:
            return False
        failed = self._failed.get(version)
        return failed is None or failed[0] + _RETRY_DELAY_S <= asyncio.get_running_loop().time()

    def version(self, topic: str, number: int) -> Version:
        return topic, number, self._deletions.get(topic, 0)

    def deleted(self, topic: str) -> None:
        """Note that a topic was deleted. `topic` is a full name without a partition number.

        Messages that were received before keep their versions.
        """
        self._deletions[topic] = self._deletions.get(topic, 0) + 1

    async def fetch(self, version: Version) -> None:
        """Wait until a version is known, or its fetch has failed.

        A cancelled caller does not end the fetch.
        """
        at = (version, asyncio.get_running_loop())
        task = self._fetching.get(at)
        if task is None:
            task = self._fetching[at] = asyncio.create_task(self._fetch(version))
            task.add_done_callback(lambda _: self._fetching.pop(at))
        await asyncio.wait((task,), timeout=WAIT_S)
        if not task.done():
            self._fail(version, TransportTimeout(f"no answer in {WAIT_S:g} s"))

    async def _fetch(self, version: Version) -> None:
        try:
            self._known[version] = await self._fetch_definition(*version[:2])
            self._failed.pop(version, None)
        except Exception as error:
            self._fail(version, error)

    def _fail(self, version: Version, error: Exception) -> None:
        self._failed[version] = (asyncio.get_running_loop().time(), error)

    def definition(self, version: Version) -> SchemaInfo:
        """Return a version, or raise SchemaVersionError if it is not known."""
        known = self._known.get(version)
        if known is not None:
            return known
        topic, number, _ = version
        _, error = self._failed.get(version, (0.0, None))
        raise SchemaVersionError(
            f"schema version {number} of {topic}, with which the message was written, could not "
            f"be fetched{f' ({error})' if error else ''}: nack the message: the fetch is retried "
            "when it is redelivered; data() has the bytes",
            result=getattr(error, "result", "UnknownError"),
            retryable=True,
        ) from error
