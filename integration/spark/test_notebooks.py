"""Each notebook of the examples runs to its end and prints the output below its cells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.pulsar_server import Server

from .spark_kit import ROOT, worker_environment

NOTEBOOKS = [
    path
    for path in sorted((ROOT / "examples").glob("spark_*.py"))
    if "\n# %% " in path.read_text(encoding="utf-8")
]
LONGEST_S = 240


def expected_output(notebook: Path) -> str:
    """Return a pattern of the comments that are no cell titles. It matches any times."""
    lines = re.findall(r"^# (?!%%)(.*)", notebook.read_text(encoding="utf-8"), re.MULTILINE)
    return "".join(
        re.sub(r"\d+\\\.\d\\ s", r"\\d+\\.\\d s", re.escape(f"{each}\n")) for each in lines
    )


@pytest.mark.parametrize("broker", ["development broker", "pulsar"])
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_prints_the_output_in_its_comments(
    notebook: Path, broker: str, pulsar: Server, tmp_path: Path
) -> None:
    worker_environment()
    result = subprocess.run(
        [sys.executable, str(notebook), *([pulsar.service_url] if broker == "pulsar" else [])],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        timeout=LONGEST_S,
    )
    assert result.returncode == 0, result.stderr[-5000:]
    assert re.fullmatch(expected_output(notebook), result.stdout), result.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_examples_contain_notebooks() -> None:
    assert NOTEBOOKS
