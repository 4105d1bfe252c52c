"""Topics of a namespace by a pattern: listed when asked for, and told of when they come and go."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from pulsar_encore.wire import pb, topics_hash

from .bare import Bare
from .cluster import Cluster

NAMESPACE = "public/default"
EMPTY = "00000000"


@pytest.fixture
def request_ids() -> Callable[[], int]:
    return itertools.count(500).__next__


@pytest.fixture
def names(topic: str) -> list[str]:
    """A topic and two partitions; short, as a pattern has 50 characters at most."""
    short = f"persistent://{NAMESPACE}/w{topic[-8:]}"
    return [f"{short}-a", f"{short}-p-partition-0", f"{short}-p-partition-1"]


@pytest.fixture
def pattern(topic: str) -> str:
    return f"{NAMESPACE}/w{topic[-8:]}.*"


class Watch:
    """The watcher of number 7."""

    def __init__(self, bare: Bare, request_ids: Callable[[], int]) -> None:
        self._bare = bare
        self._request_ids = request_ids

    async def start(
        self, pattern: str, known: str | None = None, namespace: str = NAMESPACE
    ) -> pb.BaseCommand:
        """WATCH_TOPIC_LIST; gives its answer, or ERROR."""
        ask = pb.CommandWatchTopicList(
            namespace=namespace,
            request_id=self._request_ids(),
            watcher_id=7,
            topics_pattern=pattern,
            topics_hash=known,
        )
        return await self._bare.ask(ask, "WATCH_TOPIC_LIST_SUCCESS")

    async def update(self) -> tuple[list[str], list[str], str]:
        """New topics, deleted ones, the hash after that."""
        update = (await self._bare.answer("WATCH_TOPIC_UPDATE")).watchTopicUpdate
        assert update.watcher_id == 7
        return list(update.new_topics), list(update.deleted_topics), update.topics_hash


async def test_a_watcher_is_told_of_each_topic_that_comes_and_goes(
    cluster: Cluster, names: list[str], pattern: str, request_ids: Callable[[], int]
) -> None:
    async with Bare(cluster.url) as bare:
        watch = Watch(bare, request_ids)
        begun = (await watch.start(pattern)).watchTopicListSuccess
        assert (begun.watcher_id, list(begun.topic), begun.topics_hash) == (7, [], EMPTY)
        await cluster.create_topic(names[0])
        assert await watch.update() == (names[:1], [], topics_hash(names[:1]))
        await cluster.create_partitioned_topic(names[1].removesuffix("-partition-0"), 2)
        seen = [await watch.update() for _ in range(2)]
        assert sorted(one for new, _, _ in seen for one in new) == names[1:]
        assert seen[1][2] == topics_hash(names)
        await cluster.delete_topic(names[0])
        assert await watch.update() == ([], names[:1], topics_hash(names[1:]))


async def test_a_watch_that_is_asked_for_again_gives_the_list_unless_it_is_known(
    cluster: Cluster, names: list[str], pattern: str, request_ids: Callable[[], int]
) -> None:
    await cluster.create_topic(names[0])
    async with Bare(cluster.url) as bare:
        watch = Watch(bare, request_ids)
        hashed = topics_hash(names[:1])
        for known, listed in ((None, names[:1]), (hashed, []), (EMPTY, names[:1])):
            answer = (await watch.start(pattern, known)).watchTopicListSuccess
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
async def test_patterns_are_matched_in_full_without_domain_and_partition(
    cluster: Cluster,
    names: list[str],
    pattern: str,
    request_ids: Callable[[], int],
    change: Callable[[str], str],
    count: int,
) -> None:
    await cluster.create_topic(names[0])
    await cluster.create_partitioned_topic(names[1].removesuffix("-partition-0"), 2)
    async with Bare(cluster.url) as bare:
        watched = (await Watch(bare, request_ids).start(change(pattern))).watchTopicListSuccess
        assert len(watched.topic) == count
        ask = pb.CommandGetTopicsOfNamespace(
            namespace=NAMESPACE, request_id=request_ids(), topics_pattern=change(pattern)
        )
        listed = (
            await bare.ask(ask, "GET_TOPICS_OF_NAMESPACE_RESPONSE")
        ).getTopicsOfNamespaceResponse
        assert listed.filtered and sorted(listed.topics) == sorted(watched.topic)
        assert listed.topics_hash == watched.topics_hash


async def test_what_a_watch_is_refused_for(
    cluster: Cluster, request_ids: Callable[[], int]
) -> None:
    async with Bare(cluster.url) as bare:
        watch = Watch(bare, request_ids)
        long = f"{NAMESPACE}/{'a' * 50}"
        for pattern, name in ((long, "NotAllowedError"), ("public/((", "InvalidTopicName")):
            refused = await watch.start(pattern)
            assert pb.ServerError.Name(refused.error.error) == name
        for ask, name in (
            ("public/((", "MetadataError"),
            (long, None),
        ):
            listed = await bare.ask(
                pb.CommandGetTopicsOfNamespace(
                    namespace=NAMESPACE, request_id=request_ids(), topics_pattern=ask
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
    async with Bare(cluster.url) as bare:
        answer = await Watch(bare, request_ids).start("public/none/.*", namespace="public/none")
        assert answer.watchTopicListSuccess.topics_hash == EMPTY


async def test_a_watch_ends_when_it_is_closed(
    cluster: Cluster, names: list[str], pattern: str, request_ids: Callable[[], int]
) -> None:
    async with Bare(cluster.url) as bare:
        watch = Watch(bare, request_ids)
        await watch.start(pattern)
        for _ in range(2):  # the second time there is none
            request = request_ids()
            answer = await bare.ask(
                pb.CommandWatchTopicListClose(watcher_id=7, request_id=request),
                "SUCCESS",
            )
            assert answer.success.request_id == request
        await cluster.create_topic(names[0])
        with pytest.raises(TimeoutError):
            await bare.answer("WATCH_TOPIC_UPDATE", timeout=0.5)
