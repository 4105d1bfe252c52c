"""Machine, versions and commit of a run. A reader needs them to compare figures."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = ("pulsar-encore", "pulsar-client", "pyroaring", "pyspark")


def described(root: Path) -> dict[str, Any]:
    """Return machine, versions and commit of the checkout `root`, without names and paths."""
    return {
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "system": platform.system(),
            "architecture": platform.machine(),
            "load_before": round(os.getloadavg()[0], 2),
        },
        "versions": {
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "python_build": _build(),
            **{name: found for name in _PACKAGES if (found := _version(name))},
            "java": _java(),
        },
        "commit": _commit(root),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _build() -> str:
    """Return how this Python was built. CPU times of different builds cannot be compared."""
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    if not options:
        return ""  # Windows does not tell
    optimized = "with" if "--enable-optimizations" in options else "without"
    return ", ".join(
        [
            f"{optimized} --enable-optimizations",
            *(["with LTO"] if "--with-lto" in options else []),
            "shared libpython" if _is_shared() else "static libpython",
        ]
    )


def _is_shared() -> bool:
    """Return True if the interpreter is in a shared library, which makes calls slower."""
    try:
        return "libpython" in Path("/proc/self/maps").read_text("utf-8")
    except OSError:
        return bool(sysconfig.get_config_var("Py_ENABLE_SHARED"))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _java() -> str:
    if shutil.which("java") is None:
        return ""
    ran = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    # JAVA_TOOL_OPTIONS add lines, with paths of this machine.
    return next((line for line in ran.stderr.splitlines() if " version " in line), "")


def _commit(root: Path) -> str:
    """Return the commit, with "and changes" if the files differ from it, or "" without git."""
    if shutil.which("git") is None:
        return ""

    def git(*words: str) -> str:
        ran = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        return ran.stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{commit} and changes" if commit and changed else commit
