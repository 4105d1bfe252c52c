"""Run pytest inside a test, with the plugin and without the settings of this repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SDK = Path(__file__).resolve().parents[2] / "sdk"
ASYNCIO = ("-p", "pytest_asyncio.plugin")
ANYIO = ("-p", "anyio.pytest_plugin")
PLUGIN = ("-p", "pulsar_encore_pytest")

Inner = Callable[..., pytest.RunResult]


def inner_run(pytester: Any, monkeypatch: pytest.MonkeyPatch) -> Inner:
    """Return a function that writes files and runs them in a process, with warnings as errors.

    Plugins are loaded by name: those that happen to be installed must not change a result.
    """
    monkeypatch.setenv("PYTHONPATH", str(SDK))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(*arguments: str, **files: str) -> pytest.RunResult:
        settings = (
            "asyncio_default_fixture_loop_scope = function" if ASYNCIO[1] in arguments else ""
        )
        pytester.makefile(".ini", pytest=f"[pytest]\n{settings}\n")
        if files:
            pytester.makepyfile(**files)
        result: pytest.RunResult = pytester.runpytest_subprocess(
            *PLUGIN, "-p", "no:cacheprovider", "--strict-markers", "-W", "error", *arguments
        )
        return result

    return run
