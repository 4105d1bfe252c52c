"""CPU time of `import pulsar_encore`, compared with `import asyncio`, each in a new process.

It is user and system time of the whole process. Bytecode is cached, as in an installed package.

    make bench ONLY=import_time
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Final

from .rows import Row
from .trial import Benchmark, Trial

BAR: Final = 2.0  # times the CPU time of asyncio
PROCESSES: Final = 5  # in each measurement, which is their median


def cpu_ms(statement: str, cache: str) -> float:
    """Return the CPU time in ms of a process that runs `statement`."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = os.posix_spawn(sys.executable, [sys.executable, "-c", statement], environment)
    _, status, used = os.wait4(process, 0)
    assert status == 0, statement
    return (used.ru_utime + used.ru_stime) * 1000


def _typical_ms(statement: str, cache: str) -> float:
    return median(cpu_ms(statement, cache) for _ in range(PROCESSES))


def run(trial: Trial) -> Iterator[Row]:
    """Measure in pairs, without a broker."""
    ours, other = "import pulsar_encore", "import asyncio"
    with tempfile.TemporaryDirectory() as cache:
        for each in (ours, other):  # this writes the bytecode
            cpu_ms(each, cache)
        pairs = trial.alternate(
            "imports", partial(_typical_ms, ours, cache), partial(_typical_ms, other, cache)
        )
    yield Row(
        what="CPU of import pulsar_encore",
        unit="ms",
        ours=pairs.ours,
        other=pairs.other,
        bar=BAR,
        beside=other,
    )


BENCHMARK: Final = Benchmark(
    name="import_time",
    title="The import",
    about="CPU time of a process that imports the package, beside one that imports asyncio.",
    seconds=10,
    quick_s=6,
    run=run,
)
