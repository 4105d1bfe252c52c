"""`pulsar-encore state`: inspect, export and evacuate a state directory."""

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
from ..evacuation.state_inspection import WaitingMessages, inspect_state
from . import state_output as output
from .login import DEFAULT_URL, NOBODY, ClusterAccess, Login, Url, access
from .probe import probe
from .progress import run_to_safe_end

app: App = App(name="state", help="State directories: inspect, export and evacuate them.")

_TIMEOUT_S: Final = 10  # a user waits at the prompt

Json = Annotated[bool, Parameter(negative="")]


@app.command
def inspect(directory: Path, *, json: Json = False) -> int:
    """Print the owner of a state directory and its waiting messages; works beside a live owner.

    Messages that are only in the owner's memory are not counted.

    Args:
        directory: The state directory.
        json: Print a JSON object instead. It has path, owner (pid, host, since_ms, epoch, closed;
            null if unknown), topics (each with topic, subscription, consumer, waiting,
            earliest_ms, latest_ms, records, attempts: messages by delivery attempts), waiting,
            records, unreadable.
    """
    found = inspect_state(directory)
    sys.stdout.write(output.found_json(found) if json else output.found_text(found))
    return 0


@app.command
def export(directory: Path, *, topic: str | None = None, subscription: str | None = None) -> int:
    """Print the waiting messages, one JSON object per line, the earliest due first.

    Each object has topic, subscription, consumer, message_id (ledger:entry:partition, and :index in
    a batch), due (ISO 8601, UTC), attempts. Works beside a live owner.

    Args:
        directory: The state directory.
        topic: Only this topic with its partitions, or this partition.
        subscription: Only this subscription.
    """
    with WaitingMessages(directory, topic=topic, subscription=subscription) as waiting:
        for each in waiting:
            sys.stdout.write(output.waiting_line(each))
        if waiting.unreadable:
            sys.stderr.write(f"pulsar-encore: {waiting.unreadable} keys or records are corrupted\n")
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
    """Move the waiting messages to retry letter topics, with their due times and attempt counts.

    Each message is copied, then acked in its topic, then removed from the directory. After an
    interruption run the command again. After a kill, messages in flight may be there twice. First
    stop the subscription's consumers on other hosts: the broker redelivered the waiting messages to
    them when this host stopped. Exit code 1: some messages cannot be moved, and stay.

    Args:
        directory: The state directory; it must have no live owner.
        url: The service URL of the cluster.
        topic: Only this topic with its partitions, or this partition.
        subscription: Only this subscription.
        retry_topic: The topic for all messages. [default: `TOPIC-SUBSCRIPTION-RETRY` of each topic;
            a consumer of several topics reads that of the first one by name]
        dry_run: Print the messages and their targets; needs no cluster, works beside a live owner.
        text_keys: Keys are text, even if they look like base64.
        forget_missing: Remove the records of topics that the cluster does not have. By default they
            stay, because a wrong URL looks the same as a deleted topic.
        json: Print a JSON object instead, even of an interrupted evacuation. It has waiting, moved,
            gone, refused, left, targets, missing and refusals (the first 100, each with topic,
            message_id and reason), reasons; for a dry run waiting and topics.
    """
    if dry_run:
        plan = evacuation_plan(
            directory, topic=topic, subscription=subscription, retry_topic=retry_topic
        )
        sys.stdout.write(output.plan_json(plan) if json else output.plan_text(plan))
        return 0
    report = EvacuationReport()
    chosen = {"topic": topic, "subscription": subscription, "retry_topic": retry_topic}
    # Before the probe, so that errors of the directory are reported without a cluster.
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
    # errors are reported by this command
    logging.getLogger("pulsar_encore").addHandler(logging.NullHandler())
    await probe(cluster, None, timeout_s=_TIMEOUT_S)
    progress = output.EvacuationProgress(report)
    # The stock transport cannot ack part of a batch that it did not receive.
    async with Client(
        cluster.url, operation_timeout_seconds=_TIMEOUT_S, transport="native", **cluster.keywords
    ) as client:
        moving = evacuate_state(client, directory, report=report, on_progress=progress, **options)
        await run_to_safe_end(moving, progress)
