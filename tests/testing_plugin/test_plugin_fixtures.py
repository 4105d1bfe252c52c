"""The fixtures `pulsar_memory`, `pulsar_broker` and `pulsar_faults`, and the plugin's imports."""

from __future__ import annotations

import os
import sys
import tomllib
from typing import Any

import pytest

from tests.testing_plugin.inner_run import ANYIO, ASYNCIO, SDK, Inner

pytest_plugins = ["pytester"]

PYPROJECT = tomllib.loads((SDK.parent / "pyproject.toml").read_text("utf-8"))

#: Prints the modules of the package that the run has imported.
SHOWN = """
import sys

def pytest_unconfigure():
    names = sorted(name for name in sys.modules if name.split(".")[0] == "pulsar_encore")
    print("\\nimported", len(names), "asyncio" in sys.modules)
"""


def test_a_run_that_does_not_use_the_plugin_imports_nothing_of_the_package(inner: Inner) -> None:
    result = inner("-s", conftest=SHOWN, test_other="def test_other():\n    pass\n")
    result.assert_outcomes(passed=1)
    # From Python 3.14 on, pytest imports asyncio itself.
    result.stdout.fnmatch_lines([f"imported 0 {sys.version_info >= (3, 14)}"])
    result = inner(
        "-s",
        *ASYNCIO,
        *ANYIO,
        conftest=SHOWN,
        test_other="import pytest\n\n@pytest.mark.asyncio\nasync def test_other():\n    pass\n",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["imported 0 True"])


