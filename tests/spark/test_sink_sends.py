"""The pending messages of a task, with producers that confirm when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from unittest.mock import patch

import pytest
from sink_kit import URL

from pulsar_encore.consumer.forwarding.copy_options import Destination
from pulsar_encore.errors import TransportError, TransportTimeout
from pulsar_encore.exceptions import UnknownError
from pulsar_encore.spark.sink import row_sender as sending
from pulsar_encore.spark.sink.row_batches import RowChunk
from pulsar_encore.spark.sink.row_sender import RowSender
from pulsar_encore.spark.sink.sequence_ids import SequenceIds
from pulsar_encore.spark.sink.sink_options import sink_options
from pulsar_encore.values.message_id import MessageId
from pulsar_encore.values.outgoing_message import OutgoingMessage

ONE, OTHER = (
    Destination("persistent://public/default/one"),
    Destination("persistent://public/default/other"),
)


class FakeProducer:
    """A producer that stores nothing until the test tells it to."""

    def __init__(self) -> None:
        self.sent: list[OutgoingMessage] = []
        self.receipts: list[asyncio.Future[MessageId]] = []
        self.flushed = self.closed = 0

    def publish(self, message: OutgoingMessage) -> asyncio.Future[MessageId]:
        self.sent.append(message)
        self.receipts.append(asyncio.get_running_loop().create_future())
        return self.receipts[-1]

    def store(self, count: int) -> None:
        waiting = [each for each in self.receipts if not each.done()]
        for each in waiting[:count]:
            each.set_result(MessageId())

    async def flush(self) -> None:
        self.flushed += 1
        self.store(10**6)

    async def close(self) -> None:
        self.closed += 1


class Producers:
    """Producers of two topics."""

    def __init__(self) -> None:
        self.by_destination = {ONE: FakeProducer(), OTHER: FakeProducer()}
        self.dropped: list[Destination] = []
        self.given_back: list[Destination] = []

    async def take(self, destination: Destination, _: object) -> FakeProducer:
        return self.by_destination[destination]

    async def make_numbered(
        self, destination: Destination, _: object, __: SequenceIds
    ) -> FakeProducer:
        return self.by_destination[destination]

    def give_back(self, destinations: Iterable[Destination], _: object) -> None:
        self.given_back += destinations

    async def drop(self, destinations: Iterable[Destination], _: object) -> None:
        self.dropped += destinations

    async def close(self, producers: Iterable[FakeProducer]) -> None:
        for each in producers:
            await each.close()


@pytest.fixture
def producers() -> Iterator[Producers]:
    made = Producers()
    with patch.object(sending, "producers_of", lambda client: made):
        yield made


def sender(most: int, *, timeout_ms: int = 30_000, numbered: bool = False) -> RowSender:
    given = {"maxPendingMessages": str(most), "sendTimeoutMs": str(timeout_ms)}
    options = sink_options({"service.url": URL, **given}, streaming=False)
    made = RowSender(None, options)  # type: ignore[arg-type]
    if numbered:
        made.number(SequenceIds("p", 1))
    return made


def chunk(*destinations: Destination) -> RowChunk:
    return RowChunk(
        [OutgoingMessage(payload=b"%d" % number) for number in range(len(destinations))],
        list(destinations),
        0,
    )


async def let_tasks_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("failed", [0, 2, 3])
async def test_rows_stored_after_a_failed_row_are_marked(producers: Producers, failed: int) -> None:
    """Otherwise the number of a later row would hide the failed row from the next attempt."""
    task = sender(100, numbered=True)
    await task.publish(chunk(ONE, OTHER, ONE, ONE, ONE))
    one, other = producers.by_destination[ONE], producers.by_destination[OTHER]
    at = {0: 0, 2: 1, 3: 2}[failed]
    one.receipts[at].set_exception(TransportError("too large", result="MessageTooBig"))
    with pytest.raises(TransportError, match=f"row {failed} of the task: too large"):
        await task.finish()
    rows = len(one.sent)
    await task.abort()
    (marked,) = one.sent[rows:]
    assert marked.sequence_id == SequenceIds("p", 1).mark
    assert marked.payload in {b"0", b"2", b"3", b"4"} - {b"%d" % failed}
    assert [message.sequence_id for message in one.sent[:rows]] != [marked.sequence_id] * rows
    assert len(other.sent) == 1, "there nothing failed"


async def test_an_aborted_task_marks_nothing(producers: Producers) -> None:
    task = sender(100, numbered=True)
    await task.publish(chunk(ONE, ONE))
    await task.abort()
    assert len(producers.by_destination[ONE].sent) == 2


@pytest.mark.parametrize("numbered", [False, True])
async def test_a_row_that_is_not_stored_is_an_error_that_names_it(
    producers: Producers, numbered: bool
) -> None:
    task = sender(10, numbered=numbered)
    await task.publish(chunk(ONE, OTHER, ONE, ONE))
    for receipt in producers.by_destination[ONE].receipts[:2]:
        receipt.set_result(MessageId())
    producers.by_destination[OTHER].receipts[0].set_result(MessageId())
    refused = TransportError("too large", result="MessageTooBig")
    producers.by_destination[ONE].receipts[2].set_exception(refused)
    with pytest.raises(TransportError, match=r"^row 3 of the task: too large") as caught:
        await task.publish(chunk(ONE))
    assert caught.value.result == "MessageTooBig"
    await task.abort()


async def test_rows_beyond_the_pending_limit_wait_for_the_first_receipts(
    producers: Producers,
) -> None:
    task, producer = sender(10), producers.by_destination[ONE]
    publishing = asyncio.ensure_future(
        task.publish(RowChunk([OutgoingMessage(payload=b"")] * 25, ONE, 0))
    )
    for sent in (10, 15, 20, 25):
        await let_tasks_run()
        assert len(producer.sent) == sent
        producer.store(4)
        await let_tasks_run()
        assert len(producer.sent) == sent  # there is room for a whole slice of 5 or for no row
        producer.store(1)
    await publishing
    assert len(producer.sent) == 25
    await task.finish()
    assert producer.flushed == 1
    assert producers.given_back == [ONE] and not producers.dropped and not producer.closed
    assert task.topics == {ONE.topic: 25}


async def test_each_row_goes_to_its_own_topic(producers: Producers) -> None:
    task = sender(100)
    await task.publish(chunk(ONE, OTHER, OTHER, ONE))
    assert [each.payload for each in producers.by_destination[ONE].sent] == [b"0", b"3"]
    assert [each.payload for each in producers.by_destination[OTHER].sent] == [b"1", b"2"]
    await task.finish()
    assert task.topics == {ONE.topic: 2, OTHER.topic: 2}


async def test_a_failure_is_reported_and_pending_rows_are_abandoned(producers: Producers) -> None:
    task, producer = sender(2), producers.by_destination[ONE]
    await task.publish(chunk(ONE, ONE))
    producer.receipts[0].set_exception(UnknownError("no"))
    with pytest.raises(UnknownError):
        await task.publish(chunk(ONE))
    assert len(producer.sent) == 2
    await task.abort()
    assert producers.dropped == [ONE] and not producers.given_back
    producer.receipts[1].set_exception(UnknownError("no task awaits this receipt"))


async def test_a_failure_is_reported_at_the_end(producers: Producers) -> None:
    task = sender(100)
    await task.publish(chunk(ONE, OTHER))
    producers.by_destination[OTHER].receipts[0].set_exception(UnknownError("no"))
    with pytest.raises(UnknownError):
        await task.finish()
    await task.abort()
    assert sorted(producers.dropped) == [ONE, OTHER] and not producers.given_back


async def test_no_numbered_row_follows_a_failed_one(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number would hide the failed row from the next attempt."""
    monkeypatch.setattr(sending, "_GRACE_S", 0.0)  # one receipt never arrives
    task = sender(100, numbered=True)
    await task.publish(chunk(ONE, OTHER))
    producers.by_destination[OTHER].receipts[0].set_exception(UnknownError("no"))
    with pytest.raises(UnknownError):
        await task.publish(chunk(OTHER))
    assert len(producers.by_destination[OTHER].sent) == 1
    await task.abort()
    assert producers.by_destination[ONE].closed == producers.by_destination[OTHER].closed == 1
    assert not producers.dropped and not producers.given_back


