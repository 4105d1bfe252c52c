"""Transactional writes on a development broker, called in the way Spark calls them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pytest
from pyspark import TaskContext
from sink_kit import NAMESPACE, Home, batch_of, home, schema_of

import pulsar_encore as encore
from pulsar_encore.client import Client
from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.errors import (
    ConfigurationError,
    TransactionAbortedError,
    TransactionStateError,
    TransportTimeout,
)
from pulsar_encore.exceptions import MessageTooBig
from pulsar_encore.spark.sink import SinkCommit, batch_writer, stream_writer
from pulsar_encore.spark.sink.batch_commits import BatchCommits
from pulsar_encore.spark.sink.commit_journal import BatchKey, Begun, Prepared, Settled, decode
from pulsar_encore.spark.spark_errors import DataLossError
from pulsar_encore.values.transaction_id import TxnId

VALUE = schema_of(value="binary")
JOURNAL = NAMESPACE + "j"
MARKERS = NAMESPACE + "j-markers"
OPTIONS = {"transactional": "true", "topic": "t", "journalTopic": "j"}


@pytest.fixture
def here() -> Iterator[Home]:
    with home() as made:
        yield made


class Context:
    def __init__(self, partition: int, batch: int) -> None:
        self.partition = partition
        self.batch = batch

    def partitionId(self) -> int:
        return self.partition

    def getLocalProperty(self, key: str) -> str | None:
        known = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(self.batch)}
        return known.get(key)


class Query:
    """A query that writes micro-batches of two tasks with two rows each."""

    def __init__(self, here: Home, **options: str) -> None:
        self.here = here
        self.options = {"service.url": here.broker.url, **OPTIONS, **options}

    def writer(self) -> Any:
        """Return the writer of a micro-batch as a worker gets it."""
        return pickle.loads(pickle.dumps(stream_writer(self.options, VALUE, False)))

    def attempt(self, batch: int, partition: int, writer: Any = None) -> SinkCommit:
        with patch.object(TaskContext, "get", lambda: Context(partition, batch)):
            found = (writer or self.writer()).write(iter([batch_of(VALUE, rows(batch, partition))]))
        assert isinstance(found, SinkCommit)
        return found

    def attempts(self, batch: int) -> list[SinkCommit]:
        writer = self.writer()
        return [self.attempt(batch, partition, writer) for partition in range(2)]

    def commit(self, batch: int, commits: Sequence[SinkCommit | None]) -> None:
        stream_writer(self.options, VALUE, False).commit(commits, batch)

    def run(self, batch: int) -> None:
        self.commit(batch, self.attempts(batch))

    def end(self, commit: SinkCommit, how: str) -> None:
        assert commit.transaction is not None
        txn = TxnId.parse(commit.transaction.txn)
        self.call(lambda client: getattr(client, f"{how}_transaction")(txn))

    def call(self, work: Any) -> Any:
        async def run() -> Any:
            async with encore.Client(self.here.broker.url) as client:
                return await work(client)

        return asyncio.run(run())

    def records(self) -> list[Any]:
        return [decode(each.data(), JOURNAL) for each in self.here.stored("j")]


def rows(batch: int, partition: int) -> list[tuple[bytes]]:
    return [(b"%d-%d-%d" % (batch, partition, row),) for row in range(2)]


def all_rows(*batches: int) -> list[bytes]:
    return [each for batch in batches for task in range(2) for (each,) in rows(batch, task)]


def visible(here: Home, topic: str = "t") -> list[bytes]:
    return [each.data() for each in here.stored(topic)]


def interrupted(query: Query, batch: int, at: str, commits: Sequence[SinkCommit]) -> None:
    """Let the driver crash in a commit: `at` is "first" or "second" commit of a transaction."""

    class Crash(BaseException):
        pass

    original = BatchCommits.end
    left = {"first": 0, "second": 1}[at]

    async def crash(self: BatchCommits, txn: str, *, commit: bool) -> bool:
        nonlocal left
        if commit and not left:
            raise Crash
        left -= commit
        return await original(self, txn, commit=commit)

    with patch.object(BatchCommits, "end", crash), pytest.raises(Crash):
        query.commit(batch, commits)


def test_rows_are_visible_after_the_commit_only(here: Home) -> None:
    query = Query(here)
    commits = query.attempts(0)
    assert visible(here) == []
    assert [each.rows for each in commits] == [2, 2]
    query.commit(0, commits)
    assert visible(here) == all_rows(0)
    query.run(1)
    assert visible(here) == all_rows(0, 1)
    assert len(visible(here, "j-markers")) == 4


def test_a_task_without_rows_has_no_transaction(here: Home) -> None:
    query = Query(here)
    with patch.object(TaskContext, "get", lambda: Context(0, 0)):
        empty = query.writer().write(iter([batch_of(VALUE, [])]))
    assert empty.transaction is None and empty.batch == ("q", 0)
    query.commit(0, [empty, query.attempt(0, 1)])
    assert visible(here) == [each for (each,) in rows(0, 1)]


def test_rows_of_killed_and_repeated_attempts_are_aborted_at_the_commit(here: Home) -> None:
    query = Query(here)
    query.attempt(0, 0)  # its worker was killed before Spark got the message
    query.attempt(0, 1)  # a speculative attempt that lost
    query.run(0)
    assert visible(here) == all_rows(0)


def test_a_failed_batch_hides_nothing(here: Home) -> None:
    query = Query(here)
    query.attempt(0, 0)
    query.call(lambda client: send(client, b"plain"))
    assert visible(here) == []
    stream_writer(query.options, VALUE, False).abort([None, None], 0)
    assert visible(here) == [b"plain"]
    query.run(0)
    assert visible(here) == [b"plain", *all_rows(0)]


def test_an_attempt_that_fails_aborts_by_itself(here: Home) -> None:
    query = Query(here)
    writer = query.writer()
    large = batch_of(VALUE, [(b"small",), (b"x" * 6_000_000,)])
    with (
        patch.object(TaskContext, "get", lambda: Context(0, 0)),
        pytest.raises(MessageTooBig),
    ):
        writer.write(iter([large]))
    query.call(lambda client: send(client, b"plain"))
    assert visible(here) == [b"plain"]


async def send(client: Client, value: bytes) -> None:
    async with client.create_producer("t") as producer:
        await producer.send(value)


@pytest.mark.parametrize("at", ["first", "second"])
def test_a_prepared_batch_is_committed_at_the_restart_and_not_written_again(
    here: Home, at: str
) -> None:
    query = Query(here)
    query.run(0)
    interrupted(query, 1, at, query.attempts(1))
    again = query.attempts(1)  # Spark repeats a batch that it does not know as committed
    assert visible(here) == all_rows(0, 1)
    assert [each.rows for each in again] == [0, 0]
    query.commit(1, again)
    query.run(2)
    assert visible(here) == all_rows(0, 1, 2)


def test_a_prepared_batch_that_has_ended_is_written_again(here: Home) -> None:
    query = Query(here)
    query.run(0)
    commits = query.attempts(1)
    interrupted(query, 1, "first", commits)
    for each in commits:
        query.end(each, "abort")  # as the timeout does
    query.run(1)
    assert visible(here) == all_rows(0, 1)


def test_a_batch_of_which_a_part_is_lost_is_an_error_that_names_the_task(here: Home) -> None:
    query = Query(here)
    commits = query.attempts(0)
    interrupted(query, 0, "second", commits)
    query.end(commits[1], "abort")
    assert commits[1].transaction is not None
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"1 of its 2 tasks .* lost: 1 \(transaction"):
            query.writer()


@pytest.mark.parametrize("task", [0, 1])
def test_a_commit_without_an_answer_is_found_by_its_marker(here: Home, task: int) -> None:
    query = Query(here)
    query.attempt(0, 0)  # killed: its marker is before the others
    commits = query.attempts(0)
    original = BatchCommits.end

    async def lost(self: BatchCommits, txn: str, *, commit: bool) -> bool:
        await original(self, txn, commit=commit)
        assert commits[task].transaction is not None
        return txn != commits[task].transaction.txn

    with patch.object(BatchCommits, "end", lost):
        query.commit(0, commits)
    assert visible(here) == all_rows(0)
    assert query.records()[-2] == Settled(BatchKey("q", 0), True)


def test_markers_that_stay_hidden_are_an_error_that_says_why(
    here: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(here)
    commits = query.attempts(0)
    monkeypatch.setattr("pulsar_encore.spark.sink.commit_topics._READ_TIMEOUT_S", 0.5)

    async def with_another_write(client: Client) -> None:
        async with client.create_producer("j-markers") as producer:
            txn = await client.transaction()
            await producer.send(b"", txn=txn)
            await asyncio.to_thread(check)
            await txn.abort()

    def check() -> None:
        for each in commits:
            query.end(each, "abort")
        with pytest.raises(TransportTimeout, match="an open transaction hides the end of"):
            query.commit(0, commits)

    query.call(with_another_write)
    query.run(0)
    assert visible(here) == all_rows(0)


def test_a_batch_that_ended_before_it_was_prepared_is_an_error_and_is_repeated(here: Home) -> None:
    query = Query(here)
    commits = query.attempts(0)
    for each in commits:
        query.end(each, "abort")
    with pytest.raises(TransactionAbortedError, match="transactionTimeout"):
        query.commit(0, commits)
    assert Settled(BatchKey("q", 0), False) in query.records()
    query.run(0)
    assert visible(here) == all_rows(0)


def test_a_batch_near_its_timeout_is_not_prepared(here: Home) -> None:
    query = Query(here, transactionTimeout="2s")
    commits = query.attempts(0)
    for each in commits:
        assert each.transaction is not None
        each.transaction = each.transaction._replace(deadline_ms=0)
    with pytest.raises(TransactionAbortedError, match="took longer"):
        query.commit(0, commits)
    assert not any(isinstance(each, Prepared) for each in query.records())
    query.run(0)
    assert visible(here) == all_rows(0)


def test_a_second_driver_does_not_write_a_prepared_batch_again(here: Home) -> None:
    query = Query(here)
    dead, alive = query.attempts(0), query.attempts(0)
    interrupted(query, 0, "first", dead)
    query.commit(0, alive)
    assert visible(here) == all_rows(0)


@pytest.mark.parametrize("topic", ["j", "j-markers"])
def test_a_missing_subscription_is_an_error(here: Home, topic: str) -> None:
    query = Query(here)
    query.run(0)

    async def unsubscribe(client: Client) -> None:
        consumer = await client.subscribe(topic, "spark-sink")
        await consumer.unsubscribe()

    query.call(unsubscribe)
    with pytest.raises(ConfigurationError, match=f"{topic} .* has no subscription 'spark-sink'"):
        query.writer()


def test_topics_with_partitions_are_an_error(here: Home) -> None:
    here.broker.create_partitioned_topic("j", 2)
    with pytest.raises(ConfigurationError, match="must not have partitions"):
        Query(here).writer()


def test_a_foreign_message_in_the_journal_is_an_error(here: Home) -> None:
    query = Query(here)
    query.run(0)

    async def foreign(client: Client) -> None:
        async with client.create_producer("j") as producer:
            await producer.send(b"hello")

    query.call(foreign)
    with pytest.raises(ConfigurationError, match="no record of this sink"):
        query.writer()


def test_the_journal_is_trimmed(here: Home) -> None:
    query = Query(here)
    backlogs = []
    for batch in range(6):
        query.run(batch)
        backlogs.append(here.broker.backlog("j", "spark-sink"))
    assert max(backlogs) < 15
    assert backlogs[-1] == backlogs[2]
    assert here.broker.backlog("j-markers", "spark-sink") == 0


def test_the_id_is_in_the_journal_before_the_first_row(here: Home) -> None:
    query = Query(here)
    writer = query.writer()
    found: list[Any] = []

    def batches() -> Iterator[Any]:
        yield batch_of(VALUE, rows(0, 0))
        found.extend(each for each in query.records() if isinstance(each, Begun))
        yield batch_of(VALUE, rows(0, 1))

    with patch.object(TaskContext, "get", lambda: Context(7, 0)):
        commit = writer.write(batches())
    assert [(each.key, each.partition, each.txn) for each in found] == [
        (("q", 0), 7, commit.transaction.txn)
    ]


def test_a_worker_that_ends_leaves_its_transaction_open(here: Home) -> None:
    """Spark ends idle workers, perhaps before the driver commits."""
    query = Query(here)
    commits = query.attempts(0)
    here.runtime.stop()
    query.call(lambda client: asyncio.sleep(0.1))
    with home_of(here) as restarted:
        Query(restarted).commit(0, commits)
        assert visible(restarted) == all_rows(0)


# Shared transactions


def open_transactions(here: Home) -> list[int]:
    def numbers(broker: Any) -> list[int]:
        is_open = broker.service.coordinator.is_open
        return [each for each in range(100) if is_open((0, each))]

    return here.broker.call(numbers)


def shared(here: Home) -> Query:
    return Query(here, transactional="batch")


def test_a_batch_with_a_shared_transaction_is_visible_after_the_commit_only(here: Home) -> None:
    query = shared(here)
    commits = query.attempts(0)
    assert visible(here) == []
    assert len({each.transaction.txn for each in commits if each.transaction}) == 1
    query.commit(0, commits)
    assert visible(here) == all_rows(0)
    query.run(1)
    assert visible(here) == all_rows(0, 1)
    assert open_transactions(here) == []


def test_a_second_attempt_at_a_task_is_refused_and_the_batch_runs_again(here: Home) -> None:
    query = shared(here)
    writer = query.writer()
    commits = [query.attempt(0, 0, writer), query.attempt(0, 1, writer)]
    with pytest.raises(TransactionStateError, match="another attempt at task 0 may have sent"):
        query.attempt(0, 0, writer)  # Spark did not get the message of the first one
    stream_writer(query.options, VALUE, False).abort([None, commits[1]], 0)
    query.call(lambda client: send(client, b"plain"))
    assert visible(here) == [b"plain"]  # nothing is hidden
    query.run(0)
    assert visible(here) == [b"plain", *all_rows(0)]
    assert open_transactions(here) == []


def test_a_refused_attempt_does_not_spoil_the_batch(here: Home) -> None:
    query = shared(here)
    writer = query.writer()
    commits = [query.attempt(0, 0, writer), query.attempt(0, 1, writer)]
    with pytest.raises(TransactionStateError, match="another attempt"):
        query.attempt(0, 1, writer)  # speculative
    query.commit(0, commits)
    assert visible(here) == all_rows(0)


def test_rows_of_an_attempt_that_was_not_accepted_are_never_committed(here: Home) -> None:
    """Its task ran again and had no rows, so that Spark wants to commit the batch."""
    query = shared(here)
    writer = query.writer()
    query.attempt(0, 0, writer)
    with patch.object(TaskContext, "get", lambda: Context(0, 0)):
        empty = writer.write(iter([batch_of(VALUE, [])]))
    commits = [empty, query.attempt(0, 1, writer)]
    with pytest.raises(TransactionAbortedError, match="did not end well: 0"):
        query.commit(0, commits)
    assert visible(here) == [] and open_transactions(here) == []
    query.run(0)
    assert visible(here) == all_rows(0)


def test_an_attempt_that_fails_ends_the_shared_transaction_at_once(here: Home) -> None:
    query = shared(here)
    writer = query.writer()
    query.attempt(0, 1, writer)
    large = batch_of(VALUE, [(b"small",), (b"x" * 6_000_000,)])
    with (
        patch.object(TaskContext, "get", lambda: Context(0, 0)),
        pytest.raises(MessageTooBig),
    ):
        writer.write(iter([large]))
    query.call(lambda client: send(client, b"plain"))
    assert visible(here) == [b"plain"]


def test_an_attempt_that_starts_after_the_commit_sends_nothing(here: Home) -> None:
    query = shared(here)
    writer = query.writer()
    commits = [query.attempt(0, 0, writer)]
    query.commit(0, commits)
    with pytest.raises(TransactionStateError, match="the driver has closed"):
        query.attempt(0, 1, writer)
    assert visible(here) == [each for (each,) in rows(0, 0)]
    query.run(1)
    assert visible(here) == [*(each for (each,) in rows(0, 0)), *all_rows(1)]


@pytest.mark.parametrize("answered", [True, False])
def test_a_prepared_shared_transaction_is_committed_at_the_restart(
    here: Home, answered: bool
) -> None:
    query = shared(here)
    query.run(0)
    commits = query.attempts(1)
    interrupted(query, 1, "first", commits)
    if not answered:
        query.end(commits[0], "commit")  # the driver crashed before it got the answer
    # Spark calls this after a commit that raised an error.
    stream_writer(query.options, VALUE, False).abort(commits, 1)
    again = query.attempts(1)
    assert visible(here) == all_rows(0, 1)
    assert [each.rows for each in again] == [0, 0]
    query.commit(1, again)
    query.run(2)
    assert visible(here) == all_rows(0, 1, 2)
    assert open_transactions(here) == []


def test_a_driver_that_ends_before_it_prepares_leaves_nothing_visible(here: Home) -> None:
    query = shared(here)
    query.run(0)
    query.attempts(1)
    query.run(1)
    assert visible(here) == all_rows(0, 1)
    assert open_transactions(here) == []


def test_a_shared_transaction_that_has_ended_is_written_again(here: Home) -> None:
    query = shared(here)
    commits = query.attempts(0)
    query.end(commits[0], "abort")  # as the timeout does
    with pytest.raises(TransactionAbortedError, match="transactionTimeout"):
        query.commit(0, commits)
    assert Settled(BatchKey("q", 0), False) in query.records()
    query.run(0)
    assert visible(here) == all_rows(0)


def test_a_batch_without_rows_leaves_no_shared_transaction(here: Home) -> None:
    query = shared(here)
    writer = query.writer()
    with patch.object(TaskContext, "get", lambda: Context(0, 0)):
        empty = writer.write(iter([batch_of(VALUE, [])]))
    query.commit(0, [empty])
    assert open_transactions(here) == []


def test_the_journal_is_trimmed_with_shared_transactions(here: Home) -> None:
    query = shared(here)
    backlogs = []
    for batch in range(5):
        query.run(batch)
        backlogs.append(here.broker.backlog("j", "spark-sink"))
    assert max(backlogs) < 15 and backlogs[-1] == backlogs[2]
    assert here.broker.backlog("j-markers", "spark-sink") == 0


def home_of(here: Home) -> Any:
    from contextlib import contextmanager

    from pulsar_encore.spark.runtime import Runtime
    from pulsar_encore.spark.sink import data_writers as writers

    @contextmanager
    def made() -> Iterator[Home]:
        runtime = Runtime()
        try:
            with patch.object(writers, "runtime", lambda: runtime):
                yield Home(here.broker, runtime)
        finally:
            runtime.stop()

    return made()


# Batch writes


def test_a_batch_write_is_visible_after_its_commit(here: Home) -> None:
    options = {"service.url": here.broker.url, "transactional": "true", "topic": "t"}
    writer = batch_writer(options, VALUE, False)
    lost = [pickle.loads(pickle.dumps(writer)).write(iter([batch_of(VALUE, rows(0, 0))]))]
    commits = [
        pickle.loads(pickle.dumps(writer)).write(iter([batch_of(VALUE, rows(0, task))]))
        for task in range(2)
    ]
    assert lost and visible(here) == []
    writer.commit(commits)
    assert visible(here) == all_rows(0)


def test_a_batch_write_that_fails_leaves_other_writes_alone(here: Home) -> None:
    options = {"service.url": here.broker.url, "transactional": "true", "topic": "t"}
    one, two = (batch_writer(options, VALUE, False) for _ in range(2))
    one.write(iter([batch_of(VALUE, rows(0, 0))]))
    kept = two.write(iter([batch_of(VALUE, rows(1, 0))]))
    one.abort([None])
    two.commit([kept])
    assert visible(here) == [each for (each,) in rows(1, 0)]


def test_a_batch_write_with_a_shared_transaction_appears_as_a_whole(here: Home) -> None:
    options = {"service.url": here.broker.url, "transactional": "batch", "topic": "t"}

    def attempts(writer: Any) -> list[SinkCommit]:
        return [write_task(writer, task) for task in range(2)]

    lost = batch_writer(options, VALUE, False)
    kept = batch_writer(options, VALUE, False)
    write_task(lost, 0)
    commits = attempts(kept)
    lost.abort([None, None])
    assert visible(here) == []
    kept.commit(commits)
    assert visible(here) == all_rows(0)
    spoiled = batch_writer(options, VALUE, False)
    commits = attempts(spoiled)
    with pytest.raises(TransactionStateError, match="another attempt at task 1"):
        write_task(spoiled, 1)
    with pytest.raises(TransactionAbortedError, match="did not end well: 1"):
        spoiled.commit(commits[:1])
    assert visible(here) == all_rows(0)
    assert open_transactions(here) == []


def write_task(writer: Any, task: int) -> SinkCommit:
    with patch.object(TaskContext, "get", lambda: Context(task, 0)):
        found = pickle.loads(pickle.dumps(writer)).write(iter([batch_of(VALUE, rows(0, task))]))
    assert isinstance(found, SinkCommit)
    return found


def test_another_write_leaves_the_begin_of_a_batch_in_the_journal() -> None:
    """The broker deletes records that are acked, and tasks read from the begin of their batch."""
    with home(BrokerSettings(entries_per_ledger=1)) as here:
        options = {"service.url": here.broker.url, "transactional": "batch", "topic": "t"}
        slow, fast = (batch_writer(options, VALUE, False) for _ in range(2))
        fast.commit([write_task(fast, 0)])
        slow.commit([write_task(slow, task) for task in range(2)])
        with pytest.raises(TransactionStateError, match="the driver has closed"):
            write_task(slow, 2)
        assert open_transactions(here) == []
