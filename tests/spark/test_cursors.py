"""A query gets its subscription although the broker still removes the previous consumer."""

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
    """A broker that removes a non-durable subscription some time after its consumer has closed.

    Attributes:
        asked: All subscriptions that were requested.
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


def test_the_subscription_is_requested_until_the_previous_consumer_is_gone() -> None:
    broker = Broker(refusals=3)

    async def main() -> None:
        cursors = held(broker)
        assert await cursors.position(TOPIC, EARLIEST) == EARLIEST
        assert cursors.existed_before(TOPIC) is False

    run(main())
    assert [each.durable for each in broker.asked] == [False, True, True, True, True]
    # If a broker gave its position to the next consumer, that would be the beginning, not the end.
    assert broker.asked[0].start_message_id == MessageId.earliest


class Admin:
    """A web service that reports the consumers, or that does not answer."""

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
    ("admin", "message"),
    [
        (Admin(["the consumer 'c' at 10.0.0.1:5 since noon"]), "the consumer 'c' at 10.0.0.1:5 si"),
        (Admin([]), "another query or consumer holds it"),
        (Admin(None), r"admin.url does not answer: no answer"),
        (None, r"pulsar-admin topics stats.*admin\.url"),
    ],
)
def test_the_error_for_a_busy_subscription_names_its_consumers(admin: Any, message: str) -> None:
    class Busy(Broker):
        async def subscribe(self, subscription: Subscription) -> Any:
            raise ConsumerBusy("Exclusive consumer is already connected")

    options = read_options(GIVEN, streaming=True)
    with patch.object(cursor, "transport_of", lambda client: Busy(0)):
        cursors = QueryCursors(None, options, admin)  # type: ignore[arg-type]

    async def main() -> None:
        await cursors.position(TOPIC, EARLIEST)

    with pytest.raises(ConsumerBusy, match=f"'query' of {TOPIC} is in use: .*{message}"):
        run(main())


def test_a_subscription_that_stays_busy_is_an_error() -> None:
    async def main() -> None:
        await held(Broker(refusals=10_000)).position(TOPIC, EARLIEST)

    with pytest.raises(NotAllowedError, match="already exists"):
        run(main())
