"""Topics of a namespace by pattern: listed on request, and watched for changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from pulsar_encore.wire import pb, topics_hash

from .cluster import Cluster
from .frame_client import FrameClient

NAMESPACE = "public/default"
EMPTY = "00000000"


@pytest.fixture
def request_ids() -> Callable[[], int]:
    return itertools.count(500).__next__


@pytest.fixture
def names(topic: str) -> list[str]:
    """A topic and two partitions. The names are short, because a pattern has at most 50
    characters.
    """
    short = f"persistent://{NAMESPACE}/w{topic[-8:]}"
    return [f"{short}-a", f"{short}-p-partition-0", f"{short}-p-partition-1"]


@pytest.fixture
def pattern(topic: str) -> str:
    return f"{NAMESPACE}/w{topic[-8:]}.*"


class Watch:
    """The watcher with the id 7."""

    def __init__(self, connection: FrameClient, request_ids: Callable[[], int]) -> None:
        self._connection = connection
        self._request_ids = request_ids

    async def start(
        self, pattern: str, known_hash: str | None = None, namespace: str = NAMESPACE
    ) -> pb.BaseCommand:
        """Send WATCH_TOPIC_LIST. Return its answer, or ERROR."""
        request = pb.CommandWatchTopicList(
            namespace=namespace,
            request_id=self._request_ids(),
            watcher_id=7,
            topics_pattern=pattern,
            topics_hash=known_hash,
        )
        return await self._connection.request(request, "WATCH_TOPIC_LIST_SUCCESS")

    async def update(self) -> tuple[list[str], list[str], str]:
        """Return the new topics, the deleted topics, and the hash after the update."""
        update = (await self._connection.answer("WATCH_TOPIC_UPDATE")).watchTopicUpdate
        assert update.watcher_id == 7
        return list(update.new_topics), list(update.deleted_topics), update.topics_hash


async def test_a_watcher_is_notified_of_created_and_deleted_topics(
    cluster: Cluster, names: list[str], pattern: str, request_ids: Callable[[], int]
) -> None:
    async with FrameClient(cluster.url) as connection:
        watch = Watch(connection, request_ids)
        success = (await watch.start(pattern)).watchTopicListSuccess
        assert (success.watcher_id, list(success.topic), success.topics_hash) == (7, [], EMPTY)
        await cluster.create_topic(names[0])
        assert await watch.update() == (names[:1], [], topics_hash(names[:1]))
        await cluster.create_partitioned_topic(names[1].removesuffix("-partition-0"), 2)
        seen = [await watch.update() for _ in range(2)]
        assert sorted(one for new, _, _ in seen for one in new) == names[1:]
        assert seen[1][2] == topics_hash(names)
        await cluster.delete_topic(names[0])
        assert await watch.update() == ([], names[:1], topics_hash(names[1:]))


async def test_a_repeated_watch_lists_the_topics_unless_the_hash_is_current(
    cluster: Cluster, names: list[str], pattern: str, request_ids: Callable[[], int]
) -> None:
    await cluster.create_topic(names[0])
    async with FrameClient(cluster.url) as connection:
        watch = Watch(connection, request_ids)
        hashed = topics_hash(names[:1])
        for known_hash, listed in ((None, names[:1]), (hashed, []), (EMPTY, names[:1])):
            answer = (await watch.start(pattern, known_hash)).watchTopicListSuccess
            assert (list(answer.topic), answer.topics_hash) == (listed, hashed)


@pytest.mark.parametrize(
    ("change", "count"),
    [
        (lambda pattern: f"persistent://{pattern}", 3),
        (lambda pattern: f"^{pattern}$", 3),
        (lambda pattern: pattern.rpartition("/")[2], 0),
        (lambda pattern: pattern.replace(".*", "-p"), 2),
        (lambda pattern: pattern.replace(".*", "-p-partition-.*"), 0),
    ],
    ids=["domain", "anchors", "bare name", "topic of partitions", "partition"],
)
async def test_patterns_match_full_names_without_domain_and_partition(
    cluster: Cluster,
    names: list[str],
    pattern: str,
    request_ids: Callable[[], int],
    change: Callable[[str], str],
    count: int,
) -> None:
    await cluster.create_topic(names[0])
    await cluster.create_partitioned_topic(names[1].removesuffix("-partition-0"), 2)
    async with FrameClient(cluster.url) as connection:
        watched = (
            await Watch(connection, request_ids).start(change(pattern))
        ).watchTopicListSuccess
        assert len(watched.topic) == count
        request = pb.CommandGetTopicsOfNamespace(
            namespace=NAMESPACE, request_id=request_ids(), topics_pattern=change(pattern)
        )
        listed = (
            await connection.request(request, "GET_TOPICS_OF_NAMESPACE_RESPONSE")
        ).getTopicsOfNamespaceResponse
        assert listed.filtered and sorted(listed.topics) == sorted(watched.topic)
        assert listed.topics_hash == watched.topics_hash


async def test_invalid_patterns_are_refused(
    cluster: Cluster, request_ids: Callable[[], int]
) -> None:
    async with FrameClient(cluster.url) as connection:
        watch = Watch(connection, request_ids)
        long = f"{NAMESPACE}/{'a' * 50}"
        for pattern, name in ((long, "NotAllowedError"), ("public/((", "InvalidTopicName")):
            refused = await watch.start(pattern)
            assert pb.ServerError.Name(refused.error.error) == name
        for request, name in (
            ("public/((", "MetadataError"),
            (long, None),
        ):
            listed = await connection.request(
                pb.CommandGetTopicsOfNamespace(
                    namespace=NAMESPACE, request_id=request_ids(), topics_pattern=request
                ),
                "GET_TOPICS_OF_NAMESPACE_RESPONSE",
            )
            if name is None:
                assert not listed.getTopicsOfNamespaceResponse.filtered
            else:
                assert pb.ServerError.Name(listed.error.error) == name


async def test_a_namespace_without_topics_can_be_watched(
    cluster: Cluster, request_ids: Callable[[], int]
) -> None:
    async with FrameClient(cluster.url) as connection:
        answer = await Watch(connection, request_ids).start(
            "public/none/.*", namespace="public/none"
        )
        assert answer.watchTopicListSuccess.topics_hash == EMPTY


async def test_a_closed_watch_sends_no_updates(
    cluster: Cluster, names: list[str], pattern: str, request_ids: Callable[[], int]
) -> None:
    async with FrameClient(cluster.url) as connection:
        watch = Watch(connection, request_ids)
        await watch.start(pattern)
        for _ in range(2):  # the second close finds no watcher
            request = request_ids()
            answer = await connection.request(
                pb.CommandWatchTopicListClose(watcher_id=7, request_id=request),
                "SUCCESS",
            )
            assert answer.success.request_id == request
        await cluster.create_topic(names[0])
        with pytest.raises(TimeoutError):
            await connection.answer("WATCH_TOPIC_UPDATE", timeout=0.5)
