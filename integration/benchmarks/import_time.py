"""CPU time of `import pulsar_encore`, compared with `import asyncio`, each in a new process.

The figure is the median of interleaved rounds, with user and system time of the whole process.
Bytecode is cached, as in an installed package.

    python -m integration.benchmarks.import_time
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile

from .figures import Row, report

ROUNDS = 25
BAR = 2.0  # times the CPU time of asyncio


def cpu_ms(statement: str, cache: str) -> float:
    """Return the CPU time in ms of a process that runs `statement`."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = os.posix_spawn(sys.executable, [sys.executable, "-c", statement], environment)
    _, status, used = os.wait4(process, 0)
    assert status == 0, statement
    return (used.ru_utime + used.ru_stime) * 1000


def run(url: str | None = None, *, rounds: int = ROUNDS) -> list[Row]:
    """Measure in pairs, without a broker."""
    statements = ("import pulsar_encore", "import asyncio")
    with tempfile.TemporaryDirectory() as cache:
        for each in statements:  # this writes the bytecode
            cpu_ms(each, cache)
        pairs = [tuple(cpu_ms(each, cache) for each in statements) for _ in range(rounds)]
    ours, asyncios = (statistics.median(each) for each in zip(*pairs, strict=True))
    return [
        Row(
            what="CPU of import pulsar_encore",
            unit="ms",
            figure=ours,
            other=asyncios,
            bar=BAR * asyncios,
            beside="import asyncio",
        )
    ]


if __name__ == "__main__":
    sys.exit(report(run()))
