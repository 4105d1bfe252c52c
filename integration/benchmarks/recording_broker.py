"""A development broker in another process that reports when redeliver commands arrived.

Times are monotonic ms, the same clock in every process of a machine. The child prints its address.
It then answers every line on stdin with one line of JSON, and forgets the reported commands.

    python -m integration.benchmarks.recording_broker
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pulsar_encore.cli.broker_process import child, first_line
from pulsar_encore.devbroker import BrokerSettings, run_in_thread

NAME = "REDELIVER_UNACKNOWLEDGED_MESSAGES"
Redeliveries = dict[tuple[int, int], float]


@contextmanager
def recording_broker() -> Iterator[tuple[str, Callable[[], Redeliveries]]]:
    """Yield the address, and a function that returns the first request of each entry, in monotonic
    ms.
    """
    command = [sys.executable, "-m", "integration.benchmarks.recording_broker"]
    with child(command) as process:
        yield first_line(process), lambda: _read_requests(process)


def _read_requests(process: subprocess.Popen[str]) -> Redeliveries:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    first: Redeliveries = {}
    for at_ms, ids in json.loads(first_line(process)):
        for ledger, entry in ids:
            first.setdefault((ledger, entry), at_ms)
    return first


def main() -> None:
    """Run the child process."""
    settings = BrokerSettings(
        max_unacked_per_consumer=0, max_unacked_per_subscription=0, record_limit=500_000
    )
    with run_in_thread(settings) as broker:
        print(broker.url, flush=True)
        for _ in sys.stdin:
            commands = [
                (
                    one.at_ms,
                    [
                        (each.ledgerId, each.entryId)
                        for each in one.command.redeliverUnacknowledgedMessages.message_ids
                    ],
                )
                for one in broker.recorded(NAME, "in")
            ]
            broker.forget_commands()
            print(json.dumps(commands), flush=True)


if __name__ == "__main__":
    main()
