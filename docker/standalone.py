"""Owns one real standalone Pulsar broker, run from jars: for people and tests without Docker.

    python docker/standalone.py [--port N] [--admin-port N] [--data DIR] [--set key=value ...]

Invariant: every broker has its own ports, on loopback only, and its own folder, and keeps both
over restarts; a folder made here is removed at the end, one that was given is not. Only the one
child is ever signalled. Standard library only. Refuses to take ports that are in use; not for
production.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType

from broker_child import BrokerChild, Ports, PortTakenError, free_ports
from pulsar_jars import DEFAULT_CACHE, PULSAR_VERSION, StandaloneError, find_java, resolve_jars

PORT_ATTEMPTS = 3


class Standalone:
    """A real Pulsar broker in a child process, as a context manager.

    Entering starts it and returns when topics can be used; leaving stops it and removes its
    folder. `stop`, `kill`, `start` and `restart` in between keep ports and data.

    Args:
        settings: Broker settings by their names in `broker.conf`, over `broker_child.SETTINGS`.
        port: Of the binary protocol; 0 takes a free one and keeps it.
        admin_port: Of the admin API; 0 takes a free one and keeps it.
        data: Working directory, kept afterwards; None makes a temporary one, removed at the end.
        classpath_dir: Folder of jars; None resolves them with Maven into `cache`.
        cache: Where resolved jars are kept.
        heap: The JVM's `-Xmx`.
        start_timeout: Seconds until a broker that is not ready is an error.
        stop_timeout: Seconds for an orderly stop before it is killed.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        port: int = 0,
        admin_port: int = 0,
        data: Path | None = None,
        classpath_dir: Path | None = None,
        cache: Path = DEFAULT_CACHE,
        heap: str = "1g",
        start_timeout: float = 60.0,
        stop_timeout: float = 15.0,
    ) -> None:
        self.settings = dict(settings or {})
        self._wanted = (port, admin_port)
        self._data = data
        self._classpath_dir = classpath_dir
        self._cache = cache
        self._heap = heap
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._ports: Ports | None = None
        self._folder: Path | None = None
        self._child: BrokerChild | None = None

    def __enter__(self) -> Standalone:
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
            MissingToolError: Java or Maven is missing.
            StandaloneError: It runs already, or did not start; with the end of its log.
        """
        if self._child is not None:
            raise StandaloneError("the broker is already running: stop() or kill() it first")
        java = find_java()
        jars = (self._classpath_dir or resolve_jars(self._cache)).resolve()
        if not any(jars.glob("pulsar-broker-*.jar")):
            raise StandaloneError(f"{jars} holds no pulsar-broker jar: name a folder that does")
        if self._folder is None:
            self._folder = self._data or Path(tempfile.mkdtemp(prefix="pulsar-standalone-"))
            self._folder = self._folder.resolve()
            self._folder.mkdir(parents=True, exist_ok=True)
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            ports = self._ports or free_ports(*self._wanted)
            try:
                self._child = BrokerChild(
                    java=java,
                    jars=jars,
                    folder=self._folder,
                    ports=ports,
                    settings=self.settings,
                    heap=self._heap,
                )
                self._child.wait_ready(self._start_timeout)
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
        if self._folder is not None and self._data is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def _end(self, how: signal.Signals) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end(how, self._stop_timeout)

    def _chosen_ports(self) -> Ports:
        if self._ports is None:
            raise StandaloneError("the broker has no ports before its first start()")
        return self._ports


def main(arguments: list[str] | None = None) -> int:
    """Run a broker until Ctrl-C or SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=f"A real standalone Pulsar {PULSAR_VERSION} on loopback, without Docker."
    )
    parser.add_argument("--port", type=int, default=0, help="binary protocol (default: a free one)")
    parser.add_argument("--admin-port", type=int, default=0, help="admin API (default: a free one)")
    parser.add_argument("--data", type=Path, help="working directory to keep (default: temporary)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a broker.conf setting"
    )
    parser.add_argument("--classpath-dir", type=Path, help="folder of jars (default: by Maven)")
    options = parser.parse_args(arguments)
    settings: dict[str, str] = {}
    for setting in options.set:
        name, equals, value = setting.partition("=")
        if not name or not equals:
            parser.error(f"--set takes KEY=VALUE, not {setting!r}")
        settings[name] = value

    def interrupted(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupted)
    say = sys.stderr.write
    say(f"starting Pulsar {PULSAR_VERSION} (the first run fetches 242 MB of jars)\n")
    began = time.monotonic()
    broker = Standalone(
        settings,
        port=options.port,
        admin_port=options.admin_port,
        data=options.data,
        classpath_dir=options.classpath_dir,
    )
    try:
        with contextlib.suppress(KeyboardInterrupt), broker:
            say(f"ready after {time.monotonic() - began:.1f} s; admin API {broker.admin_url}\n")
            sys.stdout.write(f"{broker.service_url}\n")
            sys.stdout.flush()
            broker.wait()
    except StandaloneError as e:
        say(f"error: {e}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
