"""The sentences of `txn explain`, from the facts about a transaction. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..admin import CoordinatorStats, ProducedTopic, TransactionMetadata
from ..deadletters import printable
from ..values.transaction_id import TxnId
from .txn_output import age_text, name_text, plain_id, position_text, transaction_fields
from .value_text import json_text, time_text


class VerdictState(StrEnum):
    """The state of a transaction, as its coordinator knows it."""

    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ENDED = "ended"
    """The coordinator has forgotten it."""

    NEVER_BEGUN = "never_begun"
    """The cluster has not given this id yet, or has no such coordinator."""

    UNKNOWN = "unknown"
    """The coordinator does not know it, and has not told which ids it has given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TxnFacts:
    """The answers of the web service about one transaction.

    Attributes:
        found: The transaction; None if its coordinator does not know it, or cannot describe it.
        undescribed: The error of a broker that knows it, and cannot describe it.
        others: Other open transactions of the cluster.
        coordinators: The numbers of the coordinators; None if they were not told.
        coordinator: The state of the coordinator of the id; None if it was not told.
        not_seen: Questions without an answer, each with its reason.
    """

    id: TxnId
    found: TransactionMetadata | None = None
    undescribed: str | None = None
    others: tuple[TransactionMetadata, ...] = ()
    coordinators: tuple[int, ...] | None = None
    coordinator: CoordinatorStats | None = None
    not_seen: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TxnVerdict:
    """What a transaction is, and what it holds up.

    Attributes:
        summary: One sentence.
        details: Further facts, one sentence each.
        not_seen: Questions without an answer.
    """

    state: VerdictState
    summary: str
    details: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()


def explain_transaction(facts: TxnFacts, now_ms: int) -> TxnVerdict:
    """Return the sentences about a transaction."""
    details: tuple[str, ...]
    if facts.undescribed is not None:
        state = VerdictState.OPEN
        summary = f"its broker knows it, and cannot describe it: {facts.undescribed}"
        details = (_UNDESCRIBED, f"`pulsar-encore txn abort {plain_id(facts.id)}` ends it")
    elif facts.found is None:
        state, summary, details = _forgotten(facts)
    else:
        state, summary = _known(facts.found, now_ms)
        details = (*_held_up(facts.found), *_others(facts), *_remedies(facts.found, state))
    return TxnVerdict(state=state, summary=summary, details=details, not_seen=facts.not_seen)


def _known(found: TransactionMetadata, now_ms: int) -> tuple[VerdictState, str]:
    age = age_text(now_ms - found.begun_ms)
    if found.status.startswith("COMMIT"):
        return VerdictState.COMMITTING, (
            f"it began {age} ago and is being committed. Its coordinator asks the broker of each "
            "topic and subscription below until it has an answer"
        )
    if found.status.startswith("ABORT"):
        return VerdictState.ABORTING, (
            f"it began {age} ago and is being aborted. Its coordinator asks the broker of each "
            "topic and subscription below until it has an answer"
        )
    if found.deadline_ms <= now_ms:
        return VerdictState.OPEN, (
            f"it began {age} ago, and its timeout of {age_text(found.timeout_ms)} is over: its "
            "coordinator aborts it now"
        )
    return VerdictState.OPEN, (
        f"it began {age} ago. Unless it is ended before, the cluster aborts it at "
        f"{time_text(found.deadline_ms)}, in {age_text(found.deadline_ms - now_ms)}"
    )


def _held_up(found: TransactionMetadata) -> Iterator[str]:
    for topic in found.topics:
        name = name_text(topic.topic)
        if topic.first is None:
            yield f"{name} has no message of it, so its readers do not wait for it"
        else:
            yield (
                f"readers and consumers of {name} see nothing from {position_text(topic.first)} on "
                "until it ends, no plain message either"
            )
    for each in found.subscriptions:
        acked = "the messages that it acked"
        if each.cumulative is not None:
            acked = f"all messages to {printable(each.cumulative, 100)}, which it acked,"
        yield (
            f"{acked} in {name_text(each.topic)} on the subscription "
            f"{printable(each.subscription, 500)} are neither acked nor delivered until it ends"
        )
    if not found.topics and not found.subscriptions:
        yield "it has no topic and no subscription, so it holds up nothing"


