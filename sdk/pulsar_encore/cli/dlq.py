"""`pulsar-encore dlq`: list, show and replay the letters of a dead-letter topic.

Owns how letters are asked for and printed; what happens is `pulsar_encore.deadletters`'. Texts of
letters are strangers' texts and are printed escaped. `ls` and `show` change nothing; `replay`
without a choice of letters wants `--all`, so that a forgotten option sends nothing. A topic without
a letter, or that is not there, ends with exit code 3.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

from cyclopts import App, Parameter

from ..client import Client
from ..deadletters import (
    DeadLetters,
    LetterGroup,
    ReplayReport,
    ReplayStoppedError,
    Selection,
    printable,
)
from ..deadletters.dead_letter_topic import SUBSCRIPTION
from ..errors import ConfigurationError, EncoreError, TransportError, named
from ..values.topic_names import full_name
from . import dlq_output as output
from .exit_codes import NOTHING_THERE, exit_code
from .login import DEFAULT_URL, NOBODY, ClusterAccess, Login, Url, access
from .probe import probe

app: App = App(name="dlq", help="Dead letters: list them, look at one, send them home again.")

_BYTES: Final = 2000
_NOTICE_DELAY_S: Final = 1.0
_TIMEOUT_S: Final = 10  # somebody waits at a prompt
_AGO: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

_UNREACHABLE: Final = frozenset({"Timeout", "ConnectError"})

T = TypeVar("T")
Several = Annotated[list[str] | None, Parameter(negative="")]
# "-" stands for letters without a fingerprint.
Fingerprints = Annotated[list[str] | None, Parameter(negative="", allow_leading_hyphen=True)]
Json = Annotated[bool, Parameter(negative="")]
Which = Annotated[str | None, Parameter(allow_leading_hyphen=True)]


@app.command
def ls(
    topic: str,
    *,
    url: Url = DEFAULT_URL,
    login: Login = NOBODY,
    fingerprint: Fingerprints = None,
    real_topic: Several = None,
    since: str | None = None,
    until: str | None = None,
    json: Json = False,
) -> int:
    """Count the letters by fingerprint and by the topic they died on.

    "again" says how many of them had been replayed before and died again. Exit code 3:
    the topic holds no letters at all, or there is none of that name. Nothing is made by asking.

    Args:
        topic: The dead-letter topic.
        url: The service URL of its cluster.
        fingerprint: Only these failures; "-" for letters without evidence. May be repeated.
        real_topic: Only letters that died on these topics. May be repeated.
        since: Only letters written since, such as 2h (30s, 10m, 7d) ago or 2026-01-31T12:00.
        until: Only letters written before.
        json: Print a JSON list instead of a table. An item has fingerprint, real_topic, count,
            again, first_ms, last_ms, error_class, error_message, sample_id; the list is empty where
            there are no letters.
    """
    selection = _selection(fingerprint, real_topic, since, until, None)

    async def work(dead: DeadLetters) -> list[LetterGroup]:
        groups = await dead.list(selection)
        if not groups:
            await dead.check()
        return groups

    try:
        groups = _run(access(url, login), topic, SUBSCRIPTION, work)
    except EncoreError as error:
        if json and exit_code(error) == NOTHING_THERE:
            sys.stdout.write(output.groups_json(()))
        raise
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
    """Print one letter: payload, keys, properties and the evidence of its end.

    Args:
        topic: The dead-letter topic.
        which: Its id as `ls` shows it, or a fingerprint for the last letter that has it.
        url: The service URL of its cluster.
        bytes: Print so much of the payload. [default: 2000, with --json all of it]
        json: Print a JSON object instead. It has id, topic, real_topic, written_ms, event_ms, key,
            ordering_key, fingerprint, error_class, error_message, replay_id, evidence, properties,
            payload, payload_encoding ("text" or "base64", null where there is no payload),
            payload_bytes, payload_truncated, encrypted.
    """
    if which is None:
        raise ConfigurationError(
            f"show which letter? An id or a fingerprint, as `pulsar-encore dlq ls "
            f"{printable(topic, 200)}` lists them"
        )
    if bytes is not None and bytes < 0:
        raise ConfigurationError(f"bytes must be 0 or more, got {bytes}")
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
    """Send letters back to the topics they died on; what is persisted there is acked here.

    A letter that names another topic than the dead-letter topic is named after is sent there when
    --real-topic names that topic too, or when somebody at the terminal says yes.

    Run it again after an interruption: what was acked is not sent again. After a kill, letters of
    the last tenth of a second may be sent twice; both carry the same ENCORE_REPLAYED_FROM.

    Args:
        topic: The dead-letter topic.
        url: The service URL of its cluster.
        fingerprint: Only these failures; "-" for letters without evidence. May be repeated.
        real_topic: Only letters that died on these topics. May be repeated.
        since: Only letters written since, such as 2h (30s, 10m, 7d) ago or 2026-01-31T12:00.
        until: Only letters written before.
        id: Only these letters. May be repeated.
        all: Every letter, where nothing of the above is given.
        dry_run: Count, send nothing, and leave no subscription behind. What was replayed before
            is counted too: only the subscription of a replay knows that.
        rate: Most letters a second.
        limit: Stop after so many letters; says so when there may be more.
        keep_counters: Keep attempt counts and evidence on the messages.
        replay_id: Written on every message; made up when left out.
        target: Send them all to this topic instead.
        text_keys: The letters' keys are text, also where they read as base64 of bytes.
        subscription: Remembers what was replayed; another name starts anew.
        json: Print the report as a JSON object, also of a replay that was stopped. It has
            replay_id, dry_run, selected, replayed, passed, targets, refused, refusals (the first
            100, each with letter_id and reason), reasons, reached_end, at_limit, missing, doubtful.
    """
    selection = _selection(fingerprint, real_topic, since, until, id)
    if selection.everything != all:
        raise ConfigurationError(
            "choose letters by --fingerprint, --real-topic, --since, --until or --id, or send "
            "--all of them; not both"
        )
    progress = output.ReplayProgress()

    async def work(dead: DeadLetters) -> ReplayReport:
        chosen = selection
        if target is None and not dry_run and output.is_interactive():
            chosen = await _with_confirmed_topics(dead, selection)
        replaying = asyncio.ensure_future(
            dead.replay(
                chosen,
                dry_run=dry_run,
                rate=rate,
                limit=limit,
                keep_counters=keep_counters,
                replay_id=replay_id,
                target=target,
                on_progress=progress,
            )
        )
        try:
            return await asyncio.shield(replaying)
        except asyncio.CancelledError:
            # It waits for what is under way; where the broker is away, somebody should know.
            replaying.cancel()
            if not (await asyncio.wait([replaying], timeout=_NOTICE_DELAY_S))[0]:
                progress.waiting()
            await asyncio.wait([replaying])
            if not replaying.cancelled():
                replaying.exception()  # seen: the interruption is what is said
            progress.interrupted()
            raise
        finally:
            progress.close()

    try:
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
                # The engine's advice names options that this command does not have.
                raise named(
                    error.result,
                    f"no answer any more from {cluster.url}: check that the broker is still up, "
                    "and that the address it gives its clients can be reached from here "
                    f"({error.result})",
                ) from error

    return asyncio.run(main())


class _ProbingClient(Client):
    """A client that makes no topic by asking for the one it is used for."""

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


async def _with_confirmed_topics(dead: DeadLetters, selection: Selection) -> Selection:
    """The selection, with the topics in it that letters name and somebody agrees to."""
    known, other_topics = set(selection.real_topics), Counter[str]()
    own_topics: set[str] = set()
    async with aclosing(dead.letters(selection)) as scan:
        async for letter in scan:
            if letter.named_by(dead.topic):
                own_topics.add(letter.real_topic)
            elif letter.real_topic and letter.real_topic not in known:
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
        "fingerprints": fingerprints or (),
        "real_topics": real_topics or (),
        "ids": ids or (),
    }
    return Selection(since=moment(since, "since"), until=moment(until, "until"), **chosen)


def moment(text: str | None, name: str) -> float | None:
    """A time as typed: so long ago, or a date and time, local unless it has an offset.

    Returns:
        Seconds since the epoch.

    Raises:
        ConfigurationError: It is neither.
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time() - int(ago[1]) * _SECONDS[ago[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigurationError(
            f"{name} must be like 30m, 2h, 7d, or 2026-01-31T12:00, got {printable(text, 50)!r}"
        ) from error
