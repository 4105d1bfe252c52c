"""Slots: concurrency, results, timeouts, cancellation, and handlers that ignore it."""

from __future__ import annotations

import asyncio
import gc
import random
import time
import weakref
from contextvars import ContextVar
from typing import Any

import pytest
from slots_kit import Desk, Handler, Job

from pulsar_encore.testing import run
from pulsar_encore.worker.handler_call import HandlerCall
from pulsar_encore.worker.slots import (
    OUTSIDE,
    STUCK_AFTER_S,
    TIMEOUT,
    Cancelled,
    Raised,
    Result,
    Returned,
    TimedOut,
)


async def ignore_cancellation() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


async def swallow_one_cancellation() -> str:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        await asyncio.sleep(0.5)
    return "ended"


def test_no_more_handlers_run_at_a_time_than_there_are_slots() -> None:
    async def main() -> None:
        desk = Desk(size=3)
        active = most = 0

        async def handler() -> int:
            nonlocal active, most
            active += 1
            most = max(most, active)
            await asyncio.sleep(1)
            active -= 1
            return active

        for each in range(10):
            desk.add(str(each), handler)
        assert len(desk.slots.running()) == 3
        desk.slots.stop()
        await asyncio.sleep(10)
        assert most == 3
        assert len(desk.results) == 3, "after stop, the others stay in the queue"
        assert len(desk.waiting) == 7

    run(main())


def test_a_free_slot_takes_the_next_job_at_once() -> None:
    async def main() -> None:
        desk = Desk(size=2)

        async def handler() -> float:
            await asyncio.sleep(1)
            return asyncio.get_running_loop().time()

        for each in range(6):
            desk.add(str(each), handler)
        await asyncio.sleep(10)
        assert [desk.ended_s[str(each)] for each in range(6)] == [1, 1, 2, 2, 3, 3]
        assert all(isinstance(each, Returned) for each in desk.results.values())
        assert await desk.slots.join(asyncio.get_running_loop().time())

    run(main())


def test_handlers_that_never_await_let_other_tasks_run() -> None:
    async def main() -> None:
        desk = Desk(size=2)
        passes = 0

        async def other() -> None:
            nonlocal passes
            while len(desk.results) < 100:
                passes += 1
                await asyncio.sleep(0)

        async def handler() -> None:
            pass

        desk.waiting.extend(Job(str(each), handler) for each in range(100))
        desk.slots.wake()
        await other()
        assert passes >= 50

    run(main())


def test_an_idle_worker_has_no_tasks() -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        desk = Desk(size=100, timeout=60)
        desk.add("one", lambda: asyncio.sleep(1))
        await asyncio.sleep(2)
        assert desk.results
        assert asyncio.all_tasks() == before

    run(main())


def test_each_call_has_a_context_of_its_own() -> None:
    async def main() -> None:
        seen: ContextVar[str] = ContextVar("seen", default="")
        found: list[str] = []
        desk = Desk(size=1)

        async def handler() -> None:
            found.append(seen.get())
            seen.set("the message before")
            await asyncio.sleep(0)

        for each in range(3):
            desk.add(str(each), handler)
        await asyncio.sleep(1)
        assert found == ["", "", ""]

    run(main())


def test_each_call_has_a_task_of_its_own() -> None:
    async def main() -> None:
        tasks: list[object] = []
        desk = Desk(size=1)

        async def handler() -> None:
            tasks.append(asyncio.current_task())

        for each in range(3):
            desk.add(str(each), handler)
        await asyncio.sleep(1)
        assert len({id(each) for each in tasks}) == 3

    run(main())


def test_an_error_of_a_handler_is_its_result() -> None:
    async def main() -> None:
        desk = Desk()
        error = ValueError("bad order")

        async def handler() -> None:
            raise error

        def refuse() -> Any:
            raise error  # in the call itself, before there is a coroutine

        desk.add("later", handler)
        desk.add("at once", refuse)
        await asyncio.sleep(1)
        assert desk.results == {"later": Raised(error), "at once": Raised(error)}

    run(main())


