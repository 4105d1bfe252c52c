"""Owns the life of one private Pulsar broker, whatever it runs in: its ports, its folder, its ends.

Invariant: every broker has its own ports, on loopback only, and its own data, and keeps both over
restarts; a folder made here is removed at the end, one that was given is not. Standard library
only. Refuses to know how a broker is run: `standalone.Standalone` does that with jars and
`pulsar_container.Container` with an engine.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from broker_child import BrokerChild, Ports, PortTakenError, choose_ports
from pulsar_jars import StandaloneError

PORT_ATTEMPTS = 3


class Broker(ABC):
    """A real Pulsar broker, as a context manager.

    Entering starts it and returns when topics can be used; leaving stops it and removes what it
    made. `stop`, `kill`, `start` and `restart` in between keep ports and data.

    Args:
        settings: Broker settings by their names in `broker.conf`, over standalone.conf.
        port: Of the binary protocol; 0 takes a free one and keeps it.
        admin_port: Of the admin API; 0 takes a free one and keeps it.
        folder: Of the log, kept afterwards; None makes a temporary one, removed at the end.
        start_timeout: Seconds until a broker that is not ready is an error.
        stop_timeout: Seconds for an orderly stop before it is killed.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None,
        *,
        port: int,
        admin_port: int,
        folder: Path | None,
        start_timeout: float,
        stop_timeout: float,
    ) -> None:
        self.settings = dict(settings or {})
        self._wanted = (port, admin_port)
        self._given = folder
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._ports: Ports | None = None
        self._folder: Path | None = None
        self._child: BrokerChild | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def service_url(self) -> str:
        """For `Client(...)`; stays the same across restarts."""
        return f"pulsar://127.0.0.1:{self._chosen_ports().service}"

    @property
    def admin_url(self) -> str:
        """Root of the admin API, without a path; stays the same across restarts."""
        return f"http://127.0.0.1:{self._chosen_ports().admin}"

    @property
    def pid(self) -> int:
        """Process id of the running broker; another one after a restart."""
        if self._child is None:
            raise StandaloneError("the broker is not running: call start()")
        return self._child.pid

    @property
    def running(self) -> bool:
        """False before `start`, and after `stop` and `kill`."""
        return self._child is not None

    def start(self) -> None:
        """Start the broker and return when topics can be used.

        Raises:
            MissingToolError: Something that it is run with is missing.
            StandaloneError: It runs already, or did not start; with the end of its log.
        """
        if self._child is not None:
            raise StandaloneError("the broker is already running: stop() or kill() it first")
        if self._folder is None:
            self._folder = self._given or Path(tempfile.mkdtemp(prefix="pulsar-standalone-"))
            self._folder = self._folder.resolve()
            self._folder.mkdir(parents=True, exist_ok=True)
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            ports = self._ports or choose_ports(*self._wanted)
            try:
                self._child = self._launch(self._folder, ports)
                self._child.wait_ready(self._start_timeout, self._own_token())
            except BaseException as e:
                self.kill()
                if isinstance(e, PortTakenError) and attempts_left:
                    continue
                raise
            self._ports = ports
            return

    def wait(self) -> None:
        """Wait until the broker ends by itself.

        Raises:
            StandaloneError: It ended; with the end of its log.
        """
        if self._child is not None:
            self._child.wait()

    def stop(self) -> None:
        """End it in order, by force if that takes too long; data and ports stay."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would; data and ports stay."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same data and ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it and remove its folder, unless the folder was given."""
        self.stop()
        if self._folder is not None and self._given is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    @abstractmethod
    def _launch(self, folder: Path, ports: Ports) -> BrokerChild:
        """A broker that was started on these ports, in this folder."""

    def _end(self, how: signal.Signals) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end(how, self._stop_timeout)

    def _own_token(self) -> str:
        """What the broker itself logs in with, where it asks for that."""
        given = str(self.settings.get("brokerClientAuthenticationParameters", ""))
        return given.removeprefix("token:")

    def _chosen_ports(self) -> Ports:
        if self._ports is None:
            raise StandaloneError("the broker has no ports before its first start()")
        return self._ports
