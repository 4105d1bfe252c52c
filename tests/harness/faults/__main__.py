"""Play cases and report findings: `python -m tests.harness.faults --cases 1-1000 --broker dev|real`

On the development broker a case runs in memory and in virtual time.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from pulsar_encore.testing import run

from ..admin import Admin
from ..pulsar_server import NoBrokerError, running_server
from .cases import generate
from .networks import Memory, Sockets
from .play import REAL, VIRTUAL, Verdict, play

SHOWN = 60


def in_memory(seed: int) -> Verdict:
    """Play the case of a seed on the development broker."""
    return run(_in_memory(seed))


async def _in_memory(seed: int) -> Verdict:
    return await play(generate(seed), Memory(), f"case-{seed}", VIRTUAL)


async def on_broker(seed: int, url: str, admin: Admin) -> Verdict:
    """Play the case of a seed on a real broker.

    Shared cases with chunked messages get plain messages instead. If a consumer leaves in the
    middle of a chunked message, Pulsar itself stops delivery to every client
    (`docs/notes/wire-protocol.md#chunked-messages`).
    """
    case = generate(seed)
    if case.kind == "Shared" and case.content == "chunks":
        case = replace(case, content="plain")
    name = f"case-{seed}-{uuid.uuid4().hex[:6]}"
    return await play(case, Sockets(url, admin), name, REAL)


def failure(verdict: Verdict, broker: str, shown: int = SHOWN) -> str:
    """Return a failing case: its description, its findings, and the command that repeats it."""
    command = f"python -m tests.harness.faults --cases {verdict.case.seed} --broker {broker}"
    events = verdict.events[-shown:] if shown else []
    return "\n".join(
        [str(verdict.case), *verdict.findings[:5], *events, f"fired: {verdict.fired}", command]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 1 if a case has a finding, 2 if no case could be played, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.faults")
    parser.add_argument("--cases", default="1-1000", help="such as 7, 1-1000 or 3,9,20-30")
    parser.add_argument("--broker", choices=("dev", "real"), default="dev")
    parser.add_argument(
        "--at-once", type=int, default=2, help="processes, or concurrent cases on a real broker"
    )
    parser.add_argument(
        "--events", type=int, default=SHOWN, help="number of last events to print of a failing case"
    )
    options = parser.parse_args(arguments)
    try:
        seeds = list(_numbers(options.cases))
    except ValueError:
        sys.stderr.write(
            f"{parser.prog}: --cases {options.cases} is not a list of cases; "
            "write 7, 1-1000 or 3,9,20-30\n"
        )
        return 2
    began = time.monotonic()
    try:
        verdicts = _play_all(seeds, options.broker, options.at_once)
        failing, withheld, fired, count, deliveries = 0, 0, Counter[str](), 0, 0
        for verdict in verdicts:
            count += 1
            deliveries += verdict.deliveries
            fired.update(fault.kind for fault in verdict.fired)
            if verdict.withheld:
                withheld += 1
                _print(f"case {verdict.case.seed}: Pulsar withholds: {verdict.withheld}")
            if verdict.findings:
                failing += 1
                _print(failure(verdict, options.broker, options.events))
    except NoBrokerError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    by_kind = ", ".join(f"{number} {kind}" for kind, number in fired.most_common())
    _print(
        f"{time.monotonic() - began:.0f} s; {count} cases, {deliveries} deliveries, "
        f"{fired.total()} faults ({by_kind}); {withheld} with messages that Pulsar withheld; "
        f"{failing} with findings"
    )
    return int(failing > 0 or not count)


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


def _play_all(seeds: Sequence[int], broker: str, at_once: int) -> Iterator[Verdict]:
    if broker == "dev":
        with ProcessPoolExecutor(at_once) as pool:
            yield from pool.map(in_memory, seeds, chunksize=4)
        return
    with running_server() as server:
        admin = Admin(server.admin_url)

        async def run_all() -> list[Verdict]:
            slots = asyncio.Semaphore(at_once)

            async def run_one(seed: int) -> Verdict:
                async with slots:
                    return await on_broker(seed, server.service_url, admin)

            return await asyncio.gather(*map(run_one, seeds))

        yield from asyncio.run(run_all())


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
