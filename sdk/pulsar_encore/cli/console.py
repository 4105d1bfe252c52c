from __future__ import annotations

from typing import Final

from rich.console import Console

_FILE_COLUMNS: Final = 110  # of a file or a build log


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # handled by `run`, as for all other output


def wide_console() -> Console:
    console = _Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _FILE_COLUMNS)
    return console
