"""A transactional worker, in virtual time on the development broker.

`integration/transactions` has the main cases on Pulsar.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import Client, Message, MessageId, Out, Transactional, Worker
from pulsar_encore.state.rocks import RocksStore
from pulsar_encore.testing import BrokerSettings, Fault, FaultPlan, MemoryTransport, run
from pulsar_encore.worker import transaction_journal
from pulsar_encore.worker.transaction_journal import (
    FILE_NAME,
    TransactionJournal,
    owned_after_aborts,
)
from tests.harness.transfers.transfer_network import Network, Process

URL = "pulsar://memory:6650"
IN, OUT = "persistent://public/default/in", "persistent://public/default/out"
KEYS = 5
ORDERS = ("none", "key", "partition")
each_order = pytest.mark.parametrize("order", ORDERS)
each_shape = pytest.mark.parametrize("batching", [True, False], ids=["batches", "unbatched"])


async def fill(client: Client, count: int, *, batching: bool = False) -> None:
    async with client.create_producer(
        IN, batching_enabled=batching, batching_type=encore.BatchingType.KeyBased
    ) as producer:
        await asyncio.gather(
            *(producer.send(b"%d" % n, partition_key=f"k{n % KEYS}") for n in range(count))
        )


async def convert(value: bytes, message: Message) -> Out:
    await asyncio.sleep(int(value) % 3 * 0.01)
    return Out(value, key=message.partition_key())


def worker_of(client: Client, handler: Callable[..., Any] = convert, **options: Any) -> Worker:
    settings: dict[str, Any] = {
        "publish": OUT,
        "transactional": True,
        "initial_position": encore.InitialPosition.Earliest,
        "retry": encore.RetryPolicy(attempts=3, backoff=[1]),
    }
    return Worker(client, IN, "s", handler, **(settings | options))


async def outputs(client: Client, topic: str = OUT) -> list[int]:
    """Return what a reader sees."""
    found = []
    async with client.create_reader(topic, MessageId.earliest) as reader:
        while await reader.has_message_available():
            with contextlib.suppress(TimeoutError):
                found.append(int((await reader.read_next(timeout=60)).data()))
    return found


async def left(client: Client) -> list[int]:
    """Return the messages that another consumer of the subscription gets afterwards."""
    found = []
    async with client.subscribe(IN, "s", encore.ConsumerType.Shared) as consumer:
        with contextlib.suppress(TimeoutError):
            while True:
                found.append(int((await consumer.receive(timeout=60)).data()))
    return found


async def until_acked(transport: MemoryTransport, longest_s: float = 600) -> None:
    async with asyncio.timeout(longest_s):
        while transport.backlog(IN, "s"):
            await asyncio.sleep(0.1)


def check_order(found: list[int], order: str) -> None:
    if order != "none":
        for key in range(KEYS):
            of_key = [each for each in found if each % KEYS == key]
            assert of_key == sorted(of_key)


@each_order
@each_shape
def test_each_input_has_one_output(order: str, batching: bool) -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with Client(URL, transport=transport) as client:
            await fill(client, 100, batching=batching)
            async with worker_of(client, order=order) as worker:
                await until_acked(transport)
            found = await outputs(client)
            assert sorted(found) == list(range(100))
            check_order(found, order)
            assert await left(client) == []
            report = worker.report()
            assert (report.succeeded, report.published, report.lost) == (100, 100, 0)

    run(main())


@each_order
@each_shape
@pytest.mark.parametrize(
    "command",
    [
        "NEW_TXN",
        "NEW_TXN_RESPONSE",
        "ADD_PARTITION_TO_TXN",
        "ADD_PARTITION_TO_TXN_RESPONSE",
        "SEND",
        "SEND_RECEIPT",
        "ADD_SUBSCRIPTION_TO_TXN",
        "ADD_SUBSCRIPTION_TO_TXN_RESPONSE",
        "ACK",
        "ACK_RESPONSE",
        "END_TXN",
        "END_TXN_RESPONSE",
    ],
)
@pytest.mark.parametrize("kind", ["close_before", "close_after", "drop"])
def test_a_fault_at_one_command_doubles_and_loses_nothing(
    order: str, batching: bool, command: str, kind: Any
) -> None:
    async def main() -> None:
        topic = OUT if command.startswith("SEND") else None
        plan = FaultPlan([Fault(kind=kind, command=command, nth=3, topic=topic)])
        transport = MemoryTransport(faults=plan)
        async with Client(URL, transport=transport, operation_timeout_seconds=2) as client:
            await fill(client, 60, batching=batching)
            options = Transactional(max_messages=10, timeout=5)
            async with worker_of(client, order=order, transactional=options, concurrency=4):
                await until_acked(transport)
            found = await outputs(client)
            assert sorted(found) == list(range(60))
            check_order(found, order)
            assert await left(client) == []
            assert plan.fired

    run(main())


@each_order
@each_shape
def test_an_abort_counts_no_attempt(order: str, batching: bool) -> None:
    attempts = []

    async def handle(value: bytes, message: Message) -> Out:
        attempts.append(message.attempt)
        return Out(value, key=message.partition_key())

    async def main() -> None:
        transport = MemoryTransport(faults=FaultPlan([Fault(kind="drop", command="ACK", nth=2)]))
        async with Client(URL, transport=transport, operation_timeout_seconds=2) as client:
            await fill(client, 60, batching=batching)
            options = Transactional(max_messages=10, timeout=5)
            async with worker_of(client, handle, order=order, transactional=options) as worker:
                await until_acked(transport)
            assert sorted(await outputs(client)) == list(range(60))
            assert len(attempts) > 60  # results of an aborted transaction are made again
            assert set(attempts) == {1}
            assert worker.report().lost > 0

    run(main())


@each_order
@each_shape
@pytest.mark.parametrize("command", ["ACK", "END_TXN"])
def test_slow_handlers_run_while_a_transaction_is_aborted(
    order: str, batching: bool, command: str
) -> None:
    """Messages that wait or run then come again too, if the subscription is rewound."""

    async def slow(value: bytes, message: Message) -> Out:
        await asyncio.sleep(0.5)
        return Out(value, key=message.partition_key())

    async def main() -> None:
        plan = FaultPlan([Fault(kind="drop", command=command, nth=3, times=8)])
        async with Client(
            URL, transport=MemoryTransport(faults=plan), operation_timeout_seconds=2
        ) as client:
            await fill(client, 60, batching=batching)
            options = Transactional(max_messages=4, timeout=5)
            async with worker_of(client, slow, order=order, transactional=options, concurrency=3):
                found: list[int] = []
                async with asyncio.timeout(1_000):
                    while len(set(found)) < 60:
                        await asyncio.sleep(5)
                        found = await outputs(client)
                await asyncio.sleep(30)
            found = await outputs(client)
            assert sorted(found) == list(range(60))
            check_order(found, order)
            assert await left(client) == []

    run(main())


class Enlarging(encore.Observer):
    """Makes some messages too large when they are sent, after their check."""

    def sending(self, sending: encore.Sending) -> None:
        if "too large later" in sending.properties:
            sending.properties["large"] = "x" * 6_000_000


def large_later(value: bytes, message: Message, number: int) -> Out:
    properties = {"too large later": ""} if int(value) == number else {}
    return Out(value, key=message.partition_key(), properties=properties)


@pytest.mark.parametrize("order", ["none", "partition"])
def test_a_drain_uses_up_no_attempt(order: str) -> None:
    async def handle(value: bytes, message: Message) -> Out:
        return large_later(value, message, 7)

    async def main() -> None:
        transport = MemoryTransport()
        async with Client(URL, transport=transport, observers=[Enlarging()]) as client:
            await fill(client, 10)
            options = Transactional(max_delay=60, max_bytes=64 * 2**20)
            retry = encore.RetryPolicy(attempts=1)
            async with worker_of(
                client, handle, order=order, transactional=options, retry=retry
            ) as worker:
                await asyncio.sleep(5)
            assert worker.report().rejected == 0
            found = await outputs(client)
            assert set(range(10)) - set(found) == ({7} if order == "none" else {7, 8, 9})
            assert 7 in await left(client)

    run(main())


@each_order
def test_a_result_that_cannot_be_stored_fails_only_its_message(order: str) -> None:
    calls = []

    async def handle(value: bytes, message: Message) -> Out:
        calls.append(int(value))
        return large_later(value, message, 17)

    async def main() -> None:
        transport = MemoryTransport()
        async with Client(URL, transport=transport, observers=[Enlarging()]) as client:
            await fill(client, 40)
            async with worker_of(client, handle, order=order) as worker:
                await until_acked(transport)
            found = await outputs(client)
            assert sorted(found) == [each for each in range(40) if each != 17]
            check_order(found, order)
            dead = await outputs(client, f"{IN}-s-DLQ")
            assert dead == [17]
            assert worker.report().rejected == 1
            # The others were not handled again.
            assert sorted(each for each in calls if each != 17) == sorted(found)

    run(main())


def too_large(value: bytes) -> Out:
    return Out(bytes(6_000_000))


def too_large_properties(value: bytes) -> Out:
    return Out(value, properties={"a": "x" * 6_000_000})


def not_encodable(value: bytes) -> Out:
    return Out(value, key="\ud800")


def not_of_the_schema(value: bytes) -> Out:
    return Out("text")


@each_order
@each_shape
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (too_large, "MessageTooBig: 6000000 bytes, the broker takes 5242880"),
        (too_large_properties, "MessageTooBig: 2 bytes with 6000"),
        (not_encodable, "the message cannot be sent"),
        (not_of_the_schema, "content must be bytes, got str"),
    ],
)
def test_a_result_that_can_never_be_sent_fails_when_its_handler_returns(
    order: str, batching: bool, make: Callable[[bytes], Out], reason: str
) -> None:
    """Only its own attempt fails. The group is neither delayed nor halved."""
    attempts: dict[int, list[int]] = {}
    begun = 0

    async def handle(value: bytes, message: Message) -> Out:
        attempts.setdefault(int(value), []).append(message.attempt)
        return make(value) if int(value) == 17 else Out(value, key=message.partition_key())

    async def main() -> None:
        nonlocal begun
        transport = MemoryTransport()
        async with Client(URL, transport=transport) as client:
            begin = client.transaction

            async def counted(timeout: Any) -> Any:
                nonlocal begun
                begun += 1
                return await begin(timeout)

            client.transaction = counted  # type: ignore[method-assign,assignment]
            await fill(client, 40, batching=batching)
            options = Transactional(max_delay=60)
            async with worker_of(client, handle, order=order, transactional=options) as worker:
                before = begun  # the start of the worker tries whether the cluster has them
                await asyncio.sleep(20)
                assert attempts[17] == [1, 2, 3]
                assert worker.report().rejected == 1
                assert begun == before
                await until_acked(transport)
            assert begun == before + 1
            found = await outputs(client)
            assert sorted(found) == [each for each in range(40) if each != 17]
            check_order(found, order)
            assert all(each == [1] for number, each in attempts.items() if number != 17)
            async with client.create_reader(f"{IN}-s-DLQ", MessageId.earliest) as reader:
                letter = await reader.read_next(timeout=60)
                assert letter.data() == b"17"
                assert any(reason in each for each in letter.properties().values())
            assert await left(client) == []

    run(main())


def test_a_result_of_a_message_that_its_handler_settled_is_checked_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(value: bytes, message: Message) -> bytes:
        if int(value) == 2:
            await message.ack()
            return bytes(6_000_000)
        return value

    async def main() -> None:
        transport = MemoryTransport()
        async with Client(URL, transport=transport) as client:
            await fill(client, 5)
            async with worker_of(client, handle):
                await until_acked(transport)
            assert sorted(await outputs(client)) == [0, 1, 3, 4]

    run(main())
    assert "failed after the message was settled" in caplog.text
    assert "6000000 bytes" in caplog.text


def test_a_cluster_without_transactions_is_an_error_at_the_start() -> None:
    async def main() -> None:
        settings = BrokerSettings(namespaces=None, transactions=False)
        async with Client(URL, transport=MemoryTransport(settings)) as client:
            with pytest.raises(encore.TransactionNotEnabledError):
                async with worker_of(client):
                    pass

    run(main())


def test_results_that_are_not_committed_are_bounded() -> None:
    """The coordinator is away; handlers stop at the worker's `max_bytes` of results."""
    calls = 0

    async def handle(value: bytes) -> bytes:
        nonlocal calls
        calls += 1
        return bytes(1_000)

    async def main() -> None:
        faults = [Fault(kind="drop", command="NEW_TXN", nth=2, times=6)]
        transport = MemoryTransport(faults=FaultPlan(faults))
        async with Client(URL, transport=transport, operation_timeout_seconds=2) as client:
            await fill(client, 500)
            async with worker_of(client, handle, concurrency=4, max_bytes=20_000) as worker:
                await asyncio.sleep(10)
                assert 20 <= calls <= 24
                assert worker.held >= 20
                await asyncio.sleep(20)
                health = worker.health()
                assert health.ready
                assert "no results were committed for 30 s" in health.reasons[-1]
                await until_acked(transport)
                assert worker.health().reasons == ()
            assert calls == 500

    run(main())


