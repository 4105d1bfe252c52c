"""Partition choice: keys as in the stock transport and Java, and the spread of other messages."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.wire.key_hashes import boost, java_string, murmur3
from pulsar_encore.wire.partition_by_key import BatchLimits, HashingScheme, PartitionRouter

PARTITIONS = 97
# The key, the partition of 97 to which pulsar-client 3.13.0 sent it, and its values of
# JavaStringHash and Murmur3Hash32 in Java's client 4.2.4.
SEEN = [
    ("a", 6, 97, 1009084850),
    ("z1", 14, 3831, 1190676024),
    ("\u4e2d", 20, 20013, 1591696466),
    ("-pBe", 22, 1450374, 150501844),
    ("9kz/r", 5, 55947147, 1776331991),
    ("et15my", 59, 852703231, 509879512),
    ("d\u4e2d0y9", 22, 688609319, 1237324922),
    ("B3r Aw_y", 75, 374742319, 90642628),
    ("A2x74ui/0", 27, 473221401, 60839546),
    ("ba\xe99g1\xdfi", 82, 1616620291, 1224338581),
    ("_0f2r\xdf\U0001f600", 26, 685493837, 1622282925),
    ("rwbqcab\xe903m", 37, 418455345, 43183912),
    ("wuf\xe9xbv3DC b", 90, 631231497, 885520621),
    ("jfljo-oaF5lqsa", 83, 2147302124, 1678209916),
    ("\xdfgzFk-ok B0zvA", 65, 604487913, 1710754599),
    ("-th\U0001f600j 9-xjqiD", 16, 71738540, 721394659),
    ("hkqdlmt8t1\u4e2dnsC0", 34, 131928359, 1133308741),
    ("cDlkrCaqxv3upctnwl", 36, 1273951139, 165981423),
    ("dbmF_9Afqo-BxoFc/v ", 88, 1773516380, 1295006541),
    ("jz9de2gx5d0ncfBAepf3", 52, 1687632224, 220223018),
    ("oxi3xqpdcg48 zdnFBF\xe9", 13, 1030941483, 143260461),
    ("Fzv0r0wn9Fhvmu ti58fcz", 65, 1927911627, 812466874),
    ("\xe9hfkvml91\xdfDct-\xe9yxvCk", 87, 1647731972, 1270684329),
    ("yfEr09mp0\U0001f600afqfjz5czbt", 37, 1695865415, 399689135),
    ("8of51\u4e2dj- 6y\u4e2du\xe9Fjs\xe97", 60, 2077816122, 1065877611),
    ("rta\xe9\u4e2d68ebogE D\U0001f600yqBFi", 25, 1820062459, 1699361358),
    ("d4ho885d45zdoc3isAj2h4t3_lg", 61, 1898445278, 1273287699),
]


@pytest.mark.parametrize(("key", "partition", "java", "murmur"), SEEN)
def test_keys_hash_as_in_other_clients(key: str, partition: int, java: int, murmur: int) -> None:
    assert boost(key.encode()) % PARTITIONS == partition
    assert java_string(key) == java
    assert murmur3(key.encode()) == murmur


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"a", 0x3C2569B2),
        (b"abc", 0xB3DD93FA & 0x7FFFFFFF),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_murmur3_equals_published_values(data: bytes, expected: int) -> None:
    assert murmur3(data) == expected


@given(key=st.text(max_size=40), partitions=st.integers(1, 1000))
def test_any_text_is_a_key(key: str, partitions: int) -> None:
    for scheme in HashingScheme:
        assert 0 <= scheme.partition(key, partitions) < partitions
    assert java_string(key) < 1 << 31 and boost(key.encode()) < 1 << 31


def test_a_lone_surrogate_is_a_key_too() -> None:
    for scheme in HashingScheme:
        assert 0 <= scheme.partition("\ud800", 7) < 7


@pytest.mark.parametrize("scheme", list(HashingScheme))
def test_a_keyed_message_stays_on_its_partition_and_does_not_advance_the_round_robin(
    scheme: HashingScheme,
) -> None:
    router = PartitionRouter(start=5, hashing=scheme)
    assert router.route(None, size=1, partitions=3, now_ms=0) == 2
    for key in ("a", "b", "a"):
        assert router.route(key, size=1, partitions=3, now_ms=0) == scheme.partition(key, 3)
    assert router.route(None, size=1, partitions=3, now_ms=0) == 0


def test_an_empty_key_counts_as_no_key() -> None:
    router = PartitionRouter(start=0)
    assert [router.route("", size=1, partitions=3, now_ms=0) for _ in range(4)] == [0, 1, 2, 0]


def test_without_batches_every_message_goes_to_the_next_partition() -> None:
    router = PartitionRouter(start=1)
    counts = Counter(router.route(None, size=1, partitions=4, now_ms=0) for _ in range(400))
    assert counts == dict.fromkeys(range(4), 100)


def test_a_single_partition_is_kept() -> None:
    router = PartitionRouter(start=6, single=True, batch=BatchLimits(1, 1, 1))
    assert {router.route(None, size=9, partitions=4, now_ms=n) for n in range(9)} == {2}
    assert router.route("key", size=1, partitions=4, now_ms=0) == HashingScheme.BoostHash.partition(
        "key", 4
    )


@pytest.mark.parametrize(
    ("limits", "sizes", "times", "expected"),
    [
        (BatchLimits(3, 1000, 1000), [1] * 7, [0] * 7, "0001112"),
        (BatchLimits(1000, 100, 1000), [40, 40, 40, 20, 40, 500, 1], [0] * 7, "0011123"),
        (BatchLimits(1000, 1000, 10), [1] * 6, [50, 55, 59.9, 60, 69, 70], "000112"),
    ],
)
def test_batches_are_filled_before_the_next_partition(
    limits: BatchLimits, sizes: list[int], times: list[float], expected: str
) -> None:
    router = PartitionRouter(start=0, batch=limits)
    found = [
        router.route(None, size=size, partitions=9, now_ms=now_ms)
        for size, now_ms in zip(sizes, times, strict=True)
    ]
    assert "".join(map(str, found)) == expected


def test_later_partitions_get_their_share() -> None:
    router = PartitionRouter(start=0)
    growing = itertools.chain([2] * 4, [5] * 10)
    found = [router.route(None, size=1, partitions=n, now_ms=0) for n in growing]
    assert found[:4] == [0, 1, 0, 1]
    assert Counter(found[4:]) == dict.fromkeys(range(5), 2)


def test_a_single_partition_is_always_chosen() -> None:
    assert PartitionRouter(start=3).route("key", size=1, partitions=1, now_ms=0) == 0


def test_a_negative_start_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="start"):
        PartitionRouter(start=-1)
