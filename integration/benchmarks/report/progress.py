"""Progress on the terminal: the running benchmark and the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.status import Status

_LINE_EVERY_S = 15.0  # in a file or a build log


def remaining_s(
    ended: Sequence[tuple[float, float]], running: tuple[float, float] | None, left: Sequence[float]
) -> float:
    """Estimate the remaining time of a run.

    Args:
        ended: Expected and actual duration of each benchmark that ended.
        running: Expected and actual duration of the running benchmark, or None.
        left: Expected durations of the other benchmarks.
    """
    expected, actual = (sum(each) for each in zip(*ended, strict=True)) if ended else (0.0, 0.0)
    pace = actual / expected if expected else 1.0  # of this machine
    remaining = pace * sum(left)
    if running is not None:
        remaining += max(0.0, pace * running[0] - running[1])
    return remaining


class Progress:
    """Shows the running benchmark, its part and the remaining time.

    A terminal has one line that changes; a file gets a line at most every 15 seconds, and one for
    each benchmark.

    Args:
        expected: Expected duration of each benchmark in s, in order.
    """

    def __init__(
        self,
        console: Console,
        expected: Sequence[float],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._expected = expected
        self._now = now
        self._ended: list[tuple[float, float]] = []
        self._title = ""
        self._begun_s = self._shown_s = now()
        self._status: Status | None = None

    def begin(self, title: str) -> None:
        """A benchmark begins."""
        self._title = title
        self._begun_s = self._now()
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        self._show("")

    def step(self, text: str) -> None:
        """A part of the benchmark begins."""
        if self._status is not None or self._now() - self._shown_s >= _LINE_EVERY_S:
            self._show(text)

    def end(self, *, ran: bool = True) -> float:
        """The benchmark has ended. Return its duration in s.

        Args:
            ran: False if it was skipped or failed, so that its duration tells nothing.
        """
        took_s = self._now() - self._begun_s
        expected_s = self._expected[len(self._ended)]
        self._ended.append((expected_s, took_s) if ran else (0.0, 0.0))
        self.close()
        return took_s

    def close(self) -> None:
        """Remove the line that changes, also after an interrupt."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _show(self, step: str) -> None:
        self._shown_s = self._now()
        number = len(self._ended)
        running = self._expected[number], self._shown_s - self._begun_s
        left_s = remaining_s(self._ended, running, self._expected[number + 1 :])
        parts = [f"{number + 1} of {len(self._expected)}: {self._title}", step, _about(left_s)]
        text = " · ".join(part for part in parts if part)
        if self._status is not None:
            self._status.update(text)
        else:
            self._console.print(text, markup=False)


def _about(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} s left"
    return f"about {round(seconds / 60)} min left"