@pytest.mark.parametrize("order", ORDERS[1:])
@pytest.mark.parametrize("seconds", [8, 40, 90])
def test_the_order_holds_while_a_coordinator_is_away(order: str, seconds: float) -> None:
    """It aborts open transactions when a client has connected again, long after their timeout."""

    async def main() -> None:
        network = Network(seed=1, rewinds_overtaken=0)
        client = Process(network, operation_timeout_s=2, name="worker").client
        async with client:
            await fill(client, 60)
            options = Transactional(max_messages=10, timeout=5)
            async with worker_of(
                client, order=order, transactional=options, concurrency=4
            ) as worker:
                while worker.report().succeeded < 20:
                    await asyncio.sleep(0.001)
                await network.unload_coordinator(seconds)
                async with asyncio.timeout(600):
                    while worker.report().succeeded < 60:
                        await asyncio.sleep(0.1)
            found = await outputs(client)
            assert sorted(found) == list(range(60))
            check_order(found, order)

    run(main())


def test_a_drain_commits_what_was_handled() -> None:
    async def main() -> None:
        transport = MemoryTransport()
        async with Client(URL, transport=transport) as client:
            await fill(client, 10)
            options = Transactional(max_delay=60)
            async with worker_of(client, transactional=options) as worker:
                await asyncio.sleep(5)
                assert transport.backlog(IN, "s") == 10
            assert worker.report().succeeded == 10
            assert sorted(await outputs(client)) == list(range(10))
            assert await left(client) == []

    run(main())


