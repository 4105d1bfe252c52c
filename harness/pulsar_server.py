"""Owns the choice of the real broker that a run uses, and its life.

In this order: the one in PULSAR_URL, else a container if an engine answers (Docker, podman) and an
image can be had, else a broker started from jars (docker/standalone.py). PULSAR_BROKER, `container`
or `standalone`, takes one of the last two and no other. Invariant: only what was started here is
stopped here. Refuses to let a run pass without a broker: when none can be had, the error names what
is missing.
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

_DOCKER = Path(__file__).resolve().parent.parent / "docker"
sys.path.insert(0, str(_DOCKER))  # its programs run without this package, so they are no package

from broker import Broker  # noqa: E402
from container_engine import Engine, find_engine  # noqa: E402
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
    "own_broker",
    "prefetch",
    "resolve_jars",
    "running_server",
]

KINDS = ("container", "standalone")
NOT_WANTED = "PULSAR_BROKER asks for no container"

# By itself a broker deletes a topic that nobody has subscribed to after a minute; that is less than
# a test may need on a slow machine between what it publishes and what reads it.
_STAYING = {"brokerDeleteInactiveTopicsEnabled": "false"}


class NoBrokerError(RuntimeError):
    """No real Pulsar could be had; the message names what is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A real broker that is up.

    Attributes:
        service_url: For `Client(...)`.
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
    """What a container can be started with; None where no engine answers or no image can be had.

    The first call may last for minutes: it pulls or builds an image where there is none. It says so
    on the standard error stream, and it says in one line why an engine that answers is not used.
    """
    found = _container()
    return found if isinstance(found, ContainerChoice) else None


def own_broker(kind: str, **settings: object) -> Broker:
    """A private broker that is not started yet.

    Args:
        kind: `container` or `standalone`.
        settings: Broker settings by their names in `broker.conf`.

    Raises:
        NoBrokerError: There is no container to be had.
    """
    if kind == "standalone":
        return Standalone(settings)
    found = _container()
    if isinstance(found, str):
        raise NoBrokerError(f"no Pulsar in a container: {found}")
    return Container(settings, engine=found.engine, image=found.image)


def prefetch() -> None:
    """Get what `running_server` will need, before any test's clock runs.

    Raises:
        NoBrokerError: It cannot be had.
    """
    if not os.environ.get("PULSAR_URL"):
        _kind()


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """A broker for as long as the context lasts.

    Raises:
        NoBrokerError: None can be had, or it did not start.
    """
    url = os.environ.get("PULSAR_URL")
    if url:
        admin = os.environ.get("PULSAR_ADMIN_URL") or f"http://{urlsplit(url).hostname}:8080"
        yield Server(service_url=url, admin_url=admin, origin="PULSAR_URL")
        return
    kind = _kind()
    broker = own_broker(kind, **_STAYING)
    try:
        with _named(f"the {kind} broker did not start (PULSAR_BROKER takes another kind)"):
            broker.start()
        yield Server(service_url=broker.service_url, admin_url=broker.admin_url, origin=kind)
    finally:
        broker.close()


def _kind() -> str:
    """What the run's broker is started as; what it needs is here afterwards."""
    wanted = os.environ.get("PULSAR_BROKER") or None
    if wanted not in (None, *KINDS):
        raise NoBrokerError(f"PULSAR_BROKER is {wanted!r}: make it one of {', '.join(KINDS)}")
    why = NOT_WANTED
    if wanted != "standalone":
        found = _container()
        if isinstance(found, ContainerChoice):
            return "container"
        if wanted == "container":
            raise NoBrokerError(f"PULSAR_BROKER asks for a container, but {found}")
        why = found
    with _named(why):
        find_java()
        resolve_jars()
    return "standalone"


@functools.cache
def _container() -> ContainerChoice | str:
    """What a container can be started with, or why there can be none."""
    engine = find_engine()
    if engine is None:
        return "no container engine answers (`docker info`, `podman info`)"
    try:
        return ContainerChoice(engine, available_image(engine, _say))
    except NoImageError as e:
        why = f"{engine.name} answers, but no image can be had: {e}"
        _say(f"no container: {why}")
        return why


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _named(circumstance: str) -> Iterator[None]:
    try:
        yield
    except StandaloneError as e:
        raise NoBrokerError(
            f"no real Pulsar for the integration tests: PULSAR_URL is not set, {circumstance}, "
            f"and: {e}"
        ) from e
