"""Discovery: redirects, watchers of topic lists, and deleted topics."""

from __future__ import annotations

from collections.abc import Callable

import pulsar
import pytest
from session_kit import TOPIC, HandClock, MemoryClient

from pulsar_encore.devbroker import BrokerSettings, BrokerThread, Refusal
from pulsar_encore.devbroker.broker_service import BrokerService
from pulsar_encore.wire import pb, topics_hash

PREFIX = "persistent://public/default/"
LOOKUP = pb.CommandLookupTopicResponse


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def serve(clock: HandClock, **settings: object) -> BrokerService:
    return BrokerService(BrokerSettings(**settings), clock, lambda seconds: None)  # type: ignore[arg-type]


def watch(client: MemoryClient, pattern: str, watcher_id: int = 7) -> None:
    client.send(
        pb.CommandWatchTopicList(
            namespace="public/default",
            request_id=1,
            watcher_id=watcher_id,
            topics_pattern=pattern,
        )
    )


def updates(client: MemoryClient) -> list[tuple[int, list[str], list[str], str]]:
    """Return (watcher, new topics, deleted topics, hash) of each update."""
    found = [frame.command.watchTopicUpdate for frame in client.got]
    return [
        (one.watcher_id, list(one.new_topics), list(one.deleted_topics), one.topics_hash)
        for one in found
        if one.topics_hash
    ]


def test_a_broker_that_does_not_serve_a_topic_redirects(clock: HandClock) -> None:
    client = MemoryClient(serve(clock, redirect_to="pulsar://other:6650"))
    client.send(pb.CommandLookupTopic(topic=TOPIC, request_id=1, authoritative=False))
    client.subscribe()
    client.produce()
    clock.advance()
    assert client.names() == ["CONNECTED", "LOOKUP_RESPONSE", "ERROR", "ERROR"]
    answer = client.got[1].command.lookupTopicResponse
    assert (answer.response, answer.brokerServiceUrl) == (LOOKUP.Redirect, "pulsar://other:6650")
    assert answer.authoritative and not answer.HasField("brokerServiceUrlTls")
    assert {frame.command.error.error for frame in client.got[2:]} == {pb.ServiceNotReady}


def test_the_stock_client_follows_a_redirect(
    start: Callable[..., BrokerThread], connect: Callable[..., pulsar.Client]
) -> None:
    owner = start()
    front = start(redirect_to=owner.url)
    client = connect(front)
    consumer = client.subscribe("t", "s")
    client.create_producer("t").send(b"one")
    assert consumer.receive(5000).data() == b"one"
    assert front.recorded("SUBSCRIBE") == [] != owner.recorded("SUBSCRIBE")


def test_each_watcher_is_notified_of_its_own_topics(clock: HandClock) -> None:
    service = serve(clock)
    first, second = MemoryClient(service), MemoryClient(service)
    watch(first, "public/default/a.*")
    watch(first, "public/default/b.*", watcher_id=8)
    watch(second, "public/default/.*")
    for name in ("a", "b"):
        service.catalogue.create(name)
    clock.advance()
    hashes = [topics_hash([PREFIX + name for name in names]) for names in ("a", "b", "ab")]
    assert updates(first) == [
        (7, [PREFIX + "a"], [], hashes[0]),
        (8, [PREFIX + "b"], [], hashes[1]),
    ]
    assert [hashed for *_, hashed in updates(second)] == [hashes[0], hashes[2]]


def test_a_topic_created_by_a_consumer_is_reported_to_watchers(clock: HandClock) -> None:
    client = MemoryClient(serve(clock))
    watch(client, "public/default/t")
    client.subscribe()
    clock.advance()
    assert [new for _, new, _, _ in updates(client)] == [[TOPIC]]


def test_deleted_partitions_are_reported_one_by_one(clock: HandClock) -> None:
    service = serve(clock)
    service.catalogue.create_partitioned("t", 2)
    client = MemoryClient(service)
    watch(client, "public/default/t")
    service.delete("t")
    clock.advance()
    partitions = [f"{TOPIC}-partition-{number}" for number in range(2)]
    assert [deleted for _, _, deleted, _ in updates(client)] == [partitions[:1], partitions[1:]]
    assert updates(client)[-1][3] == "00000000"
    assert service.catalogue.partitioned == {} == service.catalogue.topics


def test_deleting_a_topic_closes_its_clients_and_they_may_reconnect(clock: HandClock) -> None:
    service = serve(clock)
    client = MemoryClient(service)
    client.subscribe()
    client.produce()
    client.publish(b"one")
    clock.advance()
    service.delete(TOPIC)
    clock.advance()
    assert client.names()[-2:] == ["CLOSE_CONSUMER", "CLOSE_PRODUCER"]
    client.subscribe()
    clock.advance()
    assert client.names()[-1] == "SUCCESS"
    assert service.catalogue.topic(TOPIC).log.end == 0


@pytest.mark.parametrize("name", ["none", "t-partition-0"])
def test_deletions_that_are_refused(clock: HandClock, name: str) -> None:
    service = serve(clock)
    service.catalogue.create_partitioned("t", 2)
    with pytest.raises(Refusal):
        service.delete(name)
    assert len(service.catalogue.topics) == 2


@pytest.mark.parametrize("watchers", [True, False])
def test_watchers_can_be_disabled(clock: HandClock, watchers: bool) -> None:
    client = MemoryClient(serve(clock, topic_watchers=watchers))
    watch(client, "public/default/.*")
    clock.advance()
    assert client.names()[-1] == ("WATCH_TOPIC_LIST_SUCCESS" if watchers else "ERROR")
    flags = client.got[0].command.connected.feature_flags
    assert flags.supports_topic_watchers is watchers
    assert flags.supports_topic_watcher_reconcile is watchers


def test_a_malformed_namespace_costs_the_connection(clock: HandClock) -> None:
    client = MemoryClient(serve(clock))
    client.send(
        pb.CommandWatchTopicList(
            namespace="public", request_id=1, watcher_id=1, topics_pattern=".*"
        )
    )
    assert client.closed


def test_topic_lists_have_no_non_persistent_topics(clock: HandClock) -> None:
    service = serve(clock)
    service.catalogue.create("t")
    client = MemoryClient(service)
    modes = pb.CommandGetTopicsOfNamespace
    for mode in (modes.NON_PERSISTENT, modes.PERSISTENT, modes.ALL):
        client.send(
            pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=1, mode=mode)
        )
    clock.advance()
    found = [frame.command.getTopicsOfNamespaceResponse.topics for frame in client.got[1:]]
    assert [list(each) for each in found] == [[], [TOPIC], [TOPIC]]
