"""Each notebook of the examples runs to its end, and prints what stands below its cells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.pulsar_server import Server

from .spark_kit import ROOT, worker_environment

NOTEBOOKS = sorted((ROOT / "examples").glob("spark_*.py"))
LONGEST_S = 240


def said_below(notebook: Path) -> str:
    """A pattern of the comments that are no cell's title; times are any."""
    lines = re.findall(r"^# (?!%%)(.*)", notebook.read_text(encoding="utf-8"), re.MULTILINE)
    return "".join(
        re.sub(r"\d+\\\.\d\\ s", r"\\d+\\.\\d s", re.escape(f"{each}\n")) for each in lines
    )


@pytest.mark.parametrize("where", ["development broker", "pulsar"])
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_prints_what_stands_below_its_cells(
    notebook: Path, where: str, pulsar: Server, tmp_path: Path
) -> None:
    worker_environment()
    ran = subprocess.run(
        [sys.executable, str(notebook), *([pulsar.service_url] if where == "pulsar" else [])],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=LONGEST_S,
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    assert re.fullmatch(said_below(notebook), ran.stdout), ran.stdout
    assert list(tmp_path.iterdir()) == []


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
