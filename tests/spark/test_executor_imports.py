"""Imports of an executor, in an interpreter without the packages that only the driver needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Packages for the chart, for the command line and for the web service, which only the driver calls.
DRIVERS = ("matplotlib", "pandas", "cyclopts", "rich", "httpx2", "rocksdict", "cryptography")
EXECUTORS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"an executor imports {{name}}", name=name)

sys.meta_path.insert(0, Blocked())
{imports}
assert not any(name.startswith("pulsar_encore.spark.triage") for name in sys.modules)
assert not any(name.startswith("pulsar_encore.cli.") for name in sys.modules)
"""


@pytest.mark.parametrize(
    "module",
    [
        "pyspark_pulsar_encore",  # PySpark looks for sources in this way.
        # Modules of objects that PySpark pickles for a task.
        "pulsar_encore.spark.driver.batch, pulsar_encore.spark.driver.stream",
        "pulsar_encore.spark.sink.data_writers",
    ],
)
def test_an_executor_needs_no_package_of_the_driver(module: str) -> None:
    code = EXECUTORS.format(blocked=DRIVERS, imports=f"import {module}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_triage_can_be_imported_without_the_chart_package() -> None:
    code = EXECUTORS.partition("assert")[0].format(
        blocked=("matplotlib", "pandas"), imports="import pulsar_encore.spark.triage"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
