"""`txn`: ids, lists, and the errors of a command line that cannot work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore import cli
from pulsar_encore.admin import CoordinatorStats, ProducedTopic, TransactionMetadata
from pulsar_encore.cli import broker_process, txn, txn_lookup
from pulsar_encore.cli.txn_list import CoordinatorList, open_list
from pulsar_encore.cli.txn_output import list_json, print_list, transaction_text
from pulsar_encore.errors import (
    ConfigurationError,
    LookupError,
    TransactionNotFound,
    TransportTimeout,
)
from pulsar_encore.values.transaction_id import TxnId
from tests.harness.open_transaction import IN, NOW_MS, OPEN, OUT

WEB = ("--admin-url", "http://localhost:8080")
YOUNGER = replace(OPEN, id=TxnId(1, 7), begun_ms=NOW_MS - 500, topics=(), subscriptions=())
ENDING = replace(OPEN, id=TxnId(1, 8), status="COMMITTING")


@pytest.mark.parametrize("text", ["(0,48)", "(0, 48)", "0,48", "0:48", "(0:48)", " 0:48"])
def test_an_id_has_several_spellings(text: str) -> None:
    assert txn.parse_id(text) == TxnId(0, 48)


@pytest.mark.parametrize("text", ["48", "(0,48", "0,48)", "12:3:-1", "0:", "a:b", f"0:{1 << 64}"])
def test_a_wrong_id_is_refused_with_the_spellings(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["txn", "show", text, *WEB]) == 2
    assert "is no transaction id: write 0:48" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["ls"], ["show", "0:48"], ["explain", "0:48"]])
def test_without_a_web_service_the_error_names_the_development_broker(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PULSAR_ADMIN_URL", raising=False)
    assert cli.main(["txn", *words]) == 2
    error = capsys.readouterr().err
    assert f"txn {words[0]} needs the web service: give --admin-url" in error
    assert "The development broker (`pulsar-encore broker`) has none" in error


def test_commit_without_force_says_what_a_late_send_would_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["txn", "commit", "(0,48)"]) == 2
    error = capsys.readouterr().err
    assert "If it sends another message, readers see nothing behind it" in error
    assert "until another transaction of coordinator 0 ends" in error
    assert "`pulsar-encore txn abort 0:48`" in error and "--force" in error


@pytest.mark.parametrize("text", ["10", "soon", "1.5s"])
def test_a_wrong_duration_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["txn", "ls", "--older-than", text, *WEB]) == 2
    assert "--older-than must be like 10s, 5m, 2h or 7d" in capsys.readouterr().err


class Coordinators:
    """A web service with coordinators whose answers are given."""

    def __init__(self, answers: dict[Any, Any]) -> None:
        self.answers = answers

    async def coordinators(self) -> tuple[int, ...]:
        return tuple(each for each in self.answers if isinstance(each, int))

    async def coordinator_stats(self, coordinator: int) -> CoordinatorStats:
        return CoordinatorStats("Ready", last=50, ended=44, open=2)

    async def open_transactions(self, coordinator: int) -> tuple[TransactionMetadata, ...]:
        answer = self.answers[coordinator]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, tuple)
        return answer

    async def transaction(self, txn_id: TxnId) -> TransactionMetadata:
        answer = self.answers.get(txn_id, TransactionNotFound("HTTP 404"))
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, TransactionMetadata)
        return answer

    def close(self) -> None: ...


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Any]]:
    found: dict[Any, Any] = {}
    monkeypatch.setattr(txn, "web_service", lambda *_: Coordinators(found))
    monkeypatch.setattr(txn, "_now_ms", lambda: NOW_MS)
    yield found


def test_ls_shows_the_oldest_first_and_filters_by_age(
    answers: dict[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers.update({0: (OPEN,), 1: (YOUNGER,)})
    assert cli.main(["txn", "ls", *WEB, "--json"]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)] == ["(0,48)", "(1,7)"]
    assert cli.main(["txn", "ls", *WEB, "--json", "--older-than", "10s"]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)] == ["(0,48)"]
    assert cli.main(["txn", "ls", *WEB, "--older-than", "2m"]) == 0
    assert capsys.readouterr().out == "no transaction is open\n"


def test_ls_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_list((OPEN, ENDING), NOW_MS)
    printed = capsys.readouterr().out
    words = [line.split() for line in printed.splitlines()]
    assert ["(0,48)", "0:01:12", "0:02:00", "out"] in words
    assert ["open", "0:00:48", "in", "billing"] in words
    assert ["committing", "-", "in", "billing"] in words


def test_names_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_list((replace(OPEN, topics=(ProducedTopic("\x1b[31m[b]t", None),)),), NOW_MS)
    assert r"\x1b[31m[b]t" in capsys.readouterr().out


def test_coordinators_that_do_not_answer_are_named(
    answers: dict[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers.update({0: (OPEN,), 1: TransactionNotFound("HTTP 404"), 2: TransportTimeout("silent")})
    assert cli.main(["txn", "ls", *WEB, "--json"]) == 1
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 1
    assert "not seen: coordinator 1 is not loaded by its broker" in captured.err
    assert "not seen: the transactions of coordinator 2: silent" in captured.err
    answers.pop(2)
    assert cli.main(["txn", "ls", *WEB, "--json"]) == 0


def test_if_no_coordinator_answers_its_error_is_the_result() -> None:
    with pytest.raises(TransportTimeout, match="first"):
        open_list({0: TransportTimeout("first"), 1: TransportTimeout("second")})
    with pytest.raises(ZeroDivisionError):
        open_list({0: CoordinatorList((OPEN,)), 1: ZeroDivisionError()})


def test_a_transaction_with_a_deleted_topic_does_not_hide_the_others(
    answers: dict[Any, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker lists no transaction of a coordinator if a topic of one is away."""
    failed = LookupError("HTTP 500: Topic not found")
    answers.update({0: failed, (0, 46): failed, (0, 48): OPEN})
    assert cli.main(["txn", "ls", *WEB, "--json"]) == 1
    captured = capsys.readouterr()
    assert [each["id"] for each in json.loads(captured.out)] == ["(0,48)"]
    assert "not seen: (0,46) is open, and its broker cannot describe it: HTTP 500" in captured.err
    monkeypatch.setattr(txn_lookup, "_MOST_IDS", 3)  # (0,45) to (0,47)
    assert cli.main(["txn", "ls", *WEB, "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out) == []
    assert "not seen: transactions of coordinator 0 after (0,47)" in captured.err


def test_show_prints_everything(
    answers: dict[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers[TxnId(0, 48)] = OPEN
    assert cli.main(["txn", "show", "(0,48)", *WEB]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "transaction  (0,48)",
        "state        open",
        "begun        2026-01-31T12:24:40+00:00, 0:01:12 ago",
        "timeout      0:02:00: at 2026-01-31T12:26:40+00:00, in 0:00:48",
        "owner        any client",
        f"produced to  {OUT}, first message 12:3",
        f"acked on     {IN} billing",
    ]
    assert cli.main(["txn", "show", "(0,48)", *WEB, "--json"]) == 0
    [listed] = json.loads(list_json((OPEN,), NOW_MS))
    assert json.loads(capsys.readouterr().out) == listed


def test_show_of_an_ending_transaction_has_no_time_left() -> None:
    shown = transaction_text(replace(ENDING, owner="clerk"), NOW_MS)
    assert "timeout      0:02:00: at 2026-01-31T12:26:40+00:00\n" in shown
    assert "owner        clerk\n" in shown


def test_show_of_an_unknown_id_has_exit_code_3(
    answers: dict[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["txn", "show", "0:1", *WEB, "--json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out) is None
    assert "no coordinator knows transaction (0,1): `pulsar-encore txn explain 0:1`" in captured.err


def test_a_broken_answer_of_other_coordinators_does_not_hide_the_explanation(
    answers: dict[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers.update({OPEN.id: OPEN, 0: (OPEN,), 1: TransportTimeout("silent")})
    assert cli.main(["txn", "explain", "0:48", *WEB]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("open: it began 0:01:12 ago")
    assert "not seen: the transactions of coordinator 1: silent" in printed


async def open_one(url: str) -> tuple[encore.Client, encore.Transaction]:
    client = encore.Client(url, transport="native")
    transaction = await client.transaction()
    async with client.create_producer("out") as producer:
        await producer.send(b"1", txn=transaction)
    return client, transaction


@pytest.mark.parametrize(
    ("words", "outcome"), [(["abort"], "aborted"), (["commit", "--force"], "committed")]
)
async def test_abort_and_commit_work_with_the_development_broker(
    words: list[str], outcome: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker_process.broker_process() as url:
        client, transaction = await open_one(url)
        command = ["txn", words[0], str(transaction.id), *words[1:], "--url", url]
        assert await asyncio.to_thread(cli.main, [*command, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer == {"id": str(transaction.id), "outcome": outcome}
        assert await asyncio.to_thread(cli.main, command) == 3
        assert "has ended, timed out, or belongs to another role" in capsys.readouterr().err
        client.shutdown()


def test_parse_id_raises_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError):
        txn.parse_id("soon")
