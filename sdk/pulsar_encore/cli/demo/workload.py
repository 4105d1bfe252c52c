"""Names, sizes and figures that both sides of a measurement share.

A measurement is a function of a service URL, a topic and its own parameters. It returns `Figures`;
None means that the event was not seen in the waiting time.
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
#: Entries per ledger in the ids of pending nacks: the default of brokers.
ENTRIES_PER_LEDGER: Final = 50_000
#: Keywords for the clients of this process: the login of the run.
LOGIN: Final[dict[str, Any]] = {}
#: The same login as options of the Spark source.
LOGIN_OPTIONS: Final[dict[str, str]] = {}
#: Digits at the start of a numbered message.
NUMBER_DIGITS: Final = 8


def resident_mb() -> float:
    """Return the memory of this process in MB (10**6 bytes), after a garbage collection."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:  # without /proc, the peak is the nearest figure in the standard library
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(peak) / (1e6 if sys.platform == "darwin" else 1e3)


class Stopwatch:
    def __init__(self) -> None:
        self._start = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self._start
