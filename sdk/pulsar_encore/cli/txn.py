"""`pulsar-encore txn`: list, show, explain and end open transactions."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Final, TypeVar

from cyclopts import App, Parameter

from ..admin import WebService
from ..deadletters import printable
from ..errors import (
    ConfigurationError,
    ConnectError,
    NotSupportedError,
    TransactionNotFound,
)
from ..values.transaction_id import TxnId
from . import txn_output as output
from .cluster_client import TIMEOUT_S, connect, web_service
from .exit_codes import NOTHING_THERE
from .login import DEFAULT_URL, NOBODY, AdminUrl, ClusterAccess, Login, Url, access
from .moments import duration_ms
from .probe import probe
from .txn_lookup import find_facts, list_open
from .txn_verdict import VerdictState, explain_transaction, verdict_json, verdict_text
from .value_text import json_text

app: App = App(name="txn", help="Transactions: list, show, explain, abort and commit them.")

_ID: Final = re.compile(r"\(([0-9]+)[,:] ?([0-9]+)\)|([0-9]+)[,:]([0-9]+)", re.ASCII)

_T = TypeVar("_T")
Json = Annotated[bool, Parameter(negative="")]


@app.command
def ls(
    *,
    older_than: str | None = None,
    url: Url = DEFAULT_URL,
    admin_url: AdminUrl = None,
    login: Login = NOBODY,
    json: Json = False,
) -> int:
    """List the open transactions of the cluster, the oldest first.

    Each has its topics and subscriptions. Readers of a topic see nothing behind the first message
    of an open transaction. Exit code 1: a coordinator did not answer, so some may be missing.

    Example: pulsar-encore txn ls --older-than 10s --admin-url http://localhost:8080

    Args:
        older_than: Only transactions that began longer ago: 10s (5m, 2h, 7d).
        url: The service URL of the cluster.
        admin_url: The web service, like http://localhost:8080.
        json: Print a JSON list instead of a table. Its items have id, state, begun, age, timeout,
            left (in s, null if it is ending), until, owner, topics (each with topic, first) and
            subscriptions (each with topic, subscription, cumulative).
    """
    least_ms = 0 if older_than is None else duration_ms(older_than, "--older-than")
    listed = _ask(access(url, login), admin_url, "ls", list_open)
    now_ms = _now_ms()
    found = [each for each in listed.found if now_ms - each.begun_ms >= least_ms]
    if json:
        sys.stdout.write(output.list_json(found, now_ms))
    else:
        output.print_list(found, now_ms)
    for note in (*listed.not_loaded, *listed.failed):
        sys.stderr.write(f"pulsar-encore: not seen: {printable(note)}\n")
    return 1 if listed.failed else 0


@app.command
def show(
    id: str,
    *,
    url: Url = DEFAULT_URL,
    admin_url: AdminUrl = None,
    login: Login = NOBODY,
    json: Json = False,
) -> int:
    """Print everything that the cluster knows about an open transaction.

    Exit code 3: its coordinator does not know it; `explain` says why.

    Example: pulsar-encore txn show 0:48 --admin-url http://localhost:8080

    Args:
        id: The id, as 0:48, 0,48 or "(0,48)".
        url: The service URL of the cluster.
        admin_url: The web service, like http://localhost:8080.
        json: Print a JSON object with the fields of `ls` instead, null if it is not known.
    """
    txn_id = parse_id(id)
    try:
        found = _ask(access(url, login), admin_url, "show", lambda web: web.transaction(txn_id))
    except TransactionNotFound as error:
        if json:
            sys.stdout.write(json_text(None))
        raise TransactionNotFound(
            f"no coordinator knows transaction {txn_id}: `pulsar-encore txn explain "
            f"{output.plain_id(txn_id)}` says what that means"
        ) from error
    now_ms = _now_ms()
    write = output.transaction_json if json else output.transaction_text
    sys.stdout.write(write(found, now_ms))
    return 0


@app.command
def explain(
    id: str | None = None,
    *,
    journal: str | None = None,
    url: Url = DEFAULT_URL,
    admin_url: AdminUrl = None,
    login: Login = NOBODY,
    json: Json = False,
) -> int:
    """Say what a transaction holds up, until when, who can end it, and what happens then.

    With --journal it lists the batches of a transactional Spark sink instead: which are begun,
    prepared and committed, and which of their transactions may be open. Exit code 3: the
    transaction has ended, or this cluster never had it; no such journal.

    Example: pulsar-encore txn explain 0:48 --admin-url http://localhost:8080

    Args:
        id: The id, as 0:48, 0,48 or "(0,48)".
        journal: The journal topic of a Spark sink (`journalTopic`). Needs the extra `spark`.
        url: The service URL of the cluster.
        admin_url: The web service, like http://localhost:8080. Not needed with --journal.
        json: Print a JSON object instead. It has id, state, summary, details, not_seen and
            transaction, which has the fields of `ls`, or is null. With --journal a list; its items
            have query, batch, state, open (each with id, until).
    """
    if (id is None) == (journal is None):
        raise ConfigurationError("give either the id of a transaction, or --journal TOPIC")
    if journal is not None:
        return _explain_journal(access(url, login), journal, json=json)
    assert id is not None
    txn_id = parse_id(id)
    facts = _ask(access(url, login), admin_url, "explain", lambda web: find_facts(web, txn_id))
    now_ms = _now_ms()
    verdict = explain_transaction(facts, now_ms)
    sys.stdout.write(verdict_json(verdict, facts, now_ms) if json else verdict_text(verdict))
    return NOTHING_THERE if verdict.state in _GONE else 0


@app.command
def abort(id: str, *, url: Url = DEFAULT_URL, login: Login = NOBODY, json: Json = False) -> int:
    """Abort an open transaction: none of its messages becomes visible, and its acks are undone.

    An owner that still runs gets an error at its next send, ack or commit. Exit code 3: it has
    ended before, or belongs to another role.

    Example: pulsar-encore txn abort 0:48

    Args:
        id: The id, as 0:48, 0,48 or "(0,48)".
        url: The service URL of the cluster.
        json: Print a JSON object instead. It has id, outcome ("aborted").
    """
    return _end(access(url, login), parse_id(id), commit=False, json=json)


@app.command
def commit(
    id: str,
    *,
    force: Json = False,
    url: Url = DEFAULT_URL,
    login: Login = NOBODY,
    json: Json = False,
) -> int:
    """Commit an open transaction: its messages become visible, and its acks are done.

    The owner does not learn of it. If it still runs and sends a message afterwards, readers see
    nothing behind that message until another transaction of the same coordinator ends on the topic.
    So this command refuses to work without --force. Exit code 3: the transaction has ended before,
    or belongs to another role.

    Example: pulsar-encore txn commit 0:48 --force

    Args:
        id: The id, as 0:48, 0,48 or "(0,48)".
        force: Commit it. Its owner must be dead, and must have sent everything.
        url: The service URL of the cluster.
        json: Print a JSON object instead. It has id, outcome ("committed").
    """
    txn_id = parse_id(id)
    if not force:
        raise ConfigurationError(
            f"commit {txn_id} only if its owner is dead and has sent everything. An owner that "
            "still runs does not learn of it. If it sends another message, readers see nothing "
            f"behind it until another transaction of coordinator {txn_id.most} ends on that topic "
            "and no older one is open. After that, readers do not see the committed messages of "
            "this transaction either. "
            f"`pulsar-encore txn abort {output.plain_id(txn_id)}` has no such risk. Commit with "
            "--force"
        )
    return _end(access(url, login), txn_id, commit=True, json=json)


_GONE: Final = frozenset({VerdictState.ENDED, VerdictState.NEVER_BEGUN, VerdictState.UNKNOWN})


def parse_id(text: str) -> TxnId:
    """Parse an id in one of its spellings."""
    found = _ID.fullmatch(text.strip())
    try:
        if found is not None:
            most, least = (each for each in found.groups() if each is not None)
            return TxnId.parse(f"({most},{least})")
    except ValueError:
        pass  # a number is too large
    raise ConfigurationError(
        f"{printable(text, 50)!r} is no transaction id: write 0:48, 0,48 or '(0,48)', the numbers "
        "of its coordinator and of the transaction, each of 64 bits"
    )


def _now_ms() -> int:
    return round(time.time() * 1000)


def _ask(
    cluster: ClusterAccess,
    admin_url: str | None,
    command: str,
    question: Callable[[WebService], Awaitable[_T]],
) -> _T:
    if not admin_url:
        raise ConfigurationError(
            f"txn {command} needs the web service: give --admin-url (PULSAR_ADMIN_URL), like "
            "http://localhost:8080. The development broker (`pulsar-encore broker`) has none: only "
            "txn abort and txn commit work with it"
        )
    return asyncio.run(_answer(cluster, admin_url, question))


async def _answer(
    cluster: ClusterAccess, admin_url: str, question: Callable[[WebService], Awaitable[_T]]
) -> _T:
    async with _opened(cluster, admin_url) as web:
        try:
            return await question(web)
        except ConnectError as error:
            raise ConnectError(f"{error}: check --admin-url (PULSAR_ADMIN_URL)") from error


@asynccontextmanager
async def _opened(cluster: ClusterAccess, admin_url: str) -> AsyncIterator[WebService]:
    web = web_service(cluster, admin_url)
    try:
        yield web
    finally:
        web.close()


def _explain_journal(cluster: ClusterAccess, topic: str, *, json: bool) -> int:
    try:
        from .journal_batches import journal_batches, journal_json, journal_text
        from .journal_records import read_journal
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "pyarrow"):
            raise
        raise NotSupportedError(
            '--journal needs PySpark: pip install "pulsar-encore[cli,spark]"'
        ) from error
    batches = journal_batches(asyncio.run(read_journal(cluster, topic)), _now_ms())
    sys.stdout.write(journal_json(batches) if json else journal_text(batches))
    return 0


def _end(cluster: ClusterAccess, txn_id: TxnId, *, commit: bool, json: bool) -> int:
    asyncio.run(_ended(cluster, txn_id, commit=commit))
    write = output.ended_json if json else output.ended_text
    sys.stdout.write(write(txn_id, commit=commit))
    return 0


async def _ended(cluster: ClusterAccess, txn_id: TxnId, *, commit: bool) -> None:
    await probe(cluster, None, timeout_s=TIMEOUT_S)
    async with connect(cluster) as client:
        if commit:
            await client.commit_transaction(txn_id)
        else:
            await client.abort_transaction(txn_id)
