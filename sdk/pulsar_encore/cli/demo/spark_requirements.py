"""Check whether Spark can run here: PySpark with pyarrow, and Java."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

JAVA: Final = 17
PYSPARK: Final = (4, 2)
ASK_S: Final = 10.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')  # Java 8 called itself 1.8
_INSTALL: Final = 'pip install "pulsar-encore[spark]"'


def missing() -> str | None:
    if os.name != "posix":
        return "a system with process groups (Linux, macOS)"
    return _python() or _java()


def _python() -> str | None:
    try:
        version = importlib.import_module("pyspark").__version__
        importlib.import_module("pulsar_encore.spark")
        importlib.import_module("pyarrow")
    except ImportError as error:
        library = (error.name or "pyspark").partition(".")[0]
        return f"{library}, which is not installed: {_INSTALL}"
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < PYSPARK:
        least = ".".join(map(str, PYSPARK))
        return f"PySpark {least} or later, and {version} is installed: {_INSTALL}"
    return None


def _java() -> str | None:
    wanted = f"Java {JAVA} or later"  # the one that Spark's scripts would start
    java_home = os.environ.get("JAVA_HOME")
    java = str(Path(java_home, "bin", "java")) if java_home else shutil.which("java")
    if java is None:
        return f"{wanted}: set JAVA_HOME, or put java on the PATH"
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=ASK_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"{wanted}, and {java} does not run"
    found = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or found is None:
        return f"{wanted}, and {java} does not print its version"
    return None if int(found[1]) >= JAVA else f"{wanted}, and {java} is Java {found[1]}"
