"""A development broker in another process that reports when redeliver or ack commands arrived.

Times are monotonic ms, the same clock in every process of a machine. The child prints its address.
Each line on stdin is the name of a command. The child answers with one line of JSON, and forgets
all recorded commands.

    python -m integration.benchmarks.recording_broker
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pulsar_encore.cli.broker_process import child, first_line
from pulsar_encore.devbroker import BrokerSettings, run_in_thread

REDELIVER: Final = "REDELIVER_UNACKNOWLEDGED_MESSAGES"
ACK: Final = "ACK"
Redeliveries = dict[tuple[int, int], float]
#: For each command, when it arrived (monotonic ms) and the ledgers and entries of its ids.
Commands = list[tuple[float, list[tuple[int, int]]]]


@contextmanager
def recording_broker() -> Iterator[tuple[str, Callable[[], Redeliveries]]]:
    """Yield the address, and a function that returns the first request of each entry, in monotonic
    ms.
    """
    with command_broker() as (url, commands):
        yield url, lambda: _first_requests(commands(REDELIVER))


@contextmanager
def command_broker() -> Iterator[tuple[str, Callable[[str], Commands]]]:
    """Yield the address, and a function that returns the commands of a name since its last call."""
    command = [sys.executable, "-m", "integration.benchmarks.recording_broker"]
    with child(command) as process:
        yield first_line(process), lambda name: _read_commands(process, name)


def _read_commands(process: subprocess.Popen[str], name: str) -> Commands:
    assert process.stdin is not None
    process.stdin.write(f"{name}\n")
    process.stdin.flush()
    return [
        (at_ms, [(ledger, entry) for ledger, entry in ids])
        for at_ms, ids in json.loads(first_line(process))
    ]


def _first_requests(commands: Commands) -> Redeliveries:
    first: Redeliveries = {}
    for at_ms, ids in commands:
        for key in ids:
            first.setdefault(key, at_ms)
    return first


def _ids(name: str, command: Any) -> Any:
    if name == ACK:
        return command.ack.message_id
    return command.redeliverUnacknowledgedMessages.message_ids


def main() -> None:
    """Run the child process."""
    settings = BrokerSettings(
        max_unacked_per_consumer=0, max_unacked_per_subscription=0, record_limit=500_000
    )
    with run_in_thread(settings) as broker:
        print(broker.url, flush=True)
        for line in sys.stdin:
            name = line.strip()
            commands = [
                (one.at_ms, [(each.ledgerId, each.entryId) for each in _ids(name, one.command)])
                for one in broker.recorded(name, "in")
            ]
            broker.forget_commands()
            print(json.dumps(commands), flush=True)


if __name__ == "__main__":
    main()
