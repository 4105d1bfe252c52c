"""Run a development broker in another process, so that measurements do not share its CPU time."""

from __future__ import annotations

import selectors
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final

from ..errors import ConnectError

START_S: Final = 15.0
STOP_S: Final = 5.0


@contextmanager
def broker_process(options: Sequence[str] = ()) -> Iterator[str]:
    """Run `pulsar-encore broker` with more options on a free loopback port; yield its address."""
    command = [sys.executable, "-m", "pulsar_encore.cli", "broker", "--port", "0", "--until-eof"]
    with child([*command, *options]) as process:
        yield first_line(process)


@contextmanager
def child(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process with pipes for stdin and stdout; end it with the context."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # an interrupt at the terminal goes to the parent, which ends the child
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def first_line(process: subprocess.Popen[str], timeout_s: float = START_S) -> str:
    """Return the next line that a child prints, or raise ConnectError."""
    out: IO[str] | None = process.stdout
    assert out is not None  # created with a pipe
    with selectors.DefaultSelector() as ready:
        ready.register(out, selectors.EVENT_READ)
        line = out.readline().strip() if ready.select(timeout_s) else ""
    if not line:
        code = process.poll()
        state = (
            f"printed nothing for {timeout_s:g} s" if code is None else f"ended with code {code}"
        )
        raise ConnectError(f"the broker process {state}")
    return line
