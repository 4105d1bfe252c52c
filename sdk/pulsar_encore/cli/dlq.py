"""`pulsar-encore dlq`: list, show, replay and discard the letters of a dead letter topic.

The texts of letters are not trusted and are printed escaped. `replay` and `discard` without a
selection need `--all`, so that a forgotten option does nothing.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Annotated, Any, Final, TypeVar

from cyclopts import App, Parameter

from ..client import Client
from ..deadletters import (
    DeadLetters,
    DiscardReport,
    LetterGroup,
    NothingSelectedError,
    ReplayReport,
    ReplayStoppedError,
    Selection,
    printable,
)
from ..deadletters.dead_letter_topic import SUBSCRIPTION
from ..deadletters.letter_groups import NO_FINGERPRINT
from ..errors import ConfigurationError, EncoreError, TransportError, exception_of_result
from ..values.topic_names import base_name, full_name
from . import dlq_output as output
from .dead_letter_topics import run_namespace
from .exit_codes import NOTHING_THERE, exit_code
from .login import DEFAULT_URL, NOBODY, ClusterAccess, Login, Url, access
from .moments import moment
from .probe import probe
from .progress import run_to_safe_end
from .value_text import json_text

app: App = App(name="dlq", help="Dead letters: list, show, replay and discard them.")

_BYTES: Final = 2000
_TIMEOUT_S: Final = 10  # a user waits at the prompt

_UNREACHABLE: Final = frozenset({"Timeout", "ConnectError"})

T = TypeVar("T")
Several = Annotated[list[str] | None, Parameter(negative="")]
# "-" stands for letters without a fingerprint.
Fingerprints = Annotated[list[str] | None, Parameter(negative="", allow_leading_hyphen=True)]
Json = Annotated[bool, Parameter(negative="")]
Which = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


@app.command
def ls(
    topic: str | None = None,
    *,
    namespace: str = "public/default",
    url: Url = DEFAULT_URL,
    login: Login = NOBODY,
    fingerprint: Fingerprints = None,
    real_topic: Several = None,
    since: str | None = None,
    until: str | None = None,
    json: Json = False,
) -> int:
    """Count the letters by fingerprint and by the topic where they failed.

    "again" counts letters that were replayed before and failed again. Exit code 3: the topic has no
    letters or does not exist. This command never creates a topic.

    Without a topic it lists the dead letter topics of a namespace, with the number of their letters
    and the time of the newest. It knows them by names that end in -DLQ.

    Example: pulsar-encore dlq ls orders-billing-DLQ --since 2h

    Args:
        topic: The dead letter topic.
        namespace: The namespace to list, if no topic is given.
        url: The service URL of the cluster.
        fingerprint: Only these failures; "-" for letters without evidence. May be repeated.
        real_topic: Only letters that failed on these topics. May be repeated.
        since: Only letters written since then: 2h (30s, 10m, 7d) ago or 2026-01-31T12:00.
        until: Only letters written before then.
        json: Print a JSON list instead of a table, empty without letters. Its items have
            fingerprint, real_topic, count, again, first, last, error_class, error_message,
            sample_id.
    """
    selection = _selection(fingerprint, real_topic, since, until, None)
    if topic is None:
        if not selection.everything:
            raise ConfigurationError("select letters of one topic: name the topic, too")
        return run_namespace(access(url, login), namespace, json=json)

    async def work(dead: DeadLetters) -> list[LetterGroup]:
        groups = await dead.list(selection)
        if not groups:
            await dead.check()
        return groups

    with _document_if_nothing_there(output.groups_json(()) if json else None):
        groups = _run(access(url, login), topic, SUBSCRIPTION, work)
    if json:
        sys.stdout.write(output.groups_json(groups))
    else:
        output.print_groups(groups, topic)
    return 0


@app.command
def show(
    topic: str,
    which: Which = None,
    *,
    url: Url = DEFAULT_URL,
    login: Login = NOBODY,
    bytes: int | None = None,
    json: Json = False,
) -> int:
    """Print one letter: payload, keys, properties and the evidence of its failure.

    Example: pulsar-encore dlq show orders-billing-DLQ 4614:0:-1

    Args:
        topic: The dead letter topic.
        which: A letter id as `ls` shows it, or a fingerprint for the last letter that has it.
        url: The service URL of the cluster.
        bytes: Maximum payload bytes to print. [default: 2000, with --json no limit]
        json: Print a JSON object instead, null if the topic has no letters. It has id, topic,
            real_topic, written, event, key, ordering_key, fingerprint, error_class,
            error_message, replay_id, evidence, properties, payload, payload_encoding ("text" or
            "base64", null without payload), payload_bytes, payload_truncated, encrypted.
    """
    if which is None:
        raise ConfigurationError(
            f"show which letter? An id or a fingerprint, as `pulsar-encore dlq ls "
            f"{printable(topic, 200)}` lists them"
        )
    if bytes is not None and bytes < 0:
        raise ConfigurationError(f"bytes must be 0 or more, got {bytes}")
    with _document_if_nothing_there(json_text(None) if json else None):
        letter = _run(access(url, login), topic, SUBSCRIPTION, lambda dead: dead.show(which))
    if json:
        sys.stdout.write(output.letter_json(letter, bytes))
    else:
        sys.stdout.write(output.letter_text(letter, _BYTES if bytes is None else bytes))
    return 0


@app.command
def replay(
    topic: str,
    *,
    url: Url = DEFAULT_URL,
    login: Login = NOBODY,
    fingerprint: Fingerprints = None,
    real_topic: Several = None,
    since: str | None = None,
    until: str | None = None,
    id: Several = None,
    all: bool = False,
    dry_run: bool = False,
    rate: float | None = None,
    limit: int | None = None,
    keep_counters: bool = False,
    replay_id: str | None = None,
    target: str | None = None,
    text_keys: bool = False,
    subscription: str = SUBSCRIPTION,
    json: Json = False,
) -> int:
    """Send letters back to the topics where they failed, and ack each one when its copy is stored.

    A letter may name a topic that is not the one in the dead letter topic's name. It is sent there
    only if --real-topic lists that topic, or if the user confirms it at the terminal.

    After an interruption run the command again: acked letters are not sent again. After a kill,
    letters of the last 0.1 s may be sent twice; both copies carry the same ENCORE_REPLAYED_FROM.

    Example: pulsar-encore dlq replay orders-billing-DLQ --fingerprint 4f0c9a2b71de

    Args:
        topic: The dead letter topic.
        url: The service URL of the cluster.
        fingerprint: Only these failures; "-" for letters without evidence. May be repeated.
        real_topic: Only letters that failed on these topics. May be repeated.
        since: Only letters written since then: 2h (30s, 10m, 7d) ago or 2026-01-31T12:00.
        until: Only letters written before then.
        id: Only these letters. May be repeated.
        all: Every letter, if no other selection is given.
        dry_run: Count letters and send nothing. No subscription is created, so letters that were
            replayed before are counted too.
        rate: Maximum letters per second.
        limit: Stop after this many letters, and say if there may be more.
        keep_counters: Keep attempt counts and evidence on the messages.
        replay_id: Written on every message. [default: generated]
        target: Send all letters to this topic instead.
        text_keys: Letter keys are text, even if they look like base64.
        subscription: Remembers which letters were replayed. Another name replays all letters again.
        json: Print the report as a JSON object, even of an interrupted replay; with counts of 0 if
            the topic has no letters. It has replay_id, dry_run, selected, replayed, passed,
            targets, refused, refusals (the first 100, each with letter_id and reason), reasons,
            reached_end, at_limit, missing, doubtful.
    """
    selection = _selection(fingerprint, real_topic, since, until, id)
    if selection.everything != all:
        raise ConfigurationError(
            "choose letters by --fingerprint, --real-topic, --since, --until or --id, or send "
            "--all of them; not both"
        )
    progress = output.ReplayProgress()
    nothing = ReplayReport(replay_id or "", dry_run=dry_run, reached_end=True)
    nothing.missing = sorted(map(str, selection.ids or ()))

    async def work(dead: DeadLetters) -> ReplayReport:
        chosen = selection
        if target is None and not dry_run and output.is_interactive():
            chosen = await _with_confirmed_topics(dead, selection)
        replaying = dead.replay(
            chosen,
            dry_run=dry_run,
            rate=rate,
            limit=limit,
            keep_counters=keep_counters,
            replay_id=replay_id,
            target=target,
            on_progress=progress,
        )
        return await run_to_safe_end(replaying, progress)

    try:
        with _document_if_nothing_there(output.report_json(nothing) if json else None):
            report = _run(access(url, login), topic, subscription, work, text_keys=text_keys)
    except ReplayStoppedError as error:
        sys.stderr.write(f"pulsar-encore: {printable(str(error))}\n")
        if json:
            sys.stdout.write(output.report_json(error.report))
        return 1
    except KeyboardInterrupt:
        if json and progress.report is not None:
            sys.stdout.write(output.report_json(progress.report))
        raise
    sys.stdout.write(output.report_json(report) if json else output.report_text(report))
    return 1 if report.refused else 0


@app.command
def discard(
    topic: str,
    *,
    url: Url = DEFAULT_URL,
    login: Login = NOBODY,
    fingerprint: Fingerprints = None,
    real_topic: Several = None,
    since: str | None = None,
    until: str | None = None,
    id: Several = None,
    all: bool = False,
    dry_run: bool = False,
    yes: Json = False,
    limit: int | None = None,
    subscription: str = SUBSCRIPTION,
    json: Json = False,
) -> int:
    """Ack letters without replaying them, and count them by fingerprint.

    A later replay does not send discarded letters. They stay in the topic until its retention
    removes them. At a terminal the user confirms the counts first, and only the counted letters are
    discarded. Elsewhere --yes is needed. After an interruption run the command again.

    Example: pulsar-encore dlq discard orders-billing-DLQ --id 4614:0:-1

    Args:
        topic: The dead letter topic.
        url: The service URL of the cluster.
        fingerprint: Only these failures; "-" for letters without evidence. May be repeated.
        real_topic: Only letters that failed on these topics. May be repeated.
        since: Only letters written since then: 2h (30s, 10m, 7d) ago or 2026-01-31T12:00.
        until: Only letters written before then.
        id: Only these letters. May be repeated.
        all: Every letter, if no other selection is given.
        dry_run: Count letters and ack nothing. Letters that were replayed before are counted too.
        yes: Do not ask.
        limit: Stop after this many letters, and say if there may be more.
        subscription: Remembers which letters were replayed or discarded.
        json: Print the report as a JSON object. It has dry_run, discarded, passed, fingerprints,
            reached_end, at_limit, missing.
    """
    selection = _selection(fingerprint, real_topic, since, until, id)
    if selection.everything != all:
        raise ConfigurationError(
            "choose letters by --fingerprint, --real-topic, --since, --until or --id, or discard "
            "--all of them; not both"
        )
    progress = output.DiscardProgress()

    asks = not dry_run and not yes
    if asks and not output.is_interactive():
        raise ConfigurationError(
            "discard asks at a terminal, and this is none: count the letters with --dry-run, and "
            "discard them with --yes"
        )

    async def work(dead: DeadLetters) -> DiscardReport | None:
        chosen = await _confirmed(dead, selection, limit) if asks else selection
        if chosen is None:
            return None
        running = dead.discard(chosen, dry_run=dry_run, limit=limit, on_progress=progress)
        report = await run_to_safe_end(running, progress)
        if asks:  # without the ids that the user did not name
            report.missing = sorted({*report.missing} & {*map(str, selection.ids or ())})
        return report

    nothing = output.discard_json(DiscardReport(dry_run, reached_end=True)) if json else None
    with _document_if_nothing_there(nothing):
        report = _run(access(url, login), topic, subscription, work)
    if report is None:
        sys.stderr.write("nothing was discarded\n")
        return 1
    sys.stdout.write(output.discard_json(report) if json else output.discard_text(report))
    return 0


@contextmanager
def _document_if_nothing_there(document: str | None) -> Iterator[None]:
    """Print the document if the block ends with exit code 3, so that a script can parse stdout."""
    try:
        yield
    except EncoreError as error:
        if document is not None and exit_code(error) == NOTHING_THERE:
            sys.stdout.write(document)
        raise


def _run(
    cluster: ClusterAccess,
    topic: str,
    subscription: str,
    work: Callable[[DeadLetters], Awaitable[T]],
    **options: Any,
) -> T:
    async def main() -> T:
        async with _ProbingClient(cluster) as client:
            try:
                return await work(DeadLetters(client, topic, subscription=subscription, **options))
            except TransportError as error:
                if error.result not in _UNREACHABLE or not client.answered:
                    raise
                # The transport's advice names options that this command does not have.
                raise exception_of_result(
                    error.result,
                    f"{cluster.url} no longer answers: check that the broker is still up, "
                    "and that the address that it gives its clients can be reached from here "
                    f"({error.result})",
                ) from error

    return asyncio.run(main())


class _ProbingClient(Client):
    """A client that checks first that its topic exists, because using it could create it."""

    def __init__(self, cluster: ClusterAccess) -> None:
        super().__init__(
            cluster.url,
            operation_timeout_seconds=_TIMEOUT_S,
            logger=output.silent_logger(),
            **cluster.keywords,
        )
        self._cluster = cluster
        self.answered = False

    async def get_topic_partitions(self, topic: str) -> list[str]:
        if not self.answered:
            await probe(self._cluster, full_name(topic), timeout_s=_TIMEOUT_S)
            self.answered = True
        return await super().get_topic_partitions(topic)


async def _confirmed(
    dead: DeadLetters, selection: Selection, limit: int | None
) -> Selection | None:
    """Show the selected letters, and return a selection of just these; None if the user said no.

    Their ids are kept because letters may be written, and others be acked, before the answer.
    """
    await dead.discard(selection, dry_run=True, limit=1)  # an error says why nothing is selected
    ids: list[str] = []
    counts = Counter[str]()
    async with aclosing(dead.letters(selection)) as scan:
        async for letter in scan:
            ids.append(letter.id)
            counts[letter.fingerprint or NO_FINGERPRINT] += 1
    if not ids:
        raise NothingSelectedError(f"the selected letters of {dead.topic} were acked meanwhile")
    if not await output.confirm_discard(dead.topic, counts, limit):
        return None
    return replace(selection, ids=ids)


async def _with_confirmed_topics(dead: DeadLetters, selection: Selection) -> Selection:
    """Return the selection, with the other topics that letters name if the user confirms them."""
    known, other_topics = set(selection.real_topics or ()), Counter[str]()
    own_topics: set[str] = set()
    dead_topic = base_name(dead.topic)  # never the target of a letter
    async with aclosing(dead.letters(selection)) as scan:
        async for letter in scan:
            if letter.named_by(dead.topic):
                own_topics.add(letter.real_topic)
            elif letter.real_topic and letter.real_topic not in known | {dead_topic}:
                other_topics[letter.real_topic] += 1
    if not other_topics or not await output.confirm_topics(dead.topic, other_topics):
        return selection
    return replace(selection, real_topics=known | own_topics | set(other_topics))


def _selection(
    fingerprints: list[str] | None,
    real_topics: list[str] | None,
    since: str | None,
    until: str | None,
    ids: list[str] | None,
) -> Selection:
    chosen: dict[str, Any] = {
        "fingerprints": fingerprints or None,
        "real_topics": real_topics or None,
        "ids": ids or None,
    }
    return Selection(since=moment(since, "since"), until=moment(until, "until"), **chosen)
