"""The marker `pulsar_virtual_time`, under pytest-asyncio and under anyio."""

from __future__ import annotations

import pytest

from tests.testing_plugin.inner_run import ANYIO, ASYNCIO, Inner

pytest_plugins = ["pytester"]

BESIDE = """
import asyncio, time
import pytest

LOOPS = {}

def remember(name):
    loop = asyncio.get_running_loop()
    assert all(loop is not other for other in LOOPS.values())
    LOOPS[name] = loop
    return type(loop).__name__

@RUNNER
async def test_before():
    assert remember("before") != "VirtualClockLoop"

@RUNNER
@pytest.mark.pulsar_virtual_time
async def test_two_hours(pulsar_memory):
    import pulsar_encore as encore

    assert remember("virtual") == "VirtualClockLoop"
    loop, began = asyncio.get_running_loop(), time.monotonic()
    consumer = await pulsar_memory.client.subscribe("jobs", "worker", encore.ConsumerType.Shared)
    pulsar_memory.transport.put("jobs", b"one")
    message = await consumer.receive()
    await consumer.negative_acknowledge(message, delay=7200)
    message = await consumer.receive()
    assert message.redelivery_count() == 1
    await consumer.acknowledge(message)
    assert 7200 <= loop.time() < 7200 + 120
    assert time.monotonic() - began < 30

@RUNNER
async def test_after():
    assert remember("after") != "VirtualClockLoop"

@RUNNER
@pytest.mark.pulsar_virtual_time
@pytest.mark.parametrize("hours", [1, 2])
async def test_parameters(hours):
    await asyncio.sleep(hours * 3600)
    assert remember(hours) == "VirtualClockLoop"
    assert asyncio.get_running_loop().time() == hours * 3600

def test_synchronous():
    assert [name for name in LOOPS if name != "after"] == ["before", "virtual"]
"""

STRICT = BESIDE.replace("@RUNNER", "@pytest.mark.asyncio")
AUTO = BESIDE.replace("@RUNNER\n", "")
ANYIO_MARKED = BESIDE.replace("@RUNNER", "@pytest.mark.anyio").replace(
    "LOOPS = {}",
    "LOOPS = {}\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n",
)


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        pytest.param(STRICT, [*ASYNCIO, "--asyncio-mode=strict"], id="pytest-asyncio strict"),
        pytest.param(AUTO, [*ASYNCIO, "--asyncio-mode=auto"], id="pytest-asyncio auto"),
        pytest.param(STRICT, [*ANYIO, *ASYNCIO, "--asyncio-mode=strict"], id="strict, with anyio"),
        pytest.param(ANYIO_MARKED, ANYIO, id="anyio"),
        pytest.param(
            ANYIO_MARKED,
            [*ANYIO, *ASYNCIO, "--asyncio-mode=strict"],
            id="anyio beside pytest-asyncio",
        ),
    ],
)
def test_two_hours_pass_in_milliseconds_beside_tests_in_real_time(
    inner: Inner, source: str, arguments: list[str]
) -> None:
    source = source.replace('["before", "virtual"]', '["before", "virtual", 1, 2]')
    inner(*arguments, test_beside=source).assert_outcomes(passed=6)


def test_the_marker_does_not_change_the_ids_of_tests(inner: Inner) -> None:
    result = inner(*ASYNCIO, "--asyncio-mode=auto", "--collect-only", "-q", test_beside=AUTO)
    result.stdout.fnmatch_lines(
        ["test_beside.py::test_two_hours", "*::test_after", "*::test_parameters[[]1[]]"]
    )


def test_in_strict_mode_the_marker_is_enough(inner: Inner) -> None:
    inner(
        *ASYNCIO,
        *ANYIO,
        "--asyncio-mode=strict",
        test_alone="""
import asyncio, pytest

@pytest.mark.pulsar_virtual_time
class TestInVirtualTime:
    async def test_hour(self):
        await asyncio.sleep(3600)

    def test_synchronous(self):
        pass
""",
        test_module="""
import asyncio, pytest

pytestmark = pytest.mark.pulsar_virtual_time

async def test_hour():
    await asyncio.sleep(3600)

def test_synchronous():
    pass
""",
    ).assert_outcomes(passed=4)


def test_a_hypothesis_test_runs_in_virtual_time(inner: Inner) -> None:
    inner(
        *ASYNCIO,
        test_property="""
import asyncio, pytest
from hypothesis import given, settings, strategies

@pytest.mark.pulsar_virtual_time
@settings(max_examples=5, deadline=None, database=None)
@given(strategies.integers(3600, 7200))
async def test_hours(seconds):
    await asyncio.sleep(seconds)
""",
    ).assert_outcomes(passed=1)


MODULE_SCOPE = """
import asyncio, pytest, pytest_asyncio

@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def loop():
    return asyncio.get_running_loop()

@pytest.mark.asyncio(loop_scope="module")
async def test_real(loop):
    assert loop is asyncio.get_running_loop()
    assert type(loop).__name__ != "VirtualClockLoop"

@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.pulsar_virtual_time
async def test_virtual(loop, pulsar_memory):
    assert loop is asyncio.get_running_loop()
    assert type(loop).__name__ == "VirtualClockLoop"
    await pulsar_memory.client.subscribe("jobs", "worker")

@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.pulsar_virtual_time
async def test_virtual_again(loop, pulsar_memory):
    assert loop is asyncio.get_running_loop()
    await pulsar_memory.client.subscribe("jobs", "worker")

@pytest.mark.asyncio(loop_scope="module")
async def test_real_again(loop):
    assert loop is asyncio.get_running_loop()
    assert type(loop).__name__ != "VirtualClockLoop"
"""


