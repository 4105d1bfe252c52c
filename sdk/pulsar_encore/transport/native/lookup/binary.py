"""Asked of a broker over the binary protocol, any one of the service.

Owns `Binary`: redirects, the way through a proxy, and leaving a broker that says again and again
that it has too much to do (wire-protocol notes 2.2, 3.5 and 4).
"""

from __future__ import annotations

from collections import deque
from typing import Final
from weakref import WeakKeyDictionary

from ....exceptions import InvalidUrl, TooManyLookupRequestException
from ....exceptions import LookupError as TopicLookupError
from ....options import RegexSubscriptionMode
from ....wire import commands
from ....wire import pulsar_pb2 as pb
from ....wire.entries import text
from ..connection.addresses import Address, parse
from ..connection.pool import Pool
from ..connection.session import Session
from .asking import Listing

_MOST_REDIRECTS: Final = 20
_MOST_REFUSED: Final = 50  # in `_REFUSED_S`, as Java's
_REFUSED_S: Final = 60.0

_Mode = pb.CommandGetTopicsOfNamespace
MODES: Final = {
    RegexSubscriptionMode.PersistentOnly: _Mode.PERSISTENT,
    RegexSubscriptionMode.NonPersistentOnly: _Mode.NON_PERSISTENT,
    RegexSubscriptionMode.AllTopics: _Mode.ALL,
}


class Binary:
    """Asks brokers (`Way`).

    Args:
        pool: Of connections.

    Attributes:
        tells_missing: Whether the broker that answered last tells a missing topic from one without
            partitions, if it is asked not to create any (PIP-344).
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._settings = pool.settings
        self.tells_missing: bool = True
        self._refused: WeakKeyDictionary[Session, deque[float]] = WeakKeyDictionary()

    async def partitions(self, topic: str, create: bool) -> int:
        def make(request_id: int) -> pb.BaseCommand:
            return commands.partitioned_metadata(
                topic, request_id=request_id, auto_create=None if create else False
            )

        session = await self._pool.any_broker()
        doing = f"partitions of {topic}"
        try:
            answer: pb.CommandPartitionedTopicMetadataResponse = await session.ask(
                make, doing, self._settings.operation_timeout_s
            )
        except TooManyLookupRequestException as error:
            self._count(session, error)
            raise
        flags = session.features
        self.tells_missing = flags.supports_get_partitioned_metadata_without_auto_creation
        return answer.partitions

    async def topics(self, namespace: str, mode: RegexSubscriptionMode, known: str) -> Listing:
        def make(request_id: int) -> pb.BaseCommand:
            # No pattern: dialects of regular expressions differ, so that a broker might leave out
            # what is one's own to decide (notes, section 4).
            return commands.get_topics_of_namespace(
                namespace, request_id=request_id, mode=MODES[mode], topics_hash=known or None
            )

        session = await self._pool.any_broker()
        answer: pb.CommandGetTopicsOfNamespaceResponse = await session.ask(
            make, f"topics of {namespace}", self._settings.operation_timeout_s
        )
        if known and not answer.changed:
            return Listing(None, known)
        return Listing([text(topic) for topic in answer.topics], answer.topics_hash)

    async def owner(self, topic: str) -> Session:
        pool = self._pool
        session, authoritative = await pool.any_broker(), False
        for _ in range(_MOST_REDIRECTS + 1):
            answer = await self._ask_owner(session, topic, authoritative)
            address = self._address(answer, topic)
            through = self._asked(session) if answer.proxy_through_service_url else None
            session = await pool.broker(address, through=through)
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return session
            authoritative = answer.authoritative
        raise TopicLookupError(f"{topic}: more than {_MOST_REDIRECTS} redirects in a row")

    def _asked(self, session: Session) -> Address | None:
        """The address that was asked, which is a proxy's when brokers are behind one."""
        way = self._pool.way_of(session)
        return None if way is None else way.address

    async def _ask_owner(
        self, session: Session, topic: str, authoritative: bool
    ) -> pb.CommandLookupTopicResponse:
        def make(request_id: int) -> pb.BaseCommand:
            return commands.lookup(
                topic,
                request_id=request_id,
                authoritative=authoritative,
                advertised_listener_name=self._settings.listener_name,
            )

        try:
            answer: pb.CommandLookupTopicResponse = await session.ask(
                make, f"look up {topic}", self._settings.operation_timeout_s
            )
        except TooManyLookupRequestException as error:
            self._count(session, error)
            raise
        return answer

    def _address(self, answer: pb.CommandLookupTopicResponse, topic: str) -> Address:
        secure = self._pool.service.secure
        url = answer.brokerServiceUrlTls if secure else answer.brokerServiceUrl
        return address_of(text(url), topic, secure=secure)

    def _count(self, session: Session, error: TooManyLookupRequestException) -> None:
        """One more refusal of a broker; of too many its connection ends, and another is asked."""
        now = self._pool.loop.time()
        refused = self._refused.setdefault(session, deque())
        refused.append(now)
        while refused[0] <= now - _REFUSED_S:
            refused.popleft()
        if len(refused) >= _MOST_REFUSED:
            asked = self._asked(session)
            if asked is not None:
                self._pool.did_not_answer(asked, self._pool.service)
            session.fail(error)


def address_of(url: str, topic: str, *, secure: bool) -> Address:
    """The address of a topic's broker.

    Raises:
        LookupError: There is none of this kind, or it makes no sense.
    """
    if not url:
        kind, other = ("TLS", "pulsar://") if secure else ("plain", "pulsar+ssl://")
        raise TopicLookupError(
            f"{topic}: its broker has no {kind} address: connect by {other}, or see to it that the "
            "broker advertises one"
        )
    try:
        return parse(url)[0]
    except InvalidUrl as error:
        raise TopicLookupError(f"{topic}: its broker's address makes no sense: {error}") from error