def test_an_error_is_freed_without_the_garbage_collector() -> None:
    class OrderError(Exception):
        pass

    async def main() -> None:
        desk = Desk()
        references: list[weakref.ref[Any]] = []

        async def handler() -> None:
            error = OrderError()
            references.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error

        gc.disable()
        try:
            desk.add("one", handler)
            await asyncio.sleep(1)
            desk.results.clear()
            assert references[0]() is None
        finally:
            gc.enable()

    run(main())


def test_a_handler_is_cancelled_at_its_deadline() -> None:
    async def main() -> None:
        desk = Desk(timeout=60)
        cleaned_up = asyncio.Event()

        async def handler() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                cleaned_up.set()

        desk.add("slow", handler)
        desk.add("quick", lambda: asyncio.sleep(59, "done"))
        await asyncio.sleep(3600)
        assert desk.results == {"slow": TimedOut(), "quick": Returned("done")}
        assert desk.ended_s["slow"] == pytest.approx(60, abs=0.01)
        assert cleaned_up.is_set()

    run(main())


def test_a_handler_is_cancelled_at_its_deadline_after_an_idle_time() -> None:
    async def main() -> None:
        desk = Desk(timeout=60)
        for name in ("first", "second", "third"):
            began = asyncio.get_running_loop().time()
            desk.add(name, lambda: asyncio.sleep(3600))
            await asyncio.sleep(1000)
            assert desk.results[name] == TimedOut()
            assert desk.ended_s[name] - began == pytest.approx(60, abs=0.01)

    run(main())


