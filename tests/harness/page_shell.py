"""A page of the documentation, followed as a reader does: its files saved, its commands typed.

    python -m tests.harness.page_shell quickstart.md

follows the page from its first command, which installs this checkout into a new environment.

A block in Python whose first line is a comment with a file name is saved as that file. Blocks in
`sh` go to one bash process, in order. A `text` block after them has lines that must appear in the
output, in this order. Three dots stand for any text of a line.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from .pages import Block, all_blocks
from .pulsar_server import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
STEP_S: Final = 60.0
INSTALL_S: Final = 600.0


class PageError(AssertionError):
    """A command failed, or a line did not appear. The text has the output."""


def file_name(block: Block) -> str | None:
    """Return the name in the first line of a block, None without one."""
    named = re.match(r"# ([\w.]+)\n", block.code)
    return named[1] if named else None


class PageShell:
    """A bash process in a folder, and its output.

    Args:
        folder: Working directory, where files are saved.
        values: Texts of the page, and the text that takes their place in this run.
        environment: Variables on top of those of this process.
    """

    def __init__(
        self, folder: Path, values: Mapping[str, str], environment: Mapping[str, str] = {}
    ) -> None:
        self.folder = folder
        self.values = values
        self._log = folder / "output.log"
        self._since = 0
        self._steps = 0
        with self._log.open("wb") as output:
            self._bash = subprocess.Popen(
                ["bash", "-e"],
                cwd=folder,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | dict(environment),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> PageShell:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the bash process with all that it started."""
        assert self._bash.stdin is not None
        with suppress(BrokenPipeError):
            self._bash.stdin.close()
        with suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()

    def output(self) -> str:
        return self._log.read_text("utf-8", errors="replace")

    def save(self, block: Block) -> None:
        name = file_name(block)
        assert name is not None, f"no file name in {block.code[:60]!r}"
        (self.folder / name).write_text(self._filled(block.code), "utf-8")

    def type(self, code: str, within: float = STEP_S) -> None:
        """Run commands, and wait until the last of them that is in the foreground has ended."""
        self._steps += 1
        done = f"step {self._steps} is done"
        self._since = len(self.output())
        assert self._bash.stdin is not None
        try:
            self._bash.stdin.write(f"{self._filled(code)}\necho '{done}'\n".encode())
            self._bash.stdin.flush()
        except BrokenPipeError:
            raise PageError(self.output()) from None
        self._wait(re.escape(done), code, within)

    def expect(self, text: str, within: float = STEP_S) -> None:
        """Wait until each line of a `text` block has appeared since the last commands."""
        pattern = ".*?".join(
            re.escape(self._filled(line.strip())).replace(r"\.\.\.", r"[^\n]*?")
            for line in text.splitlines()
        )
        self._wait(pattern, text, within)

    def _wait(self, pattern: str, what: str, within: float) -> None:
        end = time.monotonic() + within
        while True:
            ended = self._bash.poll() is not None
            if re.search(pattern, self.output()[self._since :], flags=re.DOTALL):
                return
            if ended or time.monotonic() > end:
                reason = "bash has ended" if ended else f"not within {within:g} s"
                raise PageError(f"{what}\n{reason}:\n{self.output()}")
            time.sleep(0.05)

    def _filled(self, text: str) -> str:
        for word, value in self.values.items():
            text = text.replace(word, value)
        return text


def follow(page: str, shell: PageShell, *, installed: bool) -> None:
    """Do what a page says. With `installed`, leave out the block that installs the package."""
    for language, block in all_blocks(page):
        if language == "python":
            shell.save(block)
        elif language == "text":
            shell.expect(block.code)
        elif language == "sh" and "pip install" not in block.code:
            shell.type(block.code)
        elif language == "sh" and not installed:
            shell.type(block.code, within=INSTALL_S)
            (inner,) = (each.parent for each in shell.folder.glob("*/.venv"))
            shell.folder = inner


def installed_environment() -> dict[str, str]:
    """Return variables with which the commands of a page run this checkout."""
    paths = (str(ROOT / "sdk"), os.environ.get("PYTHONPATH", ""))
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(each for each in paths if each),
    }


def main(page: str) -> None:
    port = str(free_port())
    values = {"6650": port, "/path/to/checkout": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        # A PYTHONPATH could show this checkout to an environment that lacks it.
        environment = {"PULSAR_URL": f"pulsar://localhost:{port}", "PYTHONPATH": ""}
        with PageShell(Path(folder), values, environment) as shell:
            follow(page, shell, installed=False)
            print(shell.output())
    print(f"docs/{page}: every command worked, from an empty environment")


if __name__ == "__main__":
    main(*sys.argv[1:])
