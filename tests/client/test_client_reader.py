"""Reading: any read can be cancelled or timed out, and every message is read once, in order."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import _pulsar
import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_encore as encore
from pulsar_encore.options import ReaderOptions
from pulsar_encore.reader.reader import subscription_of
from pulsar_encore.transport.stock.stock_reader import StockReader

EARLIEST = encore.MessageId.earliest
OK = _pulsar.Result.Ok


class NativeMessage:
    def __init__(self, entry: int) -> None:
        self.entry = entry

    def message_id(self) -> Any:
        return _pulsar.MessageId(-1, 1, self.entry, -1)

    def topic_name(self) -> str:
        return "t"

    def redelivery_count(self) -> int:
        return 0


class NativeReader:
    """The library's reader as seen from above: pending reads cannot be taken back."""

    def __init__(self) -> None:
        self.queue: deque[int] = deque()
        self.pending: deque[Callable[..., None]] = deque()
        self.most_pending = 0
        self.sought: Callable[..., None] | None = None

    def topic(self) -> str:
        return "t"

    def is_connected(self) -> bool:
        return True

    def deliver(self, entry: int) -> None:
        if self.pending:
            self.pending.popleft()(OK, NativeMessage(entry))
        else:
            self.queue.append(entry)

    def read_next_async(self, done: Callable[..., None]) -> None:
        if self.queue:
            done(OK, NativeMessage(self.queue.popleft()))
        else:
            self.pending.append(done)
            self.most_pending = max(self.most_pending, len(self.pending))

    def has_message_available_async(self, done: Callable[..., None]) -> None:
        done(OK, bool(self.queue))

    def seek_async(self, _target: Any, done: Callable[..., None]) -> None:
        self.sought = done

    def close_async(self, done: Callable[..., None]) -> None:
        while self.pending:
            self.pending.popleft()(_pulsar.Result.AlreadyClosed, None)
        done(OK)


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def over(native: NativeReader) -> encore.Reader:
    """A reader of ours over the library's."""
    options = ReaderOptions(topic="t", start_message_id=EARLIEST)
    return encore.Reader(StockReader(native, subscription_of(options)), options)


async def next_entry(reader: encore.Reader, timeout_ms: int = 0) -> int | None:
    try:
        return (await reader.read_next(timeout_ms)).message_id().entry_id()
    except encore.ReceiveTimeout:
        return None


