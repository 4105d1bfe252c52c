"""The sentences of `txn explain`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pulsar_encore.admin import (
    AckedSubscription,
    CoordinatorStats,
    ProducedTopic,
    TransactionMetadata,
)
from pulsar_encore.cli.txn_verdict import (
    TxnFacts,
    VerdictState,
    explain_transaction,
    verdict_json,
    verdict_text,
)
from pulsar_encore.values.transaction_id import TxnId
from tests.harness.open_transaction import ID, IN, NOW_MS, OPEN, OUT


def explained(found: TransactionMetadata | None = OPEN, **facts: Any) -> str:
    given = TxnFacts(id=ID, found=found, **facts)
    return verdict_text(explain_transaction(given, NOW_MS))


def test_an_open_transaction_says_what_waits_for_it_and_until_when() -> None:
    lines = explained().splitlines()
    assert lines == [
        "open: it began 0:01:12 ago. Unless it is ended before, the cluster aborts it at "
        "2026-01-31T12:26:40+00:00, in 0:00:48",
        f"  readers and consumers of {OUT} see nothing from 12:3 on until it ends, no plain "
        "message either",
        f"  the messages that it acked in {IN} on the subscription billing are neither acked nor "
        "delivered until it ends",
        "  its owner can end it, and so can any client, by its id",
        "  `pulsar-encore txn abort 0:48`: none of its messages becomes visible, the messages that "
        "it acked are redelivered, and an owner that still runs gets an error",
        "  `pulsar-encore txn commit 0:48 --force`: its messages become visible and its acks are "
        "done. Only if its owner is dead and has sent everything. If the owner sends another "
        "message, readers see nothing behind it until another transaction of coordinator 0 ends on "
        "that topic and no older one is open. After that, readers do not see the committed "
        "messages of this transaction either",
    ]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"topics": (ProducedTopic(OUT, None),)}, f"{OUT} has no message of it"),
        ({"topics": (), "subscriptions": ()}, "it holds up nothing"),
        (
            {"subscriptions": (AckedSubscription(IN, "s", "7:1"),)},
            f"all messages to 7:1, which it acked, in {IN} on the subscription s are",
        ),
        ({"owner": "clerk"}, "so can any client with the role clerk or of a super user"),
        ({"timeout_ms": 72_000}, "its timeout of 0:01:12 is over: its coordinator aborts it now"),
        ({"timeout_ms": (1 << 63) - 1}, "in 9223372036854703 s"),
        ({"begun_ms": NOW_MS + 5_000}, "it began 0:00:00 ago"),  # the broker's clock is ahead
        ({"owner": "\x1b[31mred"}, r"the role \x1b[31mred"),
    ],
)
def test_details_of_an_open_transaction(changed: dict[str, Any], text: str) -> None:
    assert text in explained(replace(OPEN, **changed))


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("COMMITTING", "committing"),
        ("COMMITTED", "committing"),
        ("ABORTING", "aborting"),
        ("ABORTED", "aborting"),
    ],
)
def test_a_transaction_that_is_ending_needs_no_command(status: str, state: str) -> None:
    text = explained(replace(OPEN, status=status))
    assert text.startswith(f"{state}: it began 0:01:12 ago and is being {state[:5]}")
    assert "no command is needed" in text
    assert "pulsar-encore txn" not in text


def test_other_transactions_of_the_same_topic_are_named() -> None:
    earlier = replace(OPEN, id=TxnId(0, 47), topics=(ProducedTopic(OUT, (12, 1)),))
    elsewhere = replace(OPEN, id=TxnId(0, 46), topics=(ProducedTopic(IN, (1, 1)),))
    registered = replace(OPEN, id=TxnId(0, 45), topics=(ProducedTopic(OUT, None),))
    text = explained(others=(earlier, elsewhere, registered))
    assert (
        f"  (0,47) holds up {OUT}, too, from 12:1 on, so its readers wait for (0,47) as well\n"
        in text
    )
    assert "(0,46)" not in text and "(0,45)" not in text
    text = explained(replace(OPEN, topics=(ProducedTopic(OUT, None),)), others=(earlier,))
    assert f"(0,47) holds up {OUT} from 12:1 on\n" in text


@pytest.mark.parametrize(
    ("facts", "state", "text"),
    [
        (
            {
                "coordinators": (0,),
                "coordinator": CoordinatorStats("Ready", last=48, ended=-1, open=0),
            },
            VerdictState.ENDED,
            "committed or aborted, or timed out",
        ),
        (
            {
                "coordinators": (0,),
                "coordinator": CoordinatorStats("Ready", last=47, ended=-1, open=0),
            },
            VerdictState.NEVER_BEGUN,
            "the newest id of its coordinator is (0,47)",
        ),
        (
            {
                "coordinators": (0,),
                "coordinator": CoordinatorStats("Ready", last=-1, ended=-1, open=0),
            },
            VerdictState.NEVER_BEGUN,
            "its coordinator has begun none",
        ),
        ({"coordinators": (1, 2)}, VerdictState.NEVER_BEGUN, "has no coordinator 0"),
        ({"not_seen": ("coordinator 0: away",)}, VerdictState.UNKNOWN, "not seen: coordinator 0"),
    ],
)
def test_an_unknown_id_has_ended_or_is_of_another_cluster(
    facts: dict[str, Any], state: VerdictState, text: str
) -> None:
    given = TxnFacts(id=ID, **facts)
    verdict = explain_transaction(given, NOW_MS)
    assert verdict.state is state
    assert text in verdict_text(verdict)


def test_a_transaction_that_its_broker_cannot_describe_can_be_aborted() -> None:
    text = explained(None, undescribed="HTTP 500: Topic not found out")
    assert text.startswith("open: its broker knows it, and cannot describe it: HTTP 500: Topic not")
    assert "`pulsar-encore txn abort 0:48` ends it" in text


def test_the_json_has_the_sentences_and_the_fields_of_the_list() -> None:
    facts = TxnFacts(id=ID, found=OPEN, not_seen=("coordinator 1: away",))
    answer = json.loads(verdict_json(explain_transaction(facts, NOW_MS), facts, NOW_MS))
    assert answer["id"] == "(0,48)"
    assert (answer["state"], answer["not_seen"]) == ("open", ["coordinator 1: away"])
    assert answer["transaction"] == {
        "id": "(0,48)",
        "state": "open",
        "begun": "2026-01-31T12:24:40+00:00",
        "age": 72.0,
        "timeout": 120.0,
        "left": 48.0,
        "until": "2026-01-31T12:26:40+00:00",
        "owner": None,
        "topics": [{"topic": OUT, "first": "12:3"}],
        "subscriptions": [{"topic": IN, "subscription": "billing", "cumulative": None}],
    }
    missing = TxnFacts(id=ID)
    answer = json.loads(verdict_json(explain_transaction(missing, NOW_MS), missing, NOW_MS))
    assert answer["transaction"] is None
