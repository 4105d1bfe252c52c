"""Which schema a message was written with: fetched before the message is handed out.

Owns `WriterSchemas`. Bytes of Avro say nothing without their writer's schema, and with another one
they decode to wrong values without a word. The stock package fetches a version when the first value
is decoded, which blocks, and when that fails it goes on with the reader's schema; here a version is
fetched ahead, once, and a value whose version is not known is an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ...errors import IncompatibleSchema, SchemaVersionError, TransportTimeout
from .known_schema import SchemaDefinition

#: A topic, without its partition, a version of its schema, and how often the topic was deleted: a
#: topic that is created again numbers its versions from 0 again.
Version = tuple[str, int, int]

#: Asks a broker for a version: of a topic, by its number.
Fetch = Callable[[str, int], Awaitable[SchemaDefinition]]

#: Longest that messages are held back for their schema; after it they go without, and a value is
#: an error until the schema is here.
WAIT_S: Final = 15.0
_RETRY_DELAY_S: Final = 5.0  # how long a failed fetch is not tried again


class WriterSchemas:
    """The schema versions of one client's topics. On any event loop.

    Args:
        fetch: Of the client's transport.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch_definition = fetch
        self._known: dict[Version, str] = {}
        self._deletions: dict[str, int] = {}  # how often each topic was deleted
        self._failed: dict[Version, tuple[float, Exception]] = {}
        # An event loop waits for its own tasks only.
        self._fetching: dict[tuple[Version, asyncio.AbstractEventLoop], asyncio.Task[None]] = {}

    def lacks(self, version: Version | None) -> bool:
        """Whether it has to be fetched, now or again."""
        if version is None or version in self._known:
            return False
        failed = self._failed.get(version)
        return failed is None or failed[0] + _RETRY_DELAY_S <= asyncio.get_running_loop().time()

    def version(self, topic: str, number: int) -> Version:
        """A version of a topic, as it is now."""
        return topic, number, self._deletions.get(topic, 0)

    def deleted(self, topic: str) -> None:
        """A topic does not exist any more: if it is created again, its versions begin anew.

        Messages that came before keep theirs.

        Args:
            topic: Full name, without a partition number.
        """
        self._deletions[topic] = self._deletions.get(topic, 0) + 1

    async def fetch(self, version: Version) -> None:
        """Wait until it is known, or cannot be had; it goes on when the caller is cancelled."""
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
            found = await self._fetch_definition(*version[:2])
            if found.kind.upper() != "AVRO":
                raise IncompatibleSchema(f"it is of type {found.kind}, not AVRO")
            self._known[version] = found.text
            self._failed.pop(version, None)
        except Exception as error:
            self._fail(version, error)

    def _fail(self, version: Version, error: Exception) -> None:
        self._failed[version] = (asyncio.get_running_loop().time(), error)

    def definition(self, version: Version) -> str:
        """A version, as JSON.

        Raises:
            SchemaVersionError: It is not known.
        """
        known = self._known.get(version)
        if known is not None:
            return known
        topic, number, _ = version
        _, error = self._failed.get(version, (0.0, None))
        raise SchemaVersionError(
            f"schema version {number} of {topic}, with which the message was written, could not "
            f"be fetched{f' ({error})' if error else ''}: nack the message, it is tried again when "
            "it comes back; data() has the bytes",
            result=getattr(error, "result", "UnknownError"),
            retryable=True,
        ) from error