@given(st.lists(st.sampled_from(["read", "cancel", "deliver", "timeout", "turn"]), max_size=40))
def test_any_order_of_reads_cancels_and_deliveries_loses_no_message(steps: list[str]) -> None:
    async def main() -> None:
        native = NativeReader()
        reader = over(native)
        tasks: list[asyncio.Task[Any]] = []
        sent = 0
        for step in steps:
            if step == "read":
                tasks.append(asyncio.create_task(reader.read_next()))
            elif step == "timeout":
                tasks.append(asyncio.create_task(reader.read_next(0)))
            elif step == "cancel" and tasks:
                tasks[len(tasks) // 2].cancel()
            elif step == "deliver":
                native.deliver(sent)
                sent += 1
            else:
                await asyncio.sleep(0)
        await settle()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        got = [each.message_id().entry_id() for each in results if isinstance(each, encore.Message)]
        while (entry := await next_entry(reader)) is not None:
            got.append(entry)
        # In order across all reads: the next read gets the message of a cancelled read.
        assert got == list(range(sent))
        assert native.most_pending <= 1

    asyncio.run(main())


async def test_the_message_of_a_timed_out_read_goes_to_the_next_read() -> None:
    native = NativeReader()
    reader = over(native)
    assert await next_entry(reader, 1) is None
    native.deliver(7)
    await settle()
    assert await reader.has_message_available()
    assert await next_entry(reader) == 7
    assert not await reader.has_message_available()


async def test_a_seek_discards_messages_from_before_it_and_none_after() -> None:
    native = NativeReader()
    reader = over(native)
    native.deliver(80)
    native.deliver(81)
    await settle()  # read ahead, and a native read is pending
    seeking = asyncio.create_task(reader.seek(EARLIEST))
    await settle()
    native.deliver(90)  # still of the old position
    assert native.sought is not None
    native.sought(OK)
    await seeking
    assert not await reader.has_message_available()
    assert await next_entry(reader) is None
    native.deliver(0)  # the pending native read brings the first of the new position
    native.deliver(1)
    assert [await next_entry(reader, 5), await next_entry(reader, 5)] == [0, 1]


async def test_a_failed_seek_discards_no_message() -> None:
    native = NativeReader()
    reader = over(native)
    native.deliver(2)
    seeking = asyncio.create_task(reader.seek(5))
    await settle()
    native.deliver(3)
    assert native.sought is not None
    native.sought(_pulsar.Result.NotConnected)
    with pytest.raises(encore.TransportError, match="NotConnected"):
        await seeking
    assert [await next_entry(reader) for _ in range(3)] == [2, 3, None]


async def test_close_fails_every_waiting_read_with_closed_error() -> None:
    reader = over(NativeReader())
    reads = [asyncio.create_task(reader.read_next()) for _ in range(3)]
    await settle()
    await asyncio.gather(reader.close(), reader.close())
    for read in reads:
        with pytest.raises(encore.ClosedError):
            await read
    with pytest.raises(encore.ClosedError):
        await reader.read_next()


async def test_a_read_failed_by_the_cpp_client_fails_all_later_reads() -> None:
    native = NativeReader()
    reader = over(native)
    await settle()
    native.deliver(1)
    reads = [asyncio.create_task(reader.read_next()) for _ in range(3)]
    await settle()
    native.pending.popleft()(_pulsar.Result.AlreadyClosed, None)
    first, *others = await asyncio.gather(*reads, return_exceptions=True)
    assert isinstance(first, encore.Message)
    for _ in range(2):
        others += await asyncio.gather(reader.read_next(), return_exceptions=True)
    assert len(others) == 4
    assert all(isinstance(each, encore.PulsarException) for each in others)


async def test_reading_ahead_is_bounded() -> None:
    native = NativeReader()
    for entry in range(2000):
        native.deliver(entry)
    reader = over(native)
    await settle()
    ahead = 2000 - len(native.queue)
    assert 0 < ahead <= 500  # half of the receiver queue at most: the library has the other half
    for entry in range(2000):
        assert await next_entry(reader) == entry
        assert 2000 - len(native.queue) <= entry + 1 + ahead
    assert not native.queue


async def test_a_dropped_reader_closes_the_reader_of_the_cpp_client() -> None:
    native = NativeReader()
    reader = over(native)
    await settle()
    assert native.pending  # which keeps whatever the callback keeps
    del reader
    gc.collect()
    await settle()
    assert not native.pending


async def fill(client: encore.Client, topic: str, count: int) -> list[encore.MessageId]:
    async with await client.create_producer(topic) as producer:
        return list(await asyncio.gather(*(producer.send(b"%d" % each) for each in range(count))))


async def test_reads_cancelled_at_random_lose_no_message(client: encore.Client, topic: str) -> None:
    dice = random.Random(7)
    count = 400
    async with await client.create_reader(topic, EARLIEST) as reader:
        filling = asyncio.create_task(fill(client, topic, count))
        got: list[int] = []
        while len(got) < count:
            read = asyncio.create_task(reader.read_next())
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            if dice.random() < 0.3:
                await asyncio.sleep(0.001)
            read.cancel()
            try:
                got.append(int((await read).data()))
            except asyncio.CancelledError:
                if dice.random() < 0.5:
                    got.append(int((await reader.read_next(2000)).data()))
        await filling
        assert got == list(range(count))


async def test_ids_of_batch_messages_equal_those_that_send_returned(
    client: encore.Client, topic: str
) -> None:
    ids = await fill(client, topic, 5)
    async with await client.create_reader(topic, EARLIEST) as reader:
        messages = [await reader.read_next(2000) for _ in ids]
        assert [each.message_id() for each in messages] == ids
        assert [each.message_id().batch_size for each in messages] == [5] * 5
        assert not await reader.has_message_available()
        for position in (ids[2], pulsar.MessageId.deserialize(ids[2].serialize())):
            await reader.seek(position)
            assert (await reader.read_next(2000)).data() == b"3"
        await reader.seek(0)
        assert (await reader.read_next(2000)).data() == b"0"


async def test_a_start_position_can_be_inclusive(client: encore.Client, topic: str) -> None:
    ids = await fill(client, topic, 3)
    async with await client.create_reader(topic, ids[1], start_message_id_inclusive=True) as reader:
        assert (await reader.read_next(2000)).data() == b"1"
    async with await client.create_reader(topic, encore.MessageId.latest) as reader:
        assert not await reader.has_message_available()
        with pytest.raises(encore.ReceiveTimeout, match="30 ms"):
            await reader.read_next(timeout_millis=30)


async def test_iterating_a_reader_ends_when_it_is_closed(client: encore.Client, topic: str) -> None:
    await fill(client, topic, 3)
    reader = await client.create_reader(topic, EARLIEST)
    assert reader.is_connected()
    assert reader.topic() == f"persistent://public/default/{topic}"
    got = []
    async for message in reader:
        got.append(message.data())
        if len(got) == 3:
            await reader.close()
    assert got == [b"0", b"1", b"2"]
    assert not reader.is_connected()


@pytest.mark.parametrize("position", ["earliest", None, -1, True, 1.5])
async def test_the_error_names_a_wrong_seek_position_or_timeout(
    client: encore.Client, topic: str, position: Any
) -> None:
    async with await client.create_reader(topic, EARLIEST) as reader:
        with pytest.raises(encore.ConfigurationError, match="messageid"):
            await reader.seek(position)
        with pytest.raises(encore.ConfigurationError, match="timeout_millis"):
            await reader.read_next(-1)


async def test_message_ids_name_their_partition(
    client: encore.Client, broker: Any, topic: str
) -> None:
    broker.create_partitioned_topic(topic, 2)
    ids = await fill(client, topic, 6)
    assert {each.partition() for each in ids} <= {0, 1}
    async with await client.create_reader(topic, EARLIEST) as reader:
        got = [(await reader.read_next(2000)).message_id() for _ in ids]
    assert sorted(got, key=str) == sorted(ids, key=str)
    assert all(each.topic.endswith(f"-partition-{each.partition()}") for each in (*got, *ids))
