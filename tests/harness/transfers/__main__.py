"""Play histories and report findings: `python -m tests.harness.transfers --seeds 1-500`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from .transfer_plan import generate
from .transfer_report import full, line, play_seed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 1 if a history has a finding, 2 if none could run, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.transfers")
    parser.add_argument("--seeds", default="1-20", help="such as 7, 1-500 or 3,9,20-30")
    parser.add_argument("--at-once", type=int, default=2, help="processes")
    parser.add_argument("--show", action="store_true", help="also print plans and attempts")
    options = parser.parse_args(arguments)
    try:
        seeds = _numbers(options.seeds)
    except ValueError:
        sys.stderr.write(
            f"{parser.prog}: --seeds {options.seeds} is not a list of seeds; "
            "write 7, 1-500 or 3,9,20-30\n"
        )
        return 2
    began = time.monotonic()
    failing: list[int] = []
    totals: Counter[str] = Counter()
    with ProcessPoolExecutor(max(1, options.at_once), initializer=_be_quiet) as pool:
        for verdict in pool.map(play_seed, seeds, chunksize=4):
            totals.update(verdict.counts())
            if verdict.findings:
                failing.append(verdict.seed)
            if verdict.findings or options.show:
                _print(full(verdict, generate(verdict.seed)))
            elif len(seeds) <= 20:
                _print(line(verdict))
    text = ", ".join(f"{number} {name}" for name, number in totals.items())
    _print(f"{time.monotonic() - began:.0f} s; {len(seeds)} histories: {text}")
    if failing:
        _print(f"failing seeds: {', '.join(map(str, failing))}")
    return int(bool(failing))


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        found += range(int(low), int(high if dash else low) + 1)
    if not found:
        raise ValueError(text)
    return found


def _be_quiet() -> None:
    logging.disable(logging.CRITICAL)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