@pytest.mark.parametrize("command", [None, "ACK", "SEND"])
def test_a_handler_that_settles_its_message_publishes_its_results(command: str | None) -> None:
    async def handle(value: bytes, message: Message) -> bytes:
        if int(value) % 2:
            await message.ack()
        return value

    async def main() -> None:
        topic = OUT if command == "SEND" else None
        faults = [Fault(kind="drop", command=command, topic=topic)] if command else []
        transport = MemoryTransport(faults=FaultPlan(faults))
        async with Client(URL, transport=transport) as client:
            await fill(client, 5)
            async with worker_of(client, handle):
                await until_acked(transport)
                await asyncio.sleep(60)
            assert sorted(await outputs(client)) == list(range(5))

    run(main())


def test_the_next_process_aborts_the_open_transaction(tmp_path: Path) -> None:
    """Readers of the results need not wait for the timeout of a killed process."""

    async def main() -> None:
        transport = MemoryTransport()
        async with Client(URL, transport=transport) as client:
            txn = await client.transaction(timeout=600)
            async with client.create_producer(OUT) as producer:
                await producer.send(b"1", txn=txn)
                await producer.send(b"2")
            state = encore.RocksState(tmp_path)
            async with worker_of(client, state=state):
                pass
            (tmp_path / FILE_NAME).write_text(f"{txn.id} {time.time() + 600:.0f}\n")
            async with worker_of(client, state=state):
                await asyncio.sleep(1)
                assert await outputs(client) == [2]

    run(main())


