"""`txn explain --journal`: the batches of a transactional Spark sink."""

from __future__ import annotations

import asyncio
import json

import pytest

import pulsar_encore as encore
from pulsar_encore import cli
from pulsar_encore.cli import broker_process
from pulsar_encore.cli.journal_batches import (
    BatchState,
    journal_batches,
    journal_json,
    journal_text,
)
from pulsar_encore.spark.sink.commit_journal import (
    BatchKey,
    Begun,
    Closed,
    Prepared,
    Probe,
    Record,
    Settled,
    TaskTransaction,
    encode,
)

NOW_MS = 1_769_862_352_000  # 2026-01-31T12:25:52Z
LATER_MS = NOW_MS + 60_000


def begun(batch: int, txn: int, deadline_ms: int = LATER_MS) -> Begun:
    return Begun(BatchKey("q", batch), 0, f"(0,{txn})", deadline_ms)


def prepared(batch: int, *txns: int, deadline_ms: int = LATER_MS) -> Prepared:
    tasks = (TaskTransaction(0, f"(0,{txn})", deadline_ms, (1, txn)) for txn in txns)
    return Prepared(BatchKey("q", batch), tuple(tasks))


def settled(batch: int, *, committed: bool) -> Settled:
    return Settled(BatchKey("q", batch), committed)


RECORDS: list[Record] = [
    *(begun(1, 10), begun(1, 11), begun(1, 12), prepared(1, 10, 12), settled(1, committed=True)),
    *(begun(2, 20), prepared(2, 20), settled(2, committed=False)),
    Probe("x"),
    *(begun(3, 30), prepared(3, 30)),
    *(begun(4, 40), begun(4, 41, NOW_MS - 1)),
]


def test_a_transaction_that_attempts_share_is_listed_once() -> None:
    key = BatchKey("q", 5)
    attempts = [Begun(key, task, "(0,50)", LATER_MS, f"attempt {task}") for task in (-1, 0, 1)]
    (found,) = journal_batches([*attempts, Closed(key, "(0,50)")], NOW_MS)
    assert found.state is BatchState.BEGUN and found.open == (("(0,50)", LATER_MS),)
    task = TaskTransaction(1, "(0,50)", LATER_MS, (1, 2))
    (found,) = journal_batches([*attempts, Prepared(key, (task,))], NOW_MS)
    assert found.state is BatchState.PREPARED and found.open == (("(0,50)", LATER_MS),)


def test_each_batch_has_its_state_and_its_open_transactions() -> None:
    found = journal_batches(RECORDS, NOW_MS)
    assert [(each.key.batch, each.state, [txn for txn, _ in each.open]) for each in found] == [
        (1, BatchState.COMMITTED, ["(0,11)"]),  # of an attempt that failed
        (2, BatchState.ABORTED, []),
        (3, BatchState.PREPARED, ["(0,30)"]),
        (4, BatchState.BEGUN, ["(0,40)"]),
    ]


def test_a_batch_that_was_written_again_is_prepared_again() -> None:
    found = journal_batches([*RECORDS, begun(2, 21), prepared(2, 21)], NOW_MS)
    assert found[1].state is BatchState.PREPARED
    assert [txn for txn, _ in found[1].open] == ["(0,21)"]


def test_the_sentences_say_which_transactions_may_be_aborted() -> None:
    first, second, third, fourth = journal_text(journal_batches(RECORDS, NOW_MS)).splitlines()
    until = "2026-01-31T12:26:52+00:00"
    assert first == (
        "q  batch 1  committed: its rows are visible; (0,11) of attempts that failed may be open "
        f"until {until}"
    )
    assert second.startswith("q  batch 2  aborted: nothing of it is visible")
    assert f"the driver commits (0,30), also after a restart, which must be before {until}" in third
    assert third.endswith("Do not abort them")
    assert "(0,40) may be open" in fourth and fourth.endswith("If the driver is dead, abort them")
    late = journal_text(journal_batches(RECORDS, LATER_MS))
    assert "prepared: its transactions have timed out" in late
    assert "none of its transactions is open" in late


def test_a_long_list_of_ids_is_cut() -> None:
    many = [begun(1, txn) for txn in range(12)]
    assert "(0,9) and 2 others may be open" in journal_text(journal_batches(many, NOW_MS))


def test_the_json_has_the_same_facts() -> None:
    answer = json.loads(journal_json(journal_batches(RECORDS[-2:], NOW_MS)))
    assert answer == [
        {
            "query": "q",
            "batch": 4,
            "state": "begun",
            "open": [{"id": "(0,40)", "until": "2026-01-31T12:26:52+00:00"}],
        }
    ]


async def test_a_journal_is_read_beside_its_driver(capsys: pytest.CaptureFixture[str]) -> None:
    with broker_process.broker_process() as url:
        words = ["txn", "explain", "--journal", "journal", "--url", url, "--json"]
        assert await asyncio.to_thread(cli.main, words) == 3  # no such topic, and none is made
        async with encore.Client(url, transport="native") as client:
            driver = await client.subscribe("journal", "spark-sink")
            async with client.create_producer("journal") as producer:
                for record in RECORDS:
                    await producer.send(encode(record))
                capsys.readouterr()
                assert await asyncio.to_thread(cli.main, words) == 0
                states = [each["state"] for each in json.loads(capsys.readouterr().out)]
                assert states == ["committed", "aborted", "prepared", "begun"]
                assert driver.is_connected()
                await producer.send(b"no record")
                assert await asyncio.to_thread(cli.main, words) == 2
        assert "no record of this sink" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["0:48", "--journal", "j"]])
def test_either_an_id_or_a_journal_is_given(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["txn", "explain", *words]) == 2
    assert "give either the id of a transaction, or --journal TOPIC" in capsys.readouterr().err
