"""Owns one real standalone Pulsar broker, run from jars: for people and tests without Docker.

    python docker/standalone.py [--port N] [--admin-port N] [--data DIR] [--set key=value ...]

Invariant: a broker does not outlive its owner, and a watchdog sees to it; that is called off before
the broker is reaped, so that it never signals a process id that has been given to someone else.
Only the one child is ever signalled. Standard library only. Refuses to take ports that are in use;
not for production.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from broker import Broker
from broker_child import CONF, BrokerChild, Ports, Watchdog, overrides
from pulsar_jars import DEFAULT_CACHE, PULSAR_VERSION, StandaloneError, find_java, resolve_jars

JVM_OPTIONS = CONF.with_name("jvm.options")


class Standalone(Broker):
    """A real Pulsar broker in a child process, as a context manager; see `Broker`.

    Args:
        settings: Broker settings by their names in `broker.conf`, over standalone.conf.
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
        start_timeout: float = 120.0,
        stop_timeout: float = 15.0,
    ) -> None:
        super().__init__(
            settings,
            port=port,
            admin_port=admin_port,
            folder=data,
            start_timeout=start_timeout,
            stop_timeout=stop_timeout,
        )
        self._classpath_dir = classpath_dir
        self._cache = cache
        self._heap = heap

    def _launch(self, folder: Path, ports: Ports) -> BrokerChild:
        java = find_java()
        jars = (self._classpath_dir or resolve_jars(self._cache)).resolve()
        if not any(jars.glob("pulsar-broker-*.jar")):
            raise StandaloneError(f"{jars} holds no pulsar-broker jar: name a folder that does")
        ours = "".join(
            f"{name}={value}\n" for name, value in overrides(self.settings, ports).items()
        )
        config = folder / "standalone.conf"
        config.write_text(CONF.read_text() + ours)
        command = [java, f"-Xmx{self._heap}", f"@{JVM_OPTIONS}"]
        command += ["-cp", f"{jars}/*", "org.apache.pulsar.PulsarStandaloneStarter"]
        command += ["--config", str(config), "--no-functions-worker", "--no-stream-storage"]
        return _Java(command, folder=folder, ports=ports)


class _Java(BrokerChild):
    """A broker that is our child, and is killed when we are gone."""

    def __init__(self, command: list[str], *, folder: Path, ports: Ports) -> None:
        super().__init__(command, folder=folder, ports=ports)
        self._watchdog = Watchdog("kill", "-KILL", str(self.pid))

    def end(self, how: signal.Signals, timeout: float) -> None:
        self._watchdog.call_off()
        super().end(how, timeout)


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
