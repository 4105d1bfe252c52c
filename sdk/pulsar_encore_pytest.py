"""The pytest plugin of pulsar-encore: virtual time, and fixtures for tests of an application.

pytest imports this module in every run where the package is installed. It therefore imports nothing
of `pulsar_encore` before a test uses the marker or a fixture, and is a module of its own: importing
a module of the package would import the package.

- ``@pytest.mark.pulsar_virtual_time`` runs an async test on a `testing.VirtualClockLoop`. It works
  with pytest-asyncio 1.5 or later, and with the pytest plugin of anyio.
- `pulsar_memory` is a client in memory with its transport.
- `pulsar_broker` is the URL of a development broker on loopback, in real time.
- `pulsar_faults` is the fault plan of both. Override it to inject faults.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pulsar_encore.testing import BrokerUrl, FaultPlan, MemoryPulsar, VirtualClockLoop

    LoopFactory = Callable[[], VirtualClockLoop]

MARKER: Final = "pulsar_virtual_time"
_MARKER_HELP: Final = (
    f"{MARKER}(deadlock_timeout_s=10): run an async test in virtual time, where waiting takes no "
    "time. A test in which every task waits and no timer is set fails after deadlock_timeout_s "
    "real seconds."
)
_LOOP_SCOPES: Final = ("function", "class", "module", "package", "session")
_CLOSING_ANYIO: Final = "_pulsar_closing_anyio"
_MEMORY: Final = pytest.StashKey["MemoryPulsar"]()


# Which plugin runs a test


def _marker_of(node: pytest.Item) -> pytest.Mark | None:
    return node.get_closest_marker(MARKER)


def _is_async(function: object) -> bool:
    """Return True for a coroutine function, also under Hypothesis's `given`."""
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    return inspect.iscoroutinefunction(inner)


def _is_loaded(config: pytest.Config, module: str) -> bool:
    # By its module: the name of a registered plugin depends on how it was loaded.
    plugins = config.pluginmanager.get_plugins()
    return any(getattr(each, "__name__", "") == module for each in plugins)


def _has_loop_factories(config: pytest.Config) -> bool:
    return hasattr(config.hook, "pytest_asyncio_loop_factories")


def _uses_anyio(fixture_names: list[str]) -> bool:
    """Return True if anyio's plugin runs the test: it adds this fixture to its tests."""
    return "anyio_backend" in fixture_names


def _uses_pytest_asyncio(node: pytest.Item) -> bool:
    if node.get_closest_marker("asyncio") is not None:
        return True
    if not _is_loaded(node.config, "pytest_asyncio.plugin"):
        return False
    return "auto" in (node.config.getoption("asyncio_mode"), node.config.getini("asyncio_mode"))


def _parametrizes_backend(node: pytest.Item) -> bool:
    for mark in node.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        if isinstance(names, str):
            names = [each.strip() for each in names.split(",")]
        if "anyio_backend" in names:
            return True
    return False


