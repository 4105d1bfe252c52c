"""Lookups over the binary protocol, at any broker of the service.

Redirects: `docs/notes/wire-protocol.md#lookup`. Proxies:
`docs/notes/wire-protocol.md#addresses-and-proxies`. A broker that keeps answering TooManyRequests:
`docs/notes/wire-protocol.md#server-errors`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from google.protobuf.message import Message

from ....errors import LookupError as TopicLookupError
from ....errors import NotConnected, TooManyLookupRequestException
from ....options import RegexSubscriptionMode
from ....wire import pulsar_pb2 as pb
from ....wire.entries import text
from ..connection.addresses import Address, broker_address
from ..connection.pool import ConnectionPool
from ..connection.session import Session
from .lookup_interface import Partitions, TopicListing

_MAX_REDIRECTS: Final = 20
_MAX_REFUSALS: Final = 50  # in `_REFUSAL_WINDOW_S`, as in Java
_REFUSAL_WINDOW_S: Final = 60.0

_Mode = pb.CommandGetTopicsOfNamespace
MODES: Final = {
    RegexSubscriptionMode.PersistentOnly: _Mode.PERSISTENT,
    RegexSubscriptionMode.NonPersistentOnly: _Mode.NON_PERSISTENT,
    RegexSubscriptionMode.AllTopics: _Mode.ALL,
}


class BinaryLookup:
    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._settings = pool.settings
        self._refusals: WeakKeyDictionary[Session, deque[float]] = WeakKeyDictionary()

    async def partitions(self, topic: str, create: bool) -> Partitions:
        session = await self._pool.any_broker()
        answer: pb.CommandPartitionedTopicMetadataResponse = await self._request(
            session,
            lambda request_id: pb.CommandPartitionedTopicMetadata(
                topic=topic,
                request_id=request_id,
                metadata_auto_creation_enabled=None if create else False,
            ),
            f"partitions of {topic}",
        )
        check_partitions(answer.partitions, topic, self._settings.max_partitions)
        return Partitions(
            answer.partitions,
            session.features.supports_get_partitioned_metadata_without_auto_creation,
        )

    async def topics(self, namespace: str, mode: RegexSubscriptionMode, known: str) -> TopicListing:
        session = await self._pool.any_broker()
        answer: pb.CommandGetTopicsOfNamespaceResponse = await session.request(
            # No pattern, because dialects of regular expressions differ
            # (`docs/notes/wire-protocol.md#topic-lists`).
            lambda request_id: pb.CommandGetTopicsOfNamespace(
                namespace=namespace,
                request_id=request_id,
                mode=MODES[mode],
                topics_hash=known or None,
            ),
            f"topics of {namespace}",
            self._settings.operation_timeout_s,
        )
        if known and not answer.changed:
            return TopicListing(None, known)
        return TopicListing([text(topic) for topic in answer.topics], answer.topics_hash)

    async def owner(self, topic: str) -> Session:
        pool = self._pool
        service = pool.service
        session, authoritative = await pool.any_broker(), False
        for _ in range(_MAX_REDIRECTS + 1):
            # Before the request: the pool forgets a connection that ends meanwhile, and a broker
            # behind a proxy must never be dialed directly.
            asked = self._address_of(session)
            if asked is None:
                raise NotConnected(f"look up {topic}: the connection to {session.peer} has ended")
            answer: pb.CommandLookupTopicResponse = await self._request(
                session, partial(self._owner_request, topic, authoritative), f"look up {topic}"
            )
            proxied = answer.proxy_through_service_url
            plain, tls = text(answer.brokerServiceUrl), text(answer.brokerServiceUrlTls)
            address = broker_address(
                tls if service.secure else plain,
                plain,
                asked=asked,
                secure=service.secure,
                purpose=topic,
                proxied=proxied,
            )
            through = asked if proxied else None
            session = await pool.broker(address, through=through, service=service)
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return session
            authoritative = answer.authoritative
        raise TopicLookupError(f"{topic}: more than {_MAX_REDIRECTS} redirects in a row")

    def _address_of(self, session: Session) -> Address | None:
        key = self._pool.key_of(session)
        return None if key is None else key.address

    def _owner_request(
        self, topic: str, authoritative: bool, request_id: int
    ) -> pb.CommandLookupTopic:
        return pb.CommandLookupTopic(
            topic=topic,
            request_id=request_id,
            authoritative=authoritative,
            advertised_listener_name=self._settings.listener_name,
        )

    async def _request(self, session: Session, make: Callable[[int], Message], purpose: str) -> Any:
        try:
            return await session.request(make, purpose, self._settings.operation_timeout_s)
        except TooManyLookupRequestException as error:
            self._count_refusal(session, error)
            raise

    def _count_refusal(self, session: Session, error: TooManyLookupRequestException) -> None:
        """Count a TooManyRequests. After too many, end the connection and leave the broker for a
        while."""
        now = self._pool.loop.time()
        refusals = self._refusals.setdefault(session, deque())
        refusals.append(now)
        while refusals[0] <= now - _REFUSAL_WINDOW_S:
            refusals.popleft()
        if len(refusals) >= _MAX_REFUSALS:
            asked = self._address_of(session)
            if asked is not None:
                self._pool.avoid(asked, self._pool.service)
            session.fail(error)


def check_partitions(count: int, topic: str, most: int) -> None:
    """Check the number of partitions in an answer, before anything is made for each partition."""
    if count > most:
        raise TopicLookupError(
            f"{topic}: {count} partitions, and this client accepts at most {most}: raise the "
            "client's max_partitions if the number is right",
            retryable=False,
        )
