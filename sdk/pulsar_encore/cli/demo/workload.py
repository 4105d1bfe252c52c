"""What both sides of a measurement have in common: names, sizes and how a figure is handed over.

Owns no client. A measurement is a function of a service URL, a topic and its own parameters; it
gives `Figures`, and None in them means that it waited long enough and did not see it.
"""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any, Final

Figures = dict[str, float | None]

SUBSCRIPTION: Final = "demo"
PAYLOAD: Final = b"x" * 100
#: A pending nack's id: so many entries to a ledger, as brokers cut them by default.
ENTRIES_PER_LEDGER: Final = 50_000
#: What both clients are made with besides the URL: the login of the run that this process is of.
LOGIN: Final[dict[str, Any]] = {}
#: The same login as options of the Spark source.
LOGIN_OPTIONS: Final[dict[str, str]] = {}
#: Digits that a numbered message begins with.
NUMBER_DIGITS: Final = 8


def resident_mb() -> float:
    """Memory of this process in MB (10**6 bytes), after a garbage collection."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:  # no /proc: the peak is the nearest the standard library knows
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(peak) / (1e6 if sys.platform == "darwin" else 1e3)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self._start