def test_pytest_does_not_rewrite_the_asserts_of_the_package(
    inner: Inner, pytester: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in an installed wheel, whose list of files pytest reads.
    installed = pytester.mkdir("site") / "pulsar_encore-99.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.4\nName: pulsar-encore\nVersion: 99\n")
    (installed / "entry_points.txt").write_text(
        "[pytest11]\npulsar_encore = pulsar_encore_pytest\n"
    )
    (installed / "RECORD").write_text("pulsar_encore/__init__.py,,\npulsar_encore_pytest.py,,\n")
    monkeypatch.setenv("PYTHONPATH", f"{installed.parent}{os.pathsep}{SDK}")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    pytester.makepyfile(
        """
        import pulsar_encore
        import pulsar_encore_pytest

        def test_loaders(request):
            plugin = request.config.pluginmanager.get_plugin("pulsar_encore")
            assert plugin is pulsar_encore_pytest
            assert "rewrite" in type(plugin.__loader__).__module__
            assert "rewrite" not in type(pulsar_encore.__loader__).__module__
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_the_marker_and_the_fixtures_are_documented_by_pytest(inner: Inner) -> None:
    inner("--markers").stdout.fnmatch_lines(["@pytest.mark.pulsar_virtual_time(*"])
    result = inner("--fixtures", "-s", conftest=SHOWN)
    result.stdout.fnmatch_lines_random(["pulsar_memory*", "pulsar_broker*", "pulsar_faults*"])
    result.stdout.fnmatch_lines(["imported 0 *"])


def test_the_wheel_contains_every_module_and_names_the_plugin() -> None:
    included = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"])
    top_level = {f"sdk/{path.name}" for path in SDK.glob("*.py")}
    assert included == {"sdk/pulsar_encore", *top_level}
    (module,) = PYPROJECT["project"]["entry-points"]["pytest11"].values()
    assert (SDK / f"{module}.py").is_file()


# The application's fixture acks when it ends, so the client must still be open then. Its consumer
# stays open: only a close on the loop of the test sends the ack.
IN_MEMORY = """
import asyncio
import pytest
import pulsar_encore as encore

pytestmark = MARKS
MEMORIES = []

BACKEND

@FIXTURE
async def held(pulsar_memory):
    MEMORIES.append(pulsar_memory)
    consumer = await pulsar_memory.client.subscribe(
        "jobs", "worker", initial_position=encore.InitialPosition.Earliest
    )
    pulsar_memory.transport.put("jobs", b"one")
    pulsar_memory.transport.put("jobs", b"two")
    message = await consumer.receive()
    loop = asyncio.get_running_loop()
    yield message
    assert asyncio.get_running_loop() is loop
    await consumer.acknowledge(message)

async def test_fails_with_open_objects(held, pulsar_memory):
    producer = await pulsar_memory.client.create_producer("other")
    await producer.send(b"x")
    reader = await pulsar_memory.client.create_reader("jobs", encore.MessageId.earliest)
    waiting = asyncio.ensure_future(reader.read_next())
    assert held.data() == b"two", "as planned"

async def test_is_cancelled_inside(held):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

async def test_all_clients_before_are_closed(held):
    closed = [repr(each.client).endswith("closed>") for each in MEMORIES]
    assert closed == [True, True, False]
    backlogs = [each.transport.backlog("jobs", "worker") for each in MEMORIES]
    assert backlogs == [1, 1, 2]
"""


@pytest.mark.parametrize("virtual", [False, True], ids=["real time", "virtual time"])
@pytest.mark.parametrize("runner", ["strict", "auto", "module loop", "anyio"])
def test_the_client_in_memory_is_closed_after_the_fixtures_that_use_it(
    inner: Inner, runner: str, virtual: bool
) -> None:
    marks = ["pytest.mark.pulsar_virtual_time"] if virtual else []
    fixture, backend, arguments = "__import__('pytest_asyncio').fixture", "", list(ASYNCIO)
    if runner == "auto":
        arguments.append("--asyncio-mode=auto")
        fixture = "pytest.fixture"
    elif runner == "anyio":
        marks.append("pytest.mark.anyio")
        fixture, arguments = "pytest.fixture", list(ANYIO)
        backend = "@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'"
    elif runner == "module loop":
        marks.append("pytest.mark.asyncio(loop_scope='module')")
        fixture += "(loop_scope='module')"
    else:
        marks.append("pytest.mark.asyncio")
    source = (
        IN_MEMORY.replace("MARKS", f"[{', '.join(marks)}]")
        .replace("BACKEND", backend)
        .replace("FIXTURE", fixture)
    )
    result = inner(*arguments, test_memory=source)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*AssertionError: as planned", "*Captured pulsar_memory call*", "  worker: 2 not acked"]
    )


SYNCHRONOUS = """
import asyncio
import pulsar_encore as encore
from pulsar_encore import testing

CLIENTS = []

def test_synchronous(pulsar_memory):
    CLIENTS.append(pulsar_memory.client)

    async def main():
        consumer = await pulsar_memory.client.subscribe("jobs", "worker")
        pulsar_memory.transport.put("jobs", b"one")
        await consumer.acknowledge(await consumer.receive())
        await consumer.close()

    testing.run(main())
    assert pulsar_memory.transport.backlog("jobs", "worker") == 0

def test_leaves_a_consumer_open(pulsar_memory):
    CLIENTS.append(pulsar_memory.client)

    async def main():
        consumer = await pulsar_memory.client.subscribe("jobs", "worker")
        pulsar_memory.transport.put("jobs", b"one")
        await consumer.receive()

    asyncio.run(main())

def test_clients_are_closed():
    assert [repr(each).endswith("closed>") for each in CLIENTS] == [True, True]

def test_broker(pulsar_broker):
    async def main():
        async with encore.Client(pulsar_broker) as client:
            consumer = await client.subscribe("jobs", "worker")
            async with client.create_producer("jobs") as producer:
                await producer.send(b"one")
            await consumer.acknowledge(await consumer.receive())

    asyncio.run(main())
    assert pulsar_broker.broker.recorded("ACK", "in")
    CLIENTS.append(pulsar_broker.broker)

def test_the_broker_has_ended():
    import threading

    assert "devbroker" not in {each.name for each in threading.enumerate()}
"""


def test_synchronous_tests_can_use_the_fixtures(inner: Inner) -> None:
    inner(test_synchronous=SYNCHRONOUS).assert_outcomes(passed=5)
    inner(*ASYNCIO, *ANYIO, "--asyncio-mode=auto", test_synchronous=SYNCHRONOUS).assert_outcomes(
        passed=5
    )


TRIO = """
import pytest

@pytest.fixture
def anyio_backend():
    return "trio"

@pytest.mark.anyio
async def test_trio(pulsar_memory):
    pass
"""


def test_a_client_in_memory_needs_asyncio(inner: Inner) -> None:
    result = inner(*ANYIO, test_trio=TRIO)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["test_trio uses pulsar_memory and does not run on asyncio*"])


FAULTS = """
import asyncio, pytest
import pulsar_encore as encore
from pulsar_encore.testing import Fault, FaultPlan

DROPPED = Fault(kind="refuse", command="SUBSCRIBE", error="ServiceNotReady")

@pytest.fixture
def pulsar_faults():
    return FaultPlan([DROPPED])

@pytest.mark.pulsar_virtual_time
async def test_memory(pulsar_memory, pulsar_faults):
    await pulsar_memory.client.subscribe("jobs", "worker")
    assert [each.fault for each in pulsar_faults.fired] == [DROPPED]

@pytest.mark.asyncio
async def test_broker(pulsar_broker, pulsar_faults):
    async with encore.Client(pulsar_broker) as client:
        await client.subscribe("jobs", "worker")
    assert pulsar_faults.done

@pytest.mark.parametrize("pulsar_faults", [FaultPlan()])
@pytest.mark.pulsar_virtual_time
async def test_parametrized(pulsar_memory, pulsar_faults):
    await pulsar_memory.client.subscribe("jobs", "worker")
    assert pulsar_memory.transport.faults is pulsar_faults
    assert pulsar_faults.fired == []
"""


def test_the_fault_plan_is_that_of_both(inner: Inner) -> None:
    inner(*ASYNCIO, test_faults=FAULTS).assert_outcomes(passed=3)
