"""Transactional writes of Spark on a real Pulsar, under kills and crashes of the driver."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

import pulsar_encore as encore
from pulsar_encore.spark.sink.commit_journal import Prepared, decode
from tests.harness.admin import Admin
from tests.harness.pulsar_server import Broker, own_broker

from ..conftest import OwnPulsar
from .numbered_topics import KILLS
from .sink_driver import BATCHES, ROWS, Driver, read, run_with_kills
from .sink_source import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# looptime's plugin requests a loop before every synchronous test; see the contract's fixtures.
asyncio.set_event_loop(None)

KILLS_TIMEOUT_S = 1500 + 60 * KILLS

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def transactional() -> Iterator[Broker]:
    with own_broker("standalone", transactionCoordinatorEnabled="true") as broker:
        yield broker


def options_of(broker: Broker, topic: str) -> dict[str, str]:
    return {
        "service.url": broker.service_url,
        "topic": topic,
        "transactional": "true",
        "journalTopic": f"{topic}-journal",
    }


def prepared_batches(url: str, topic: str) -> set[int]:
    records = [decode(each.data(), topic) for each in read(url, f"{topic}-journal")]
    return {each.key.batch for each in records if isinstance(each, Prepared)}


class VisibleRows:
    """Reads the topic all the time, and notes rows of batches that are not prepared.

    Attributes:
        numbers: Of visible rows.
    """

    def __init__(self, url: str, topic: str) -> None:
        self.too_early: set[int] = set()
        self.polls = 0
        self.numbers: set[int] = set()
        self._url = url
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            try:
                rows = read(self._url, self._topic)
                seen = {int(each.data()) // ROWS for each in rows}
                # Read the journal after the rows: it has to know the batch of each of them.
                self.too_early |= seen - prepared_batches(self._url, self._topic)
            except encore.PulsarException:
                continue
            self.polls += bool(seen)
            self.numbers.add(len(rows))

    @contextmanager
    def polled(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()


class RandomKills:
    """Lets a kill be due after a random number of further messages.

    Messages of killed attempts count, too, so that each kill hits a running batch.
    """

    def __init__(self, stored: Callable[[], int]) -> None:
        self._stored = stored
        self._random = random.Random(34)
        self._kills = -1
        self._goal = 0

    def is_due(self, kills: int) -> bool:
        stored = self._stored()
        if kills != self._kills:
            self._kills, self._goal = kills, stored + self._random.randrange(50, 3 * ROWS // 2)
        return stored >= self._goal


@pytest.mark.timeout(KILLS_TIMEOUT_S + 300)
def test_every_row_is_visible_exactly_once_when_drivers_and_workers_are_killed(
    transactional: Broker, topic: str, tmp_path: Path
) -> None:
    admin, url = Admin(transactional.admin_url), transactional.service_url
    batches = BATCHES + KILLS // 2
    total = batches * ROWS
    for each, name in ((topic, "keep"), (f"{topic}-journal", "spark-sink")):
        admin.create_topic(each)
        admin.create_subscription(each, name)

    def stored() -> int:
        return int(admin.stats(topic)["msgInCounter"])

    watched = VisibleRows(url, topic)
    with watched.polled():
        kills = run_with_kills(
            tmp_path / "checkpoint",
            options_of(transactional, topic),
            stored,
            batches=batches,
            is_due=RandomKills(stored).is_due,
            timeout_s=KILLS_TIMEOUT_S,
        )
    assert kills == KILLS
    found = Counter(int(each.data()) for each in read(url, topic))
    repeated = stored() - total
    print(f"{kills} kills, {total} rows, each once; {repeated} messages more were not visible")
    assert sorted(found) == list(range(total))
    assert found.total() == total
    assert watched.polls and not watched.too_early


@pytest.mark.timeout(600)
@pytest.mark.parametrize("commits", [0, 1])
def test_a_driver_that_ends_in_the_second_phase_is_continued(
    transactional: Broker, topic: str, tmp_path: Path, commits: int
) -> None:
    """The batch was prepared, and none or one of its two transactions was committed."""
    crash = tmp_path / "crash"
    crash.touch()
    options = {
        **options_of(transactional, topic),
        "crashFile": str(crash),
        "crashAfterCommits": str(commits),
    }
    driver = Driver(tmp_path / "checkpoint", options, batches=3)
    deadline = time.monotonic() + 300
    try:
        while not driver.ended:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert not crash.exists()
        visible_at_crash = len(read(transactional.service_url, topic))
        driver = Driver(tmp_path / "checkpoint", options, batches=3)
        while not driver.ended:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert not driver.problems()
    finally:
        driver.kill()
    # The open transaction of the other task hides rows that are stored behind its first row.
    assert visible_at_crash <= commits * ROWS // 2
    found = Counter(int(each.data()) for each in read(transactional.service_url, topic))
    assert sorted(found) == list(range(3 * ROWS))
    assert found.total() == 3 * ROWS


def test_a_batch_write_is_visible_as_a_whole_or_not_at_all(
    spark: SparkSession, transactional: Broker, topic: str
) -> None:
    spark.dataSource.register(Sink)
    url = transactional.service_url
    options = options_of(transactional, topic)

    def rows(fail_at: int) -> None:
        spark.range(0, 1000, numPartitions=3).select(
            F.when(F.col("id") == fail_at, F.raise_error(F.lit("wrong row")))
            .otherwise(F.col("id").cast("string"))
            .alias("value")
        ).write.format("sink").options(**options).mode("append").save()

    with pytest.raises(PySparkException, match="wrong row"):
        rows(fail_at=900)
    assert read(url, topic) == []
    rows(fail_at=-1)
    assert Counter(int(each.data()) for each in read(url, topic)) == Counter(range(1000))


def test_a_cluster_without_transactions_is_named_before_a_task_runs(
    spark: SparkSession, own_pulsar: OwnPulsar, topic: str
) -> None:
    without = own_pulsar(transactionCoordinatorEnabled=False)
    spark.dataSource.register(Sink)
    frame = spark.range(10).select(F.col("id").cast("string").alias("value"))
    with pytest.raises(PySparkException, match="transactionCoordinatorEnabled=true"):
        frame.write.format("sink").options(**options_of(without, topic)).mode("append").save()


# One transaction for a batch


@pytest.mark.timeout(600)
def test_batches_with_a_shared_transaction_appear_as_a_whole_after_failures_and_a_crash(
    transactional: Broker, topic: str, tmp_path: Path
) -> None:
    """A worker ends after it has sent rows, so the query ends, and is started again.

    Then the driver ends after it has prepared the batch.
    """
    admin, url = Admin(transactional.admin_url), transactional.service_url
    for each, name in ((topic, "keep"), (f"{topic}-journal", "spark-sink")):
        admin.create_topic(each)
        admin.create_subscription(each, name)
    fail, crash = tmp_path / "fail", tmp_path / "crash"
    fail.touch()
    crash.touch()
    options = {
        **options_of(transactional, topic),
        "transactional": "batch",
        "failFile": str(fail),
        "crashFile": str(crash),
    }

    def run() -> str:
        driver = Driver(tmp_path / "checkpoint", options, batches=3, attempts=2, restarts=1)
        deadline = time.monotonic() + 250
        try:
            while not driver.ended:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            return driver.problems()
        finally:
            driver.kill()

    watched = VisibleRows(url, topic)
    with watched.polled():
        run()
        assert not fail.exists() and not crash.exists()
        assert prepared_batches(url, topic) == {0} and read(url, topic) == []
        assert run() == ""
    found = Counter(int(each.data()) for each in read(url, topic))
    repeated = int(admin.stats(topic)["msgInCounter"]) - 3 * ROWS
    print(f"{repeated} messages of the failed batch were not visible")
    assert found == Counter(range(3 * ROWS)) and repeated > 0
    assert watched.polls and not watched.too_early
    assert all(each % ROWS == 0 for each in watched.numbers), watched.numbers


def test_a_batch_write_with_a_shared_transaction_fails_as_a_whole_if_an_attempt_fails(
    spark: SparkSession, transactional: Broker, topic: str, tmp_path: Path
) -> None:
    spark.dataSource.register(Sink)
    url, fail = transactional.service_url, tmp_path / "fail"
    fail.touch()
    options = {
        **options_of(transactional, topic),
        "transactional": "batch",
        "failFile": str(fail),
    }

    def write() -> None:
        frame = spark.range(0, 1000, numPartitions=3).select(F.col("id").cast("string"))
        frame.toDF("value").write.format("sink").options(**options).mode("append").save()

    with pytest.raises(PySparkException, match="another attempt at task"):
        write()
    assert not fail.exists()
    admin = Admin(transactional.admin_url)
    assert int(admin.stats(topic)["msgInCounter"]) > 0 and read(url, topic) == []
    write()
    assert Counter(int(each.data()) for each in read(url, topic)) == Counter(range(1000))
