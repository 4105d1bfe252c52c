"""A private PostgreSQL server on loopback, from Debian's package `postgresql`.

PostgreSQL refuses to run as root, so root runs it as the user `nobody`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.pulsar_server import free_port

_START_S = 60.0
_USER = "encore"


class NoPostgresError(RuntimeError):
    """PostgreSQL is not installed."""


def find_programs() -> Path:
    """Return the folder of `initdb` and `postgres`.

    Raises:
        NoPostgresError: if there is none. The text names the package.
    """
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
    )
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    if on_path is not None:
        return Path(on_path).resolve().parent
    raise NoPostgresError(
        "PostgreSQL is not installed, and a recipe needs it: apt-get install postgresql"
    )


class PostgresServer:
    """A server with a temporary folder. It can be stopped and started again.

    Attributes:
        conninfo: The connection string of its database.
    """

    def __init__(self) -> None:
        self._programs = find_programs()
        self._folder = tempfile.mkdtemp(prefix="encore-postgres-")
        self._as_user: dict[str, Any] = {"cwd": self._folder}
        if os.geteuid() == 0:
            self._as_user |= {"user": "nobody", "group": "nogroup", "extra_groups": ()}
            shutil.chown(self._folder, "nobody", "nogroup")
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.conninfo: str = (
            f"host=127.0.0.1 port={self._port} user={_USER} dbname=postgres connect_timeout=5"
        )

    def __enter__(self) -> Self:
        try:
            self._run(
                "initdb", "-D", "data", "-U", _USER, "-A", "trust", "--no-sync", "--no-locale"
            )
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        command = [str(self._programs / "postgres"), "-D", "data", "-F", "-k", self._folder]
        command += ["-h", "127.0.0.1", "-p", str(self._port)]
        with open(Path(self._folder) / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as_user)
        ends = time.monotonic() + _START_S
        while self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self._port), check=False) != 0:
            if self._process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError((Path(self._folder) / "log").read_text())
            time.sleep(0.1)

    def stop(self) -> None:
        """Close all connections, and stop the server."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stop the server, and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        done = subprocess.run(
            [str(self._programs / program), *arguments], capture_output=True, **self._as_user
        )
        if check and done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.decode(errors='replace')}")
        return done.returncode
