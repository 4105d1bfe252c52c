"""The commands and their options; what each does is its own module.

Owns the command line's shape. A wrong option and an error of this package end with one line on
stderr and exit code 2, never with a traceback; 3 says that there are no letters to speak of.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from .. import __version__
from ..errors import EncoreError
from .exit_codes import CLOSED_PIPE, INTERRUPTED, WRONG, exit_code
from .login import CLUSTER, NOBODY, Login

app: App = App(
    name="pulsar-encore",
    version=__version__,
    help="An asyncio consumer SDK for Apache Pulsar whose acks and negative acks are right.",
)


app.command("pulsar_encore.cli.dlq:app", name="dlq", help="Dead letters: ls, show, replay.")
app.command(
    "pulsar_encore.cli.state:app",
    name="state",
    help="What outlives a host: inspect, export, evacuate.",
)
app.command("pulsar_encore.cli.spark:app", name="spark", help="Jobs on PySpark: triage.")


@app.command
def demo(
    *, url: Annotated[str | None, Parameter(group=CLUSTER)] = None, login: Login = NOBODY
) -> int:
    """Run the stock client and this SDK side by side and print one table; one or two minutes.

    Where PySpark and Java are, one of the rows is a stream on Spark.

    Args:
        url: A broker to run against, such as pulsar://localhost:6650 (it publishes there, so
            PULSAR_URL is not read); without it a development broker is started for the run.
    """
    from .demo.run import check_broker, run_demo

    if url is not None:
        check_broker(url, login)
    return run_demo(url, login)


@app.command
def broker(
    *,
    port: int = 6650,
    host: str = "127.0.0.1",
    partitions: int = 0,
    unacked_per_consumer: int = 50_000,
    unacked_per_subscription: int = 200_000,
    tick: float = 1.0,
    token: str | None = None,
    any_namespace: bool = False,
    rewind_overtaken: float = 0.75,
    until_eof: bool = False,
) -> int:
    """Start the development broker: in memory, for laptops and tests, not for production.

    The first line on stdout is its address; it runs until interrupted.

    Args:
        port: Port to listen on; 0 takes a free one.
        host: Address to listen on.
        partitions: Partitions of topics that appear when asked for; 0 for plain topics.
        unacked_per_consumer: maxUnackedMessagesPerConsumer; 0 for no limit.
        unacked_per_subscription: maxUnackedMessagesPerSubscription; 0 for no limit.
        tick: Granularity of delayed delivery in s.
        token: Ask clients for this token.
        any_namespace: Accept namespaces besides public/default.
        rewind_overtaken: Share of the rewinds of Exclusive and Failover that a read under way
            overtakes, so that entries are skipped, as by Pulsar; 0 for none.
        until_eof: End when stdin does, as it does when the program that started this is gone.
    """
    from .broker import run_broker

    return run_broker(
        until_eof=until_eof,
        port=port,
        host=host,
        auto_create_partitions=partitions,
        max_unacked_per_consumer=unacked_per_consumer,
        max_unacked_per_subscription=unacked_per_subscription,
        delayed_tick_ms=round(tick * 1000),
        token=token,
        namespaces=None if any_namespace else ("public/default",),
        rewind_overtaken=rewind_overtaken,
    )


@app.command
def bench(
    *,
    only: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    url: str | None = None,
    json: Path | None = None,
) -> int:
    """Run the benchmarks of a checkout: bar, figure and ratio within one run.

    Args:
        only: Names of benchmarks; all of them when left out.
        url: A broker for those that can use any; the others start a development broker.
        json: Also write the rows to this file.
    """
    from .bench import run_bench

    return run_bench(only, url, json)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a locale's encoding is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read stdout has enough, as `head` has; the flush at exit must not find that out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = app(
            list(arguments) if arguments is not None else None,
            result_action="return_value",
            exit_on_error=False,
        )
    except CycloptsError:
        return WRONG  # printed already, with the usage
    except EncoreError as error:
        sys.stderr.write(f"pulsar-encore: {error}\n")
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return result if isinstance(result, int) else 0