@pytest.mark.parametrize("seed", range(10))
def test_one_alarm_serves_all_timeouts_in_time(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        loop = asyncio.get_running_loop()
        desk = Desk(size=8, timeout=5)
        began: dict[str, float] = {}
        lasts: dict[str, float] = {}

        def job(name: str) -> None:
            lasts[name] = rng.choice([0, 0.1, 4.9, 5.5, 100])

            async def handler() -> None:
                began[name] = loop.time()
                await asyncio.sleep(lasts[name])

            desk.add(name, handler)

        for each in range(200):
            job(str(each))
            await asyncio.sleep(rng.choice([0, 0, 0.3]))
        await asyncio.sleep(2000)
        for name, seconds in lasts.items():
            took = desk.ended_s[name] - began[name]
            assert took == pytest.approx(min(seconds, 5), abs=0.01), f"seed={seed}"
            is_late = isinstance(desk.results[name], TimedOut)
            assert is_late == (seconds > 5), f"seed={seed}"

    run(main())


def test_extend_moves_a_deadline_both_ways() -> None:
    async def main() -> None:
        desk = Desk(size=3, timeout=60)
        later = desk.add("later", lambda: asyncio.sleep(3600))
        sooner = desk.add("sooner", lambda: asyncio.sleep(3600))
        await asyncio.sleep(30)
        assert desk.slots.extend(later, 100)
        assert desk.slots.extend(sooner, 5)
        await asyncio.sleep(3600)
        assert desk.ended_s == {
            "sooner": pytest.approx(35, abs=0.01),
            "later": pytest.approx(130, abs=0.01),
        }
        assert not desk.slots.extend(later, 100), "it has ended"

    run(main())


def test_extend_without_a_timeout_sets_none() -> None:
    async def main() -> None:
        desk = Desk()
        job = desk.add("long", lambda: asyncio.sleep(100, "done"))
        await asyncio.sleep(0)
        assert desk.slots.extend(job, 5)
        await asyncio.sleep(200)
        assert desk.results == {"long": Returned("done")}

    run(main())


def test_a_cancelled_handler_is_reported_with_the_reason() -> None:
    async def main() -> None:
        desk = Desk(size=3)
        stops = desk.add("stops", lambda: asyncio.sleep(3600))
        returns = desk.add("returns", swallow_one_cancellation)

        async def fail() -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                raise RuntimeError("rolled back") from None

        fails = desk.add("fails", fail)
        await asyncio.sleep(1)
        for job in (stops, returns, fails):
            desk.slots.cancel(job, "lost")
            desk.slots.cancel(job, "drain")
        await asyncio.sleep(10)
        assert desk.results["stops"] == Cancelled("lost")
        assert desk.results["returns"] == Returned("ended", "lost")
        failed = desk.results["fails"]
        assert isinstance(failed, Raised)
        assert failed.reason == "lost"
        assert str(failed.error) == "rolled back"
        desk.slots.cancel(stops, "lost")  # it does not run any more: nothing happens

    run(main())


def test_a_handler_that_returns_after_its_timeout_is_not_lost() -> None:
    async def main() -> None:
        desk = Desk(timeout=60)
        desk.add("late", swallow_one_cancellation)
        await asyncio.sleep(100)
        assert desk.results == {"late": Returned("ended", TIMEOUT)}

    run(main())


def test_a_handler_that_is_cancelled_before_its_first_step_never_begins() -> None:
    async def main() -> None:
        desk = Desk()
        begun: list[str] = []

        async def handler() -> None:
            begun.append("begun")

        job = desk.add("one", handler)
        desk.slots.cancel(job, "lost")
        await asyncio.sleep(1)
        assert desk.results == {"one": Cancelled("lost")}
        assert begun == []
        assert desk.slots.running() == {}

    run(main())


def test_a_cancelled_error_of_the_handler_is_an_error_like_any_other() -> None:
    async def main() -> None:
        desk = Desk(timeout=60)

        async def handler() -> None:
            other: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            other.cancel()
            await other

        desk.add("one", handler)
        await asyncio.sleep(1)
        result = desk.results["one"]
        assert isinstance(result, Raised)
        assert isinstance(result.error, asyncio.CancelledError)
        assert result.reason is None

    run(main())


def test_a_timeout_inside_the_handler_is_not_taken_for_its_deadline() -> None:
    async def main() -> None:
        desk = Desk(size=2, timeout=60)

        async def caught() -> str:
            try:
                async with asyncio.timeout(5):
                    await asyncio.sleep(3600)
            except TimeoutError:
                return "caught"
            return "never"

        async def raised() -> None:
            async with asyncio.timeout(5):
                await asyncio.sleep(3600)

        desk.add("caught", caught)
        desk.add("raised", raised)
        await asyncio.sleep(10)
        assert desk.results["caught"] == Returned("caught")
        result = desk.results["raised"]
        assert isinstance(result, Raised)
        assert isinstance(result.error, TimeoutError)

    run(main())


def test_a_deadline_inside_a_timeout_block_and_a_task_group_is_a_timeout() -> None:
    async def main() -> None:
        desk = Desk(timeout=5)

        async def handler() -> None:
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(3600))

        desk.add("one", handler)
        await asyncio.sleep(10)
        assert desk.results == {"one": TimedOut()}

    run(main())


def test_a_cancellation_from_outside_starts_no_job_in_that_step() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk(size=1)
        tasks: list[asyncio.Task[Any]] = []

        async def handler() -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
            await asyncio.sleep(3600)

        desk.add("first", handler)
        desk.add("second", handler)
        await asyncio.sleep(1)
        tasks[0].cancel()
        await asyncio.sleep(0.5)
        assert desk.results == {"first": Cancelled(OUTSIDE)}
        assert desk.slots.running() == {}
        await asyncio.sleep(10)
        assert [job.name for job in desk.slots.running()] == ["second"], "the slot is not lost"
        await desk.slots.close(loop.time() + 1)

    run(main())


