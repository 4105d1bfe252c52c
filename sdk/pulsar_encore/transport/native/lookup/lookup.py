"""Partitions, owners and schemas of topics, looked up at the brokers.

Equal requests at the same time are sent once, the number of requests at a time is limited, and
retryable errors are retried: `docs/notes/wire-protocol.md#lookup`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ....errors import PulsarException, TransportTimeout
from ....eventloop.shielded_work import shielded
from ....options import RegexSubscriptionMode
from ....wire import pulsar_pb2 as pb
from ..connection.pool import ConnectionPool
from ..connection.reconnect_backoff import LONGEST_WAITED_FOR_S, ReconnectBackoff
from ..connection.session import Session
from .binary_lookup import BinaryLookup
from .http_lookup import HttpLookup
from .lookup_interface import LookupMethod, Partitions, TopicListing
from .refresh_schedule import RefreshSchedule, TimedSchedule

_Answer = TypeVar("_Answer")


class Lookup:
    def __init__(
        self, pool: ConnectionPool, make_round: Callable[[], RefreshSchedule] = TimedSchedule
    ) -> None:
        self.pool: ConnectionPool = pool
        self.make_round: Callable[[], RefreshSchedule] = make_round
        self._binary = BinaryLookup(pool)
        self._web = HttpLookup(pool)
        self._in_flight: dict[tuple[str, ...], asyncio.Task[Any]] = {}
        self._limit = asyncio.Semaphore(pool.settings.lookups)

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Return the number of partitions of a topic; 0 for a topic without.

        If `create`, the broker may create the topic, where its policies allow that. Else a missing
        topic raises `TopicNotFound`.
        """
        return (await self.ask_partitions(topic, create=create)).number

    async def ask_partitions(self, topic: str, *, create: bool) -> Partitions:
        """Return the same as `partitions`, and whether the broker reports missing topics."""
        return await self._shared(
            ("partitions", topic, str(create)),
            lambda: self._with_retries(
                f"partitions of {topic}", lambda: self._method().partitions(topic, create)
            ),
        )

    async def topics(
        self, namespace: str, mode: RegexSubscriptionMode, known: str = ""
    ) -> TopicListing:
        """List the topics of ``tenant/namespace``; `known` is the hash of a known list."""
        return await self._shared(
            ("topics", namespace, mode.name, known),
            lambda: self._with_retries(
                f"topics of {namespace}", lambda: self._method().topics(namespace, mode, known)
            ),
        )

    async def schema(self, topic: str, version: int | None) -> pb.Schema:
        """Return a version of a topic's schema, from 0, or the latest. Partitions share their
        topic's."""
        which = "the latest schema" if version is None else f"schema version {version}"
        purpose = f"{which} of {topic}"
        return await self._shared(
            ("schema", topic, str(version)),
            lambda: self._with_retries(purpose, lambda: self._ask_schema(topic, version, purpose)),
        )

    async def _ask_schema(self, topic: str, version: int | None, purpose: str) -> pb.Schema:
        # Over the binary protocol even if lookups use HTTP: the web service rewrites schemas of
        # key-value pairs, and such a schema, when a copy registers it, would be another version.
        session = await self.any_broker(topic)
        number = None if version is None else version.to_bytes(8, "big")
        answer: pb.CommandGetSchemaResponse = await session.request(
            lambda request_id: pb.CommandGetSchema(
                topic=topic, request_id=request_id, schema_version=number
            ),
            purpose,
            self.pool.settings.operation_timeout_s,
        )
        return answer.schema

    async def owner(self, topic: str) -> Session:
        """Return a connection to the broker of a topic or partition, without retries."""
        return await self._shared(("owner", topic), lambda: self._method().owner(topic))

    async def any_broker(self, topic: str) -> Session:
        """Return a connection to a broker for questions that each broker can answer, without
        retries. A service with a web URL gives brokers' addresses for topics only: there it is the
        broker of `topic`."""
        return await (self.owner(topic) if self.pool.service.web else self.pool.any_broker())

    def _method(self) -> LookupMethod:
        return self._web if self.pool.service.web else self._binary

    async def _with_retries(self, purpose: str, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        settings, loop = self.pool.settings, self.pool.loop
        timeout_s = settings.operation_timeout_s
        deadline = loop.time() + timeout_s
        delays = ReconnectBackoff(settings.backoff_s, settings.max_backoff_s, self.pool.rng)
        failure: PulsarException | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await ask()
            except TimeoutError as error:
                text = f"{purpose}: no answer within {timeout_s:g} s"
                if failure is not None:
                    text += f"; the last error: {failure}"
                raise TransportTimeout(text) from (failure or error)
            except PulsarException as error:
                failure = error
            delay = min(delays.next(), LONGEST_WAITED_FOR_S)
            if not failure.retryable or loop.time() + delay >= deadline:
                raise failure
            await self.pool.rest(delay)

    async def _shared(self, key: tuple[str, ...], ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Return the answer to the request `key`, which is sent once for all who wait for it."""
        task = self._in_flight.get(key)
        if task is None:
            task = self.pool.loop.create_task(self._limited(ask))
            self._in_flight[key] = task
            task.add_done_callback(lambda done: self._on_answer(key, done))
        answer: _Answer = await shielded(task)
        return answer

    def _on_answer(self, key: tuple[str, ...], task: asyncio.Task[Any]) -> None:
        if self._in_flight.get(key) is task:
            del self._in_flight[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved

    async def _limited(self, ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        async with self._limit:
            return await ask()
