"""The durable subscription of a query: kept level with the checkpoint.

Owns `QueryCursors`. A consumer of each topic holds the subscription, Exclusive, so that a second
query on it is refused, and fetches nothing. The checkpoint decides what is read; the subscription
is there so that brokers keep what is not read yet, and show an honest backlog. An ack that fails is
made good by the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Container, Mapping
from typing import Final

from ...client import Client, transport_of
from ...errors import (
    ConfigurationError,
    ConsumerBusy,
    EncoreError,
    NotAllowedError,
    TopicNotFound,
    TransportError,
)
from ...options import ConsumerType, InitialPosition, Subscription
from ...transport.interface import AckPlan, TransportConsumer
from ...values.message_id import MessageId
from ..admin import Admin
from ..offsets import EARLIEST, Position
from ..reader.range_fetch import FetchBuffer
from ..source_options import ReadOptions

log: Final = logging.getLogger("pulsar_encore.spark")

_BUSY_S: Final = 20.0  # a driver that was killed has its connection closed by then
_AGAIN_S: Final = 0.5
_ACK_S: Final = 10.0
_LOOK_S: Final = 0.2
# By this a person who looks at a subscription finds the driver that holds it.
_OWN_NAME: Final = f"spark-{socket.gethostname()}-{os.getpid()}"


class QueryCursors:
    """The subscription of one query, on each of its topics; on the runtime's loop.

    Args:
        client: The process's.
        options: Of the read, with a subscription.
        admin: The web service, where one was named.

    Raises:
        ConfigurationError: Nobody can tell whether the subscription is there, and it matters.
    """

    def __init__(self, client: Client, options: ReadOptions, admin: Admin | None) -> None:
        self._admin = admin
        assert options.cursor.subscription is not None
        self._transport = transport_of(client)
        self._tells = admin is not None or self._transport.capabilities.name == "native"
        if not (self._tells or options.cursor.create):
            raise ConfigurationError(
                "subscriptionCreate=false needs admin.url with pulsar.client.transport=stock: "
                "only the web service tells which subscriptions there are"
            )
        self._options = options
        self._name: str = options.cursor.subscription
        self._links: dict[str, TransportConsumer] = {}
        self._piles: dict[str, FetchBuffer] = {}  # what they say; of messages there are none
        self._acked: dict[str, Position] = {}
        self._was_there: set[str] = set()  # topics that had it before
        self._found: dict[str, Position] = {}  # where it was when it was taken
        #: Acks that failed since the last one that did not.
        self.errors: int = 0

    async def position(self, topic: str, begin: Position | None) -> Position | None:
        """Hold the subscription of a topic, and say where it is.

        Args:
            topic: Full name, of the partition if any.
            begin: Where one begins that is not there yet; None for the end of the topic.

        Returns:
            The last message acked; None where the engine cannot tell.

        Raises:
            ConsumerBusy: Another query holds it.
            ConfigurationError: It is not there, and is not to be made.
        """
        if topic not in self._links:
            self._links[topic] = await self._hold(topic, begin)
        acked = await self._links[topic].acked_position()
        if acked is None:
            return None
        found = _position_of(acked)
        self._found.setdefault(topic, found)
        return found

    async def _hold(self, topic: str, begin: Position | None) -> TransportConsumer:
        subscription = Subscription(
            topics=(topic,),
            subscription_name=self._name,
            consumer_type=ConsumerType.Exclusive,
            receiver_queue_size=0,
            consumer_name=_OWN_NAME,
            initial_position=InitialPosition.Latest if begin is None else InitialPosition.Earliest,
            force_topic_creation=False,
        )
        if await self._is_there(topic):
            self._was_there.add(topic)
        elif not self._options.cursor.create:
            raise ConfigurationError(
                f"{topic} has no subscription {self._name!r}: check the name, or set "
                "subscriptionCreate=true"
            )
        until = asyncio.get_running_loop().time() + _BUSY_S
        while True:
            try:
                link = await self._transport.subscribe(subscription)
                break
            except ConsumerBusy as error:
                if asyncio.get_running_loop().time() >= until:
                    raise ConsumerBusy(
                        f"the subscription {self._name!r} of {topic} is in use: "
                        f"{await self._holder(topic)}; stop it, or name another subscription"
                    ) from error
                await asyncio.sleep(_AGAIN_S)
            except NotAllowedError:  # the one that asked whether it is there is not gone yet
                if asyncio.get_running_loop().time() >= until:
                    raise
                await asyncio.sleep(_AGAIN_S)
        self._piles[topic] = pile = FetchBuffer(asyncio.get_running_loop())
        link.start(pile)  # with a queue of 0 it asks for nothing
        return link

    async def _holder(self, topic: str) -> str:
        """Who holds the subscription, or how that is found out."""
        otherwise = (
            "another query or consumer holds it (`pulsar-admin topics stats` names it, and so does "
            "this error if admin.url is set)"
        )
        if self._admin is None:
            return otherwise
        try:
            held_by = await self._admin.holders(topic, self._name)
        except TransportError as error:
            return f"another query or consumer holds it (who, cannot be asked: {error})"
        return f"{' and '.join(held_by)} holds it" if held_by else otherwise

    async def _is_there(self, topic: str) -> bool:
        """Whether a topic has the subscription; False also where nobody can tell.

        Without a web service a broker is asked for one of that name that is not durable, which it
        refuses beside one that is.
        """
        if not self._tells:
            return False
        if self._admin is not None:
            return self._name in (await self._admin.ledgers(topic)).subscriptions
        asked = Subscription(
            topics=(topic,),
            subscription_name=self._name,
            consumer_type=ConsumerType.Exclusive,
            receiver_queue_size=0,
            durable=False,
            # Who subscribes while brokers remove this one again may be given its place.
            start_message_id=MessageId.earliest,
            force_topic_creation=False,
        )
        try:
            link = await self._transport.subscribe(asked)
        except (NotAllowedError, ConsumerBusy):
            return True
        await link.close()
        return False

    def was_there(self, topic: str) -> bool | None:
        """Whether a topic that is held had the subscription before; None where nobody can tell."""
        return topic in self._was_there if self._tells else None

    async def drop_failed(self) -> list[str]:
        """Let go of those that are not attached again, because they or their topics were deleted:
        what is made in their place has kept nothing.

        Returns:
            Their topics.
        """
        failed = [topic for topic, pile in self._piles.items() if pile.failed]
        for topic in failed:
            await self.forget(topic)
        return failed

    @property
    def held(self) -> Container[str]:
        """Topics whose subscription is held."""
        return self._links

    async def keeps(self, topic: str, start: Position, first: int | None = None) -> bool:
        """Whether brokers have kept all behind `start`, whose ledger may be gone.

        They have where the subscription is no further. A time-to-live or a quota that deletes what
        is not acked moves it; so does the end of a ledger that was acked to it, to the beginning of
        the next. An expiry that ends there too, while no query runs, cannot be told from that.

        Args:
            topic: Full name, of the partition if any.
            start: What was read last.
            first: The first ledger that is stored, where that is known.

        Raises:
            TransportError: The brokers could not be asked.
        """
        acked = await self._acked_position(topic)
        if acked is None:
            return False
        position = _position_of(acked)
        if position.order <= start.order:
            return True
        # One that was made behind what was read has kept nothing.
        kept = topic in self._was_there or self._found[topic].order <= start.order
        is_first = first is None or position.ledger == first
        return kept and is_first and position.entry < 0

    async def _acked_position(self, topic: str) -> MessageId | None:
        """None where it cannot be told, as of one that is not attached again."""
        link, pile = self._links.get(topic), self._piles.get(topic)
        if link is None or pile is None:
            return None
        asked = asyncio.ensure_future(link.acked_position())
        try:
            while not asked.done() and not pile.failed:
                await asyncio.wait([asked], timeout=_LOOK_S)
            return asked.result() if asked.done() and not pile.failed else None
        finally:
            asked.cancel()

    async def commit(self, positions: Mapping[str, Position]) -> None:
        """Ack up to what the checkpoint holds; what fails is logged and counted."""
        await asyncio.gather(
            *(
                self._commit(topic, position)
                for topic, position in positions.items()
                if topic in self._links and position.order > self._acked.get(topic, EARLIEST).order
            )
        )

    async def _commit(self, topic: str, position: Position) -> None:
        # A cumulative ack within a batch undoes single ones behind it; up to the entry before does
        # not, and the rest of that entry is kept.
        entry = position.entry - (position.batch_index >= 0)
        if position.ledger < 0:
            return
        try:
            receipt = self._links[topic].ack(AckPlan(0, (position.ledger, entry, 0, -1), [], []))
            if receipt is not None:
                async with asyncio.timeout(_ACK_S):
                    await receipt
        except TimeoutError:
            self._not_acked(topic, position, f"no answer within {_ACK_S:g} s")
            return
        except EncoreError as error:
            self._not_acked(topic, position, error)
            return
        self._acked[topic] = position

    def _not_acked(self, topic: str, position: Position, why: object) -> None:
        self.errors += 1
        log.warning("%s: %s is not acked yet: %s", topic, position, why)

    async def forget(self, topic: str) -> None:
        """The topic is no more."""
        self._piles.pop(topic, None)
        self._acked.pop(topic, None)
        self._found.pop(topic, None)
        self._was_there.discard(topic)
        link = self._links.pop(topic, None)
        if link is not None:
            await link.close()

    async def close(self, *, delete: bool) -> None:
        """Give the subscription back; it stays at the brokers unless it is to be deleted."""
        links, self._links = self._links, {}
        for topic, link in links.items():
            if delete:
                try:
                    await link.unsubscribe()
                except (TransportError, TopicNotFound) as error:
                    log.warning("%s: the subscription %s stays: %s", topic, self._name, error)
            await link.close()


def _position_of(acked: MessageId) -> Position:
    if acked.ledger_id() < 0:
        return EARLIEST
    return Position(acked.ledger_id(), acked.entry_id())
