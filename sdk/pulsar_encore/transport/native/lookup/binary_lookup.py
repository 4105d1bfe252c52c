"""Lookups over the binary protocol, at any broker of the service.

Redirects: `docs/notes/wire-protocol.md#lookup`. Brokers behind a proxy:
`docs/notes/wire-protocol.md#addresses-and-proxies`. A broker that keeps answering TooManyRequests
is left for another one: `docs/notes/wire-protocol.md#server-errors`.
"""

from __future__ import annotations

from collections import deque
from typing import Final
from weakref import WeakKeyDictionary

from ....errors import LookupError as TopicLookupError
from ....errors import NotConnected, TooManyLookupRequestException
from ....options import RegexSubscriptionMode
from ....wire import pulsar_pb2 as pb
from ....wire.entries import text
from ..connection.addresses import Address, referred
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
    """Lookups over the binary protocol (`LookupMethod`)."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._settings = pool.settings
        self._refusals: WeakKeyDictionary[Session, deque[float]] = WeakKeyDictionary()

    async def partitions(self, topic: str, create: bool) -> Partitions:
        def make(request_id: int) -> pb.CommandPartitionedTopicMetadata:
            return pb.CommandPartitionedTopicMetadata(
                topic=topic,
                request_id=request_id,
                metadata_auto_creation_enabled=None if create else False,
            )

        session = await self._pool.any_broker()
        doing = f"partitions of {topic}"
        try:
            answer: pb.CommandPartitionedTopicMetadataResponse = await session.request(
                make, doing, self._settings.operation_timeout_s
            )
        except TooManyLookupRequestException as error:
            self._count_refusal(session, error)
            raise
        check_partitions(answer.partitions, topic, self._settings.max_partitions)
        flags = session.features
        return Partitions(
            answer.partitions,
            flags.supports_get_partitioned_metadata_without_auto_creation,
        )

    async def topics(self, namespace: str, mode: RegexSubscriptionMode, known: str) -> TopicListing:
        def make(request_id: int) -> pb.CommandGetTopicsOfNamespace:
            # No pattern: dialects of regular expressions differ, so a broker might omit topics that
            # match here. `docs/notes/wire-protocol.md#topic-lists`.
            return pb.CommandGetTopicsOfNamespace(
                namespace=namespace,
                request_id=request_id,
                mode=MODES[mode],
                topics_hash=known or None,
            )

        session = await self._pool.any_broker()
        answer: pb.CommandGetTopicsOfNamespaceResponse = await session.request(
            make, f"topics of {namespace}", self._settings.operation_timeout_s
        )
        if known and not answer.changed:
            return TopicListing(None, known)
        return TopicListing([text(topic) for topic in answer.topics], answer.topics_hash)

    async def owner(self, topic: str) -> Session:
        pool = self._pool
        service = pool.service
        session, authoritative = await pool.any_broker(), False
        for _ in range(_MAX_REDIRECTS + 1):
            # Read before the request: the pool forgets a connection that ends meanwhile, and a
            # broker behind a proxy must never be dialed directly.
            asked = self._address_of(session)
            if asked is None:
                raise NotConnected(f"look up {topic}: the connection to {session.peer} has ended")
            answer = await self._ask_owner(session, topic, authoritative)
            proxied = answer.proxy_through_service_url
            plain, tls = text(answer.brokerServiceUrl), text(answer.brokerServiceUrlTls)
            address = referred(
                tls if service.secure else plain,
                plain,
                asked=asked,
                secure=service.secure,
                doing=topic,
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

    async def _ask_owner(
        self, session: Session, topic: str, authoritative: bool
    ) -> pb.CommandLookupTopicResponse:
        def make(request_id: int) -> pb.CommandLookupTopic:
            return pb.CommandLookupTopic(
                topic=topic,
                request_id=request_id,
                authoritative=authoritative,
                advertised_listener_name=self._settings.listener_name,
            )

        try:
            answer: pb.CommandLookupTopicResponse = await session.request(
                make, f"look up {topic}", self._settings.operation_timeout_s
            )
        except TooManyLookupRequestException as error:
            self._count_refusal(session, error)
            raise
        return answer

    def _count_refusal(self, session: Session, error: TooManyLookupRequestException) -> None:
        """Count a refusal. After too many, end the connection and leave the broker for a while."""
        now = self._pool.loop.time()
        refusals = self._refusals.setdefault(session, deque())
        refusals.append(now)
        while refusals[0] <= now - _REFUSAL_WINDOW_S:
            refusals.popleft()
        if len(refusals) >= _MAX_REFUSALS:
            asked = self._address_of(session)
            if asked is not None:
                self._pool.did_not_answer(asked, self._pool.service)
            session.fail(error)


def check_partitions(count: int, topic: str, most: int) -> None:
    """Check the number of partitions in an answer, before anything is made for each partition.

    Raises:
        LookupError: if there are more than `most`, the client's `max_partitions`.
    """
    if count > most:
        raise TopicLookupError(
            f"{topic}: {count} partitions, and this client accepts at most {most}: raise the "
            "client's max_partitions if the number is right",
            retryable=False,
        )