def test_fixtures_of_a_wider_loop_are_made_again_for_another_loop(inner: Inner) -> None:
    inner(*ASYNCIO, test_module=MODULE_SCOPE).assert_outcomes(passed=4)


ANYIO_MODULE_SCOPE = """
import asyncio, pytest

pytestmark = pytest.mark.anyio

@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"

@pytest.fixture(scope="module")
async def loop():
    yield asyncio.get_running_loop()

@pytest.mark.pulsar_virtual_time
async def test_first(loop):
    assert type(asyncio.get_running_loop()).__name__ == "VirtualClockLoop"

@SECOND
async def test_second(loop):
    assert type(asyncio.get_running_loop()).__name__ == "VirtualClockLoop"
"""


def test_anyio_tests_that_share_an_async_fixture_must_all_be_marked(inner: Inner) -> None:
    both = ANYIO_MODULE_SCOPE.replace("@SECOND", "@pytest.mark.pulsar_virtual_time")
    inner(*ANYIO, test_both=both).assert_outcomes(passed=2)

    first = ANYIO_MODULE_SCOPE.replace("@SECOND\n", "")
    result = inner(*ANYIO, "test_first.py", test_first=first)
    result.stdout.fnmatch_lines(["*wider scope keeps its event loop for test_second*"])

    second = ANYIO_MODULE_SCOPE.replace("@pytest.mark.pulsar_virtual_time", "").replace(
        "@SECOND", "@pytest.mark.pulsar_virtual_time"
    )
    result = inner(*ANYIO, "test_second.py", test_second=second)
    result.stdout.fnmatch_lines(["*test_second is marked pulsar_virtual_time and runs on a *"])


REFUSED = """
import unittest
import pytest

@pytest.mark.pulsar_virtual_time
def test_synchronous():
    pass

@pytest.mark.pulsar_virtual_time(patience=3)
async def test_unknown_argument():
    pass

@pytest.mark.pulsar_virtual_time(deadlock_timeout_s=-1)
async def test_negative_timeout():
    pass

@pytest.mark.pulsar_virtual_time
class TestOfUnittest(unittest.IsolatedAsyncioTestCase):
    async def test_unittest(self):
        pass
"""


def test_a_marked_test_that_cannot_run_in_virtual_time_says_why(inner: Inner) -> None:
    result = inner(*ASYNCIO, "--asyncio-mode=auto", test_refused=REFUSED)
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines_random(
        [
            "test_synchronous is marked pulsar_virtual_time and is not async: *Write `async def`*",
            "pulsar_virtual_time accepts deadlock_timeout_s=, got patience",
            "deadlock_timeout_s must be 0 to 1e6 seconds, got -1",
            "test_unittest is marked pulsar_virtual_time, but unittest makes the event loop*",
        ]
    )


ONE = """
import pytest

@pytest.mark.pulsar_virtual_time
async def test_one():
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ([], "no plugin for async tests is loaded: install pytest-asyncio 1.5 or later, or anyio"),
        (ANYIO, "no plugin runs it: mark it with @pytest.mark.anyio, or install pytest-asyncio*"),
    ],
)
def test_without_a_plugin_for_async_tests_the_error_says_what_to_install(
    inner: Inner, arguments: list[str], advice: str
) -> None:
    result = inner(*arguments, test_one=ONE)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"test_one is marked pulsar_virtual_time, and {advice}"])


def test_two_event_loops_for_one_test_are_refused(inner: Inner) -> None:
    result = inner(
        *ASYNCIO,
        conftest="""
import asyncio

def pytest_asyncio_loop_factories():
    return {"own": asyncio.SelectorEventLoop}
""",
        test_two="""
import pytest

@pytest.mark.asyncio(loop_factories=["own"])
@pytest.mark.pulsar_virtual_time
async def test_two():
    pass

@pytest.mark.pulsar_virtual_time
async def test_marked():
    import asyncio
    assert type(asyncio.get_running_loop()).__name__ == "VirtualClockLoop"

@pytest.mark.asyncio
async def test_own():
    import asyncio
    assert type(asyncio.get_running_loop()) is asyncio.SelectorEventLoop
""",
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["test_two is marked*asyncio(loop_factories=...)*one event loop*"])


def test_the_marker_sets_the_backend_of_anyio(inner: Inner) -> None:
    result = inner(
        *ANYIO,
        test_backend="""
import pytest

@pytest.mark.anyio
@pytest.mark.pulsar_virtual_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_backend():
    pass
""",
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["test_backend* is marked*and parametrizes anyio_backend*"])


DEADLOCK = """
import asyncio, pytest

@RUNNER
@pytest.mark.pulsar_virtual_time(deadlock_timeout_s=0.01)
async def test_hangs(pulsar_memory):
    consumer = await pulsar_memory.client.subscribe("jobs", "worker")
    pulsar_memory.transport.put("jobs", b"one")
    await consumer.receive()
    await consumer.receive()  # the second message never comes
"""


@pytest.mark.parametrize(
    ("runner", "arguments"), [("asyncio", ASYNCIO), ("anyio", ANYIO)], ids=["asyncio", "anyio"]
)
def test_a_deadlock_is_reported_at_the_line_that_waits(
    inner: Inner, runner: str, arguments: list[str]
) -> None:
    source = DEADLOCK.replace("@RUNNER", f"@pytest.mark.{runner}")
    if runner == "anyio":
        source += "\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    result = inner(*arguments, test_deadlock=source)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       await consumer.receive()  # the second message never comes",
            "*Deadlock: every task waits and no timer is set*",
            "*Captured pulsar_memory call*",
            "persistent://public/default/jobs: 1 entries",
            "  worker: 1 not acked",
        ]
    )