def test_a_worker_that_is_refused_the_directory_aborts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process, started by mistake, leaves the transactions of the first alone."""
    aborted: list[object] = []

    async def abort(txn_id: object) -> None:
        aborted.append(txn_id)

    async def main() -> None:
        async with Client(URL, transport=MemoryTransport()) as client:
            monkeypatch.setattr(client, "abort_transaction", abort)
            worker = worker_of(client, state=encore.RocksState(tmp_path))
            with subprocess.Popen(
                [sys.executable, "-c", HOLD, str(tmp_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as other:
                assert other.stdout is not None
                assert other.stdout.readline() == b"open\n"
                (tmp_path / FILE_NAME).write_text(f"(7,8) {time.time() + 600:.0f}\n")
                with pytest.raises(encore.StateInUseError, match=f"process {other.pid}"):
                    await worker.serve()
            assert aborted == []
            async with worker_of(client, state=encore.RocksState(tmp_path)):
                pass
            assert aborted == [encore.TxnId(7, 8)]

    run(main())


HOLD = """
import sys
from pulsar_encore.state.rocks import RocksStore
store = RocksStore(sys.argv[1], wall_now_ms=0)
print("open", flush=True)
sys.stdin.read()
store.close()
"""


def test_a_start_that_is_cancelled_late_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        subscribed = asyncio.Event()

        @contextlib.asynccontextmanager
        async def slow(*_: object) -> AsyncIterator[None]:
            yield
            subscribed.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(transaction_journal, "owned_after_aborts", slow)
        async with Client(URL, transport=MemoryTransport()) as client:
            worker = worker_of(client, state=encore.RocksState(tmp_path))
            serving = asyncio.ensure_future(worker.serve())
            await subscribed.wait()
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            for _ in range(200):  # a thread closes the directory
                store = RocksStore(tmp_path, wall_now_ms=0)
                is_free = store.is_sole_user
                store.close()
                if is_free:
                    return
                await asyncio.sleep(0)
                time.sleep(0.02)
            pytest.fail("the consumer of the cancelled start has the directory")

    run(main())


def test_workers_of_one_process_share_the_file_of_open_transactions(tmp_path: Path) -> None:
    """Neither the start nor the ends of one worker concern the transactions of the other."""

    async def main() -> None:
        transport = MemoryTransport()
        aborted: list[object] = []
        async with Client(URL, transport=transport) as client:
            log = logging.getLogger("test")
            state = encore.RocksState(tmp_path)

            async def abort(txn_id: object) -> None:
                aborted.append(txn_id)

            async with owned_after_aborts(state, abort, "first", log):
                first = TransactionJournal(tmp_path, "first", log)
                (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
                second = TransactionJournal(tmp_path / "link", "second", log)
                ids = [(await client.transaction(timeout=600)).id for _ in range(3)]
                first.begun(ids[0], 600)
                second.begun(ids[1], 600)
                second.begun(ids[2], 600)
                async with owned_after_aborts(state, abort, "second", log):
                    assert aborted == []
                first.ended(ids[0])
                first.close()
                second.close()
                second.ended(ids[1])
                second.ended(ids[2])  # in the background, when the directory is perhaps another's
            async with owned_after_aborts(state, abort, "third", log):
                assert aborted == [ids[1], ids[2]]

    run(main())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_messages": 0}, "max_messages"),
        ({"timeout": 0.5}, "at least 1 s"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"max_delay": -1}, "max_delay"),
    ],
)
def test_options_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(encore.ConfigurationError, match=text):
        Transactional(**options)


@pytest.mark.parametrize("name", ["topics", "publish"])
def test_topics_that_are_not_persistent_are_refused(name: str) -> None:
    async def main() -> None:
        settings = {"topics": IN, "publish": OUT, name: "non-persistent://a/b/c"}
        async with Client(URL, transport=MemoryTransport()) as client:
            with pytest.raises(encore.ConfigurationError, match="not persistent"):
                Worker(
                    *(client, settings["topics"], "s", convert),
                    publish=settings["publish"],
                    transactional=True,
                )

    run(main())
