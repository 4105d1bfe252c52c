"""Run histories and report findings: `python -m tests.harness.histories --seeds 1-500 --broker
real|dev`.

Errors in the command line, or an unreachable broker, are reported in one line with exit code 2
before any history runs. A missing broker is not a finding.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from ..admin import Admin, AdminError
from ..pulsar_server import NoBrokerError, Server, running_server
from .brokers import Brokers
from .clients import OURS, ClientName, can
from .fixed import FIXED
from .generator import FAMILIES, generate
from .history_report import full, history, line, side_by_side, smaller, summary
from .history_runner import Outcome, Runner
from .shrink import shrink
from .workload import Workload, loads

_ANSWER_S: Final = 10.0  # longest wait for a broker that was already running
_EPILOG: Final = (
    "The broker is the one in PULSAR_URL, whose admin API is at PULSAR_ADMIN_URL (port 8080 of the "
    "same host when unset); else one is started for the run: a container or, without an engine, a "
    "process (docker/README.md). Histories that stop a broker start one of their own."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 1 if a history has a finding, 2 if no history could run, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.histories", epilog=_EPILOG)
    parser.add_argument("--seeds", default="1-20", help="such as 7, 1-500 or 3,9,20-30")
    parser.add_argument("--broker", choices=("real", "dev"), default="real")
    parser.add_argument("--only", help=f"a family ({', '.join(FAMILIES)})")
    parser.add_argument("--fixed", help=f"a fixed workload, or all ({', '.join(FIXED)})")
    parser.add_argument("--workload", help="a workload as JSON, as printed for a failing run")
    parser.add_argument("--seconds", type=float, help="begin no history after this time")
    parser.add_argument("--at-once", type=int, default=6, help="concurrent histories")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each history")
    parser.add_argument("--client", choices=("encore", "stock", "both"), default="encore")
    parser.add_argument(
        "--transport", choices=tuple(OURS), default="stock", help="transport of the client encore"
    )
    parser.add_argument(
        "--shrink", type=int, default=0, help="most runs for making a failing workload smaller"
    )
    parser.add_argument("--message", type=int, help="also print all events of this message")
    parser.add_argument("--quiet", action="store_true", help="print one line for a failing history")
    options = parser.parse_args(arguments)
    try:
        workloads = [each for each in _workloads(options) for _ in range(options.repeat)]
        with _server(options.broker) as server:
            return asyncio.run(_run(options, server, workloads))
    except (_CommandError, NoBrokerError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2


class _CommandError(Exception):
    """The command line cannot be carried out. The message says how to change it."""


@contextlib.contextmanager
def _server(broker: str) -> Iterator[Server | None]:
    if broker == "dev":
        yield None
        return
    with running_server() as server:
        _check_reachable(server)
        _print(f"on {server.service_url} ({server.origin}), admin API at {server.admin_url}")
        yield server


def _check_reachable(server: Server) -> None:
    """Check that both addresses answer. Only addresses from the environment can be wrong."""
    address = urlsplit(server.service_url)
    try:
        socket.create_connection((address.hostname, address.port or 6650), _ANSWER_S).close()
    except (OSError, ValueError) as error:
        raise _CommandError(
            f"no broker answers at {server.service_url}: {error}; PULSAR_URL names it"
        ) from error
    try:
        Admin(server.admin_url, timeout=_ANSWER_S).topics()
    except (AdminError, OSError, ValueError) as error:
        raise _CommandError(
            f"no admin API of a broker at {server.admin_url}: {error}; PULSAR_ADMIN_URL names it"
        ) from error


def _workloads(options: argparse.Namespace) -> list[Workload]:
    if options.workload:
        try:
            return [loads(options.workload)]
        except (ValueError, KeyError, TypeError) as error:
            raise _CommandError(f"--workload is not a workload's JSON: {error!r}") from error
    if options.fixed == "all":
        return list(FIXED.values())
    if options.fixed:
        if options.fixed not in FIXED:
            raise _CommandError(f"--fixed {options.fixed}: there are all, {', '.join(FIXED)}")
        return [FIXED[options.fixed]]
    if options.only is not None and options.only not in FAMILIES:
        raise _CommandError(f"--only {options.only}: the families are {', '.join(FAMILIES)}")
    return [generate(seed, options.only) for seed in _numbers(options.seeds)]


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not (low.isdecimal() and (high.isdecimal() if dash else True)):
            raise _CommandError(f"--seeds {text}: {part!r} is no seed; write 7, 1-500 or 3,9,20-30")
        numbers = range(int(low), int(high or low) + 1)
        if not numbers:
            raise _CommandError(f"--seeds {text}: {part!r} is no range; the lower number is first")
        found += numbers
    return found


async def _run(
    options: argparse.Namespace, server: Server | None, workloads: Sequence[Workload]
) -> int:
    own_client = OURS[options.transport]
    clients: dict[str, tuple[ClientName, ...]] = {
        "encore": (own_client,),
        "stock": ("stock",),
        "both": (own_client, "stock"),
    }
    chosen = clients[options.client]
    began = time.monotonic()
    of_seed = not (options.workload or options.fixed)
    outcomes: list[Outcome] = []
    async with Brokers(options.broker, server) as brokers:
        runner = Runner(brokers, options.at_once)
        # Start runs one after another, so that --seconds can skip the rest.
        slots = asyncio.Semaphore(options.at_once)

        async def run_one(workload: Workload, client: ClientName) -> None:
            async with slots:
                if options.seconds and time.monotonic() - began > options.seconds:
                    return
                outcome = await runner.run(workload, client)
                outcomes.append(outcome)
                if outcome.verdict.findings and client != "stock" and not options.quiet:
                    _print(full(outcome, options.broker, of_seed=of_seed))
                else:
                    _print(line(outcome))
                if options.message is not None:
                    _print(history(outcome, options.message))

        jobs = [(each, client) for each in workloads for client in chosen if can(client, each)]
        await asyncio.gather(*(run_one(*job) for job in jobs))
        ours = [outcome for outcome in outcomes if outcome.client != "stock"]
        if options.shrink:
            for failing in [outcome for outcome in ours if outcome.verdict.findings]:
                best, tries = await shrink(runner, failing, options.shrink)
                _print(smaller(failing.workload, best.workload, tries))
                _print(full(best, options.broker, of_seed=False))
    _print(f"{time.monotonic() - began:.0f} s; {summary(outcomes)}")
    if len(chosen) == 2:
        theirs = {outcome.workload: outcome for outcome in outcomes if outcome.client == "stock"}
        _print(
            side_by_side(
                [(each, theirs[each.workload]) for each in ours if each.workload in theirs]
            )
        )
    failed = any(outcome.verdict.findings for outcome in outcomes if outcome.client != "stock")
    return int(failed or not outcomes)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # A call of the stock client that never returns would keep its thread, and with it the process.
    os._exit(code)
