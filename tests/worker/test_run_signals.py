"""`run` in processes of their own, with real signals: exit codes, and limits of time."""

from __future__ import annotations

import signal
import sys
import time

import pytest
from signal_programs import SLACK_S, program

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows delivers no SIGTERM")

NUMBERS = [signal.SIGTERM, signal.SIGINT]

CLEAN = """
async def main():
    async def drained(deadline):
        await asyncio.sleep(0.1)
    say(await encore.run(FakeWorker(handler=ready, drained=drained), drain=20))

if "uvloop" in sys.argv:
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_drains_and_the_process_ends_normally(number: int, loop: str) -> None:
    with program(CLEAN, loop) as running:
        running.send(number)
        assert running.end() == 0, running.errors
    assert running.out == "['billing', 'draining', 'drained']\n"
    assert f"{signal.Signals(number).name}: draining worker 'billing' within 20 s" in running.errors
    assert running.took_s < 10


@pytest.mark.parametrize("number", NUMBERS)
def test_a_second_signal_ends_the_process_at_once(number: int) -> None:
    text = """
async def main():
    async def drained(deadline):
        say("draining")
        await asyncio.sleep(100)
    await encore.run(FakeWorker(handler=ready, drained=drained), drain=200)

asyncio.run(main())
"""
    with program(text) as running:
        running.send(signal.SIGTERM)
        assert running.read_line() == "draining"
        running.send(number)
        assert running.end() == 128 + number, running.errors
    name = signal.Signals(number).name
    assert f"ERROR {name} came after SIGTERM, so the process ends at once" in running.errors
    assert running.took_s < SLACK_S


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_the_time_of_a_blocked_loop_counts_toward_the_budget(loop: str) -> None:
    text = """
async def main():
    async def handler():
        say("ready")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(2)
    async def drained(deadline):
        say(deadline.left_s())
    await encore.run(FakeWorker(handler=handler, drained=drained), drain=10)

if "uvloop" in sys.argv:
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""
    with program(text, loop) as running:
        left = float(running.read_line())
        assert running.end() == 0, running.errors
    assert 10 - 2 - SLACK_S < left < 10 - 1


BLOCKED = {
    "asleep": "time.sleep(60)",
    "computing": "while True: pass",
    # C code that never returns to the interpreter, as in a synchronous database driver: it locks a
    # mutex twice.
    "in C": """
        mutex = ctypes.create_string_buffer(256)
        library = ctypes.CDLL(None)
        library.pthread_mutex_init(mutex, None)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)
""",
}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("kind", BLOCKED)
def test_a_blocked_event_loop_ends_the_process_a_second_after_the_budget(
    kind: str, loop: str
) -> None:
    text = f"""
import ctypes

async def blocked_handler():
        say("ready")
        {BLOCKED[kind]}

async def main():
    await encore.run(FakeWorker(handler=blocked_handler), drain=1)

if "uvloop" in sys.argv:
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""
    with program(text, loop) as running:
        running.send(signal.SIGTERM)
        assert running.end() == 128 + signal.SIGTERM, running.errors
    assert 1.9 < running.took_s < 2 + SLACK_S
    assert "ERROR SIGTERM came" in running.errors
    assert "worker 'billing' has not ended" in running.errors
    assert "blocked_handler" in running.errors, "the stack of the thread of the event loop"


def test_a_second_signal_ends_a_process_whose_loop_is_blocked_in_c() -> None:
    text = f"""
import ctypes

async def handler():
        say("ready")
        {BLOCKED["in C"]}

asyncio.run(encore.run(FakeWorker(handler=handler), drain=200))
"""
    with program(text) as running:
        running.send(signal.SIGTERM)
        time.sleep(0.2)  # equal signals that come together are one
        running.send(signal.SIGTERM)
        assert running.end() == 128 + signal.SIGTERM, running.errors
    assert running.took_s < SLACK_S


def test_the_last_line_of_a_process_goes_to_the_loggers_of_all_clients() -> None:
    text = """
from pulsar_encore.options.client_logs import ClientLogs

class ClientWithLog:
    def __init__(self, name):
        self._logs = ClientLogs(logging.getLogger(name))

async def main():
    runs = []
    for name in ("one", "two", "two"):
        worker = FakeWorker(handler=ready, drained=lambda deadline: asyncio.sleep(1000))
        worker.client = ClientWithLog(name)
        runs.append(encore.run(worker, drain=200))
    await asyncio.gather(*runs)

logging.basicConfig(force=True, level="INFO", format="%(name)s: %(levelname)s %(message)s")
asyncio.run(main())
"""
    with program(text) as running:
        running.send(signal.SIGTERM)
        time.sleep(0.2)  # equal signals that come together are one
        running.send(signal.SIGTERM)
        assert running.end() == 128 + signal.SIGTERM, running.errors
    for name in ("one", "two"):
        assert running.errors.count(f"{name}: ERROR SIGTERM came after SIGTERM") == 1
    assert "pulsar_encore" not in running.errors


def test_a_handler_that_was_left_behind_does_not_keep_the_process() -> None:
    text = """
async def stubborn():
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

async def main():
    tasks = []
    async def handler():
        tasks.append(asyncio.create_task(stubborn()))
        await ready()
    worker = FakeWorker(handler=handler)
    worker.left_behind = 1
    say(await encore.run(worker, drain=1))

