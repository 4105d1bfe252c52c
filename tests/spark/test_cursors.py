"""The subscription of a query is taken though brokers are still removing who asked for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from pulsar_encore.errors import TransportError
from pulsar_encore.exceptions import ConsumerBusy, NotAllowedError
from pulsar_encore.options import Subscription
from pulsar_encore.spark.driver import query_cursor as cursor
from pulsar_encore.spark.driver.query_cursor import QueryCursors
from pulsar_encore.spark.offsets import EARLIEST
from pulsar_encore.spark.source_options import read_options
from pulsar_encore.testing import run
from pulsar_encore.values.message_id import MessageId

TOPIC = "persistent://public/default/orders"
GIVEN = {"service.url": "pulsar://nowhere:6650", "topic": TOPIC, "subscription": "query"}


class Link:
    async def acked_position(self) -> MessageId:
        return MessageId.earliest

    def start(self, _: object) -> None: ...

    async def close(self) -> None: ...


class Broker:
    """Removes a subscription that is not durable a while after its consumer has gone.

    Attributes:
        asked: All that were asked for.
    """

    capabilities = SimpleNamespace(name="native")

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.asked: list[Subscription] = []

    async def subscribe(self, subscription: Subscription) -> Any:
        self.asked.append(subscription)
        if subscription.durable and self.refusals:
            self.refusals -= 1
            raise NotAllowedError("NonDurable subscription with the same name already exists")
        return Link()


def held(broker: Broker) -> QueryCursors:
    options = read_options(GIVEN, streaming=True)
    with patch.object(cursor, "transport_of", lambda client: broker):
        return QueryCursors(None, options, None)  # type: ignore[arg-type]


def test_it_is_asked_for_until_the_one_that_looked_is_gone() -> None:
    broker = Broker(refusals=3)

    async def main() -> None:
        cursors = held(broker)
        assert await cursors.position(TOPIC, EARLIEST) == EARLIEST
        assert cursors.was_there(TOPIC) is False

    run(main())
    assert [each.durable for each in broker.asked] == [False, True, True, True, True]
    # Should a broker give its place to who comes next, that is the beginning, and not the end.
    assert broker.asked[0].start_message_id == MessageId.earliest


class Admin:
    """Knows who consumes, or does not answer."""

    def __init__(self, holders: list[str] | None) -> None:
        self._holders = holders

    async def ledgers(self, topic: str) -> Any:
        return SimpleNamespace(subscriptions=frozenset())

    async def holders(self, topic: str, subscription: str) -> list[str]:
        assert (topic, subscription) == (TOPIC, "query")
        if self._holders is None:
            raise TransportError("no answer")
        return self._holders


@pytest.mark.parametrize(
    ("admin", "said"),
    [
        (Admin(["the consumer 'c' at 10.0.0.1:5 since noon"]), "the consumer 'c' at 10.0.0.1:5 si"),
        (Admin([]), "another query or consumer holds it"),
        (Admin(None), r"admin.url does not answer: no answer"),
        (None, r"pulsar-admin topics stats.*admin\.url"),
    ],
)
def test_who_holds_a_subscription_that_stays_busy(admin: Any, said: str) -> None:
    class Busy(Broker):
        async def subscribe(self, subscription: Subscription) -> Any:
            raise ConsumerBusy("Exclusive consumer is already connected")

    options = read_options(GIVEN, streaming=True)
    with patch.object(cursor, "transport_of", lambda client: Busy(0)):
        cursors = QueryCursors(None, options, admin)  # type: ignore[arg-type]

    async def main() -> None:
        await cursors.position(TOPIC, EARLIEST)

    with pytest.raises(ConsumerBusy, match=f"'query' of {TOPIC} is in use: .*{said}"):
        run(main())


def test_one_that_stays_is_said() -> None:
    async def main() -> None:
        await held(Broker(refusals=10_000)).position(TOPIC, EARLIEST)

    with pytest.raises(NotAllowedError, match="already exists"):
        run(main())
