"""The subscription of a query is taken though brokers are still removing who asked for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from pulsar_encore.exceptions import NotAllowedError
from pulsar_encore.ids import MessageId
from pulsar_encore.options import Subscription
from pulsar_encore.spark.driver import cursor
from pulsar_encore.spark.driver.cursor import Cursors
from pulsar_encore.spark.options import read_options
from pulsar_encore.spark.positions import EARLIEST
from pulsar_encore.testing import run

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


def held(broker: Broker) -> Cursors:
    options = read_options(GIVEN, streaming=True)
    with patch.object(cursor, "transport_of", lambda client: broker):
        return Cursors(None, options, None)  # type: ignore[arg-type]


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


def test_one_that_stays_is_said() -> None:
    async def main() -> None:
        await held(Broker(refusals=10_000)).position(TOPIC, EARLIEST)

    with pytest.raises(NotAllowedError, match="already exists"):
        run(main())
