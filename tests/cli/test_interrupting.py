"""A job that is interrupted: a sentence and an exit code, whatever it is in the middle of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from pulsar_encore.cli.interrupting import interruptible
from pulsar_encore.errors import ConfigurationError

JOB = """
import sys, time
from pulsar_encore.cli.interrupting import interruptible
def job():
    print("begun", flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            print("disturbed", flush=True)
sys.exit(interruptible(job, "interrupted: all is well"))
"""


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ([signal.SIGINT], 130),
        ([signal.SIGTERM], 143),
        ([signal.SIGINT, signal.SIGINT, signal.SIGTERM], None),
    ],
    ids=str,
)
def test_an_interrupted_job_is_a_sentence(signals: list[signal.Signals], code: int | None) -> None:
    running = subprocess.Popen(
        [sys.executable, "-c", JOB], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "begun\n"
    for each in signals:
        os.kill(running.pid, each)
    out, err = running.communicate(timeout=60)
    assert out == ""
    assert err == "pulsar-encore: interrupted: all is well\n"
    assert running.returncode in ({code} if code else {130, 143})


def test_what_a_job_gives_or_raises_is_the_callers() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert interruptible(lambda: 7, "") == 7

    def refuse() -> int:
        raise ConfigurationError("no")

    with pytest.raises(ConfigurationError, match="no"):
        interruptible(refuse, "")
    assert signal.getsignal(signal.SIGINT) is before


def test_on_a_thread_signals_are_somebody_elses() -> None:
    seen: list[Any] = []

    def main() -> None:
        job = threading.current_thread
        seen.append(interruptible(lambda: seen.append(job()) or 3, ""))

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    assert seen == [thread, 3]
