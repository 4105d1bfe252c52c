"""Measurements in processes of their own, which print their figures as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

_SHOWN: Final = 5  # last lines of the errors


class OwnProcessError(RuntimeError):
    """A process failed. The message contains the end of its errors."""


def in_own_process(module: str, *arguments: object) -> Any:
    """Run a module of this package with arguments. Return what it prints as JSON.

    Raises:
        OwnProcessError: if it failed.
    """
    return answer_of([sys.executable, "-m", f"{__package__}.{module}", *map(str, arguments)])


def answer_of(command: Sequence[str]) -> Any:
    """Run a command. Return what it prints as JSON.

    Raises:
        OwnProcessError: if it failed, or printed something else.
    """
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        errors = "\n".join(ran.stderr.splitlines()[-_SHOWN:])
        raise OwnProcessError(f"{' '.join(command[1:])} (exit {ran.returncode}):\n{errors}")
    try:
        return json.loads(ran.stdout)
    except ValueError as error:
        raise OwnProcessError(
            f"{' '.join(command[1:])} printed no JSON: {ran.stdout[-200:]!r}"
        ) from error
