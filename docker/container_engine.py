"""Owns the calls to a container engine, Docker or podman, through its command line.

Invariant: every call has a time limit, and a failure says what the engine said last. Standard
library only. Refuses to install or start an engine: it only finds one that answers.
"""

from __future__ import annotations

import shutil
import subprocess

from pulsar_jars import StandaloneError

ENGINES = ("docker", "podman")
ANSWER_TIMEOUT = 20.0


class EngineError(StandaloneError):
    """A container engine refused or did not finish; the message has its last words."""


class Engine:
    """A container engine that answers.

    Args:
        name: `docker` or `podman`.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def command(self, *arguments: str) -> list[str]:
        """The command line of a call."""
        # podman takes crun first where there is one, and crun refuses hybrid cgroups.
        runtime = self.name == "podman" and shutil.which("runc") is not None
        return [self.name, *(("--runtime", "runc") if runtime else ()), *arguments]

    def call(self, *arguments: str, timeout: float) -> str:
        """Run one call and return what it printed, without the space around it.

        Args:
            arguments: What follows the engine's name.
            timeout: Seconds.

        Raises:
            EngineError: It failed, or did not finish in time.
        """
        try:
            done = subprocess.run(
                self.command(*arguments),
                capture_output=True,
                text=True,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise EngineError(f"{self.name} {arguments[0]} did not finish: {e}") from e
        if done.returncode != 0:
            words = " ".join(done.stderr.split())[-500:]
            raise EngineError(f"{self.name} {arguments[0]} failed ({done.returncode}): {words}")
        return done.stdout.strip()


def find_engine() -> Engine | None:
    """The first engine that answers, Docker before podman; None where none does."""
    for name in ENGINES:
        engine = Engine(name)
        if shutil.which(name) is None:
            continue
        try:
            engine.call("info", timeout=ANSWER_TIMEOUT)
        except EngineError:
            continue
        return engine
    return None
