"""The facts about one message and its copies. None stands for a fact that no source told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

CopyKind: TypeAlias = Literal["original", "retry", "dead", "replayed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingFacts:
    """An entry of a worker's `/pending`; times are in ms since the epoch."""

    worker: str
    state: str
    attempt: int | None = None
    since_ms: int | None = None
    due_ms: int | None = None
    last_error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyFacts:
    """The message itself, or a copy of it: a retry letter, a dead letter or a replayed message.

    Attributes:
        topic: Full name of its topic or partition.
        id: Its id as text.
        written_ms: Publish time, in ms since the epoch; None if it could not be read.
        stored: False if the broker has deleted it, None if that is not known.
        published: False if its id is after the end of the topic.
        exists: False if its ledger has no such entry, or its batch no such index.
        subscribed: False if the subscription does not exist on its topic, None if not known.
        acked: True if its whole entry is acked, None if not known.
        delivered: True if the broker has read it for the subscription, None if not known.
        batch_size: Messages in its batch; 0 or 1 without a batch.
        due_ms: End of the delay of a retry letter, or of a message that was published with one.
        attempt: Number of the failed attempt that wrote the letter.
        reason: Why the letter was written.
        subscription_type: As the broker spells it; "" if not known.
        consumers: Consumers that hold unacked messages, as name and address. On Exclusive and
            Failover all consumers, because the broker does not count their unacked messages.
        connected: Number of connected consumers, None if not known.
        pending: The entry of a worker that holds it.
    """

    kind: CopyKind
    topic: str
    id: str
    written_ms: int | None = None
    stored: bool | None = None
    published: bool = True
    exists: bool = True
    subscribed: bool | None = None
    acked: bool | None = None
    delivered: bool | None = None
    batch_size: int = 0
    due_ms: int | None = None
    attempt: int | None = None
    reason: str = ""
    subscription_type: str = ""
    consumers: tuple[str, ...] = ()
    connected: int | None = None
    pending: PendingFacts | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageFacts:
    """The known facts about one message.

    Attributes:
        copies: The original first, then its copies in the order in which they were written.
        topic_exists: False if the topic is missing.
        not_seen: Sources that could not be asked, each with the question that this leaves open.
        asked_workers: True if the health port of a worker was asked.
        asked_for: The letter or replayed message that the user named instead of the original, as id
            and topic; "" if the user named the original.
    """

    subscription: str
    copies: tuple[CopyFacts, ...]
    topic_exists: bool = True
    not_seen: tuple[str, ...] = ()
    asked_workers: bool = False
    asked_for: str = ""
