"""The Java client in a process of its own, driven line by line (see java/.../Main.java).

Every answer has a timeout, and the process is killed when the context ends.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent / "java"
BUILD_TIMEOUT = 300.0  # a cold cache downloads 60 MB
ANSWER_TIMEOUT = 60.0


class JavaError(RuntimeError):
    """Maven or the Java client failed. The message contains its output."""


def missing_tools() -> str | None:
    """Return the names of the missing tools (Java, Maven), or None."""
    missing_names = [name for name in ("java", "mvn") if shutil.which(name) is None]
    return " and ".join(missing_names) or None


def build(project: Path = PROJECT) -> str:
    """Compile a project and fetch the client. Return the class path.

    Args:
        project: A folder with a `pom.xml` that builds into `build`.

    Raises:
        JavaError: if Maven failed.
    """
    command = ["mvn", "--batch-mode", "--quiet", f"--file={project / 'pom.xml'}", "prepare-package"]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT,
        stdin=subprocess.DEVNULL,
    )
    if result.returncode != 0:
        shown = "\n".join((result.stdout + result.stderr).splitlines()[-20:])
        raise JavaError(f"Maven failed (exit {result.returncode}):\n{shown}")
    return os.pathsep.join([str(project / "build/classes"), str(project / "build/jars/*")])


class JavaClient:
    """One Java client. `call` blocks."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._next()  # the first line says that it is connected, or has an error

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _next(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=ANSWER_TIMEOUT)
        except queue.Empty:
            raise JavaError(f"the Java client said nothing for {ANSWER_TIMEOUT:g} s") from None
        if line is None:
            raise JavaError(f"the Java client ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"])
        return answer

    def call(self, *arguments: object) -> list[dict[str, Any]]:
        """Run one command, and return the messages that it printed.

        Raises:
            JavaError: if the command failed, or the client ended or did not answer.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, arguments)) + "\n")
        self._process.stdin.flush()
        found = []
        while "done" not in (answer := self._next()):
            found.append(answer)
        return found


@contextmanager
def java_client(url: str) -> Iterator[JavaClient]:
    """Yield a Java client that is connected to a broker.

    Raises:
        JavaError: if the client cannot be built or started.
    """
    command = ["java", "-Xmx256m", "-cp", build(), "encore.letters.Main", url]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield JavaClient(process)
        finally:
            process.kill()
