"""Fixtures with a real Pulsar: one shared broker for the run, and private ones to stop and kill.

A missing broker fails the run. It never skips tests.
"""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.harness.admin import Admin
from tests.harness.pulsar_server import (
    KINDS,
    Broker,
    ContainerChoice,
    NoBrokerError,
    Server,
    StandaloneError,
    container_here,
    find_engine,
    free_port,
    own_broker,
    prefetch,
    running_server,
)

from .secured_server import Secured, make_credentials

_HERE = Path(__file__).resolve().parent

# Files that share a fixture with a slow start: a broker with authentication, Java, programs. The
# recipes share a topic.
_GROUPS = {
    "integration/dropin/test_programs.py": "programs",
    "integration/recipes/test_fastapi.py": "recipes",
    "integration/recipes/test_kubernetes.py": "recipes",
    "integration/recipes/test_programs.py": "recipes",
    "integration/test_dlq_secured.py": "logins",
    "integration/test_evacuation_secured.py": "logins",
    "integration/test_native_connections.py": "logins",
    "integration/test_native_weaker_tls.py": "weaker TLS",
    "integration/test_retry_events.py": "logins",
    "integration/test_recovery_secured.py": "logins",
    "integration/test_stock_callbacks.py": "logins",
    "integration/test_letter_forms.py": "Java",
    "integration/test_null_values.py": "Java",
    "integration/test_typed_values.py": "Java",
}

# Timeout in s for a test with its fixtures and the starts of brokers: 7 s each alone on two cores,
# a minute on a busy machine.
TIMEOUT = 300


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "either_kind: its own_pulsar is of jars, and of a container")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "own_pulsar" in metafunc.fixturenames:
        either_kind = metafunc.definition.get_closest_marker("either_kind")
        kinds = KINDS if either_kind and _has_container(metafunc.config) else ("standalone",)
        metafunc.parametrize("own_pulsar", kinds, indirect=True)


class GroupScheduling(LoadScopeScheduling):
    """Distributes tests to all workers, and keeps files with a shared expensive fixture on one
    worker.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _GROUPS.get(nodeid.partition("::")[0], nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))
    # Tests of containers are deselected without a container engine.
    container_tests = [item for item in items if "container" in getattr(item, "fixturenames", ())]
    if container_tests and not _has_container(config):
        config.hook.pytest_deselected(items=container_tests)
        items[:] = [item for item in items if item not in container_tests]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    # A first download can take minutes, which no test timeout should include. If it fails, the
    # fixtures try again and fail the tests with the reason.
    has_tests = any(item.path.is_relative_to(_HERE) for item in session.items)
    if has_tests and not session.config.option.collectonly:
        with contextlib.suppress(NoBrokerError), _uncaptured(session.config):
            prefetch()


def _has_container(config: pytest.Config) -> bool:
    if config.option.collectonly:  # do not pull or build an image
        return find_engine() is not None
    with _uncaptured(config):
        return container_here() is not None


@contextlib.contextmanager
def _uncaptured(config: pytest.Config) -> Iterator[None]:
    """Show output on the terminal meanwhile, because the work may take long or change the test's
    broker.
    """
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        yield


class OwnPulsar(Protocol):
    """Starts a private broker. The arguments are its settings, by their names in broker.conf."""

    def __call__(self, **settings: object) -> Broker: ...


@pytest.fixture(scope="session")
def pulsar() -> Iterator[Server]:
    """The real broker of this run (see pulsar_server). It is shared, so leave it as it was."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_server())
        except NoBrokerError as e:
            pytest.fail(str(e), pytrace=False)
        yield server


@pytest.fixture(scope="session")
def admin(pulsar: Server) -> Admin:
    """The admin API of the shared broker."""
    return Admin(pulsar.admin_url)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Full name of a topic that no other test uses. The broker creates it on first use."""
    test = "".join(c if c.isalnum() else "-" for c in request.node.name)[:40]
    return f"persistent://public/default/{test}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def own_pulsar(request: pytest.FixtureRequest) -> Iterator[OwnPulsar]:
    """Private brokers, for tests that stop, kill or configure one. They are closed at the end.

    They run from jars. A test with the mark `either_kind` runs once more with containers if an
    engine answers.
    """
    with contextlib.ExitStack() as stack:

        def start(**settings: object) -> Broker:
            return stack.enter_context(own_broker(request.param, **settings))

        yield start


@pytest.fixture
def container() -> ContainerChoice:
    """An engine and an image. Tests with this fixture are deselected without an engine."""
    found = container_here()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one key pair, which serves for every key name."""
    folder = tmp_path_factory.mktemp("keys")
    private, public = str(folder / "private.pem"), str(folder / "public.pem")
    for command in (
        ["openssl", "genrsa", "-out", private, "2048"],
        ["openssl", "rsa", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker that refuses clients without authentication, and requests a new token when one
    expires.

    It runs from jars even if containers are available, because it and its clients read the same
    files.
    """
    credentials = make_credentials(tmp_path_factory.mktemp("credentials"))
    port = free_port()
    settings = {**credentials.settings(port), "authenticationRefreshCheckSeconds": 1}
    broker = own_broker("standalone", **settings)
    try:
        with broker:
            yield Secured(
                credentials,
                f"pulsar+ssl://127.0.0.1:{port}",
                broker.service_url,
                broker.admin_url,
                Admin(broker.admin_url, token=credentials.token()),
            )
    except (NoBrokerError, StandaloneError) as e:
        pytest.fail(str(e), pytrace=False)