def test_handlers_are_cancelled_once_at_the_end_of_the_event_loop() -> None:
    results: dict[str, Result] = {}

    async def main() -> None:
        desk = Desk(size=2)
        desk.results = results
        for each in range(10):
            desk.add(str(each), lambda: asyncio.sleep(3600))
        await asyncio.sleep(1)

    run(main())
    assert results == {"0": Cancelled(OUTSIDE), "1": Cancelled(OUTSIDE)}


def test_a_handler_that_ignores_its_cancellation_is_reported_as_stuck_once() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk(size=1, timeout=60)
        job = desk.add("deaf", ignore_cancellation)
        desk.add("next", lambda: asyncio.sleep(1, "done"))
        await asyncio.sleep(60 + STUCK_AFTER_S - 0.1)
        assert desk.stuck == []
        assert desk.slots.stuck() == {}
        await asyncio.sleep(1000)
        assert desk.stuck == [("deaf", TIMEOUT)]
        assert desk.slots.stuck() == {job: pytest.approx(1000 + STUCK_AFTER_S - 0.1, abs=0.01)}
        assert desk.results == {}
        desk.slots.abandon(job)
        await asyncio.sleep(10)
        assert desk.results == {"next": Returned("done")}, "the slot is free again"
        assert await desk.slots.close(loop.time()) == []

    run(main())


def test_the_result_of_an_abandoned_handler_is_not_reported() -> None:
    async def main() -> None:
        desk = Desk(size=1)
        job = desk.add("late", swallow_one_cancellation)
        await asyncio.sleep(1)
        desk.slots.cancel(job, "lost")
        desk.slots.abandon(job)
        await asyncio.sleep(0)
        again = desk.slots.running()
        assert again == {}
        await asyncio.sleep(10)
        assert desk.results == {}

    run(main())


def test_close_cancels_waits_and_returns_the_jobs_that_were_abandoned() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk(size=4)
        desk.add("stops", lambda: asyncio.sleep(3600))
        desk.add("slow", swallow_one_cancellation)
        deaf = desk.add("deaf", ignore_cancellation)
        await asyncio.sleep(1)
        began = loop.time()
        assert await desk.slots.close(loop.time() + 3) == [deaf]
        assert loop.time() - began == pytest.approx(3, abs=0.01)
        assert desk.results == {"stops": Cancelled("drain"), "slow": Returned("ended", "drain")}
        assert desk.slots.running() == {}
        desk.add("never", lambda: asyncio.sleep(1))
        await asyncio.sleep(10)
        assert "never" not in desk.results

    run(main())


def test_close_returns_as_soon_as_the_last_handler_has_ended() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk()
        desk.add("slow", swallow_one_cancellation)
        await asyncio.sleep(1)
        assert await desk.slots.close(loop.time() + 100) == []
        assert loop.time() == pytest.approx(1.5, abs=0.01)
        assert await desk.slots.close(loop.time() + 100) == []

    run(main())


def test_close_at_its_deadline_still_lets_handlers_clean_up() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk()
        desk.add("stops", lambda: asyncio.sleep(3600))
        await asyncio.sleep(1)
        assert await desk.slots.close(loop.time() - 5) == []
        assert desk.results == {"stops": Cancelled("drain")}

    run(main())


def test_a_cancelled_close_leaves_nothing_that_holds_the_event_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk()
        desk.add("deaf", ignore_cancellation)
        await asyncio.sleep(1)
        close = asyncio.create_task(desk.slots.close(loop.time() + 100))
        await asyncio.sleep(1)
        close.cancel()
        with pytest.raises(asyncio.CancelledError):
            await close
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


def test_a_task_that_an_abandoned_handler_waits_for_is_abandoned_too() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk()
        unrelated = asyncio.create_task(asyncio.sleep(3600))

        async def handler() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(ignore_cancellation())
                await asyncio.shield(unrelated)

        job = desk.add("deaf", handler)
        await asyncio.sleep(1)
        assert await desk.slots.close(loop.time() + 1) == [job]
        assert asyncio.all_tasks() == {asyncio.current_task(), unrelated}

    run(main())


