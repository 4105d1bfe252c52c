"""Cancellations around `async with worker`: which are the worker's own, and what they leave."""

from __future__ import annotations

import asyncio

import pytest
from worker_kit import SUBSCRIPTION, TOPIC, attached, running, until

import pulsar_encore as encore
from pulsar_encore import Client, InitialPosition
from pulsar_encore.testing import MemoryTransport


async def nothing(value: bytes) -> None: ...


async def never(value: bytes) -> None:
    await asyncio.Event().wait()


def requests() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_a_timeout_around_a_worker_raises_a_timeout_error(client: Client) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            async with running(client, nothing) as worker:
                await asyncio.sleep(3600)
    assert worker.health().state == "ended"
    assert requests() == 0


async def test_a_timeout_around_a_worker_that_fails_in_its_drain_raises_a_timeout_error(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            async with running(client, nothing) as worker:
                monkeypatch.setattr(worker.consumer, "flush", fail)
                await asyncio.sleep(3600)
    assert worker.health().state == "failed"
    assert "failed as well" in caplog.text
    assert requests() == 0


async def test_a_failure_in_the_drain_after_an_error_of_the_body_is_logged(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(KeyError):
        async with running(client, nothing) as worker:
            monkeypatch.setattr(worker.consumer, "flush", fail)
            raise KeyError("order")
    assert "failed as well" in caplog.text


async def test_a_cancelled_task_with_a_worker_is_cancelled(client: Client) -> None:
    entered = asyncio.Event()

    async def body() -> None:
        async with running(client, nothing):
            entered.set()
            await asyncio.sleep(3600)

    task = asyncio.create_task(body())
    await entered.wait()
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()


async def test_a_task_group_that_aborts_ends_a_worker(client: Client) -> None:
    async def body() -> None:
        async with running(client, nothing):
            await asyncio.sleep(3600)

    async def fail() -> None:
        await asyncio.sleep(5)
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(body())
            group.create_task(fail())
    assert [type(each) for each in caught.value.exceptions] == [ZeroDivisionError]


async def test_a_cancellation_at_the_moment_of_a_failure_is_raised(client: Client) -> None:
    entered = asyncio.Event()

    async def body() -> None:
        async with running(client, nothing) as worker:
            entered.set()
            await worker.consumer.close()
            await asyncio.sleep(3600)

    task = asyncio.create_task(body())
    await entered.wait()
    while not task.cancelling():  # the worker has failed, and the task has not seen it yet
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()


async def test_a_body_that_catches_the_cancellation_of_a_failure_gets_the_failure(
    client: Client,
) -> None:
    with pytest.raises(encore.ClosedError):
        async with running(client, nothing) as worker:
            await worker.consumer.close()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(3600)
    await asyncio.sleep(1)
    assert requests() == 0


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_cancellation_during_the_drain_closes_the_worker(
    client: Client, transport: MemoryTransport, cancels: int
) -> None:
    async def slow_to_end(value: bytes) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)

    transport.put(TOPIC, b"x")
    draining = asyncio.Event()
    workers = []

    async def body() -> None:
        async with running(client, slow_to_end) as worker:
            workers.append(worker)
            await asyncio.sleep(1)
            draining.set()

    before = asyncio.all_tasks()
    task = asyncio.create_task(body())
    await draining.wait()
    await asyncio.sleep(0.2)
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0.1)
    async with asyncio.timeout(2):
        await asyncio.wait((task,))
    assert task.cancelled()
    assert workers[0].report().given_back == 1
    await asyncio.sleep(2)
    assert attached(transport) == []
    assert asyncio.all_tasks() == before


async def test_a_cancellation_during_the_start_leaves_nothing(
    client: Client, transport: MemoryTransport
) -> None:
    transport.put(TOPIC, b"x")
    for steps in range(300):
        worker = encore.Worker(
            client, TOPIC, SUBSCRIPTION, never, initial_position=InitialPosition.Earliest
        )
        before = asyncio.all_tasks()
        entering = asyncio.create_task(worker.__aenter__())
        for _ in range(steps):
            await asyncio.sleep(0)
        entering.cancel()
        await asyncio.wait((entering,))
        if not entering.cancelled():
            break
        assert not any("serve" in repr(each) for each in asyncio.all_tasks() - before), steps
        await asyncio.sleep(2)
        assert attached(transport) == [], steps
        assert asyncio.all_tasks() == before, steps
    assert 20 < steps < 299  # every step of a start was cancelled
    await worker.__aexit__(None, None, None)


@pytest.mark.parametrize("first", ["cancel", "stop"])
@pytest.mark.parametrize("again", [0, 1])
@pytest.mark.parametrize("ending", ["prompt", "slow"])
async def test_a_close_that_is_cancelled_at_any_step_leaves_nothing_attached(
    first: str, again: int, ending: str
) -> None:
    for steps in range(100):
        has_ended = await _cancelled_after(steps, first, again, 0.5 if ending == "slow" else 0)
        if has_ended:
            break
    assert 3 < steps < 99  # every step of a close was cancelled


async def _cancelled_after(steps: int, first: str, again: int, cleanup_s: float) -> bool:
    """End a worker, and cancel it some steps later, and again more steps later.

    Returns:
        True if it had ended before the cancellation.
    """

    async def handler(value: bytes) -> bytes:
        if value == b"result":
            return value  # makes a producer
        if value == b"reject":
            raise encore.Reject("no")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(cleanup_s)
        raise AssertionError

    transport = MemoryTransport()
    transport.put(TOPIC, b"result", b"reject", b"x")
    async with Client("pulsar://nowhere:6650", transport=transport) as client:
        worker = encore.Worker(
            client,
            TOPIC,
            SUBSCRIPTION,
            handler,
            publish="results",
            initial_position=InitialPosition.Earliest,
        )
        before = asyncio.all_tasks()
        serving = asyncio.create_task(worker.serve())
        await until(lambda: worker.report().rejected == worker.report().published == 1)
        assert len(attached(transport)) == 4
        if first == "stop":
            worker.stop()
            await asyncio.sleep(17)  # the handlers are cancelled 3 s before the end of the budget
        else:
            serving.cancel()
        for _ in range(steps):
            await asyncio.sleep(cleanup_s / 20)
        has_ended = serving.done()
        serving.cancel()
        for _ in range(again):
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait((serving,))
        await asyncio.sleep(5)
        assert attached(transport) == [], steps
        assert asyncio.all_tasks() == before, steps
        assert transport.backlog(TOPIC, SUBSCRIPTION) == 1
    return has_ended
