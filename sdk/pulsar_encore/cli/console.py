"""Where tables go: as wide as the terminal, and wide enough to read in a file or a build's log."""

from __future__ import annotations

from typing import Final

from rich.console import Console

_FILE_COLUMNS: Final = 110


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # whose end is `run`'s, as of everything else that is printed


def wide_console() -> Console:
    """A console on stdout."""
    console = _Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _FILE_COLUMNS)
    return console
