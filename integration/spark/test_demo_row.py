"""The row of the demonstration that needs Spark and Java: its figures, and its cleanup."""

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


def start_demo(url: str, folder: Path) -> subprocess.Popen[str]:
    """Start the demonstration with this row only and fewer messages. Its temporary files are in
    `folder`.
    """
    worker_environment()
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "COLUMNS": "600"},
        start_new_session=True,
    )


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes that use `folder` for temporary files."""
    processes = []
    for each in psutil.process_iter():
        try:
            if each.environ().get("TMPDIR", "").startswith(str(folder)):
                processes.append(each)
        except psutil.Error:
            continue
    return processes


def runs_java(process: psutil.Process) -> bool:
    try:
        return "java" in process.name()
    except psutil.NoSuchProcess:  # it has ended since it was found
        return False


def assert_cleaned_up(folder: Path) -> None:
    deadline = time.monotonic() + 20
    while remaining := processes_of(folder):
        assert time.monotonic() < deadline, remaining
        time.sleep(0.1)
    assert list(folder.iterdir()) == []


def test_a_stream_killed_midway_writes_each_row_once(tmp_path: Path) -> None:
    process = start_demo("", tmp_path)  # `test_kills` covers a real broker
    try:
        output, problems = process.communicate(timeout=280)
    finally:
        process.kill()
    assert (process.returncode, problems) == (0, ""), output
    row = " ".join(re.sub(r"[│┃]", " ", output).split())
    assert "each once: 20,000 rows, 20,000 distinct" in row
    kill_point = re.search(r"killed when ([\d,]+) were in", row)
    assert kill_point is not None, output
    assert ROWS // 4 <= int(kill_point[1].replace(",", "")) < ROWS
    assert re.search(r"first commit \d+\.\d s after the restart", row)
    assert "WARN" not in output
    assert_cleaned_up(tmp_path)


def test_an_interrupted_demo_leaves_no_processes_and_files(tmp_path: Path) -> None:
    process = start_demo("", tmp_path)
    try:
        deadline = time.monotonic() + 120
        while not any(map(runs_java, processes_of(tmp_path))):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=150)  # a starting Spark handles the signal after its start
        assert process.returncode != 0
        assert_cleaned_up(tmp_path)
    finally:
        process.kill()
        process.communicate()
