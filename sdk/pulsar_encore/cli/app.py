"""The commands and their options.

A wrong option and an error of this package end with one line on stderr and never with a traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Final

from cyclopts import App, CycloptsError, Parameter

from .. import __version__
from ..errors import EncoreError
from .exit_codes import CLOSED_PIPE, INTERRUPTED, WRONG, exit_code
from .login import CLUSTER, DEFAULT_URL, NOBODY, AdminUrl, Login, Url, access

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

app: App = App(
    name="pulsar-encore",
    version=__version__,
    help="An asyncio consumer SDK for Apache Pulsar whose acks and negative acks are right.",
)


app.command(
    "pulsar_encore.cli.dlq:app", name="dlq", help="Dead letters: ls, show, replay, discard."
)
app.command(
    "pulsar_encore.cli.state:app",
    name="state",
    help="State directories: inspect, export, evacuate.",
)
app.command(
    "pulsar_encore.cli.txn:app",
    name="txn",
    help="Transactions: ls, show, explain, abort, commit.",
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
def lag(
    topic: str,
    subscription: str,
    *,
    url: Url = DEFAULT_URL,
    admin_url: AdminUrl = None,
    login: Login = NOBODY,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Say how many messages and how much time a subscription is behind, by partition and in sum.

    The web service counts the messages. A backlog over 10,000 entries is an estimate, which counts
    each batch as one message. Exit code 3: the topic or the subscription does not exist.

    Example: pulsar-encore lag orders billing --admin-url http://localhost:8080

    Args:
        topic: The topic, with all its partitions.
        subscription: The subscription.
        url: The service URL of the cluster.
        admin_url: The web service, like http://localhost:8080.
        json: Print a JSON object instead.
    """
    from .lag import run_lag

    return run_lag(access(url, login), admin_url, topic, subscription, json=json)


@app.command
def tail(
    topic: str,
    *,
    url: Url = DEFAULT_URL,
    login: Login = NOBODY,
    since: str | None = None,
    from_id: str | None = None,
    limit: int | None = None,
    follow: Annotated[bool, Parameter(negative="")] = False,
    key: str | None = None,
    property: Annotated[list[str] | None, Parameter(negative="")] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Print messages: id, time, key, properties and payload. No subscription remains.

    Values are decoded with the topic's schema if that is possible. Exit code 3: no such topic.

    Example: pulsar-encore tail orders --since 2h --key c0 --limit 10

    Args:
        topic: The topic, with all its partitions.
        url: The service URL of the cluster.
        since: Start at this publish time: 10m (30s, 2h, 7d) ago, or 2026-01-31T12:00. [default:
            10m]
        from_id: Start at this message instead, in its partition only.
        limit: Stop after this many messages.
        follow: Wait for new messages, until Ctrl-C.
        key: Only messages with this key.
        property: Only messages with this property, as name=value. May be repeated.
        json: Print a JSON object on each line.
    """
    from .tail import run_tail
    from .tail_options import tail_options

    options = tail_options(
        topic,
        since=since,
        from_id=from_id,
        limit=limit,
        follow=follow,
        key=key,
        properties=property or (),
        json=json,
    )
    return run_tail(access(url, login), options)


@app.command
def explain(
    id: str,
    *,
    topic: str,
    subscription: str,
    url: Url = DEFAULT_URL,
    admin_url: AdminUrl = None,
    login: Login = NOBODY,
    health: Annotated[list[str] | None, Parameter(negative="")] = None,
    letter_topic: Annotated[list[str] | None, Parameter(negative="")] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Say where a message is: acked, in flight, waiting, a letter, replayed, or gone.

    It asks the web service for acks, searches the letter topics, and asks the health ports that are
    given. It says which of these it could not see. It never creates a topic, takes a message or
    changes a subscription. Exit code 3: the message, topic or subscription is unknown or gone.

    Example: pulsar-encore explain 4612:0:-1 --topic orders --subscription billing

    Args:
        id: ledger:entry:partition, with :index for a message of a batch.
        topic: The topic of that id: where the message was published, or a letter topic.
        subscription: The subscription that is asked about.
        url: The service URL of the cluster.
        admin_url: The web service, like http://localhost:8080.
        health: Health port of a worker, with its debug option on. May be repeated.
        letter_topic: Retry or dead letter topic with a name of its own. May be repeated.
        json: Print a JSON object instead.
    """
    from .explain import run_explain
    from .explanation.fact_collector import Question

    question = Question(
        message_id=id,
        topic=topic,
        subscription=subscription,
        letter_topics=letter_topic or (),
        health=health or (),
    )
    return run_explain(access(url, login), admin_url, question, json=json)


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


def run(arguments: Sequence[str] | None = None) -> int:
    if sys.stdout is None:  # closed by the shell, as with >&-
        sys.stdout = open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # the encoding of a locale is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of stdout, such as `head`, has ended. Without this the flush at exit would
        # fail.
        _drop_output()
        return CLOSED_PIPE
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _drop_output()
        sys.stderr.write(f"pulsar-encore: cannot write the output: {error.strerror}\n")
        return WRONG
    return code


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
