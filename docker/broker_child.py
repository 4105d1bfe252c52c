"""Owns one run of a Pulsar broker: its settings file, its Java process and the watchdog over it.

Invariant: the process does not outlive its owner. A watchdog shell holds the other end of a pipe
and kills the broker when this process is gone, however it went. The watchdog is ended before the
broker is reaped, so that it never signals a process id that has been given to someone else.
Refuses to choose ports again or to remove anything: `standalone.Standalone` decides that.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

from pulsar_jars import PULSAR_VERSION, StandaloneError

# Defaults for tests; compose.yaml says the same. Any of them can be overridden.
SETTINGS: Mapping[str, object] = {
    "clusterName": "standalone",
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "metadataStoreUrl": "",  # empty: embedded metadata and bookie, below the working directory
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
    # The bookie's own limit is below the broker's: a message near 5 MB would be tried for ever.
    "nettyMaxFrameSizeBytes": 5253120,
    "acknowledgmentAtBatchIndexLevelEnabled": True,
    "forceDeleteNamespaceAllowed": True,
}

# What the broker reaches into; the Java module system closes it to code on the class path.
OPENED = (
    "java.base/java.nio",
    "java.base/jdk.internal.misc",
    "java.base/sun.nio.ch",
    "java.base/java.util.zip",
    "java.base/sun.net",
    "java.base/java.lang",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)

WATCHDOG = 'read -r _; kill -KILL "$1"'
LOG_TAIL = 40
POLL = 0.05

# The broker is on loopback, whatever proxy the environment names.
_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class PortTakenError(StandaloneError):
    """Another process has one of the ports."""


class Ports(NamedTuple):
    """Where one broker listens; its embedded bookie finds a port of its own."""

    service: int
    admin: int


def free_ports(service: int = 0, admin: int = 0) -> Ports:
    """Two different free ports on loopback; 0 stands for any.

    Another process may still take one before the broker does: see `PortTakenError`.

    Raises:
        StandaloneError: A port that was asked for is in use.
    """
    found = []
    with contextlib.ExitStack() as stack:
        for wanted in (service, admin):
            probe = stack.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError as e:
                raise StandaloneError(f"port {wanted} is not free, name another: {e}") from e
            found.append(probe.getsockname()[1])
    return Ports(*found)


class BrokerChild:
    """One started broker process.

    Args:
        java: The `java` to run.
        jars: Folder of the class path.
        folder: Working directory: data, settings file and log.
        ports: Where it listens.
        settings: Broker settings, over `SETTINGS`.
        heap: The JVM's `-Xmx`.

    Raises:
        StandaloneError: The process could not be started.
    """

    def __init__(
        self,
        *,
        java: str,
        jars: Path,
        folder: Path,
        ports: Ports,
        settings: Mapping[str, object],
        heap: str,
    ) -> None:
        self.ports = ports
        self._log = folder / "broker.log"
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        config = folder / "standalone.conf"
        config.write_text(_config({**SETTINGS, **settings}, ports))
        command = [java, f"-Xmx{heap}", "-Dorg.apache.logging.log4j.level=INFO"]
        for package in OPENED:
            command += ["--add-opens", f"{package}=ALL-UNNAMED"]
        command += ["-cp", f"{jars}/*", "org.apache.pulsar.PulsarStandaloneStarter"]
        command += ["--config", str(config), "--no-functions-worker", "--no-stream-storage"]
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
                raise StandaloneError(f"{java} could not be run: {e}") from e
        self._watchdog = subprocess.Popen(
            ["sh", "-c", WATCHDOG, "watchdog", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        return self._process.pid

    def wait_ready(self, timeout: float) -> None:
        """Return when topics can be used.

        Args:
            timeout: Seconds.

        Raises:
            PortTakenError: The broker ended because a port was in use.
            StandaloneError: It ended, or was not ready in time; with the end of its log.
        """
        deadline = time.monotonic() + timeout
        while True:
            answers = self._answers()
            # Asked after the answer: with the port taken, somebody else's broker may have answered.
            code = self._process.poll()
            if code is not None:
                log = self._log_of_this_run()
                kind = PortTakenError if "Address already in use" in log else StandaloneError
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
        """Signal the broker and wait until it is gone; kill it after `timeout` seconds."""
        self._watchdog.kill()
        self._watchdog.communicate()
        self._process.send_signal(how)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        url = f"http://127.0.0.1:{self.ports.admin}/admin/v2/namespaces/public"
        try:
            with _http.open(url, timeout=5) as answer:
                return "public/default" in json.load(answer)
        except (OSError, ValueError):
            return False

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


def _config(settings: Mapping[str, object], ports: Ports) -> str:
    merged = {**settings, "brokerServicePort": ports.service, "webServicePort": ports.admin}
    return "".join(f"{name}={_value(value)}\n" for name, value in merged.items())


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