def test_only_handlers_on_the_event_loop_are_left_behind() -> None:
    """A thread ends with its process, so nothing has to end the process by force."""

    async def main(cancellable: bool) -> None:
        loop = asyncio.get_running_loop()
        desk = Desk(cancellable=lambda: cancellable)
        desk.add("deaf", swallow_one_cancellation if cancellable else lambda: asyncio.sleep(2))
        await asyncio.sleep(1)
        desk.add("for ever", ignore_cancellation)
        await asyncio.sleep(0)
        await desk.slots.close(loop.time())
        assert desk.slots.left_behind() == (2 if cancellable else 0)
        await asyncio.sleep(2)
        assert desk.slots.left_behind() == (1 if cancellable else 0)

    run(main(cancellable=True))
    run(main(cancellable=False))


def test_handlers_that_cannot_be_cancelled_only_get_the_reason() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        desk = Desk(size=3, timeout=5, cancellable=lambda: False)
        desk.add("late", lambda: asyncio.sleep(7, "done"))
        desk.add("in time", lambda: asyncio.sleep(4, "done"))
        slow = desk.add("slow", lambda: asyncio.sleep(100))
        await asyncio.sleep(20)
        assert desk.results == {
            "late": Returned("done", TIMEOUT),
            "in time": Returned("done"),
        }
        assert desk.stuck == [("slow", TIMEOUT)]
        assert await desk.slots.close(loop.time() + 1) == [slow]

    run(main())


def test_a_report_that_fails_does_not_lose_the_slot() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        failures: list[Any] = []
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        desk = Desk(size=1)

        async def handler() -> None:
            pass

        desk.add("first", handler)
        desk.results["first"] = Returned(None)  # so that its report fails
        desk.add("second", handler)
        await asyncio.sleep(1)
        assert [type(each) for each in failures] == [AssertionError]
        assert desk.results["second"] == Returned(None)

    run(main())


def test_a_handler_that_exits_the_program_exits_it(caplog: pytest.LogCaptureFixture) -> None:
    results: dict[str, Result] = {}

    async def main() -> None:
        desk = Desk(size=1)
        desk.results = results

        async def handler() -> None:
            raise SystemExit(3)

        desk.add("exits", handler)
        desk.add("never", handler)
        await asyncio.sleep(10)

    with pytest.raises(SystemExit) as caught:
        run(main())
    assert caught.value.code == 3
    del caught
    results["exits"], exits = Returned(None), results["exits"]
    assert isinstance(exits, Raised)
    del exits
    gc.collect()
    assert caplog.text == "", "the event loop has raised the error, and logs nothing"
    assert list(results) == ["exits"]


def test_wake_may_be_called_from_every_callback() -> None:
    async def main() -> None:
        desk = Desk(size=2)

        async def handler() -> None:
            desk.slots.wake()
            await asyncio.sleep(0)
            desk.slots.wake()

        def finished(job: Job, result: Result) -> None:
            desk.slots.wake()

        desk.waiting.extend(Job(str(each), handler) for each in range(50))
        desk.slots.wake()
        await asyncio.sleep(1)
        assert len(desk.results) == 50

    run(main())


async def test_a_plain_function_keeps_its_slot_until_it_ends() -> None:
    def work(value: str) -> str:
        time.sleep(0.3)
        return value

    call = HandlerCall(work)
    desk = Desk(size=1, timeout=0.1, cancellable=call.cancellable)
    message: Any = object()
    desk.add("slow", lambda: call.call("done", message))
    desk.add("next", lambda: asyncio.sleep(0, "done"))
    await asyncio.sleep(0.2)
    assert desk.results == {}, "its thread still runs, so the message must not be tried again"
    while len(desk.results) < 2:
        await asyncio.sleep(0.01)
    assert desk.results == {"slow": Returned("done", TIMEOUT), "next": Returned("done")}


