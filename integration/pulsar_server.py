"""Owns the choice of the real broker that a run uses, and its life.

In this order: the one in PULSAR_URL, else Docker if an engine answers, else a broker started from
jars (docker/standalone.py). Invariant: only what was started here is stopped here. Refuses to
let a run pass without a broker: when none can be had, the error names what is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_DOCKER = Path(__file__).resolve().parent.parent / "docker"
sys.path.insert(0, str(_DOCKER))  # its programs run without this package, so they are no package

from pulsar_jars import StandaloneError, find_java, resolve_jars  # noqa: E402
from standalone import Standalone  # noqa: E402

__all__ = [
    "NoBrokerError",
    "Server",
    "Standalone",
    "StandaloneError",
    "prefetch",
    "resolve_jars",
    "running_server",
]

COMPOSE = ("docker", "compose", "-f", str(_DOCKER / "compose.yaml"))
COMPOSE_URLS = ("pulsar://127.0.0.1:6650", "http://127.0.0.1:8080")
PULL_TIMEOUT = 900.0
UP_TIMEOUT = 180.0


class NoBrokerError(RuntimeError):
    """No real Pulsar could be had; the message names what is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A real broker that is up.

    Attributes:
        service_url: For `Client(...)`.
        admin_url: Root of its admin API, without a path.
        origin: `PULSAR_URL`, `docker` or `standalone`.
    """

    service_url: str
    admin_url: str
    origin: str


def prefetch() -> None:
    """Download what `running_server` will need, before any test's clock runs.

    Raises:
        NoBrokerError: It cannot be had.
    """
    if os.environ.get("PULSAR_URL"):
        return
    if _docker_answers():
        _compose("pull", "--quiet", timeout=PULL_TIMEOUT)
        return
    with _named("no Docker engine answers (`docker info`, `docker compose version`)"):
        find_java()
        resolve_jars()


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
    elif _docker_answers():
        ours = not _compose("ps", "--quiet", "--status", "running", timeout=30).strip()
        try:
            _compose("up", "--detach", "--wait", timeout=UP_TIMEOUT)
            service, admin = COMPOSE_URLS
            yield Server(service_url=service, admin_url=admin, origin="docker")
        finally:
            if ours:
                _compose("down", "--volumes", timeout=60)
    else:
        prefetch()
        broker = Standalone()
        try:
            with _named("the broker from jars (docker/standalone.py) did not start"):
                broker.start()
            yield Server(
                service_url=broker.service_url, admin_url=broker.admin_url, origin="standalone"
            )
        finally:
            broker.close()


def _docker_answers() -> bool:
    if shutil.which("docker") is None:
        return False
    questions = (("docker", "info"), ("docker", "compose", "version"))
    try:
        return all(
            subprocess.run(question, capture_output=True, timeout=20).returncode == 0
            for question in questions
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def _compose(*arguments: str, timeout: float) -> str:
    try:
        done = subprocess.run(
            [*COMPOSE, *arguments], capture_output=True, text=True, timeout=timeout
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise NoBrokerError(f"an engine answers, but docker compose failed: {e}") from e
    if done.returncode != 0:
        raise NoBrokerError(
            f"an engine answers, but docker compose {arguments[0]} failed "
            f"(exit {done.returncode}): {done.stderr.strip()[-2000:]}"
        )
    return done.stdout


@contextlib.contextmanager
def _named(circumstance: str) -> Iterator[None]:
    try:
        yield
    except StandaloneError as e:
        raise NoBrokerError(
            f"no real Pulsar for the integration tests: PULSAR_URL is not set, {circumstance}, "
            f"and: {e}"
        ) from e
