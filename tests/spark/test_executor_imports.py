"""What an executor imports, in an interpreter that has no package of the driver's alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The chart's, the command line's, and the web service's, which only the driver asks.
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
        "pyspark_pulsar_encore",  # as PySpark looks for sources
        # Modules of what PySpark pickles for a task.
        "pulsar_encore.spark.driver.batch, pulsar_encore.spark.driver.stream",
        "pulsar_encore.spark.sink.data_writers",
    ],
)
def test_an_executor_needs_no_package_of_the_drivers(module: str) -> None:
    code = EXECUTORS.format(blocked=DRIVERS, imports=f"import {module}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_triage_is_imported_without_the_charts_package() -> None:
    code = EXECUTORS.partition("assert")[0].format(
        blocked=("matplotlib", "pandas"), imports="import pulsar_encore.spark.triage"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
