"""The recipes: pages in `docs/recipes`, and the programs in `examples` that they show."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"


def recipe_file(name: str) -> Path:
    """Return the file of a recipe's program."""
    return EXAMPLES / f"recipe_{name}.py"


def load_recipe(name: str) -> Any:
    """Import the program of a recipe, as a new module for each call."""
    path = recipe_file(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class RecipeProcess:
    """The program of a recipe in a process of its own.

    Args:
        name: Name of the recipe.
        arguments: Those of the program.
        output: A file that gets the output of the program, also of several programs.
        code: Another program, which imports the recipe.
    """

    def __init__(
        self, name: str, *arguments: str, output: Path | None = None, code: str | None = None
    ) -> None:
        program = [str(recipe_file(name))] if code is None else ["-c", code]
        paths = os.pathsep.join(map(str, (EXAMPLES.parent / "sdk", EXAMPLES.parent, EXAMPLES)))
        # An unbuffered print writes a line and its end apart: two processes would mix their lines.
        environment = {"PYTHONPATH": paths, "PYTHONUNBUFFERED": ""}
        stdout: Any = subprocess.DEVNULL
        self._printed = ""
        self._log = tempfile.TemporaryFile("w+")  # a pipe that nobody reads would block it
        with contextlib.ExitStack() as stack:
            if output is not None:
                stdout = stack.enter_context(output.open("ab"))
            self._process = subprocess.Popen(
                [sys.executable, *program, *arguments],
                stdout=stdout,
                stderr=self._log,
                env=os.environ | environment,
            )

    def end(self, timeout: float = 40) -> str:
        """Send SIGTERM, wait for the end of the drain, and return the log."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait(0, timeout)

    def wait(self, code: int, timeout: float = 40) -> str:
        """Wait until the process ends with an exit code, and return the log."""
        try:
            self._process.wait(timeout)
        finally:
            self.kill()
        assert self._process.returncode == code, self._printed
        return self._printed

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if not self._log.closed:
            self._log.seek(0)
            self._printed = self._log.read()
            self._log.close()


#: A program that is killed between the commit of a list and its ack.
KILLED_AFTER_COMMIT: Final = """
import asyncio, os, signal, sys
import {module} as recipe

class Archive(recipe.Archive):
    {define} store(self, orders, msgs):
        {wait}super().store(orders, msgs)
        os.kill(os.getpid(), signal.SIGKILL)

recipe.Archive = Archive
asyncio.run(recipe.main(*sys.argv[1:]))
"""