asyncio.run(main())  # waits for `stubborn`
"""
    with program(text) as running:
        running.send(signal.SIGINT)
        assert running.end() == 128 + signal.SIGINT, running.errors
    assert running.out == "['billing', 'draining', 'drained']\n", "run itself returned"
    assert 1.9 < running.took_s < 2 + SLACK_S
    assert "ignores its cancellation" in running.errors


def test_a_process_whose_handlers_all_ended_goes_on_after_run() -> None:
    text = """
async def main():
    worker = FakeWorker(handler=ready)
    worker.left_behind = 1
    await encore.run(worker, drain=1)
    worker.left_behind = 0  # it ended later
    await asyncio.sleep(3)
    say("cleaned up")

asyncio.run(main())
"""
    with program(text) as running:
        running.send(signal.SIGTERM)
        assert running.end() == 0, running.errors
    assert running.out == "cleaned up\n"


def test_the_earlier_handlers_work_after_run() -> None:
    text = """
signal.signal(signal.SIGTERM, lambda *_: (say("earlier"), sys.exit(7)))

async def main():
    await encore.run(FakeWorker(handler=ready), drain=1)
    say("returned")
    # Not one long sleep: without a wakeup fd, Python does not notice a signal that comes just
    # before the loop waits, until that wait ends.
    for _ in range(600):
        await asyncio.sleep(0.1)

asyncio.run(main())
"""
    with program(text) as running:
        running.send(signal.SIGTERM)
        assert running.read_line() == "returned"
        running.send(signal.SIGTERM)
        assert running.end() == 7, running.errors
    assert running.out == "earlier\n"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_other_signals_reach_the_handlers_of_the_loop(loop: str) -> None:
    text = """
async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, say, "before")
    task = asyncio.create_task(encore.run(FakeWorker(handler=ready), drain=5))
    await asyncio.sleep(1)
    loop.add_signal_handler(signal.SIGUSR2, say, "during")
    say("more")
    say(await task)
    await asyncio.sleep(1000)

if "uvloop" in sys.argv:
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""
    with program(text, loop) as running:
        running.send(signal.SIGUSR1)
        assert running.read_line() == "before"
        assert running.read_line() == "more"
        for number, line in ((signal.SIGUSR1, "before"), (signal.SIGUSR2, "during")):
            running.send(number)
            assert running.read_line() == line
        running.send(signal.SIGTERM)
        assert running.read_line() == "['billing', 'draining', 'drained']"
        for number, line in ((signal.SIGUSR1, "before"), (signal.SIGUSR2, "during")):
            running.send(number)
            assert running.read_line() == line


def test_a_signal_drains_every_run_of_the_process() -> None:
    text = """
async def main():
    await encore.run(FakeWorker("in a thread", handler=asyncio.Event().wait), drain=5)

async def both():
    first = encore.run(FakeWorker("first", handler=asyncio.Event().wait), drain=5)
    say(await asyncio.gather(first, encore.run(FakeWorker("second", handler=ready), drain=5)))

thread = threading.Thread(target=lambda: asyncio.run(main()))
thread.start()
time.sleep(0.5)
asyncio.run(both())
thread.join()
say("all ended")
"""
    with program(text) as running:
        running.send(signal.SIGTERM)
        assert running.end() == 0, running.errors
    assert running.out.splitlines()[-1] == "all ended"
    assert "INFO SIGTERM: draining worker 'in a thread'" in running.errors
    assert "They also drain worker 'second'" in running.errors


def test_a_run_that_starts_after_the_signal_drains_at_once() -> None:
    text = """
async def main():
    async def drained(deadline):
        await encore.run(FakeWorker("late", handler=asyncio.Event().wait), drain=5)
    say(await encore.run(FakeWorker(handler=ready, drained=drained), drain=60))

asyncio.run(main())
"""
    with program(text) as running:
        running.send(signal.SIGTERM)
        assert running.end() == 0, running.errors
    assert running.took_s < SLACK_S


def test_on_failure_terminate_sends_sigterm_to_the_handler_of_the_program() -> None:
    text = """
class Server:
    def __init__(self):
        self.stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stopped.set)  # as uvicorn

async def main():
    server = Server()
    async def handler():
        say("ready")
        raise KeyError("no such table")
    lifespan = asyncio.create_task(
        encore.run(FakeWorker(handler=handler, on_failure="terminate"), drain=5)
    )
    await server.stopped.wait()
    say(repr(lifespan.exception()))

asyncio.run(main())
"""
    with program(text) as running:
        assert running.end() == 0, running.errors
    assert running.out == "KeyError('no such table')\n"
    assert "ERROR worker 'billing' failed, so this process gets SIGTERM" in running.errors


def test_a_forked_child_does_not_drain_its_parent() -> None:
    text = """
async def main():
    async def handler():
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(3)  # it must not go on as a second program
        say("ready")
        await asyncio.sleep(0.5)
        os.kill(child, signal.SIGTERM)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        await asyncio.sleep(1)
        say("still running")
        await asyncio.sleep(1000)
    await encore.run(FakeWorker(handler=handler), drain=5)

asyncio.run(main())
"""
    with program(text) as running:
        assert running.read_line() == str(-signal.SIGTERM)
        assert running.read_line() == "still running"
        running.send(signal.SIGTERM)
        assert running.end() == 0, running.errors