def test_two_timeouts_at_the_same_moment_end_the_handler_once() -> None:
    async def main() -> None:
        desk = Desk(size=1, timeout=5)

        async def handler() -> None:
            async with asyncio.timeout(5.001):  # the alarm is 1 ms late
                await asyncio.sleep(3600)

        desk.add("one", handler)
        desk.add("next", lambda: asyncio.sleep(1, "done"))
        await asyncio.sleep(10)
        result = desk.results["one"]
        assert isinstance(result, TimedOut | Raised)
        if isinstance(result, Raised):
            assert isinstance(result.error, TimeoutError)
        assert desk.results["next"] == Returned("done")

    run(main())


class RandomHandlers:
    """Handlers that return, fail, swallow cancellations or time out, at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.active = 0
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.behaviours: dict[str, str] = {}

    def handler(self, name: str) -> Handler:
        behaviour = self.behaviours[name] = self.rng.choice(list(ALLOWED))
        seconds = self.rng.choice([0, 0, 1, 3, 30])

        async def handle() -> str:
            task = asyncio.current_task()
            assert task is not None
            self.tasks[name] = task
            self.active += 1
            try:
                return await getattr(self, behaviour)(seconds)  # type: ignore[no-any-return]
            finally:
                self.active -= 1

        return handle

    async def returns(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "value"

    async def raises(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        raise ValueError

    async def raises_cancelled_error(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        raise asyncio.CancelledError

    async def swallows(self, seconds: float) -> str:
        try:
            await asyncio.sleep(seconds + 10)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "value"

    async def has_a_timeout(self, seconds: float) -> str:
        try:
            async with asyncio.timeout(2):
                await asyncio.sleep(seconds)
        except TimeoutError:
            pass
        return "value"


ALLOWED: dict[str, tuple[type[Result], ...]] = {
    "returns": (Returned,),
    "raises": (Raised,),
    "raises_cancelled_error": (Raised,),
    "swallows": (Returned,),
    "has_a_timeout": (Returned,),
}


@pytest.mark.parametrize("seed", range(60))
def test_every_job_is_reported_once_with_the_result_of_its_own_handler(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        loop = asyncio.get_running_loop()
        size = rng.randint(1, 4)
        desk = Desk(size=size, timeout=rng.choice([None, 2, 8]))
        handlers = RandomHandlers(rng)
        ours: set[str] = set()
        theirs: set[str] = set()
        for number in range(100):
            desk.add(str(number), handlers.handler(str(number)))
            await asyncio.sleep(rng.choice([0, 0, 0.1, 2]))
            assert handlers.active <= size, f"seed={seed}"
            running = list(desk.slots.running())
            if not running:
                continue
            job = rng.choice(running)
            action = rng.random()
            if action < 0.15:
                desk.slots.cancel(job, "lost")
                ours.add(job.name)
            elif action < 0.25:
                desk.slots.extend(job, rng.choice([1, 5, 20]))
            elif action < 0.35 and job.name in handlers.tasks:
                handlers.tasks[job.name].cancel()
                theirs.add(job.name)
        await asyncio.sleep(1000)
        while desk.waiting:
            desk.slots.wake()
            await asyncio.sleep(100)
        assert await desk.slots.close(loop.time()) == []
        assert len(desk.results) == 100, f"seed={seed}"
        for name, result in desk.results.items():
            shown = f"seed={seed} {name} {handlers.behaviours[name]} {result}"
            if isinstance(result, TimedOut):
                assert desk.timeout is not None, shown
            elif isinstance(result, Cancelled):
                expected = ours if result.reason == "lost" else theirs
                assert name in expected, shown
            else:
                assert isinstance(result, ALLOWED[handlers.behaviours[name]]), shown
                assert result.reason in (None, TIMEOUT, "lost"), shown

    run(main())
