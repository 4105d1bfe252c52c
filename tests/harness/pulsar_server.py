"""Choose and start the real broker of a run.

The choice is, in this order: the broker at PULSAR_URL; a container if an engine answers (Docker,
podman) and an image is available; a broker started from jars (docker/standalone.py). PULSAR_BROKER,
`container` or `standalone`, forces one of the last two. Only brokers that were started here are
stopped here. Without any broker the run fails, and the error names the missing tools.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_DOCKER = Path(__file__).resolve().parents[2] / "docker"
sys.path.insert(0, str(_DOCKER))  # its programs run without this package, so it is no package

from broker import Broker  # noqa: E402
from container_engine import Engine, find_engine  # noqa: E402
from free_port import free_port, free_ports  # noqa: E402
from pulsar_container import Container  # noqa: E402
from pulsar_image import NoImageError, available_image  # noqa: E402
from pulsar_jars import StandaloneError, find_java, resolve_jars  # noqa: E402
from standalone import Standalone  # noqa: E402

__all__ = [
    "Broker",
    "Container",
    "ContainerChoice",
    "NoBrokerError",
    "Server",
    "Standalone",
    "StandaloneError",
    "container_here",
    "find_engine",
    "free_port",
    "free_ports",
    "own_broker",
    "prefetch",
    "resolve_jars",
    "running_server",
]

KINDS = ("container", "standalone")
NO_CONTAINER_WANTED = "PULSAR_BROKER asks for no container"

# By default a broker deletes a topic without subscriptions after a minute. On a slow machine a test
# may need more time between publishing and reading.
_KEEP_TOPICS = {"brokerDeleteInactiveTopicsEnabled": "false"}


class NoBrokerError(RuntimeError):
    """No real Pulsar is available. The message names the missing tools."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A running real broker.

    Attributes:
        service_url: URL for `Client(...)`.
        admin_url: Root of its admin API, without a path.
        origin: `PULSAR_URL`, `container` or `standalone`.
    """

    service_url: str
    admin_url: str
    origin: str


@dataclass(frozen=True, slots=True)
class ContainerChoice:
    """An engine that answers, and an image that it has."""

    engine: Engine
    image: str


def container_here() -> ContainerChoice | None:
    """Return an engine and an image, or None if no engine answers or no image is available.

    The first call may take minutes, because it pulls or builds a missing image. It reports that on
    stderr, and it reports in one line why an engine that answers is not used.
    """
    choice = _container()
    return choice if isinstance(choice, ContainerChoice) else None


def own_broker(kind: str, **settings: object) -> Broker:
    """Return a private broker that is not started yet.

    Args:
        kind: `container` or `standalone`.
        settings: Broker settings by their names in `broker.conf`.

    Raises:
        NoBrokerError: if no container is available.
    """
    if kind == "standalone":
        return Standalone(settings)
    choice = _container()
    if isinstance(choice, str):
        raise NoBrokerError(f"no Pulsar in a container: {choice}")
    return Container(settings, engine=choice.engine, image=choice.image)


def prefetch() -> None:
    """Fetch everything that `running_server` needs, before the timeout of any test begins.

    Raises:
        NoBrokerError: if it is not available.
    """
    if not os.environ.get("PULSAR_URL"):
        _kind()


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """Yield a running broker.

    Raises:
        NoBrokerError: if none is available, or it did not start.
    """
    url = os.environ.get("PULSAR_URL")
    if url:
        admin = os.environ.get("PULSAR_ADMIN_URL") or f"http://{urlsplit(url).hostname}:8080"
        yield Server(service_url=url, admin_url=admin, origin="PULSAR_URL")
        return
    kind = _kind()
    broker = own_broker(kind, **_KEEP_TOPICS)
    try:
        with _as_no_broker_error(
            f"the {kind} broker did not start (PULSAR_BROKER takes another kind)"
        ):
            broker.start()
        yield Server(service_url=broker.service_url, admin_url=broker.admin_url, origin=kind)
    finally:
        broker.close()


def _kind() -> str:
    """Return the kind of the run's broker, after fetching everything it needs."""
    kind = os.environ.get("PULSAR_BROKER") or None
    if kind not in (None, *KINDS):
        raise NoBrokerError(f"PULSAR_BROKER is {kind!r}: make it one of {', '.join(KINDS)}")
    reason = NO_CONTAINER_WANTED
    if kind != "standalone":
        choice = _container()
        if isinstance(choice, ContainerChoice):
            return "container"
        if kind == "container":
            raise NoBrokerError(f"PULSAR_BROKER asks for a container, but {choice}")
        reason = choice
    with _as_no_broker_error(reason):
        find_java()
        resolve_jars()
    return "standalone"


@functools.cache
def _container() -> ContainerChoice | str:
    """Return an engine and an image, or the reason why a container is not possible."""
    engine = find_engine()
    if engine is None:
        return "no container engine answers (`docker info`, `podman info`)"
    try:
        return ContainerChoice(engine, available_image(engine, _print))
    except NoImageError as e:
        reason = f"{engine.name} answers, but no image can be had: {e}"
        _print(f"no container: {reason}")
        return reason


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _as_no_broker_error(context: str) -> Iterator[None]:
    try:
        yield
    except StandaloneError as e:
        raise NoBrokerError(
            f"no real Pulsar for the integration tests: PULSAR_URL is not set, {context}, and: {e}"
        ) from e