def _others(facts: TxnFacts) -> Iterator[str]:
    """Name the other transactions that hold up the same topics."""
    assert facts.found is not None
    for mine in facts.found.topics:
        for other in facts.others:
            for topic in other.topics:
                if topic.topic == mine.topic and topic.first is not None:  # it has messages there
                    yield _other(other, topic, mine)


def _other(other: TransactionMetadata, topic: ProducedTopic, mine: ProducedTopic) -> str:
    name, first = name_text(topic.topic), position_text(topic.first)
    if mine.first is None:
        return f"{other.id} holds up {name} from {first} on"
    return (
        f"{other.id} holds up {name}, too, from {first} on, so its readers wait for "
        f"{other.id} as well"
    )


def _remedies(found: TransactionMetadata, state: VerdictState) -> Iterator[str]:
    if state is not VerdictState.OPEN:
        yield "it cannot be ended in another way any more; no command is needed"
        yield (
            "if it stays so for longer than a minute, look for a topic above that was terminated: "
            "the broker cannot write the end into it, and the transaction ends when that topic is "
            "deleted"
        )
        return
    others = "any client"
    if found.owner is not None:
        others = f"any client with the role {name_text(found.owner)} or of a super user"
    yield f"its owner can end it, and so can {others}, by its id"
    yield (
        f"`pulsar-encore txn abort {plain_id(found.id)}`: none of its messages becomes visible, "
        "the messages that it acked are redelivered, and an owner that still runs gets an error"
    )
    yield (
        f"`pulsar-encore txn commit {plain_id(found.id)} --force`: its messages become visible and "
        "its acks are done. Only if its owner is dead and has sent everything. If the owner sends "
        "another message, readers see nothing behind it until another transaction of coordinator "
        f"{found.id.most} ends on that topic and no older one is open. After that, readers do not "
        "see the committed messages of this transaction either"
    )


def _forgotten(facts: TxnFacts) -> tuple[VerdictState, str, tuple[str, ...]]:
    number = facts.id.most
    if facts.coordinators is not None and number not in facts.coordinators:
        count = len(facts.coordinators)
        return (
            VerdictState.NEVER_BEGUN,
            f"this cluster has no coordinator {number}: it has {count}, numbered from 0. The id is "
            "of another cluster, or misspelt",
            (),
        )
    if facts.coordinator is None:
        return (
            VerdictState.UNKNOWN,
            "its coordinator does not know it: it has ended (committed, aborted or timed out), or "
            "it is of another cluster",
            (_FIND_OUT,),
        )
    if facts.id.least > facts.coordinator.last:
        newest = TxnId(number, facts.coordinator.last)
        given = f"the newest id of its coordinator is {newest}"
        if facts.coordinator.last < 0:
            given = "its coordinator has begun none"
        return (
            VerdictState.NEVER_BEGUN,
            f"this cluster has not begun it: {given}. The id is of another cluster, or misspelt",
            (),
        )
    return (
        VerdictState.ENDED,
        "it has ended: it was committed or aborted, or timed out, which aborts it. The cluster "
        "does not remember how",
        (
            _FIND_OUT,
            "ids begin again at (0,0) in a new cluster: one that was stored in another cluster "
            "means another transaction here",
        ),
    )


_FIND_OUT = (
    "to find out how it ended, look for one of its messages: `pulsar-encore tail TOPIC --from-id "
    "ID --limit 1` prints that message if it was committed, and a later one if not"
)


_UNDESCRIBED = (
    "a broker cannot describe a transaction if one of its topics was deleted, or is used by no "
    "client now. A producer or consumer of that topic makes it known again"
)


def verdict_text(verdict: TxnVerdict) -> str:
    lines = [f"{verdict.state.value}: {verdict.summary}"]
    lines += [f"  {each}" for each in verdict.details]
    lines += [f"  not seen: {each}" for each in verdict.not_seen]
    return "".join(f"{printable(line)}\n" for line in lines)


def verdict_json(verdict: TxnVerdict, facts: TxnFacts, now_ms: int) -> str:
    found = facts.found
    transaction: dict[str, Any] | None = None
    if found is not None:
        transaction = transaction_fields(found, now_ms)
    return json_text(
        {
            "id": str(facts.id),
            "state": verdict.state.value,
            "summary": verdict.summary,
            "details": verdict.details,
            "not_seen": verdict.not_seen,
            "transaction": transaction,
        }
    )
