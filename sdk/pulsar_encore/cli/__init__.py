"""The command line, `pulsar-encore`.

Owns `main`. What it is built with (cyclopts, rich) comes with the extra `cli` and is imported only
here and below, when a command runs; without it `main` says what to install and fails.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_LIBRARIES = ("cyclopts", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after the program's name; None takes the process's own.

    Returns:
        The exit code: 0; 1 when something could not be measured or missed its bar, or letters
        stay; 2 when the command is wrong or the cluster refuses it; 3 when `dlq` finds no letters
        at all, or no such topic; 130 when interrupted, 143 when terminated (a triage); 141 when
        nobody reads stdout any more.
    """
    try:
        from .app import run

        return run(arguments)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _LIBRARIES:
            raise
        sys.stderr.write(
            f'pulsar-encore: the command line needs {library}: pip install "pulsar-encore[cli]"\n'
        )
        return 2