def _obstacle(item: pytest.Item) -> str | None:
    """Return why a marked test cannot run in virtual time, and what to do; None if it can."""
    marker = _marker_of(item)
    if marker is None or not isinstance(item, pytest.Function):
        return None
    if not _is_async(item.obj):
        if any(each.name == MARKER for each in item.own_markers):
            return (
                f"{item.name} is marked {MARKER} and is not async: only an event loop can run in "
                "virtual time. Write `async def`, or call pulsar_encore.testing.run(main()) in a "
                "test without the marker"
            )
        return None  # a synchronous test of a marked class or module
    try:
        _deadlock_timeout(marker)
    except ValueError as error:
        return str(error)
    unittest = sys.modules.get("unittest")
    if unittest is not None and item.cls is not None and issubclass(item.cls, unittest.TestCase):
        return (
            f"{item.name} is marked {MARKER}, but unittest makes the event loop of its tests: "
            "write a function or a class without unittest.TestCase"
        )
    asyncio_mark = item.get_closest_marker("asyncio")
    if asyncio_mark is not None and asyncio_mark.kwargs.get("loop_factories") is not None:
        return (
            f"{item.name} is marked {MARKER} and asyncio(loop_factories=...): it can have one "
            "event loop. Remove one of the two"
        )
    if _parametrizes_backend(item):
        return (
            f"{item.name} is marked {MARKER} and parametrizes anyio_backend, which the marker "
            "sets: remove one of the two"
        )
    if _uses_anyio(item.fixturenames):
        return None
    if _has_loop_factories(item.config):
        return None  # pytest-asyncio runs it: see `_imply_asyncio`
    if _is_loaded(item.config, "pytest_asyncio.plugin"):
        return (
            f"{item.name} is marked {MARKER}, and this pytest-asyncio cannot change the event loop "
            "of one test: install pytest-asyncio 1.5 or later"
        )
    if _is_loaded(item.config, "anyio.pytest_plugin"):
        return (
            f"{item.name} is marked {MARKER}, and no plugin runs it: mark it with "
            "@pytest.mark.anyio, or install pytest-asyncio 1.5 or later"
        )
    return (
        f"{item.name} is marked {MARKER}, and no plugin for async tests is loaded: install "
        "pytest-asyncio 1.5 or later, or anyio"
    )


# The event loop


def _deadlock_timeout(marker: pytest.Mark) -> float:
    """Return the argument of the marker, or raise ValueError."""
    unknown = sorted(marker.kwargs.keys() - {"deadlock_timeout_s"})
    if marker.args or unknown:
        named = ", ".join(unknown) or repr(marker.args[0])
        raise ValueError(f"{MARKER} accepts deadlock_timeout_s=, got {named}")
    timeout: Any = marker.kwargs.get("deadlock_timeout_s", 10.0)
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not number or not 0 <= timeout <= 1e6:
        raise ValueError(f"deadlock_timeout_s must be 0 to 1e6 seconds, got {timeout!r}")
    return float(timeout)


# pytest compares parameters by identity, so equal markers need the same factory to share a loop.
@functools.cache
def _loop_factory(deadlock_timeout_s: float) -> LoopFactory:
    def virtual_clock_loop() -> VirtualClockLoop:
        from pulsar_encore.testing import VirtualClockLoop  # lazy: see the module

        return VirtualClockLoop(deadlock_timeout_s)

    return virtual_clock_loop


def _factory_of(marker: pytest.Mark) -> LoopFactory:
    try:
        return _loop_factory(_deadlock_timeout(marker))
    except ValueError:
        return _loop_factory(10.0)  # `_obstacle` reports the error when the test begins


