"""The verdict of `explain`, from the facts: one row for every state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_encore.cli.explanation import (
    CopyFacts,
    MessageFacts,
    PendingFacts,
    State,
    decide,
)
from pulsar_encore.worker.worker_pending import STATE_NAMES

NOW_MS = 1_700_000_000_000
ORIGINAL = CopyFacts(
    kind="original",
    topic="persistent://public/default/orders",
    id="7:1:-1",
    written_ms=NOW_MS - 60_000,
    stored=True,
    subscribed=True,
    acked=False,
    delivered=True,
)
ACKED = replace(ORIGINAL, acked=True)
RETRY = CopyFacts(
    kind="retry",
    topic="persistent://public/default/orders-billing-RETRY",
    id="8:0:-1",
    written_ms=NOW_MS - 30_000,
    due_ms=NOW_MS + 30_000,
    attempt=1,
    reason="KeyError: EUR",
    stored=True,
    subscribed=True,
    acked=False,
    delivered=False,
)
DUE = replace(RETRY, due_ms=NOW_MS - 1)
DEAD = CopyFacts(
    kind="dead",
    topic="persistent://public/default/orders-billing-DLQ",
    id="9:0:-1",
    written_ms=NOW_MS - 20_000,
    attempt=3,
    reason="KeyError: EUR",
    stored=True,
    subscribed=False,
)
REPLAYED = replace(ORIGINAL, kind="replayed", id="7:5:-1", written_ms=NOW_MS - 10_000)
# The broker counts a message that it holds back until its delivery time as read.
DELAYED = replace(ORIGINAL, due_ms=NOW_MS + 30_000)
UNREAD = replace(ORIGINAL, acked=None, delivered=None, stored=None, written_ms=None)


def held(state: str, due_ms: int | None = NOW_MS + 1000) -> CopyFacts:
    return replace(
        ORIGINAL, pending=PendingFacts(worker="w", state=state, attempt=2, due_ms=due_ms)
    )


@pytest.mark.parametrize(
    ("copies", "state", "text"),
    [
        ((ACKED,), State.ACKED, "acked"),
        ((replace(ORIGINAL, delivered=False),), State.NOT_DELIVERED, "not delivered yet"),
        ((ORIGINAL,), State.DELIVERED, "in flight, or nacked"),
        ((held("in_flight"),), State.IN_FLIGHT, "worker w, attempt 2"),
        ((held("leased"),), State.IN_FLIGHT, "leased"),
        ((held("nacked"),), State.WAITING, "until 2023-11-14T22:13:21+00:00"),
        ((held("forwarding"),), State.FORWARDING, "letter topic"),
        ((held("running"),), State.IN_FLIGHT, "its handler runs in the worker w, attempt 2"),
        ((held("settling"),), State.IN_FLIGHT, "its ack or letter is on its way"),
        ((held("waiting"),), State.WAITING, "until 2023-11-14T22:13:21+00:00"),
        ((held("blocked"),), State.WAITING, "behind an earlier message"),
        ((held("ready"),), State.WAITING, "for a free slot"),
        ((held("waiting", due_ms=None),), State.WAITING, "until the breaker closes in the worker"),
        ((ACKED, RETRY), State.RETRY_LETTER, "until 2023-11-14T22:13:50+00:00"),
        ((ACKED, DUE), State.RETRY_LETTER, "due and not delivered"),
        ((ACKED, replace(DUE, acked=None, delivered=None)), State.RETRY_LETTER, "is due"),
        ((ACKED, replace(DUE, delivered=True)), State.DELIVERED, "retry letter"),
        ((ACKED, replace(DUE, delivered=True, acked=True)), State.ACKED, "retry letter: acked"),
        ((ACKED, DUE, DEAD), State.DEAD_LETTER, "KeyError: EUR"),
        ((ACKED, replace(DEAD, acked=True)), State.REPLAYED, "no copy was found"),
        ((ACKED, replace(DEAD, stored=False)), State.TRIMMED, "the letter is deleted"),
        ((ACKED, DEAD, REPLAYED), State.DELIVERED, "replayed: delivered"),
        ((ACKED, DEAD, replace(REPLAYED, acked=True)), State.ACKED, "replayed: acked"),
        ((ACKED, DEAD, REPLAYED, DEAD), State.DEAD_LETTER, "dead letter topic"),
        ((replace(ACKED, stored=False),), State.TRIMMED, "acked or skipped"),
        ((replace(ORIGINAL, stored=False),), State.TRIMMED, "deleted before its ack"),
        ((replace(ORIGINAL, published=False),), State.NOT_PUBLISHED, "after the end"),
        ((replace(ORIGINAL, exists=False),), State.NOT_PUBLISHED, "never one with this id"),
        ((DELAYED,), State.NOT_DELIVERED, "delayed it until 2023-11-14T22:13:50+00:00"),
        ((replace(DELAYED, due_ms=NOW_MS - 1),), State.DELIVERED, "in flight, or nacked"),
        ((replace(DELAYED, acked=True),), State.ACKED, "acked"),
        ((UNREAD,), State.UNKNOWN, "no message with this id could be read"),
        ((replace(ORIGINAL, subscribed=False),), State.NO_SUBSCRIPTION, "no subscription"),
        ((replace(ORIGINAL, acked=None, delivered=None),), State.UNKNOWN, "not known"),
    ],
)
def test_the_newest_copy_decides(copies: tuple[CopyFacts, ...], state: State, text: str) -> None:
    verdict = decide(MessageFacts(subscription="billing", copies=copies), NOW_MS)
    assert (verdict.state, text in verdict.summary) == (state, True), verdict.summary
    assert verdict.id == copies[-1].id


def test_a_missing_topic_is_said_unless_a_letter_is_left() -> None:
    facts = MessageFacts(subscription="billing", copies=(ORIGINAL,), topic_exists=False)
    assert decide(facts, NOW_MS).state == State.NO_TOPIC
    facts = replace(facts, copies=(ORIGINAL, DEAD))
    assert decide(facts, NOW_MS).state == State.DEAD_LETTER


def test_an_open_batch_leaves_its_messages_open() -> None:
    batch = replace(ORIGINAL, batch_size=3)
    verdict = decide(MessageFacts(subscription="billing", copies=(batch,)), NOW_MS)
    assert any("may be acked already" in each for each in verdict.details)


def test_a_letter_with_an_unacked_original_may_be_a_duplicate() -> None:
    verdict = decide(MessageFacts(subscription="billing", copies=(ORIGINAL, DEAD)), NOW_MS)
    assert any("not acked yet" in each for each in verdict.details)


def test_sources_that_were_not_seen_stay_in_the_answer() -> None:
    facts = MessageFacts(subscription="s", copies=(ORIGINAL,), not_seen=("the workers",))
    assert decide(facts, NOW_MS).not_seen == ("the workers",)


def test_every_state_of_a_worker_is_known() -> None:
    for state in set(STATE_NAMES.values()):
        verdict = decide(MessageFacts(subscription="s", copies=(held(state),)), NOW_MS)
        assert verdict.state in (State.IN_FLIGHT, State.WAITING, State.FORWARDING), state


def test_a_state_of_a_newer_worker_is_not_denied() -> None:
    facts = MessageFacts(subscription="s", copies=(held("parked"),), asked_workers=True)
    verdict = decide(facts, NOW_MS)
    assert (verdict.state, verdict.summary.split(" in ")[0]) == (State.DELIVERED, "parked")
    assert not any("do not list it" in each for each in verdict.details)


def test_a_worker_without_the_message_may_have_it_in_its_queue() -> None:
    facts = MessageFacts(subscription="s", copies=(ORIGINAL,), asked_workers=True)
    assert any("leave out queued messages" in each for each in decide(facts, NOW_MS).details)


def test_consumers_of_an_ordered_subscription_are_named_without_counts() -> None:
    copy = replace(ORIGINAL, connected=1, consumers=("a at h:1",), subscription_type="Exclusive")
    details = str(decide(MessageFacts(subscription="s", copies=(copy,)), NOW_MS).details)
    assert "consumers: a at h:1 (the broker does not count" in details
    assert "about to be sent again" not in details


def test_the_letter_that_was_asked_for_is_named_first() -> None:
    facts = MessageFacts(subscription="s", copies=(ACKED, DEAD), asked_for="9:0:-1 of the DLQ")
    assert decide(facts, NOW_MS).details[0].startswith("9:0:-1 of the DLQ is a letter or a replay")
