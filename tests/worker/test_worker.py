"""A worker settles each message by the result of its handler."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from worker_kit import (
    DEAD_LETTERS,
    SUBSCRIPTION,
    TOPIC,
    all_acked,
    attached,
    copy_disk,
    letters,
    running,
    until,
)

import pulsar_encore as encore
from pulsar_encore import Client, Consumer, Message
from pulsar_encore.devbroker import BrokerSettings
from pulsar_encore.testing import Fault, FaultPlan, MemoryTransport
from pulsar_encore.worker import worker_session
from pulsar_encore.worker.outbox import Outbox, Outgoing

ORDERS = ["none", "key", "partition"]


def named(name: str) -> encore.SubscribeOptions:
    return encore.SubscribeOptions(consumer_name=name)


@pytest.mark.parametrize("order", ORDERS)
async def test_a_message_whose_handler_returns_is_acked(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    seen = []

    async def handler(value: bytes) -> None:
        seen.append(value)

    transport.put(TOPIC, *(b"%d" % n for n in range(100)))
    async with running(client, handler, order=order) as worker:
        await all_acked(transport)
    assert sorted(seen) == sorted(b"%d" % n for n in range(100))
    assert worker.report().succeeded == 100


@pytest.mark.parametrize("order", ORDERS)
async def test_a_message_that_always_fails_is_dead_lettered_after_its_attempts(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    calls: list[float] = []

    async def handler(value: bytes, message: Message) -> None:
        calls.append(asyncio.get_running_loop().time())
        assert message.attempt == len(calls)
        raise ValueError("no such customer")

    transport.put(TOPIC, b"poison", key="k")
    retry = encore.RetryPolicy(attempts=3, backoff=[10, 60])
    async with running(client, handler, order=order, retry=retry) as worker:
        await all_acked(transport)
    assert len(calls) == 3
    assert 10 <= calls[1] - calls[0] < 15
    assert 60 <= calls[2] - calls[1] < 70
    (letter,) = await letters(client)
    properties = letter.properties()
    assert properties["ENCORE_REASON"] == "attempts"
    # Without frames of this package: a fingerprint stays the same over its releases.
    assert re.fullmatch(r"test_worker\.py:\d+ in handler", properties["ENCORE_ERROR_STACK"])
    assert letter.data() == b"poison"
    assert "no such customer" in str(letter.properties())
    assert worker.report().rejected == 1


async def test_a_rejected_message_is_dead_lettered_at_once_with_its_reason(
    client: Client, transport: MemoryTransport
) -> None:
    calls = []

    async def handler(value: bytes) -> None:
        calls.append(value)
        raise encore.Reject("negative total")

    transport.put(TOPIC, b"x")
    async with running(client, handler):
        await all_acked(transport)
    (letter,) = await letters(client)
    assert calls == [b"x"]
    assert "negative total" in str(letter.properties())


async def test_a_rejection_whose_text_cannot_be_had_is_dead_lettered(
    client: Client, transport: MemoryTransport
) -> None:
    class Wordless(encore.Reject):
        def __str__(self) -> str:
            raise AttributeError("total")

    async def handler(value: bytes) -> None:
        raise Wordless("negative total")

    transport.put(TOPIC, b"x")
    async with running(client, handler):
        await all_acked(transport)
    (letter,) = await letters(client)
    assert "cannot be had" in str(letter.properties())


async def test_a_message_is_acked_after_an_unexpected_error(
    client: Client, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledge, failures = Consumer.acknowledge, [RuntimeError("unexpected")]

    def failing(self: Consumer, *arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return acknowledge(self, *arguments)

    async def handler(value: bytes) -> None:
        pass

    monkeypatch.setattr(Consumer, "acknowledge", failing)
    monkeypatch.setattr(worker_session, "acknowledge_held", failing)
    failures.append(RuntimeError("unexpected"))
    transport.put(TOPIC, b"x")
    async with running(client, handler, order="key") as worker:
        await until(lambda: not failures)
        assert "cannot be settled" in worker.health().reasons[0]
        await all_acked(transport)


async def test_a_message_is_dead_lettered_after_an_unexpected_error(
    client: Client, transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    reject, failures = Consumer.reject, [RuntimeError("unexpected")]

    async def failing(self: Consumer, *arguments: Any, **keywords: Any) -> None:
        if failures:
            raise failures.pop()
        await reject(self, *arguments, **keywords)

    async def handler(value: bytes) -> None:
        raise encore.Reject("no")

    monkeypatch.setattr(Consumer, "reject", failing)
    transport.put(TOPIC, b"x")
    async with running(client, handler, order="key") as worker:
        await until(lambda: not failures)
        assert "cannot be settled" in worker.health().reasons[0]
        await all_acked(transport)


@pytest.mark.parametrize("order", ORDERS)
async def test_an_uncounted_retry_never_uses_up_attempts(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    calls = []

    async def handler(value: bytes, message: Message) -> None:
        calls.append(message.attempt)
        if len(calls) < 50:
            raise encore.Retry(delay=30, count=False)

    transport.put(TOPIC, b"x", key="k")
    policy = encore.RetryPolicy(attempts=2)
    async with running(client, handler, order=order, retry=policy):
        await all_acked(transport)
    assert calls == [1] * 50
    assert await letters(client) == []


async def test_a_failed_message_holds_back_only_its_key(
    client: Client, transport: MemoryTransport
) -> None:
    done: dict[str, list[bytes]] = defaultdict(list)
    failed = Counter[bytes]()
    finished_at: dict[str, float] = {}

    async def handler(value: bytes, message: Message) -> None:
        if value == b"0-0" and failed[value] < 2:
            failed[value] += 1
            raise ValueError("not yet")
        done[message.key or ""].append(value)
        finished_at[message.key or ""] = asyncio.get_running_loop().time()

    for number in range(20):
        for key in range(5):
            transport.put(TOPIC, b"%d-%d" % (key, number), key=str(key))
    async with running(client, handler, order="key", retry=encore.RetryPolicy(backoff=[100])):
        await all_acked(transport)
    for key in range(5):
        assert done[str(key)] == [b"%d-%d" % (key, number) for number in range(20)]
    assert finished_at["0"] >= 200
    assert max(finished_at[str(key)] for key in range(1, 5)) < 100


async def test_a_failed_message_of_a_partition_is_retried_in_place_and_nothing_is_nacked(
    client: Client, transport: MemoryTransport
) -> None:
    seen = []

    async def handler(value: bytes, message: Message) -> None:
        seen.append(value)
        if value == b"3" and seen.count(b"3") < 3:
            raise ValueError("not yet")

    transport.put(TOPIC, *(b"%d" % n for n in range(10)))
    async with running(client, handler, order="partition"):
        await all_acked(transport)
    assert seen == [b"0", b"1", b"2", b"3", b"3", b"3", *(b"%d" % n for n in range(4, 10))]
    assert transport.recorded("REDELIVER_UNACKNOWLEDGED_MESSAGES") == []


async def test_an_outage_costs_no_attempts(client: Client, transport: MemoryTransport) -> None:
    loop = asyncio.get_running_loop()
    calls = Counter[bytes]()

    async def handler(value: bytes) -> None:
        calls[value] += 1
        if 5 < loop.time() < 605:
            raise ConnectionError("the gateway is away")
        await asyncio.sleep(0.1)

    payloads = [b"%d" % n for n in range(2000)]
    transport.put(TOPIC, *payloads)
    breaker = encore.Breaker(on=(ConnectionError,))
    async with running(
        client, handler, breaker=breaker, retry=encore.RetryPolicy(attempts=2)
    ) as worker:
        await until(lambda: loop.time() > 60)
        health = worker.health()
        assert health.ready  # or an outage would stop a rollout
        assert "the gateway is away" in health.reasons[0]
        await all_acked(transport)
    assert set(calls) == set(payloads)
    assert await letters(client) == []


async def test_a_poison_message_among_healthy_ones_is_dead_lettered_in_spite_of_the_breaker(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(value: bytes) -> None:
        await asyncio.sleep(0.01)
        if value == b"poison":
            raise ConnectionError("refused")

    transport.put(TOPIC, b"poison", *(b"%d" % n for n in range(20_000)))
    breaker = encore.Breaker(on=(ConnectionError,))
    retry = encore.RetryPolicy(attempts=3, backoff=[1])
    async with running(client, handler, breaker=breaker, retry=retry):
        await all_acked(transport)
    assert [each.data() for each in await letters(client)] == [b"poison"]


async def test_after_the_reject_limit_a_backlog_is_not_dead_lettered(
    client: Client, transport: MemoryTransport
) -> None:
    broken = True

    async def handler(value: bytes) -> None:
        if broken:
            raise encore.Reject("unknown schema")

    transport.put(TOPIC, *(b"%d" % n for n in range(500)))
    async with running(client, handler, reject_limit=5) as worker:
        await asyncio.sleep(600)
        assert not worker.health().ready
        assert worker.report().rejected < 5 + 16
        broken = False
        await all_acked(transport)


@pytest.mark.parametrize("order", ORDERS)
async def test_rejections_by_the_verb_reach_the_limit_too(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    async def handler(value: bytes, message: Message) -> None:
        await message.reject("wrong schema")

    for n in range(1000):
        transport.put(TOPIC, b"%d" % n)
    async with running(client, handler, order=order, reject_limit=20, concurrency=1) as worker:
        await asyncio.sleep(25)
        assert worker.report().rejected == 20
        assert worker.report().succeeded == 0
        assert "20 messages in a row were rejected" in worker.health().reasons[0]
        await asyncio.sleep(60)
        assert worker.report().rejected == 22
    assert len(await letters(client)) == 22


async def test_a_nack_by_the_handler_waits_for_the_delay_of_the_backoff(
    client: Client, transport: MemoryTransport
) -> None:
    calls: list[float] = []

    async def handler(value: bytes, message: Message) -> None:
        calls.append(asyncio.get_running_loop().time())
        if message.attempt < 3:
            await message.nack()

    transport.put(TOPIC, b"a")
    retry = encore.RetryPolicy(backoff=[2, 5])
    async with running(client, handler, retry=retry):
        await all_acked(transport)
    assert [calls[1] - calls[0], calls[2] - calls[1]] == pytest.approx([2, 5], abs=0.2)


async def test_a_nack_by_the_handler_is_no_success_for_the_breaker(
    client: Client, transport: MemoryTransport
) -> None:
    calls = []

    async def handler(value: bytes, message: Message) -> None:
        calls.append(value)
        if len(calls) % 2:
            raise ConnectionError("away")
        await message.nack(delay=3600)

    transport.put(TOPIC, *(b"%d" % n for n in range(100)))
    breaker = encore.Breaker(on=ConnectionError, failures=3)
    async with running(client, handler, breaker=breaker, concurrency=1) as worker:
        await asyncio.sleep(10)
        assert worker.health().reasons == ("the breaker is open: ConnectionError('away')",)
    assert len(calls) == 5


async def test_results_are_stored_before_the_message_is_acked(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(value: bytes) -> encore.Out:
        return encore.Out(value.upper(), key="k", properties={"from": "orders"})

    transport.put(TOPIC, b"a", b"b", b"c")
    async with running(client, handler, publish="invoices"):
        await all_acked(transport)
    stored = await letters(client, "invoices")
    assert sorted(each.data() for each in stored) == [b"A", b"B", b"C"]
    assert {each.key for each in stored} == {"k"}
    assert stored[0].properties()["from"] == "orders"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_task_that_a_handler_left_behind_cannot_publish(
    client: Client, transport: MemoryTransport, fails: bool
) -> None:
    """Its message would be dropped without a word."""
    errors: list[Exception] = []
    tasks = []

    async def later(message: Message) -> None:
        await asyncio.sleep(1)
        try:
            message.publish(b"late", topic="audit")
        except encore.ConfigurationError as error:
            errors.append(error)

    async def handler(value: bytes, message: Message) -> None:
        tasks.append(asyncio.create_task(later(message)))
        if fails:
            raise encore.Retry(delay=60)

    transport.put(TOPIC, b"x")
    async with running(client, handler):
        await until(lambda: bool(tasks))
        await asyncio.wait(tasks)
    assert "works in a handler of a Worker only" in str(errors)


async def test_a_producer_of_results_that_ended_for_good_is_replaced(
    client: Client, transport: MemoryTransport
) -> None:
    """Such as on a topic that was terminated, deleted and created again."""

    async def handler(value: bytes) -> bytes:
        return value

    transport.faults = FaultPlan(
        [
            Fault(
                kind="refuse",
                command="SEND",
                error="TopicTerminatedError",
                topic="persistent://public/default/invoices",
            )
        ]
    )
    transport.put(TOPIC, b"a", b"b")
    async with running(client, handler, publish="invoices", concurrency=1) as worker:
        await all_acked(transport)
        assert (worker.report().failed, worker.report().rejected) == (1, 0)
    assert sorted(each.data() for each in await letters(client, "invoices")) == [b"a", b"b"]
    assert len(transport.recorded("CLOSE_PRODUCER")) == 2, "the producer that ended is closed, too"


async def test_results_go_to_the_other_partitions_after_one_has_ended(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(value: bytes) -> bytes:
        return value

    values = [b"%d" % n for n in range(60)]
    transport.catalogue.create_partitioned("invoices", 3)
    retry = encore.RetryPolicy(attempts=10, backoff=[0.1])
    async with running(client, handler, publish="invoices", retry=retry) as worker:
        transport.put(TOPIC, *values[:20])
        await all_acked(transport)
        transport.terminate("persistent://public/default/invoices-partition-1")
        transport.put(TOPIC, *values[20:])
        await all_acked(transport)
        assert worker.report().failed > 0
        assert worker.report().rejected == 0
    stored = await letters(client, "invoices")
    assert sorted(each.data() for each in stored) == sorted(values)


async def test_a_result_that_is_in_flight_at_the_end_of_the_worker_makes_no_producer(
    client: Client, transport: MemoryTransport
) -> None:
    """The close of its producer fails the send, as the end of a topic does."""

    async def handler(value: bytes) -> bytes:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return value

    transport.put(TOPIC, b"x")
    transport.faults = FaultPlan([Fault(kind="drop", command="SEND")])
    async with running(client, handler, publish="invoices", drain=10) as worker:
        await until(lambda: worker.health().running == 1)
    assert len(transport.recorded("SEND")) == 1
    assert worker.report().abandoned == 1
    await asyncio.sleep(5)
    assert attached(transport) == []


async def test_a_producer_of_results_is_closed_if_the_worker_ends_as_its_replacement_begins(
    client: Client, transport: MemoryTransport
) -> None:
    transport.faults = FaultPlan(
        [Fault(kind="refuse", command="SEND", error="TopicTerminatedError")]
    )
    outbox = Outbox(client, None)
    with pytest.raises(encore.PulsarException):
        await outbox.store([Outgoing("invoices", encore.Out(b"x"))])
    await outbox.close()
    assert attached(transport) == []


async def test_an_async_generator_publishes_each_value(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(value: bytes, message: Message) -> Any:
        for part in value.split():
            yield part
        message.publish(b"done", topic="audit")

    transport.put(TOPIC, b"a b c")
    async with running(client, handler, publish="words"):
        await all_acked(transport)
    assert [each.data() for each in await letters(client, "words")] == [b"a", b"b", b"c"]
    assert [each.data() for each in await letters(client, "audit")] == [b"done"]


async def test_a_handler_over_its_timeout_is_cancelled_and_the_message_retried(
    client: Client, transport: MemoryTransport
) -> None:
    calls = []

    async def handler(value: bytes) -> None:
        calls.append(asyncio.get_running_loop().time())
        if len(calls) == 1:
            await asyncio.sleep(3600)

    transport.put(TOPIC, b"x")
    async with running(client, handler, timeout=60, retry=encore.RetryPolicy(backoff=[10])):
        await all_acked(transport)
    assert len(calls) == 2
    assert 70 <= calls[1] - calls[0] < 80


async def test_extend_moves_the_timeout_of_a_handler(
    client: Client, transport: MemoryTransport
) -> None:
    calls = []

    async def handler(value: bytes, message: Message) -> None:
        calls.append(value)
        for _ in range(120):  # two hours
            message.extend(90)
            await asyncio.sleep(60)

    transport.put(TOPIC, b"x")
    async with running(client, handler, timeout=60):
        await all_acked(transport)
    assert calls == [b"x"]


@pytest.mark.parametrize("settle", ["ack", "nack"])
async def test_a_message_that_the_handler_settled_is_left_alone(
    client: Client, transport: MemoryTransport, settle: str
) -> None:
    calls = []

    async def handler(value: bytes, message: Message) -> None:
        calls.append(value)
        if settle == "ack":
            await message.ack()
            raise ValueError("after the ack")
        if len(calls) == 1:
            message.nack(delay=50)

    transport.put(TOPIC, b"x")
    async with running(client, handler):
        await all_acked(transport)
    assert len(calls) == (1 if settle == "ack" else 2)
    assert await letters(client) == []


async def test_a_detached_message_is_acked_by_its_lease(
    client: Client, transport: MemoryTransport
) -> None:
    handles = []

    async def handler(value: bytes, message: Message) -> None:
        handles.append(message.detach(lease=3600).handle)

    transport.put(TOPIC, b"x")
    async with running(client, handler) as worker:
        await until(lambda: bool(handles))
        await asyncio.sleep(600)
        assert transport.backlog(TOPIC, SUBSCRIPTION) == 1
        lease = await worker.consumer.lease(handles[0])
        await lease.ack()
        await all_acked(transport)


@pytest.mark.parametrize("order", ORDERS)
async def test_a_drain_gives_unfinished_messages_back_without_an_attempt(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    attempts = []

    async def never(value: bytes, message: Message) -> None:
        attempts.append(message.attempt)
        await asyncio.Event().wait()

    for number in range(50):
        transport.put(TOPIC, b"%d" % number, key="k")
    for _ in range(10):
        async with running(client, never, order=order, drain=5) as worker:
            await asyncio.sleep(30)
        assert worker.report().given_back > 0
    assert set(attempts) == {1}
    assert transport.backlog(TOPIC, SUBSCRIPTION) == 50

    seen = []

    async def handler(value: bytes, message: Message) -> None:
        seen.append((value, message.attempt))

    async with running(client, handler, order=order):
        await all_acked(transport)
    assert sorted(seen) == sorted((b"%d" % n, 1) for n in range(50))
    assert await letters(client) == []


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("keeps_partial_acks", [True, False])
async def test_a_drain_ends_the_batches_that_have_begun(
    order: str, keeps_partial_acks: bool
) -> None:
    """Else a broker that keeps no acks of single messages would redeliver the acked ones, too."""
    seen: dict[bytes, int] = {}
    batches, size = 6, 250

    async def handler(value: bytes) -> None:
        seen[value] = seen.get(value, 0) + 1
        await asyncio.sleep(0.01)

    settings = BrokerSettings(namespaces=None, batch_index_ack=keeps_partial_acks)
    transport = MemoryTransport(settings)
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        for batch in range(batches):
            values = [b"%d" % number for number in range(batch * size, (batch + 1) * size)]
            transport.put(TOPIC, *values, key=f"{batch}")
        workers = 0
        while transport.state(TOPIC).subscriptions.get(SUBSCRIPTION) is None or (
            transport.backlog(TOPIC, SUBSCRIPTION)
        ):
            workers += 1
            before = len(seen)
            async with running(client, handler, order=order, concurrency=4) as worker:
                while len(seen) < before + 10:
                    await asyncio.sleep(0.01)
            # Nothing else was started: each worker ends at the end of a batch.
            assert worker.report().succeeded % size == 0
            assert worker.report().succeeded <= (4 if order == "key" else 2) * size
        assert workers > 1
    assert seen == {b"%d" % number: 1 for number in range(batches * size)}


async def test_a_drain_ends_no_batch_beyond_the_budget_of_the_handlers(
    client: Client, transport: MemoryTransport
) -> None:
    attempts = []

    async def handler(value: bytes, message: Message) -> None:
        attempts.append(message.attempt)
        await asyncio.sleep(1)

    transport.put(TOPIC, *[b"x"] * 1_000)
    loop = asyncio.get_running_loop()
    async with running(client, handler, concurrency=4, drain=10) as worker:
        await asyncio.sleep(5.5)
        began = loop.time()
    assert 7 <= loop.time() - began <= 10
    assert worker.report().succeeded in range(4 * 12, 4 * 13 + 1)
    async with running(client, handler, concurrency=100):
        await all_acked(transport)
    assert set(attempts) == {1}


async def test_a_drain_starts_no_message_behind_one_that_it_leaves(
    client: Client, transport: MemoryTransport
) -> None:
    """The batch of "b" has begun with another key, but its message of key "k" comes after "a"."""
    started = []

    async def handler(value: bytes) -> None:
        started.append(value)
        await asyncio.sleep(5)

    transport.put(TOPIC, b"first", key="k")
    transport.put(TOPIC, b"a", key="k")
    producer = await client.create_producer(TOPIC, batching_max_publish_delay_ms=1000)
    await asyncio.gather(
        *(producer.send(each, None, key) for each, key in ((b"c", "o"), (b"b", "k")))
    )
    async with running(client, handler, order="key") as worker:
        await until(lambda: len(started) == 2)
        await asyncio.sleep(1)
    assert started == [b"first", b"c"]
    assert worker.report().given_back == 2
    async with running(client, handler, order="key"):
        await all_acked(transport)
    assert started == [b"first", b"c", b"a", b"b"]


@pytest.mark.parametrize("order", ORDERS)
async def test_an_error_of_a_handler_that_stops_for_the_drain_costs_no_attempt(
    client: Client, transport: MemoryTransport, order: str, tmp_path: Path
) -> None:
    attempts = []

    async def handler(value: bytes, message: Message) -> None:
        attempts.append(message.attempt)
        await message.stopping.wait()
        raise RuntimeError("stopped half-way")

    transport.put(TOPIC, b"x", key="k")
    for _ in range(5):
        async with running(
            client,
            handler,
            order=order,
            retry=encore.RetryPolicy(attempts=3),
            state=encore.RocksState(tmp_path / "state"),
        ) as worker:
            await asyncio.sleep(10)
        assert worker.report().given_back == 1
    assert attempts == [1] * 5


@pytest.mark.parametrize("count_attempts", [None, "before", "lazy", "explicit"])
async def test_a_killed_process_costs_waiting_messages_no_attempt(
    client: Client, transport: MemoryTransport, tmp_path: Path, count_attempts: Any
) -> None:
    calls = Counter[bytes]()
    is_blocked = True

    async def handler(value: bytes) -> None:
        calls[value] += 1
        while is_blocked:
            await asyncio.sleep(1000)

    for n in range(3):
        transport.put(TOPIC, b"%d" % n)
    for run in range(5):
        is_blocked = run < 4
        state = encore.RocksState(tmp_path / f"{run}", count_attempts=count_attempts)
        retry = encore.RetryPolicy(attempts=3)
        async with running(client, handler, state=state, retry=retry, concurrency=1) as worker:
            await asyncio.sleep(100)
            # The disk of a process that is killed now.
            copy_disk(tmp_path / f"{run}", tmp_path / f"{run + 1}")
    if count_attempts == "lazy":  # a kill forgets attempts
        assert worker.report().succeeded == 3
    else:
        assert calls[b"0"] == 3
        assert [each.data() for each in await letters(client)] == [b"0"]
        assert worker.report().succeeded == 2


async def test_a_message_that_kills_its_process_at_once_costs_the_next_ones_no_attempt(
    client: Client, transport: MemoryTransport, tmp_path: Path
) -> None:
    seen: list[tuple[int, bytes, int]] = []
    run = 0

    async def handler(value: bytes, message: Message) -> None:
        seen.append((run, value, message.attempt))
        if value == b"0":
            # The disk of a process that is killed now.
            copy_disk(tmp_path / f"{run}", tmp_path / f"{run + 1}")
            await asyncio.sleep(1000)
        elif run < 3:
            await asyncio.sleep(1000)

    for n in range(3):
        transport.put(TOPIC, b"%d" % n)
    for _ in range(4):
        state = encore.RocksState(tmp_path / f"{run}")
        retry = encore.RetryPolicy(attempts=3)
        async with running(client, handler, state=state, retry=retry) as worker:
            await asyncio.sleep(100)
        run += 1
    assert [each for each in seen if each[0] == 3] == [(3, b"1", 1), (3, b"2", 1)]
    assert [each.data() for each in await letters(client)] == [b"0"]
    assert worker.report().succeeded == 2


async def test_a_rejection_during_the_drain_is_dead_lettered(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(value: bytes, message: Message) -> None:
        await message.stopping.wait()
        raise encore.Reject("negative total")

    transport.put(TOPIC, b"x")
    async with running(client, handler) as worker:
        await asyncio.sleep(10)
    assert worker.report().rejected == 1
    assert transport.backlog(TOPIC, SUBSCRIPTION) == 0


async def test_a_drain_lets_running_handlers_end(
    client: Client, transport: MemoryTransport
) -> None:
    stopped = []

    async def handler(value: bytes, message: Message) -> None:
        await message.stopping.wait()
        await asyncio.sleep(5)
        stopped.append(value)

    transport.put(TOPIC, b"x")
    async with running(client, handler):
        await asyncio.sleep(1)
    assert stopped == [b"x"]
    assert transport.backlog(TOPIC, SUBSCRIPTION) == 0


async def test_messages_over_max_age_are_dead_lettered_without_a_call(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(value: bytes) -> None:
        raise AssertionError("called")

    transport.put(TOPIC, b"old")
    await asyncio.sleep(3600)
    async with running(client, handler, retry=encore.RetryPolicy(max_age=60)):
        await all_acked(transport)
    (letter,) = await letters(client)
    assert "max_age" in str(letter.properties())


async def test_without_dead_letters_a_spent_message_is_discarded(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(value: bytes) -> None:
        raise ValueError("no")

    transport.put(TOPIC, b"x")
    retry = encore.RetryPolicy(attempts=1, dead_letters=False)
    async with running(client, handler, retry=retry) as worker:
        await all_acked(transport)
    assert worker.report().discarded == 1


async def test_a_long_delay_goes_through_the_retry_letter_topic(
    client: Client, transport: MemoryTransport
) -> None:
    attempts = []

    async def handler(value: bytes, message: Message) -> None:
        attempts.append((message.attempt, asyncio.get_running_loop().time()))
        if len(attempts) < 3:
            raise encore.Retry(delay=3600)

    transport.put(TOPIC, b"x")
    async with running(client, handler):
        await until(lambda: len(attempts) == 3)
        await all_acked(transport)
    assert [each for each, _ in attempts] == [1, 2, 3]
    assert attempts[2][1] - attempts[0][1] >= 7200 - 1e-6  # sums of floats


async def test_pause_starts_no_handler_until_resume(
    client: Client, transport: MemoryTransport
) -> None:
    seen = []

    async def handler(value: bytes) -> None:
        seen.append(value)

    async with running(client, handler) as worker:
        worker.pause()
        transport.put(TOPIC, *(b"%d" % n for n in range(100)))
        await asyncio.sleep(60)
        assert seen == []
        assert worker.health().state == "paused"
        assert worker.health().ready
        assert worker.health().reasons == ("the worker is paused",)
        worker.resume()
        await all_acked(transport)


async def test_a_higher_priority_starts_first_and_one_start_in_ten_is_fair(
    client: Client, transport: MemoryTransport
) -> None:
    order = []

    async def handler(value: bytes, message: Message) -> None:
        order.append(value)
        await asyncio.sleep(1)

    transport.put("low", *[b"low"] * 50)
    transport.put("high", *[b"high"] * 50)
    async with running(client, handler, {"low": 0, "high": 5}, concurrency=1, prefetch=200):
        await until(lambda: len(order) == 100)
    assert order[5:45].count(b"low") in range(3, 6)


@pytest.mark.parametrize("order", ["none", "key", "partition"])
@pytest.mark.parametrize("prefetch", [None, 1, 50])
async def test_new_messages_of_a_high_priority_do_not_wait_behind_prefetched_ones(
    client: Client, transport: MemoryTransport, order: str, prefetch: int | None
) -> None:
    started = []

    async def handler(value: bytes) -> None:
        started.append(value)
        await asyncio.sleep(1)

    transport.catalogue.create_partitioned("low", 8)
    for number in range(400):
        transport.put(f"low-partition-{number % 8}", b"low", key=f"{number}")
    topics = {"low": 0, "high": 5}
    async with running(
        client, handler, topics, order=order, concurrency=4, prefetch=prefetch
    ) as worker:
        await until(lambda: len(started) > 20)
        for number in range(10):
            before = len(started)
            transport.put("high", b"high", key=f"{number}")
            await until(lambda number=number: started.count(b"high") == number + 1)
            # The handlers of a pass may end at once, and room opens with the start of the next.
            assert started[before:].index(b"high") <= 4 + 2
        # With an order, messages behind a running one of their key or partition are no prefetch.
        behind = 0 if order == "none" else 4
        assert worker.report().received - len(started) <= (prefetch or 8) + behind
        worker.pause()


async def test_a_low_priority_gets_one_start_in_ten_beside_a_backlog_of_a_high_one(
    client: Client, transport: MemoryTransport
) -> None:
    order = []

    async def handler(value: bytes) -> None:
        order.append(value)
        await asyncio.sleep(1)

    transport.put("high", *[b"high"] * 500)
    transport.put("low", *[b"low"] * 500)
    async with running(client, handler, {"low": 0, "high": 5}, concurrency=2):
        await until(lambda: len(order) >= 200)
    assert order[20:200].count(b"low") in range(14, 23)


async def test_a_retry_letter_has_the_priority_of_its_topic(
    client: Client, transport: MemoryTransport
) -> None:
    started = []

    async def handler(value: bytes, message: Message) -> None:
        started.append((value, message.attempt))
        if value == b"busy":
            await asyncio.sleep(60)
        elif message.attempt == 1:
            raise ValueError("fails once")

    topics = {"a-low": -1, "b-middle": 0, "c-high": 5}
    transport.catalogue.create_partitioned("c-high", 2)
    retry = encore.RetryPolicy(backoff=[60], letters_after=10)
    async with running(client, handler, topics, concurrency=1, prefetch=9, retry=retry) as worker:
        transport.put("a-low", b"low")
        transport.put("b-middle", b"middle")
        transport.put("c-high-partition-1", b"high")
        await until(lambda: worker.report().retried == 3)
        await asyncio.sleep(40)
        transport.put("a-low", b"busy")
        await until(lambda: len(started) == 7)
    assert started[4:] == [(b"high", 2), (b"middle", 2), (b"low", 2)]


async def test_dead_letters_of_all_partitions_have_one_topic_with_a_subscription(
    client: Client, transport: MemoryTransport
) -> None:
    transport.catalogue.create_partitioned(TOPIC, 3)

    async def handler(value: bytes) -> None:
        raise encore.Reject("no")

    async with running(client, handler):
        async with client.create_producer(TOPIC) as producer:
            for number in range(9):
                await producer.send(b"%d" % number)
        await until(lambda: transport.backlog(DEAD_LETTERS, "encore-replay") == 9)
    assert len(await letters(client)) == 9


async def test_the_parameters_of_a_worker_are_checked(client: Client) -> None:
    async def handler(value: bytes) -> None: ...

    def make(**options: Any) -> encore.Worker:
        return encore.Worker(client, TOPIC, SUBSCRIPTION, handler, **options)

    for options, text in (
        ({"order": "random"}, "order must be one of"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"timeout": -1}, "timeout must be"),
        ({"publish": TOPIC}, "loop"),
        ({"retry": 3}, "RetryPolicy"),
        ({"breaker": ConnectionError}, "Breaker"),
        ({"on_failure": "exit"}, "on_failure"),
    ):
        with pytest.raises(encore.ConfigurationError, match=text):
            make(**options)
    with pytest.raises(encore.ConfigurationError, match="order"):
        encore.SubscribeOptions(consumer_type=encore.ConsumerType.Shared)  # type: ignore[call-arg]
    with pytest.raises(encore.ConfigurationError, match="positional"):
        encore.Worker(client, TOPIC, SUBSCRIPTION, lambda: None)


async def test_a_worker_on_standby_loses_its_partitions_without_an_error(
    client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """A second worker takes over partitions, and the first worker's handlers there are cancelled.

    The first one may be told that it is inactive before it has received any message.
    """
    transport.catalogue.create_partitioned(TOPIC, 4)
    seen: defaultdict[str, list[bytes]] = defaultdict(list)
    cancelled = []

    async def first(value: bytes) -> None:
        try:
            await asyncio.sleep(3)
        except asyncio.CancelledError:
            cancelled.append(value)
            raise
        seen["first"].append(value)

    async def second(value: bytes) -> None:
        seen["second"].append(value)

    payloads = [b"%d" % n for n in range(4)]
    async with running(client, first, order="partition") as worker:
        async with running(client, second, order="partition", options=named("idle")):
            await asyncio.sleep(2)
        for at, each in enumerate(payloads):
            transport.put(f"{TOPIC}-partition-{at}", each)
        await asyncio.sleep(1)
        async with running(client, second, order="partition", options=named("z")):
            for at in range(4):
                await all_acked(transport, f"{TOPIC}-partition-{at}")
    assert sorted(seen["first"] + seen["second"]) == payloads
    assert sorted(cancelled) == sorted(seen["second"])
    assert worker.report().lost == len(cancelled) == 2
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


async def test_a_worker_that_has_run_cannot_be_entered_again(client: Client) -> None:
    async def handler(value: bytes) -> None: ...

    async with running(client, handler) as worker:
        with pytest.raises(encore.ConfigurationError, match="is running, and a worker runs once"):
            async with worker:
                pass
    with pytest.raises(encore.ConfigurationError, match="has ended, and a worker runs once"):
        async with worker:
            pass
    with pytest.raises(encore.ConfigurationError, match="has ended, and a worker runs once"):
        await encore.run(worker)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"schema": encore.InitialPosition}, "schema must be a codec"),
        ({"initial_position": "earliest"}, "InitialPosition.Latest or InitialPosition.Earliest"),
        ({"state": "/var/lib/billing"}, "RocksState"),
    ],
)
async def test_wrong_options_of_the_subscription_fail_at_construction(
    client: Client, options: dict[str, Any], problem: str
) -> None:
    async def handler(value: bytes) -> None: ...

    with pytest.raises(encore.ConfigurationError, match=problem):
        encore.Worker(client, TOPIC, SUBSCRIPTION, handler, **options)


async def test_a_url_in_place_of_a_client_is_an_error() -> None:
    async def handler(value: bytes) -> None: ...

    with pytest.raises(encore.ConfigurationError, match="client must be a Client, got str"):
        encore.Worker("pulsar://localhost", TOPIC, SUBSCRIPTION, handler)  # type: ignore[arg-type]


async def test_an_out_without_a_topic_of_results_is_a_failed_attempt(
    client: Client, transport: MemoryTransport
) -> None:
    async def handler(value: bytes) -> encore.Out:
        return encore.Out(b"lost otherwise")

    transport.put(TOPIC, b"x")
    async with running(client, handler, retry=encore.RetryPolicy(attempts=1)) as worker:
        await all_acked(transport)
    assert worker.report().rejected == 1
    (letter,) = await letters(client)
    assert "publish=" in str(letter.properties())


@pytest.mark.parametrize("order", ["none", "key"])
async def test_failed_messages_that_fill_max_bytes_are_in_health(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    async def handler(value: bytes) -> None:
        raise encore.Retry(delay=500, count=False)

    for n in range(50):
        transport.put(TOPIC, b"x" * 1000, key=f"k{n}")
    async with running(client, handler, order=order, max_bytes=10_000) as worker:
        await asyncio.sleep(100)
        health = worker.health()
        assert not health.ready
        (reason,) = health.reasons
        assert "10 messages are held back by failures and fill max_bytes" in reason
        assert ("the first keys: 'k0'" in reason) == (order == "key")


async def test_health_counts_a_handler_that_ignores_its_timeout(
    client: Client, transport: MemoryTransport
) -> None:
    ends = asyncio.Event()

    async def handler(value: bytes) -> None:
        while not ends.is_set():
            with suppress(asyncio.CancelledError):
                await ends.wait()

    transport.put(TOPIC, b"x")
    async with running(client, handler, timeout=1, concurrency=1) as worker:
        await asyncio.sleep(5)
        assert worker.health().stuck_handlers == 0
        assert worker.health().ready
        await asyncio.sleep(5)
        assert worker.health().stuck_handlers == 1
        assert worker.health().reasons == ("each slot has a handler that ignores its cancellation",)
        ends.set()
        await all_acked(transport)
        assert worker.health().stuck_handlers == 0


@pytest.mark.parametrize("order", ["key", "partition"])
async def test_a_nack_in_a_handler_with_an_order_is_refused_with_the_way_out(
    client: Client, transport: MemoryTransport, order: str
) -> None:
    errors = []

    async def handler(value: bytes, message: Message) -> None:
        try:
            await message.nack()
        except encore.ConfigurationError as error:
            errors.append(str(error))

    transport.put(TOPIC, b"x", key="k")
    async with running(client, handler, order=order):
        await all_acked(transport)
    (text,) = errors
    assert "Retry(delay=" in text


async def test_max_age_ends_the_retries_of_a_message_that_fails_like_an_outage(
    client: Client, transport: MemoryTransport
) -> None:
    """With one partition in order, no other message can show that the dependency is there."""
    calls: dict[bytes, int] = {}

    async def handler(value: bytes) -> None:
        calls[value] = calls.get(value, 0) + 1
        if value == b"poison":
            raise ConnectionError("refused")

    loop = asyncio.get_running_loop()
    began = loop.time()
    transport.put(TOPIC, b"poison")
    async with running(
        client,
        handler,
        order="partition",
        breaker=encore.Breaker(on=ConnectionError),
        retry=encore.RetryPolicy(max_age=3_600),
    ) as worker:
        await asyncio.sleep(1_800)
        transport.put(TOPIC, b"a", b"b")
        await asyncio.sleep(1_700)
        assert worker.report().rejected == 0 and calls.keys() == {b"poison"}
        await all_acked(transport)
    # The age is checked at the next call, which the backoff and the breaker delay.
    assert 3_600 < loop.time() - began < 3_600 + 600
    assert worker.report().rejected == 1 and calls == {
        b"poison": calls[b"poison"],
        b"a": 1,
        b"b": 1,
    }
    (letter,) = await letters(client)
    assert "max_age" in str(letter.properties())


@pytest.mark.parametrize(
    ("batching", "warnings"),
    [(encore.BatchingType.Default, 1), (encore.BatchingType.KeyBased, 0)],
    ids=["default", "by key"],
)
async def test_a_batch_with_several_keys_is_named_once(
    client: Client,
    transport: MemoryTransport,
    caplog: pytest.LogCaptureFixture,
    batching: encore.BatchingType,
    warnings: int,
) -> None:
    async def handler(value: bytes) -> None: ...

    async with running(client, handler, order="key") as worker:
        producer = await client.create_producer(TOPIC, batching_type=batching)
        for _ in range(3):
            await asyncio.gather(*(producer.send(b"x", partition_key=key) for key in "abab"))
        await all_acked(transport)
    assert worker.report().succeeded == 12
    lines = [each for each in caplog.messages if "has messages of several keys" in each]
    assert len(lines) == warnings


async def test_the_results_of_a_worker_are_batched_by_key(
    client: Client, transport: MemoryTransport, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(value: bytes, message: Message) -> None:
        for key in "abab":
            message.publish(value, topic="results", key=key)

    seen: list[str] = []

    async def read(value: bytes, message: Message) -> None:
        seen.append(message.key or "")

    reader = encore.Worker(client, "results", "reader", read, order="key")
    async with reader, running(client, handler):
        transport.put(TOPIC, b"x")
        await until(lambda: len(seen) == 4)
    assert Counter(seen) == {"a": 2, "b": 2}
    assert not any("several keys" in each for each in caplog.messages)