class _LoopFactories:
    """Gives pytest-asyncio the event loop of marked tests.

    It must not be registered when a test without the marker is collected: with any implementation
    of this hook, pytest-asyncio wants a factory for every test and makes each loop in another way.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_asyncio_loop_factories(self, item: pytest.Item) -> Mapping[str, LoopFactory] | None:
        marker = _marker_of(item)
        return None if marker is None else {MARKER: _factory_of(marker)}


class _VirtualTime:
    """Runs marked tests on the event loop with the virtual clock."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager
        self._factories = _LoopFactories()
        self._collected = False  # True if a marked test was collected
        self._loops: list[VirtualClockLoop] = []  # of anyio's tests

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_pycollect_makeitem(
        self, collector: pytest.Collector
    ) -> Generator[None, object, object]:
        # Inside the wrapper of pytest-asyncio, which looks for its marker.
        made = yield
        for each in made if isinstance(made, list) else [made]:
            if isinstance(each, pytest.Function):
                _imply_asyncio(each, each.fixturenames)
        return made

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> Generator[None, None, None]:
        definition = metafunc.definition
        marker = _marker_of(definition)
        if marker is None or not _is_async(metafunc.function):
            yield
            return
        self._collected = True
        _imply_asyncio(definition, metafunc.fixturenames)
        if _uses_anyio(metafunc.fixturenames) and not _parametrizes_backend(definition):
            # As anyio documents it for one test. The scope is that of its own fixture.
            backend = ("asyncio", {"loop_factory": self._anyio_factory(marker)})
            definition.add_marker(
                pytest.mark.parametrize(
                    "anyio_backend",
                    [backend],
                    ids=[getattr(pytest, "HIDDEN_PARAM", "asyncio")],
                    scope="module",
                )
            )
        asyncio_mark = definition.get_closest_marker("asyncio")
        conflict = asyncio_mark is not None and "loop_factories" in asyncio_mark.kwargs
        with self._asked(_has_loop_factories(metafunc.config) and not conflict):
            yield

    def _anyio_factory(self, marker: pytest.Mark) -> LoopFactory:
        make = _factory_of(marker)

        def virtual_clock_loop() -> VirtualClockLoop:
            loop = make()
            self._loops.append(loop)
            return loop

        return virtual_clock_loop

    @contextmanager
    def _asked(self, wanted: bool) -> Iterator[None]:
        """Answer pytest-asyncio's questions about event loops during the block."""
        if not wanted:
            yield
            return
        self._plugins.register(self._factories)
        try:
            yield
        finally:
            self._plugins.unregister(self._factories)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        # While tests run, pytest-asyncio only asks whether there are factories. If so, it closes a
        # loop of wider scope that the next test does not use, and its fixtures, before it looks for
        # fixtures. Tests without the marker need that, too.
        if self._collected and _has_loop_factories(session.config):
            self._plugins.register(self._factories)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        __tracebackhide__ = True
        with pytest.MonkeyPatch.context() as patch:
            if _marker_of(item) is not None and isinstance(item, pytest.Function):
                target: Any = getattr(item.obj, "hypothesis", item)
                name = "obj" if target is item else "inner_test"
                test = getattr(target, name)
                if inspect.iscoroutinefunction(test):
                    patch.setattr(target, name, _in_virtual_time(test, item.name))
            try:
                return (yield)
            except (Exception, pytest.fail.Exception):
                memory = item.stash.get(_MEMORY, None)
                if memory is not None:
                    item.add_report_section("call", "pulsar_memory", memory.describe())
                raise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        result = yield
        self._loops = [loop for loop in self._loops if not loop.is_closed()]
        if self._loops and nextitem is not None and _marker_of(nextitem) is None:
            # anyio has one loop at a time: the next test would run in virtual time, too.
            self._loops.clear()
            pytest.fail(
                f"{item.name} is marked {MARKER}, and an async fixture of wider scope keeps its "
                f"event loop for {nextitem.name}, which is not marked. Give the fixture the scope "
                '"function", or mark all tests that use it',
                pytrace=False,
            )
        return result


def _imply_asyncio(node: pytest.Function, fixture_names: list[str]) -> None:
    """Mark a marked async test for pytest-asyncio, unless another plugin runs it."""
    if (
        _marker_of(node) is not None
        and _is_async(node.obj)
        and not _uses_anyio(fixture_names)
        and _has_loop_factories(node.config)
        and node.get_closest_marker("asyncio") is None
    ):
        node.add_marker("asyncio")


