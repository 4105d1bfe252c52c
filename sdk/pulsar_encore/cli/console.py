"""Print tables as wide as the terminal, or wide enough for a file or a build log."""

from __future__ import annotations

from typing import Final

from rich.console import Console

_FILE_COLUMNS: Final = 110


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # handled by `run`, as for all other output


def wide_console() -> Console:
    console = _Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _FILE_COLUMNS)
    return console
