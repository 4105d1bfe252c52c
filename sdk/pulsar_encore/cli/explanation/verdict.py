"""The verdict on the facts about a message. Pure: the same facts and time give the same verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..value_text import time_text
from .message_facts import CopyFacts, MessageFacts


class State(StrEnum):
    """Where a message is. `DELIVERED` is queued, in flight or nacked: only its worker can tell."""

    ACKED = "acked"
    IN_FLIGHT = "in_flight"
    WAITING = "waiting"
    FORWARDING = "forwarding"
    DELIVERED = "delivered"
    NOT_DELIVERED = "not_delivered"
    RETRY_LETTER = "retry_letter"
    DEAD_LETTER = "dead_letter"
    REPLAYED = "replayed"
    TRIMMED = "trimmed"
    NO_TOPIC = "no_topic"
    NO_SUBSCRIPTION = "no_subscription"
    NOT_PUBLISHED = "not_published"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Where the message is now.

    Attributes:
        topic, id: The newest copy, which decides.
        summary: One sentence.
        due_ms: When the next attempt is due, in ms since the epoch; None if nothing waits.
        details: Further facts, one sentence each.
        not_seen: Sources that could not be asked, each with the open question.
    """

    state: State
    topic: str
    id: str
    summary: str
    due_ms: int | None = None
    details: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()


ORDERED_TYPES: Final = frozenset({"Exclusive", "Failover"})
"""Subscription types on which a broker ignores delays and does not count unacked messages."""

# By the state in `/pending`: those of a consumer, then those of a worker.
_HELD: Final = {
    "in_flight": (State.IN_FLIGHT, "a handler has it"),
    "leased": (State.IN_FLIGHT, "it is leased"),
    "nacked": (State.WAITING, "it was nacked and waits for its next attempt"),
    "forwarding": (State.FORWARDING, "it is being forwarded to a letter topic"),
    "running": (State.IN_FLIGHT, "its handler runs"),
    "settling": (State.IN_FLIGHT, "its handler has ended, and its ack or letter is on its way"),
    "waiting": (State.WAITING, "it failed and waits for its next attempt"),
    "blocked": (State.WAITING, "it waits behind an earlier message of its key or partition"),
    "ready": (State.WAITING, "it waits for a free slot, or until the breaker closes"),
}


def decide(facts: MessageFacts, now_ms: int) -> Verdict:
    """Return where the message is.

    The newest copy decides, because a letter is written before its original is acked, and a
    replayed message before its letter is.
    """
    original, newest = facts.copies[0], facts.copies[-1]
    details = [*_history(facts.copies[:-1])]
    if facts.asked_for:
        details.insert(0, f"{facts.asked_for} is a letter or a replay of this message")
    if newest is not original:
        if original.acked is False and original.batch_size <= 1 and original.stored is not False:
            details.append(
                "the original is not acked yet: unless its ack is on its way, it is delivered again"
            )
        state, summary, due = _copy_state(newest, facts.subscription, now_ms)
    elif not facts.topic_exists:
        state, summary, due = State.NO_TOPIC, "its topic does not exist", None
    else:
        state, summary, due = _copy_state(original, facts.subscription, now_ms)
    details += _notes(newest, state, facts)
    return Verdict(
        state=state,
        topic=newest.topic,
        id=newest.id,
        summary=summary,
        due_ms=due,
        details=tuple(details),
        not_seen=facts.not_seen,
    )


def _copy_state(copy: CopyFacts, subscription: str, now_ms: int) -> tuple[State, str, int | None]:
    if copy.kind == "dead":
        return _dead_state(copy)
    name = {"original": "", "retry": "retry letter: ", "replayed": "replayed: "}[copy.kind]
    if copy.pending is not None:
        state, text = _HELD.get(copy.pending.state, (State.DELIVERED, copy.pending.state))
        if copy.pending.state == "waiting" and copy.pending.due_ms is None:
            text = "it failed and waits until the breaker closes"  # a probe of it failed
        return state, f"{name}{text}{_pending_text(copy)}", copy.pending.due_ms
    if not copy.exists:
        return State.NOT_PUBLISHED, "no such message: there was never one with this id", None
    if not copy.published:
        return (
            State.NOT_PUBLISHED,
            "no such message yet: the id is after the end of the topic",
            None,
        )
    if copy.subscribed is False:
        return State.NO_SUBSCRIPTION, f"{name}no subscription {subscription} on {copy.topic}", None
    if copy.stored is False:
        end = "acked or skipped on this subscription" if copy.acked else "deleted before its ack"
        return State.TRIMMED, f"{name}the broker no longer stores it: {end}", None
    if copy.acked:
        return State.ACKED, f"{name}acked", None
    is_delayed = copy.due_ms is not None and now_ms < copy.due_ms
    if copy.kind == "retry" and copy.due_ms is not None and is_delayed:
        return (
            State.RETRY_LETTER,
            f"it waits in the retry letter topic until {time_text(copy.due_ms)}",
            copy.due_ms,
        )
    if copy.acked is False and copy.due_ms is not None and is_delayed:
        return (
            State.NOT_DELIVERED,
            f"{name}not delivered yet: its publisher delayed it until {time_text(copy.due_ms)}",
            copy.due_ms,
        )
    if copy.delivered is False:
        if copy.kind == "retry":
            return State.RETRY_LETTER, "its retry letter is due and not delivered yet", copy.due_ms
        return State.NOT_DELIVERED, f"{name}not delivered yet", None
    if copy.acked is None:
        if copy.kind == "retry":
            return State.RETRY_LETTER, "its retry letter was written and is due", copy.due_ms
        if copy.written_ms is None:
            return (
                State.UNKNOWN,
                "no message with this id could be read: it is deleted, or there was never one",
                None,
            )
        return State.UNKNOWN, f"{name}it is not known whether it is acked", None
    return State.DELIVERED, f"{name}delivered and not acked: queued, in flight, or nacked", None


