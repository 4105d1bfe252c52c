"""`Consumer.lag` with a web service: its answers are replaced here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from consumer_kit import TOPIC

import pulsar_encore as encore
from pulsar_encore import AuthorizationError, ConfigurationError, InitialPosition
from pulsar_encore.admin import BacklogAnalysis, SubscriptionStats, TopicStats
from pulsar_encore.eventloop.alarm import wall_now_ms
from pulsar_encore.testing import MemoryTransport

OTHER = f"{TOPIC}2"
ADMIN = "http://localhost:8080"


@dataclass
class Web:
    """A web service with fixed answers."""

    backlogs: dict[str, int]
    age_s: float = 5
    per_entry: int = 3
    partitioned: dict[str, int] = field(default_factory=dict)
    stats_error: Exception | None = None
    asked: list[str] = field(default_factory=list)
    analysis_error: Exception | None = None
    closed: bool = False

    async def partitions(self, topic: str) -> int:
        return self.partitioned.get(topic, 0)

    async def stats(self, topic: str, *, partitioned: bool = False, earliest: bool) -> TopicStats:
        assert earliest and not self.closed
        self.asked.append(topic)
        await asyncio.sleep(1)
        if self.stats_error is not None:
            raise self.stats_error
        if partitioned:
            names = [f"{topic}-partition-{each}" for each in range(self.partitioned[topic])]
            return TopicStats({}, {name: self._of(name) for name in names})
        return self._of(topic)

    def _of(self, topic: str) -> TopicStats:
        backlog = self.backlogs[topic]
        published = wall_now_ms(asyncio.get_running_loop()) - int(self.age_s * 1000)
        found = SubscriptionStats("Shared", backlog, 0, 0, published if backlog else None, ())
        return TopicStats({"s": found}, {})

    async def analyze_backlog(self, topic: str, subscription: str) -> BacklogAnalysis:
        if self.analysis_error is not None:
            raise self.analysis_error
        entries = self.backlogs[topic]
        return BacklogAnalysis(entries, entries * self.per_entry, True)

    def close(self) -> None:
        self.closed = True


async def lag_of(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch, web: Web, *topics: str
) -> encore.Lag:
    made: Callable[..., Any] = lambda *_: web  # noqa: E731
    monkeypatch.setattr("pulsar_encore.admin.WebService", made)
    async with encore.Client("pulsar://memory", admin_url=ADMIN, transport=transport) as client:
        consumer = await client.subscribe(
            list(topics or (TOPIC,)), "s", initial_position=InitialPosition.Earliest
        )
        try:
            return await consumer.lag()
        finally:
            assert web.closed


async def test_there_is_no_age_if_the_last_messages_were_acked_while_they_were_counted(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = Web({TOPIC: 3}, per_entry=0)
    lag = await lag_of(transport, monkeypatch, web)
    assert (lag.messages, lag.seconds, lag.exact) == (0, 0.0, True)


async def test_messages_are_counted_and_not_entries(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    lag = await lag_of(transport, monkeypatch, Web({TOPIC: 4, OTHER: 0}), TOPIC, OTHER)
    assert [(each.topic, each.messages, each.exact) for each in lag.topics] == [
        (TOPIC, 12, True),
        (OTHER, 0, True),
    ]
    assert lag.messages == 12 and lag.exact
    assert lag.seconds == pytest.approx(5, abs=0.01)
    assert lag.topics[1].seconds == 0


async def test_partitions_are_summed(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 2)
    web = Web(
        {f"{TOPIC}-partition-0": 1, f"{TOPIC}-partition-1": 2}, partitioned={TOPIC: 2}, per_entry=1
    )
    lag = await lag_of(transport, monkeypatch, web)
    (of_topic,) = lag.topics
    assert (of_topic.topic, of_topic.messages, of_topic.exact) == (TOPIC, 3, True)


@pytest.mark.parametrize("backlog", [10_001, 4])
async def test_a_backlog_that_is_not_read_is_reported_in_entries(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch, backlog: int
) -> None:
    refusal = AuthorizationError("no permission to read the backlog") if backlog < 100 else None
    lag = await lag_of(transport, monkeypatch, Web({TOPIC: backlog}, analysis_error=refusal))
    assert lag.messages == backlog and not lag.exact


async def test_a_login_without_permission_is_told_what_to_do(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = Web({TOPIC: 1}, stats_error=AuthorizationError("HTTP 403"))
    with pytest.raises(AuthorizationError, match=r"HTTP 403\. .*without admin_url"):
        await lag_of(transport, monkeypatch, web)


async def test_a_failure_ends_the_questions_about_other_topics(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"{TOPIC}{each}" for each in range(30)]
    web = Web(dict.fromkeys(topics, 0), stats_error=encore.ConnectError("HTTP 502"))
    with pytest.raises(encore.ConnectError, match="502"):
        await lag_of(transport, monkeypatch, web, *topics)
    asked = len(web.asked)
    await asyncio.sleep(60)
    # The end of the first question lets a ninth one begin before the rest is cancelled.
    assert asked == len(web.asked) <= 9, "the service is closed"


async def test_a_cancelled_call_ends_its_questions(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"{TOPIC}{each}" for each in range(30)]
    web = Web(dict.fromkeys(topics, 0))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.5):
            await lag_of(transport, monkeypatch, web, *topics)
    await asyncio.sleep(60)
    assert len(web.asked) == 16


def test_topics_that_may_be_missing_are_not_exact() -> None:
    known = encore.TopicLag("persistent://public/default/a", 3, 1.5, True)
    lag = encore.Lag((known,), complete=False)
    assert (lag.messages, lag.seconds, lag.exact) == (3, 1.5, False)
    lag = encore.Lag((), complete=False)
    assert (lag.messages, lag.seconds, lag.exact) == (None, None, False), "not 0"


@pytest.mark.parametrize("url", ["localhost:8080", "pulsar://localhost:6650", "http://", 5])
def test_an_invalid_admin_url_is_refused(url: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"admin_url must be like http://host:8080"):
        encore.Client("pulsar://localhost:6650", admin_url=url)
