"""Owns one run of a Pulsar broker as the process that it is to us, and the watchdogs over brokers.

Invariant: the log of a run is kept apart from those before it, and an error ends with it. Refuses
to choose ports again or to remove anything: `broker.Broker` decides that.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from free_port import free_ports, is_free
from pulsar_jars import PULSAR_VERSION, StandaloneError

# What every broker starts with, in whatever it runs.
CONF = Path(__file__).resolve().with_name("standalone.conf")

WATCHDOG = 'read -r _; "$@"'
# As Java, podman and Docker say it.
PORT_TAKEN = re.compile(
    "address already in use|failed to bind to|port is already allocated", re.IGNORECASE
)
LOG_TAIL = 40
POLL = 0.05
KILL_TIMEOUT = 30.0

# The broker is on loopback, whatever proxy the environment names.
_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PortTakenError(StandaloneError):
    """Another process has one of the ports."""


class Ports(NamedTuple):
    """Where one broker listens; its embedded bookie finds a port of its own."""

    service: int
    admin: int


def choose_ports(service: int = 0, admin: int = 0) -> Ports:
    """Two different free ports on loopback; 0 stands for any.

    Another process may still take one before the broker does: see `PortTakenError`.

    Raises:
        StandaloneError: A port that was asked for cannot be used, or none is free.
    """
    for wanted in filter(None, (service, admin)):
        try:
            free = is_free(wanted)
        except OSError as e:
            raise StandaloneError(f"port {wanted} cannot be used, name another: {e}") from e
        if not free:
            raise StandaloneError(f"port {wanted} is not free, name another")
    try:
        others = free_ports(2, besides=(service, admin))
    except OSError as e:
        raise StandaloneError(f"no port for the broker: {e}") from e
    return Ports(service or others[0], admin or others[1])


def overrides(settings: Mapping[str, object], ports: Ports) -> dict[str, str]:
    """What one run sets over standalone.conf, as the broker reads it."""
    merged = {**settings, "brokerServicePort": ports.service, "webServicePort": ports.admin}
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in merged.items()
    }


def is_ready(ports: Ports, token: str = "") -> bool:
    """Whether a broker answers there, to who has the token, and topics can be used."""
    url = f"http://127.0.0.1:{ports.admin}/admin/v2/namespaces/public"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with _http.open(urllib.request.Request(url, headers=headers), timeout=5) as answer:
            return "public/default" in json.load(answer)
    except (OSError, ValueError):
        return False


class Watchdog:
    """Runs a command when this process is gone, however it went.

    A shell holds the other end of a pipe, and reads its end.

    Args:
        command: Ends or removes what must not outlive this process.
    """

    def __init__(self, *command: str) -> None:
        self._shell = subprocess.Popen(
            ["sh", "-c", WATCHDOG, "watchdog", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def call_off(self) -> None:
        """End the watch; the command does not run."""
        self._shell.kill()
        self._shell.communicate()


class BrokerChild:
    """One started broker.

    Args:
        command: Runs the broker until it ends; its exit code is the broker's.
        folder: Working directory, with the log.
        ports: Where it listens.

    Raises:
        StandaloneError: The command could not be started.
    """

    def __init__(self, command: Sequence[str], *, folder: Path, ports: Ports) -> None:
        self.ports = ports
        self._log = folder / "broker.log"
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            try:
                # Its own session: a Ctrl-C in the terminal goes to the owner, which stops it.
                self._process = subprocess.Popen(
                    command,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as e:
                raise StandaloneError(f"{command[0]} could not be run: {e}") from e

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        return self._process.pid

    def wait_ready(self, timeout: float, token: str = "") -> None:
        """Return when topics can be used.

        Args:
            timeout: Seconds.
            token: For a broker that asks for one.

        Raises:
            PortTakenError: The broker ended because a port was in use.
            StandaloneError: It ended, or was not ready in time; with the end of its log.
        """
        deadline = time.monotonic() + timeout
        while True:
            answers = is_ready(self.ports, token)
            # Asked after the answer: with the port taken, somebody else's broker may have answered.
            code = self._process.poll()
            if code is not None:
                log = self._log_of_this_run()
                kind = PortTakenError if PORT_TAKEN.search(log) else StandaloneError
                raise kind(self._failure(f"ended with exit code {code} while starting", log))
            if answers:
                return
            if time.monotonic() > deadline:
                log = self._log_of_this_run()
                raise StandaloneError(self._failure(f"was not ready after {timeout:g} s", log))
            time.sleep(POLL)

    def wait(self) -> NoReturn:
        """Wait until the broker ends by itself, which is an error.

        Raises:
            StandaloneError: It ended; with the end of its log.
        """
        code = self._process.wait()
        raise StandaloneError(
            self._failure(f"ended with exit code {code}", self._log_of_this_run())
        )

    def end(self, how: signal.Signals, timeout: float) -> None:
        """Signal the broker and wait until it is gone; kill it after `timeout` seconds.

        Raises:
            StandaloneError: It is still there half a minute after that.
        """
        self._signal(how)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            try:
                self._process.wait(KILL_TIMEOUT)
            except subprocess.TimeoutExpired as e:
                raise StandaloneError(f"the broker could not be killed: {e}") from e

    def _signal(self, how: signal.Signals) -> None:
        self._process.send_signal(how)

    def _log_of_this_run(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _failure(self, what: str, log: str) -> str:
        tail = "\n".join(log.splitlines()[-LOG_TAIL:])
        return (
            f"Pulsar {PULSAR_VERSION} on ports {', '.join(map(str, self.ports))} {what}. "
            f"The end of its log:\n{tail}"
        )
