"""The command line, `pulsar-encore`.

Its libraries (cyclopts, rich) come with the extra `cli` and are imported only when a command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_LIBRARIES = ("cyclopts", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after the program's name; None takes those of the process.

    Returns:
        The exit code. 0: success. 1: something could not be measured or missed its bar, or letters
        or messages stay. 2: the command is wrong, or the cluster refuses it. 3: no letters, or no
        such topic or transaction. 130: interrupted. 143: terminated (triage). 141: stdout was
        closed.
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
    except KeyboardInterrupt:  # while the libraries were imported
        return 130
