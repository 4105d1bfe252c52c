"""Run a program with either package: change its text, and compare its output.

Programs for `pulsar.asyncio` are written for the stock client. For this package only their import
lines change. Programs for the blocking client are written for this package, with `await`. For the
stock client the asyncio keywords are removed and the import line changes back. Each text is a real
file while it runs.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

#: The transports of this package under test.
TRANSPORTS = ("stock", "auto")

PROGRAMS = Path(__file__).resolve().parent / "programs"
#: Longest run of one program, in s. Alone they take 1 to 5 s.
LONGEST_S = 60

#: From the stock asyncio client to this package: imports only.
_IMPORT_CHANGES = (
    (r"^import pulsar$", "import pulsar_encore as pulsar"),
    (r"^from pulsar(?:\.asyncio)? import", "from pulsar_encore import"),
    (r"^from pulsar\.schema import", "from pulsar_encore.schema import"),
)
#: From this package to the stock blocking client: imports and asyncio keywords.
_BLOCKING_CHANGES = (
    (r"^import pulsar_encore as pulsar$", "import pulsar"),
    (r"^from pulsar_encore import", "from pulsar import"),
    (r"^import asyncio$", "import time"),
    (r"await asyncio\.sleep\(", "time.sleep("),
    (r"asyncio\.run\(main\(\)\)", "main()"),
    (r"\basync def\b", "def"),
    (r"\bawait ", ""),
)
#: Log lines of the C++ client on stdout, also in the middle of a line. They are not output of the
#: program.
_ENGINE_LOG = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ (DEBUG|INFO|WARN|ERROR).*\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The result of one run of a program.

    Attributes:
        code: Exit code, None if it did not end within `LONGEST_S`.
        output: Its standard output, without the C++ client's log.
        problems: Its standard error.
    """

    code: int | None
    output: str
    problems: str

    def __str__(self) -> str:
        ended = f"did not end in {LONGEST_S} s" if self.code is None else f"exit code {self.code}"
        return f"{ended}\n{self.output}{self.problems[-3000:]}"


def stock_text(name: str) -> str:
    """Return the text of a program for the stock package."""
    text = _text(name)
    return _apply_rules(text, _BLOCKING_CHANGES) if "pulsar_encore" in text else text


def our_text(name: str) -> str:
    """Return the text of a program for this package."""
    return _apply_rules(_text(name), _IMPORT_CHANGES)


def _restore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(text: str, path: Path, environment: dict[str, str]) -> Run:
    """Run a program's text as the file `path`, in a process of its own."""
    path.write_text(text)
    with subprocess.Popen(
        [sys.executable, str(path)],
        env=os.environ | environment | {"PYTHONUNBUFFERED": ""},
        cwd=path.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that forked processes can be killed with it
        # A shell in the background ignores SIGINT, and its children inherit that.
        preexec_fn=_restore_interrupts,
    ) as process:
        try:
            output, problems = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, problems = process.communicate()
            return Run(code=None, output=_without_log(output), problems=problems)
    return Run(code=process.returncode, output=_without_log(output), problems=problems)


def difference(stock: str, ours: str) -> str:
    """Return the difference of two outputs, line by line."""
    return "\n".join(difflib.unified_diff(stock.splitlines(), ours.splitlines(), "stock", "ours"))


def _text(name: str) -> str:
    return (PROGRAMS / name).read_text()


def _apply_rules(text: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def _without_log(output: str) -> str:
    return _ENGINE_LOG.sub("", output)
