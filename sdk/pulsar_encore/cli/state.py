"""`pulsar-encore state`: look into a state directory, write out what waits, retire its host.

Owns how it is asked for; what happens is `pulsar_encore.evacuation`'s and the state reader's, and
what is printed `state_output`'s. `inspect` and `export` change nothing and may run beside a live
owner; `evacuate` wants a directory that nobody has.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from ..client import Client
from ..deadletters import printable
from ..evacuation import (
    EvacuationReport,
    EvacuationStoppedError,
    evacuation_plan,
)
from ..evacuation import (
    evacuate as evacuate_state,
)
from ..evacuation.evacuation_run import check_unused
from ..evacuation.state_inspection import inspect_state, waiting_messages
from . import state_output as output
from .login import DEFAULT_URL, NOBODY, ClusterAccess, Login, Url, access
from .probe import probe

app: App = App(
    name="state", help="State directories: what waits in one, and how its host is retired."
)

_TIMEOUT_S: Final = 10  # somebody waits at a prompt
_NOTICE_DELAY_S: Final = 1.0

Json = Annotated[bool, Parameter(negative="")]


@app.command
def inspect(directory: Path, *, json: Json = False) -> int:
    """Say whose a directory is, and what waits in it; also beside a live owner.

    What its owner has in memory only is not counted.

    Args:
        directory: The state directory.
        json: Print a JSON object instead. It has path, owner (pid, host, since_ms, epoch, closed;
            null where that cannot be told), sources (each with topic, subscription, consumer,
            waiting, earliest_ms, latest_ms, records, attempts: messages by how often they were
            handed over), waiting, records, unreadable.
    """
    found = inspect_state(directory)
    sys.stdout.write(output.found_json(found) if json else output.found_text(found))
    return 0


@app.command
def export(directory: Path, *, topic: str | None = None, subscription: str | None = None) -> int:
    """Print a JSON object a line for each message that waits, the earliest due first.

    It has topic, subscription, consumer, message_id (ledger:entry:partition, in a batch :index
    behind it), due (ISO 8601, UTC), attempts. Also beside a live owner.

    Args:
        directory: The state directory.
        topic: Only this topic, with its partitions, or this partition.
        subscription: Only this subscription.
    """
    with waiting_messages(directory, topic=topic, subscription=subscription) as waiting:
        for each in waiting:
            sys.stdout.write(output.waiting_line(each))
        if waiting.unreadable:
            sys.stderr.write(f"pulsar-encore: {waiting.unreadable} keys or records are damaged\n")
    return 0


@app.command
def evacuate(
    directory: Path,
    *,
    url: Url = DEFAULT_URL,
    login: Login = NOBODY,
    topic: str | None = None,
    subscription: str | None = None,
    retry_topic: str | None = None,
    dry_run: bool = False,
    text_keys: bool = False,
    forget_missing: bool = False,
    json: Json = False,
) -> int:
    """Hand what waits to the retry-letter topics: it comes there when it is due, counted on.

    For each message a copy is sent, then the message acked where it was, then the directory lets go
    of it. Run it again after an interruption. After a kill, messages under way may be there twice.
    Stop the subscription's consumers on other hosts first: they were given what waits when this
    host's went. Exit code 1: some messages cannot be moved, and stay.

    Args:
        directory: The state directory; no live process may have it.
        url: The service URL of the cluster.
        topic: Only this topic, with its partitions, or this partition.
        subscription: Only this subscription.
        retry_topic: Where everything goes. [default: `TOPIC-SUBSCRIPTION-RETRY` of each; a
            consumer of several topics reads that of the first one by name]
        dry_run: Say what would go where; asks no cluster, and may run beside a live owner.
        text_keys: Keys are text, also where they read as base64 of bytes.
        forget_missing: Remove the records of topics that the cluster does not have. Left
            out, they stay: a wrong URL looks the same as a deleted topic.
        json: Print a JSON object instead, also of an evacuation that was stopped. It has waiting,
            moved, gone, refused, left, targets, missing and refusals (the first 100, each with
            topic, message_id and reason), reasons; of a dry run waiting and sources.
    """
    if dry_run:
        plan = evacuation_plan(
            directory, topic=topic, subscription=subscription, retry_topic=retry_topic
        )
        sys.stdout.write(output.plan_json(plan) if json else output.plan_text(plan))
        return 0
    report = EvacuationReport()
    chosen = {"topic": topic, "subscription": subscription, "retry_topic": retry_topic}
    # Before the cluster is asked: what is wrong with the directory is said whatever its answer.
    plans = evacuation_plan(directory, **chosen)
    if any(each.waiting for each in plans):
        options = {**chosen, "text_keys": text_keys, "forget_missing": forget_missing}
        work = _evacuate(access(url, login), directory, options, report)
        try:
            asyncio.run(work)
        except EvacuationStoppedError as error:
            sys.stderr.write(f"pulsar-encore: {printable(str(error))}\n")
            if json:
                sys.stdout.write(output.report_json(report))
            return 1
        except KeyboardInterrupt:
            if json:
                sys.stdout.write(output.report_json(report))
            raise
    else:
        asyncio.run(check_unused(directory))
    sys.stdout.write(output.report_json(report) if json else output.report_text(report))
    return 1 if report.refused else 0


async def _evacuate(
    cluster: ClusterAccess,
    directory: Path,
    options: dict[str, Any],
    report: EvacuationReport,
) -> None:
    logging.getLogger("pulsar_encore").addHandler(logging.NullHandler())  # errors are said
    await probe(cluster, None, timeout_s=_TIMEOUT_S)
    progress = output.EvacuationProgress(report)
    # The stock library acks no part of a batch that it was not sent.
    async with Client(
        cluster.url, operation_timeout_seconds=_TIMEOUT_S, transport="native", **cluster.keywords
    ) as client:
        moving = asyncio.ensure_future(
            evacuate_state(
                client,
                directory,
                report=report,
                on_progress=progress,
                **options,
            )
        )
        try:
            await asyncio.shield(moving)
        except asyncio.CancelledError:
            # It waits for what is under way; where the broker is away, somebody should know.
            moving.cancel()
            if not (await asyncio.wait([moving], timeout=_NOTICE_DELAY_S))[0]:
                progress.waiting()
            await asyncio.wait([moving])
            if not moving.cancelled():
                moving.exception()  # seen: the interruption is what is said
            progress.interrupted()
            raise
        finally:
            progress.close()
