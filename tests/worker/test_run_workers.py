"""`run` in virtual time: reports, budgets, failures, cancellation, and bad input."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from fake_worker import FakeWorker

import pulsar_encore as encore
from pulsar_encore import testing
from pulsar_encore.options.client_logs import ClientLogs
from pulsar_encore.worker.drain_deadline import DrainDeadline


def handlers() -> list[object]:
    return [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]


def stop_after(delay: float, *workers: FakeWorker) -> None:
    for each in workers:
        asyncio.get_running_loop().call_later(delay, each.stop)


def fail_after(delay: float, error: BaseException) -> Callable[[], Awaitable[None]]:
    async def handler() -> None:
        await asyncio.sleep(delay)
        raise error

    return handler


def sleeping(delay: float) -> Callable[[DrainDeadline], Awaitable[None]]:
    async def drained(deadline: DrainDeadline) -> None:
        await asyncio.sleep(delay)

    return drained


def test_one_worker_returns_its_report() -> None:
    async def main() -> None:
        worker = FakeWorker()
        stop_after(5, worker)
        assert await encore.run(worker) == ["billing", "draining", "drained"]
        assert asyncio.get_running_loop().time() == 5

    testing.run(main())


def test_several_workers_return_their_reports_in_order() -> None:
    async def main() -> None:
        first, second = FakeWorker("first"), FakeWorker("second")
        stop_after(9, first)
        stop_after(3, second)
        reports = await encore.run(first, second)
        assert reports == (["first", "draining", "drained"], ["second", "draining", "drained"])

    testing.run(main())


def test_a_worker_that_is_stopped_alone_leaves_the_others_running() -> None:
    async def main() -> None:
        first, second = FakeWorker("first"), FakeWorker("second")
        stop_after(1, first)
        stop_after(60, second)
        await encore.run(first, second)
        assert asyncio.get_running_loop().time() == 60

    testing.run(main())


@pytest.mark.parametrize(("drain", "budget_s"), [(None, 30), (7, 7), (timedelta(minutes=1), 60)])
def test_the_budget_is_the_argument_or_the_longest_of_the_workers(
    drain: Any, budget_s: float
) -> None:
    async def main() -> None:
        workers = FakeWorker("first", drain=30), FakeWorker("second", drain=10)
        stop_after(1, *workers)
        await encore.run(*workers, drain=drain)
        assert [each.deadline and each.deadline.budget_s for each in workers] == [budget_s] * 2

    testing.run(main())


def test_a_failed_worker_drains_the_others_and_its_error_is_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        error = KeyError("no such order")
        failing = FakeWorker("failing", handler=fail_after(2, error))
        healthy = FakeWorker("healthy", drained=sleeping(4))
        with pytest.raises(KeyError) as caught:
            await encore.run(failing, healthy)
        assert caught.value is error
        assert healthy.lines == ["draining", "drained"]
        assert asyncio.get_running_loop().time() == 6

    testing.run(main())
    assert "worker 'failing' failed: draining worker 'healthy'" in caplog.text


def test_the_first_of_two_failures_is_raised_and_the_second_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async def drained(deadline: DrainDeadline) -> None:
            raise OSError("the second failure")

        failing = FakeWorker("failing", handler=fail_after(2, KeyError("the first failure")))
        with pytest.raises(KeyError, match="the first failure"):
            await encore.run(failing, FakeWorker("other", drained=drained))

    testing.run(main())
    assert "worker 'other' failed as well" in caplog.text
    assert "the second failure" in caplog.text


def test_the_failure_of_one_worker_alone_is_raised_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        with pytest.raises(KeyError):
            await encore.run(FakeWorker(handler=fail_after(2, KeyError("order"))))

    testing.run(main())
    assert caplog.records == []


def test_a_worker_that_overruns_its_budget_is_closed_and_reports(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        worker = FakeWorker(drained=sleeping(1000))
        stop_after(5, worker)
        assert await encore.run(worker, drain=8) == ["billing", "draining", "closed"]
        assert asyncio.get_running_loop().time() == 13.25

    testing.run(main())
    assert "worker 'billing' did not end within the drain of 8 s" in caplog.text


def test_run_returns_in_time_from_a_worker_that_ignores_its_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def drained(deadline: DrainDeadline) -> None:
            while not released.is_set():
                try:
                    await released.wait()
                except asyncio.CancelledError:
                    pass

        worker = FakeWorker(drained=drained)
        stop_after(5, worker)
        assert await encore.run(worker, drain=8) == ["billing", "draining"]
        assert asyncio.get_running_loop().time() == 13.5
        released.set()

    testing.run(main())
    assert "worker 'billing' did not close within 0.25 s: it is left" in caplog.text


def test_a_cancelled_run_closes_its_workers() -> None:
    async def main() -> None:
        first, second = FakeWorker("first"), FakeWorker("second")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await encore.run(first, second)
        assert first.lines == second.lines == ["closed"]
        assert asyncio.get_running_loop().time() == 5

    before = handlers()
    testing.run(main())
    assert handlers() == before


def test_an_error_while_a_cancelled_run_closes_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def handler() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                raise OSError("the close failed")

        class Fragile(FakeWorker):
            async def serve(self, budget: DrainDeadline) -> list[str]:
                await handler()
                return []

        task = asyncio.ensure_future(encore.run(Fragile()))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    testing.run(main())
    assert "the close failed" in caplog.text


@pytest.mark.parametrize("ends", ["report", "failure", "cancellation"])
def test_earlier_signal_handlers_are_restored(ends: str) -> None:
    def earlier(number: int, frame: object) -> None:
        raise AssertionError("no signal was sent")

    async def main() -> None:
        error = KeyError("order")
        worker = FakeWorker(handler=fail_after(2, error) if ends == "failure" else None)
        task = asyncio.ensure_future(encore.run(worker))
        await asyncio.sleep(1)
        assert earlier not in handlers()
        if ends == "report":
            worker.stop()
        elif ends == "cancellation":
            task.cancel()
        await asyncio.wait([task])
        assert handlers() == [earlier, earlier]

    before = [signal.signal(each, earlier) for each in (signal.SIGTERM, signal.SIGINT)]
    wakeup_fd = signal.set_wakeup_fd(-1)
    try:
        testing.run(main())
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.set_wakeup_fd(wakeup_fd)
        for each, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(each, handler)


def test_the_thread_of_the_signals_ends_with_the_run() -> None:
    async def main() -> None:
        worker = FakeWorker()
        stop_after(1, worker)
        await encore.run(worker)

    testing.run(main())
    for each in threading.enumerate():
        if each.name == "pulsar-encore-signals":
            each.join(10)
            assert not each.is_alive()


def test_a_second_run_says_which_run_owns_the_signals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pulsar_encore.worker")

    async def main() -> None:
        first, second = FakeWorker("first"), FakeWorker("second")
        stop_after(3, first)
        stop_after(5, second)
        await asyncio.gather(encore.run(first), encore.run(second))

    before = handlers()
    testing.run(main())
    assert handlers() == before
    line = "SIGTERM and SIGINT belong to the run of worker 'first'. They also drain worker 'second'"
    assert line in caplog.messages


class ClientWithLog:
    """As much of a client as `run` needs."""

    def __init__(self, name: str) -> None:
        self._logs = ClientLogs(logging.getLogger(name))


def of_client(worker: FakeWorker, client: ClientWithLog) -> FakeWorker:
    worker.client = client
    return worker


def test_a_run_logs_to_the_logger_of_its_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        client = ClientWithLog("mine")
        workers = [of_client(FakeWorker(each), client) for each in ("first", "second")]
        asyncio.get_running_loop().call_later(1, signal.raise_signal, signal.SIGTERM)
        await encore.run(*workers)

    testing.run(main())
    (record,) = [each for each in caplog.records if each.msg.startswith("%s: draining")]
    assert record.name == "mine"


def test_a_run_logs_each_failure_to_the_logger_of_the_client_of_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        error = KeyError("order")
        failing = of_client(FakeWorker("first", handler=fail_after(2, error)), ClientWithLog("a"))
        other = of_client(FakeWorker("second"), ClientWithLog("b"))
        with pytest.raises(KeyError):
            await encore.run(failing, other)

    testing.run(main())
    assert [each.name for each in caplog.records if "'first' failed" in each.getMessage()] == ["a"]


def test_records_about_workers_of_several_clients_go_to_the_logger_of_the_package(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        workers = [of_client(FakeWorker(each), ClientWithLog(each)) for each in ("a", "b")]
        asyncio.get_running_loop().call_later(1, signal.raise_signal, signal.SIGTERM)
        await encore.run(*workers)

    testing.run(main())
    (record,) = [each for each in caplog.records if each.msg.startswith("%s: draining")]
    assert record.name == "pulsar_encore.worker"


def test_a_run_outside_the_main_thread_says_to_call_stop(caplog: pytest.LogCaptureFixture) -> None:
    reports: list[object] = []

    async def main() -> None:
        worker = FakeWorker()
        stop_after(3, worker)
        reports.append(await encore.run(worker))

    thread = threading.Thread(target=lambda: testing.run(main()))
    thread.start()
    thread.join(10)
    assert reports == [["billing", "draining", "drained"]]
    assert "worker 'billing' runs outside the main thread" in caplog.text
    assert "Call worker.stop() instead" in caplog.text


def test_signal_handlers_that_cannot_be_installed_are_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        worker = FakeWorker()
        stop_after(3, worker)
        before = handlers()
        with monkeypatch.context() as patch:
            patch.setattr(signal, "signal", refuse)
            await encore.run(worker)
        assert handlers() == before

    def refuse(number: int, handler: object) -> object:
        raise ValueError("signal only works in main thread of the main interpreter")

    testing.run(main())
    assert "signal handlers cannot be installed here (signal only works" in caplog.text


class NoWorker:
    name = "no worker"

    def stop(self) -> None:
        """Do nothing."""


async def coroutine() -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (lambda: (), "run() needs at least one worker"),
        (lambda: (FakeWorker,), "got the class FakeWorker: write run(Worker(client, ...))"),
        (lambda: ([FakeWorker()],), "got list: give the workers as separate arguments"),
        (lambda: (NoWorker(),), "got NoWorker: write run(Worker(client, ...))"),
        (lambda: (FakeWorker(), None), "got NoneType"),
        (lambda: (coroutine(),), "got coroutine: give the worker itself"),
    ],
)
def test_an_object_that_is_no_worker_is_a_configuration_error(
    arguments: Callable[[], tuple[Any, ...]], text: str
) -> None:
    async def main() -> None:
        with pytest.raises(encore.ConfigurationError, match=re.escape(text)):
            await encore.run(*arguments())

    testing.run(main())


@pytest.mark.parametrize("drain", [-1, 0, float("nan"), True, "20"])
def test_a_drain_that_is_no_time_is_a_configuration_error(drain: Any) -> None:
    async def main() -> None:
        with pytest.raises(encore.ConfigurationError, match="drain must be"):
            await encore.run(FakeWorker(), drain=drain)

    testing.run(main())


def test_the_same_worker_twice_is_a_configuration_error() -> None:
    async def main() -> None:
        worker = FakeWorker()
        with pytest.raises(encore.ConfigurationError, match="got the worker 'billing' twice"):
            await encore.run(worker, FakeWorker("other"), worker)

    testing.run(main())
