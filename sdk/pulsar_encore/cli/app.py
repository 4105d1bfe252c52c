"""The commands and their options.

A wrong option and an error of this package end with one line on stderr and never with a traceback.
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
    help="State directories: inspect, export, evacuate.",
)
app.command("pulsar_encore.cli.spark:app", name="spark", help="Jobs on PySpark: triage.")


@app.command
def demo(
    *, url: Annotated[str | None, Parameter(group=CLUSTER)] = None, login: Login = NOBODY
) -> int:
    """Run the stock client and this SDK side by side and print one table; takes one or two minutes.

    If PySpark and Java are installed, one row is a stream on Spark.

    Args:
        url: A broker such as pulsar://localhost:6650. The demo publishes there, so PULSAR_URL is
            not read. By default a development broker is started for the run.
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

    The first line on stdout is its address. It runs until interrupted.

    Args:
        port: Port to listen on; 0 takes a free one.
        host: Address to listen on.
        partitions: Partitions of automatically created topics; 0 for none.
        unacked_per_consumer: maxUnackedMessagesPerConsumer; 0 for no limit.
        unacked_per_subscription: maxUnackedMessagesPerSubscription; 0 for no limit.
        tick: Granularity of delayed delivery in s.
        token: Require this token from clients.
        any_namespace: Accept namespaces besides public/default.
        rewind_overtaken: Share of the rewinds of Exclusive and Failover that a read in flight
            overtakes, so that entries are skipped, as on Pulsar; 0 for none.
        until_eof: End when stdin ends, which happens when the parent process ends.
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
        only: Names of benchmarks; all by default.
        url: A broker for the benchmarks that can use any; the others start a development broker.
        json: Also write the rows to this file.
    """
    from .bench import run_bench

    return run_bench(only, url, json)


def run(arguments: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # the encoding of a locale is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of stdout, such as `head`, has ended. Without this the flush at exit would
        # fail.
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
        return WRONG  # the error was printed with the usage
    except EncoreError as error:
        sys.stderr.write(f"pulsar-encore: {error}\n")
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return result if isinstance(result, int) else 0
