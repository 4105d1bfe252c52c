"""`python -m integration.histories --seeds 1-500 --broker real|dev`: run on, and report."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator

from ..pulsar_server import Server, running_server
from .brokers import Brokers
from .clients import can
from .fixed import FIXED
from .generator import FAMILIES, generate
from .report import full, history, line, side_by_side, smaller, summary
from .running import Outcome, Runner
from .shrink import shrink
from .workload import Workload, loads


def main() -> int:
    """Returns the exit code: 1 when a history has a finding."""
    parser = argparse.ArgumentParser(prog="python -m integration.histories")
    parser.add_argument("--seeds", default="1-20", help="such as 7, 1-500 or 3,9,20-30")
    parser.add_argument("--broker", choices=("real", "dev"), default="real")
    parser.add_argument("--only", help=f"a family ({', '.join(FAMILIES)})")
    parser.add_argument("--fixed", help=f"one by hand, or all ({', '.join(FIXED)})")
    parser.add_argument("--workload", help="JSON of one, as a failing one is printed")
    parser.add_argument("--seconds", type=float, help="begin no further history after so long")
    parser.add_argument("--at-once", type=int, default=6, help="histories side by side")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each")
    parser.add_argument("--client", choices=("encore", "stock", "both"), default="encore")
    parser.add_argument("--shrink", type=int, default=0, help="runs to spend on a failing one")
    parser.add_argument("--message", type=int, help="print all that happened to this one, too")
    parser.add_argument("--quiet", action="store_true", help="failing ones only as lines")
    options = parser.parse_args()
    with _server(options.broker) as server:
        return asyncio.run(_run(options, server))


@contextlib.contextmanager
def _server(broker: str) -> Iterator[Server | None]:
    if broker == "dev":
        yield None
        return
    with running_server() as server:
        yield server


def _workloads(options: argparse.Namespace) -> list[Workload]:
    if options.workload:
        return [loads(options.workload)]
    if options.fixed:
        return list(FIXED.values()) if options.fixed == "all" else [FIXED[options.fixed]]
    return [generate(seed, options.only) for seed in _numbers(options.seeds)]


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        found += range(int(low), int(high or low) + 1) if dash else [int(low)]
    return found


async def _run(options: argparse.Namespace, server: Server | None) -> int:
    workloads = [each for each in _workloads(options) for _ in range(options.repeat)]
    clients = ("encore", "stock") if options.client == "both" else (options.client,)
    began = time.monotonic()
    of_seed = not (options.workload or options.fixed)
    outcomes: list[Outcome] = []
    async with Brokers(options.broker, server) as brokers:
        runner = Runner(brokers, options.at_once)
        # Not all at once, so that --seconds can leave the rest out.
        turns = asyncio.Semaphore(options.at_once)

        async def one(workload: Workload, client: str) -> None:
            async with turns:
                if options.seconds and time.monotonic() - began > options.seconds:
                    return
                outcome = await runner.run(workload, client)
                outcomes.append(outcome)
                if outcome.verdict.findings and client == "encore" and not options.quiet:
                    _say(full(outcome, options.broker, of_seed=of_seed))
                else:
                    _say(line(outcome))
                if options.message is not None:
                    _say(history(outcome, options.message))

        jobs = [(each, client) for each in workloads for client in clients if can(client, each)]
        await asyncio.gather(*(one(*job) for job in jobs))
        ours = [outcome for outcome in outcomes if outcome.client == "encore"]
        if options.shrink:
            for failing in [outcome for outcome in ours if outcome.verdict.findings]:
                best, tries = await shrink(runner, failing, options.shrink)
                _say(smaller(failing.workload, best.workload, tries))
                _say(full(best, options.broker, of_seed=False))
    _say(f"{time.monotonic() - began:.0f} s; {summary(outcomes)}")
    if len(clients) == 2:
        theirs = {outcome.workload: outcome for outcome in outcomes if outcome.client == "stock"}
        _say(side_by_side([(one, theirs[one.workload]) for one in ours if one.workload in theirs]))
    failed = any(outcome.verdict.findings for outcome in outcomes if outcome.client == "encore")
    return int(failed or not outcomes)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # A call of the stock client that never returns would keep its thread, and so the process.
    os._exit(code)