def _dead_state(copy: CopyFacts) -> tuple[State, str, int | None]:
    reason = f": {copy.reason}" if copy.reason else ""
    if copy.stored is False:
        return State.TRIMMED, "it was dead-lettered, and the letter is deleted", None
    if copy.acked:
        return (
            State.REPLAYED,
            "it was dead-lettered, and the letter was replayed or discarded; no copy was found",
            None,
        )
    return State.DEAD_LETTER, f"it is in the dead letter topic{reason}", None


def _pending_text(copy: CopyFacts) -> str:
    pending = copy.pending
    assert pending is not None
    parts = [f" in the worker {pending.worker}"]
    if pending.attempt is not None:
        parts.append(f", attempt {pending.attempt}")
    if pending.since_ms is not None:
        parts.append(f", since {time_text(pending.since_ms)}")
    if pending.due_ms is not None:
        parts.append(f", until {time_text(pending.due_ms)}")
    if pending.last_error:
        parts.append(f", because of {pending.last_error}")
    return "".join(parts)


def _history(copies: tuple[CopyFacts, ...]) -> list[str]:
    names = {
        "original": "published",
        "retry": "retry letter",
        "dead": "dead letter",
        "replayed": "replayed",
    }
    lines = []
    for copy in copies:
        when = "" if copy.written_ms is None else f" at {time_text(copy.written_ms)}"
        attempt = "" if copy.attempt is None else f" after attempt {copy.attempt}"
        reason = f": {copy.reason}" if copy.reason else ""
        lines.append(f"{names[copy.kind]}{when} as {copy.id} in {copy.topic}{attempt}{reason}")
    return lines


def _notes(copy: CopyFacts, state: State, facts: MessageFacts) -> list[str]:
    notes = []
    if copy.kind == "original" and copy.written_ms is not None:
        notes.append(f"published at {time_text(copy.written_ms)}")
    if copy.kind in ("retry", "dead") and copy.attempt is not None:
        notes.append(f"written after attempt {copy.attempt}")
    if copy.kind == "retry" and copy.reason:
        notes.append(f"failed because of {copy.reason}")
    if state is State.ACKED:
        notes.append(
            "messages from before the subscription, skipped by a seek, or expired count as acked"
        )
    if state is State.NOT_DELIVERED and copy.due_ms is None:
        notes.append(
            "deliveries before the broker last loaded the topic are not known, nor those to "
            "consumers that have all disconnected"
        )
    if state in (State.DELIVERED, State.IN_FLIGHT, State.WAITING) and copy.batch_size > 1:
        notes.append(
            f"it is one of {copy.batch_size} messages of a batch: the broker tells only whether "
            "all of them are acked, so that this one may be acked already"
            if copy.pending is None
            else f"it is one of {copy.batch_size} messages of a batch"
        )
    if state is State.DELIVERED:
        if copy.connected == 0:
            notes.append("no consumer is connected: the next one gets it again")
        elif copy.subscription_type in ORDERED_TYPES:
            notes.append(
                f"consumers: {', '.join(copy.consumers)} (the broker does not count the unacked "
                f"messages of {copy.subscription_type} subscriptions)"
            )
        elif copy.consumers:
            notes.append(f"consumers with unacked messages: {', '.join(copy.consumers)}")
        elif copy.connected:
            notes.append("no connected consumer has unacked messages: it is about to be sent again")
        if facts.asked_workers and copy.pending is None:
            notes.append(
                "the workers that were asked do not list it: their lists leave out queued "
                "messages, and end after 500"
            )
    return notes
