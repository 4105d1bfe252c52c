"""The demonstration's row of Spark with Java: its figures, and that nothing is left of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from .spark_kit import worker_environment

ROWS = 20_000
PROGRAM = f"""
from dataclasses import replace
from functools import partial
import sys
from pulsar_encore.cli.demo.killed_stream import SCENARIO, stream
from pulsar_encore.cli.demo.run import run_demo
smaller = replace(SCENARIO, measure=partial(stream, count={ROWS}, batches=5))
sys.exit(run_demo(sys.argv[1] or None, scenarios=[smaller]))
"""


def begin(url: str, folder: Path) -> subprocess.Popen[str]:
    """The demonstration with that row alone, smaller; its temporary files are in the folder."""
    worker_environment()
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "COLUMNS": "400"},
        start_new_session=True,
    )


def of(folder: Path) -> list[psutil.Process]:
    """Processes that were started with the folder for their temporary files."""
    found = []
    for each in psutil.process_iter():
        try:
            if each.environ().get("TMPDIR", "").startswith(str(folder)):
                found.append(each)
        except psutil.Error:
            continue
    return found


def assert_nothing_is_left(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while left := of(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert list(folder.iterdir()) == []


def test_killed_midway_and_each_once(tmp_path: Path) -> None:
    process = begin("", tmp_path)  # the real one has test_kills
    try:
        said, problems = process.communicate(timeout=280)
    finally:
        process.kill()
    assert (process.returncode, problems) == (0, ""), said
    row = " ".join(re.sub(r"[│┃]", " ", said).split())
    assert "each once: 20,000 rows, 20,000 distinct" in row
    found = re.search(r"killed when ([\d,]+) were in", row)
    assert found is not None, said
    assert ROWS // 4 <= int(found[1].replace(",", "")) < ROWS
    assert re.search(r"first commit \d+\.\d s after the restart", row)
    assert "WARN" not in said
    assert_nothing_is_left(tmp_path)


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    process = begin("", tmp_path)
    try:
        deadline = time.monotonic() + 120
        while not any("java" in each.name() for each in of(tmp_path)):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=150)  # Spark that is starting hears of it once it has started
        assert process.returncode != 0
        assert_nothing_is_left(tmp_path)
    finally:
        process.kill()
        process.communicate()