async def test_numbers_continue_from_chunk_to_chunk(producers: Producers) -> None:
    task = sender(100, numbered=True)
    await task.publish(chunk(ONE, OTHER))
    await task.publish(chunk(ONE))
    first = 1 << 47
    assert [each.sequence_id for each in producers.by_destination[ONE].sent] == [first, first + 2]
    assert [each.sequence_id for each in producers.by_destination[OTHER].sent] == [first + 1]
    await task.finish()
    assert producers.by_destination[ONE].closed == producers.by_destination[OTHER].closed == 1


async def test_a_producer_that_never_answers_is_not_waited_for_for_ever(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_GRACE_S", 0.0)
    task = sender(1, timeout_ms=20)
    with pytest.raises(TransportTimeout, match=r"1 rows were not stored in 0.02 s"):
        await task.publish(chunk(ONE, ONE))
    await task.abort()


async def test_a_flush_that_never_ends_is_not_waited_for_either(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_GRACE_S", 0.0)
    monkeypatch.setattr(FakeProducer, "flush", lambda self: asyncio.sleep(3600))
    task = sender(10, timeout_ms=20)
    await task.publish(chunk(ONE))
    with pytest.raises(TransportTimeout, match="sendTimeoutMs"):
        await task.finish()
    await task.abort()