def _in_virtual_time(test: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a test that fails on a loop without virtual clock, and where it waits if it hangs."""

    @functools.wraps(test)
    async def checked(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        import asyncio  # lazy: see the module

        from pulsar_encore.testing import VirtualClockLoop

        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualClockLoop):
            pytest.fail(
                f"{name} is marked {MARKER} and runs on a {type(loop).__name__}: an async fixture "
                "of wider scope, or another plugin, made the event loop first. Give the fixture "
                'the scope "function", or mark all tests that use it',
                pytrace=False,
            )
        return await loop.interrupt_deadlock(test(*args, **kwargs))

    return checked


# Fixtures


def _closing_fixture(decorate: Callable[..., Any], name: str, **options: Any) -> Any:
    async def closing() -> AsyncIterator[AsyncExitStack]:
        async with AsyncExitStack() as stack:
            yield stack

    return decorate(closing, name=name, **options)


# Async fixtures end on the event loop of the test. Each plugin has its own way to run them.
_closing_anyio = _closing_fixture(pytest.fixture, _CLOSING_ANYIO)


def _asyncio_fixtures() -> ModuleType:
    """Return the same fixture for pytest-asyncio, once for each scope that a test's loop may have.

    pytest-asyncio decides by fixture, not by test, on which of its loops a fixture runs.
    """
    import pytest_asyncio  # its plugin is loaded

    module = ModuleType("pulsar_encore_pytest_asyncio")
    for scope in _LOOP_SCOPES:
        name = f"_pulsar_closing_asyncio_{scope}"
        setattr(module, name, _closing_fixture(pytest_asyncio.fixture, name, loop_scope=scope))
    return module


def _closing_name(item: pytest.Function) -> str | None:
    """Return the name of the fixture that closes on the loop of a test; None if it has no loop."""
    if not _is_async(item.obj):
        return None
    if _uses_pytest_asyncio(item):
        asyncio_mark = item.get_closest_marker("asyncio")
        named = {} if asyncio_mark is None else asyncio_mark.kwargs
        scope = named.get("loop_scope") or item.config.getini("asyncio_default_test_loop_scope")
        return f"_pulsar_closing_asyncio_{scope}"
    return _CLOSING_ANYIO if _uses_anyio(item.fixturenames) else None


@pytest.fixture
def pulsar_faults() -> FaultPlan:
    """The fault plan of `pulsar_memory` and `pulsar_broker`, without faults.

    Override the fixture, or parametrize it directly, to inject faults::

        @pytest.mark.parametrize(
            "pulsar_faults", [FaultPlan([Fault(kind="drop", command="ACK", nth=2)])]
        )
    """
    from pulsar_encore.testing import FaultPlan

    return FaultPlan()


@pytest.fixture
def pulsar_memory(
    request: pytest.FixtureRequest, pulsar_faults: FaultPlan
) -> Iterator[MemoryPulsar]:
    """A client in memory and its transport: `testing.MemoryPulsar`.

    The client is closed on the event loop of the test, after the fixtures that use it. A
    synchronous test may use several loops of its own; its client is shut down without flushing.
    """
    from pulsar_encore.testing import MemoryPulsar

    name = _closing_name(request.node)
    if name == _CLOSING_ANYIO and request.getfixturevalue("anyio_backend_name") != "asyncio":
        pytest.fail(
            f"{request.node.name} uses pulsar_memory and does not run on asyncio: let the fixture "
            'anyio_backend return "asyncio"',
            pytrace=False,
        )
    stack: AsyncExitStack | None = None if name is None else request.getfixturevalue(name)
    memory = MemoryPulsar(faults=pulsar_faults)
    request.node.stash[_MEMORY] = memory
    if stack is not None:
        stack.push_async_callback(memory.client.close)
    yield memory
    if stack is None:
        memory.client.shutdown()


@pytest.fixture
def pulsar_broker(pulsar_faults: FaultPlan) -> Iterator[BrokerUrl]:
    """The service URL of a development broker on loopback, in real time: `testing.BrokerUrl`.

    `pulsar_broker.broker` is the running broker, which ends with the test.
    """
    from pulsar_encore.testing import BrokerThread, BrokerUrl

    with BrokerThread(faults=pulsar_faults) as running:
        url = BrokerUrl(running.url)
        url.broker = running
        yield url


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    # pytest rewrites the asserts in all modules of a distribution that has a plugin. Asserts of the
    # package belong to no test, and rewriting them takes 1.5 s in each run that cannot write
    # bytecode. pytest has no public way to leave them out. If it renames the attribute, they are
    # rewritten again.
    marked: set[str] = getattr(pluginmanager.rewrite_hook, "_must_rewrite", set())
    marked.discard("pulsar_encore")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    obstacle = _obstacle(item)
    if obstacle is not None:
        pytest.fail(obstacle, pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER_HELP)
    config.pluginmanager.register(_VirtualTime(config))
    if _is_loaded(config, "pytest_asyncio.plugin"):
        config.pluginmanager.register(_asyncio_fixtures())
