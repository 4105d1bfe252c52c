"""Owns one real standalone Pulsar broker in a container: for tests that kill, stop and start one.

Invariant: the container has a name of its own and no other is ever touched; it is removed at the
end, and by a watchdog when this process is gone, however it went. Its data live as long as it does.
Standard library only. Refuses to find an engine or an image: `container_engine` and `pulsar_image`
do.
"""

from __future__ import annotations

import contextlib
import signal
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from broker import Broker
from broker_child import CONF, POLL, BrokerChild, Ports, Watchdog, overrides
from container_engine import Engine, EngineError
from pulsar_image import OUR_IMAGE

CALL_TIMEOUT = 60.0

# Below what any host allows: an engine that may not raise limits refuses its own, higher defaults.
LIMITS = ("--ulimit=nofile=20000:20000", "--ulimit=nproc=4096:4096")

# Killed first, because podman's `rm --force` waits ten seconds for an orderly end.
REMOVE = '"$0" kill "$1"; "$0" rm --force --volumes "$1"'


class Container(Broker):
    """A real Pulsar broker in a container, as a context manager; see `Broker`.

    Args:
        settings: Broker settings by their names in `broker.conf`, over standalone.conf.
        engine: Runs the container.
        image: Name of an image that the engine has: Apache's or ours.
        port: Of the binary protocol; 0 takes a free one and keeps it.
        admin_port: Of the admin API; 0 takes a free one and keeps it.
        heap: The JVM's `-Xmx`.
        start_timeout: Seconds until a broker that is not ready is an error.
        stop_timeout: Seconds for an orderly stop before it is killed.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        engine: Engine,
        image: str,
        port: int = 0,
        admin_port: int = 0,
        heap: str = "1g",
        start_timeout: float = 120.0,
        stop_timeout: float = 15.0,
    ) -> None:
        super().__init__(
            settings,
            port=port,
            admin_port=admin_port,
            folder=None,
            start_timeout=start_timeout,
            stop_timeout=stop_timeout,
        )
        self._engine = engine
        self._image = image
        self._heap = heap
        self._made: _Made | None = None

    def close(self) -> None:
        """Stop it and remove the container."""
        try:
            super().close()
        finally:
            self._remove()

    def _launch(self, folder: Path, ports: Ports) -> BrokerChild:
        if self._made is None or self._made.ports != ports:
            self._remove()
            self._made = self._make(ports)
        return _Run(self._engine, self._made.name, folder=folder, ports=ports)

    def _make(self, ports: Ports) -> _Made:
        name = f"pulsar-encore-{uuid.uuid4().hex[:12]}"
        # All addresses of the container's own network, of which the host's loopback has two ports.
        ours = overrides({**self.settings, "bindAddress": "0.0.0.0"}, ports)
        watchdog = Watchdog("sh", "-c", REMOVE, self._engine.name, name)
        try:
            self._engine.call(
                "create",
                f"--name={name}",
                *LIMITS,
                *(f"--publish=127.0.0.1:{port}:{port}" for port in ports),
                f"--env=PULSAR_MEM=-Xmx{self._heap}",
                *(f"--env=PULSAR_PREFIX_{setting}={value}" for setting, value in ours.items()),
                *(() if self._image == OUR_IMAGE else (f"--volume={CONF.parent}:/encore:ro,z",)),
                self._image,
                "sh",
                "/encore/start.sh",
                timeout=CALL_TIMEOUT,
            )
        except BaseException:
            with contextlib.suppress(EngineError):  # mostly there is none
                self._engine.call("rm", "--force", "--volumes", name, timeout=CALL_TIMEOUT)
            watchdog.call_off()
            raise
        return _Made(name, ports, watchdog)

    def _remove(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            self._engine.call("rm", "--force", "--volumes", made.name, timeout=CALL_TIMEOUT)
            made.watchdog.call_off()


class _Made(NamedTuple):
    name: str
    ports: Ports
    watchdog: Watchdog


class _Run(BrokerChild):
    """From one start of the container to its end, as the client that is attached to it."""

    def __init__(self, engine: Engine, name: str, *, folder: Path, ports: Ports) -> None:
        super().__init__(engine.command("start", "--attach", name), folder=folder, ports=ports)
        self._engine = engine
        self._name = name

    @property
    def pid(self) -> int:
        shown = "--format={{.State.Pid}}"
        return int(self._engine.call("inspect", shown, self._name, timeout=CALL_TIMEOUT))

    def _signal(self, how: signal.Signals) -> None:
        deadline = time.monotonic() + CALL_TIMEOUT
        while self._process.poll() is None:
            try:
                self._engine.call("kill", f"--signal={how.name}", self._name, timeout=CALL_TIMEOUT)
            except EngineError:  # it is only starting, or just ending
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL)
            else:
                return
