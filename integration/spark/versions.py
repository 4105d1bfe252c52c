"""Run the Spark tests on other releases of PySpark, by hand: CI runs the newest only.

    python -m integration.spark.versions 4.0.1 4.1.1 [-- arguments of pytest]

Each release is installed without its dependencies into a folder of its own, which precedes the
environment's PySpark on the path. The variables PULSAR_URL and PULSAR_ADMIN_URL name a broker, as
for the other tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = Path(tempfile.gettempdir()) / "pulsar-encore-pyspark"
TESTS: Final = tuple(
    f"integration/spark/test_{name}.py"
    for name in (
        "source",
        "source_workers",
        "filters_spark",
        "values_on_pulsar",
        "user_errors",
        "sink_spark",
        "transactions_spark",
        "crypto_spark",
        "triage_job",
        "triage_replay",
        "triage_metrics",
    )
)

_UNRAISABLE: Final = "ignore::pytest.PytestUnraisableExceptionWarning"


def install(release: str) -> Path:
    """Install a release if it is missing, and return its folder."""
    folder = FOLDER / release
    if not (folder / "pyspark").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--target", str(folder), f"pyspark=={release}"], check=True)
    return folder


def main(releases: list[str], pytest_arguments: list[str]) -> int:
    """Run the tests with each release. Return the exit code of the last run that failed, or 0."""
    code = 0
    for release in releases:
        paths = [str(install(release)), str(ROOT / "sdk"), str(ROOT)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        environment.pop("SPARK_HOME", None)
        print(f"PySpark {release}", flush=True)
        # Older releases leave sockets open, which by default fails a test.
        warning_options = ["-W", "ignore::ResourceWarning", "-W", _UNRAISABLE]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            *warning_options,
            *(pytest_arguments or TESTS),
        ]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode or code
    return code


if __name__ == "__main__":
    arguments = sys.argv[1:]
    separator = arguments.index("--") if "--" in arguments else len(arguments)
    sys.exit(main(arguments[:separator], arguments[separator + 1 :]))
