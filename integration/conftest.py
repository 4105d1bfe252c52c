"""Fixtures against a real Pulsar: one broker for the run, and private ones to stop and kill.

Invariant: a missing broker fails the run, it never skips it.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from .admin import Admin
from .pulsar_server import NoBrokerError, Server, Standalone, prefetch, running_server

_HERE = Path(__file__).resolve().parent

# Seconds for a test with its fixtures, the start of a broker (5 s alone on two cores) included.
TIMEOUT = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    # A cold download can take minutes; no test's timeout should have to allow for it. If it fails,
    # the fixtures try again and fail the tests by name.
    wanted = any(item.path.is_relative_to(_HERE) for item in session.items)
    if wanted and not session.config.option.collectonly:
        with contextlib.suppress(NoBrokerError):
            prefetch()


class OwnPulsar(Protocol):
    """Starts a private broker; the arguments are its settings, by their names in broker.conf."""

    def __call__(self, **settings: object) -> Standalone: ...


@pytest.fixture(scope="session")
def pulsar() -> Iterator[Server]:
    """The real broker of this run (see pulsar_server); shared, so leave it as it was."""
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
    """Full name of a topic that no other test has; the broker creates it on first use."""
    test = "".join(c if c.isalnum() else "-" for c in request.node.name)[:40]
    return f"persistent://public/default/{test}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def own_pulsar() -> Iterator[OwnPulsar]:
    """Private brokers from jars, for tests that stop, kill or configure one; closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(**settings: object) -> Standalone:
            return stack.enter_context(Standalone(settings))

        yield start
