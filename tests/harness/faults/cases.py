"""Generate a case from a seed.

A case is a backlog larger than the receiver queue, an application that acks, nacks, forwards and
seeks, and up to three faults on the connections of its client.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final, Literal, get_args

from .mischief import WITH_PAYLOAD, Direction, Kind, WireFault

Type = Literal["Exclusive", "Failover", "Shared", "KeyShared"]
Content = Literal["plain", "batch", "chunks"]
Acking = Literal["single", "list", "cumulative"]

#: About how many commands of each type a case has.
_ALWAYS: Final[dict[tuple[Direction, str], int]] = {
    ("in", "CONNECT"): 1,
    ("in", "PARTITIONED_METADATA"): 1,
    ("in", "LOOKUP"): 1,
    ("in", "SUBSCRIBE"): 1,
    ("in", "FLOW"): 8,
    ("in", "ACK"): 10,
    ("in", "REDELIVER_UNACKNOWLEDGED_MESSAGES"): 5,
    ("in", "CLOSE_CONSUMER"): 1,
    ("out", "CONNECTED"): 1,
    ("out", "PARTITIONED_METADATA_RESPONSE"): 1,
    ("out", "LOOKUP_RESPONSE"): 1,
    ("out", "SUCCESS"): 2,
    ("out", "MESSAGE"): 60,
    ("out", "ACK_RESPONSE"): 10,
}
_WITH_SEEK: Final[dict[tuple[Direction, str], int]] = {
    ("in", "SEEK"): 1,
    ("out", "CLOSE_CONSUMER"): 1,
}
_WITH_LETTERS: Final[dict[tuple[Direction, str], int]] = {
    ("in", "PRODUCER"): 2,
    ("in", "SEND"): 6,
    ("in", "CLOSE_PRODUCER"): 2,
    ("out", "PRODUCER_SUCCESS"): 2,
    ("out", "SEND_RECEIPT"): 6,
}
_MAX_DELAY_S: Final = 3.0
_PAYLOAD_WEIGHT: Final = 4  # most bytes from a broker are payload


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One case.

    Attributes:
        seed: Determines the whole case.
        kind: Subscription type.
        content: Plain messages, batches, or messages in chunks.
        messages: Number of messages.
        batch: Messages in an entry, 0 for none.
        queue: Receiver queue size.
        acking: One by one, in lists, or cumulatively.
        group: Messages in a list, or between two cumulative acks.
        receipts: `ack_receipt_enabled`.
        nacks: Share of deliveries that end in a nack.
        letters: Some messages are forwarded to the retry letter topic, and some are dead-lettered.
        seek: Seek to the beginning after this many deliveries; 0 for never.
        rewind: Request all unacked messages after this many deliveries; 0 for never.
        second: Add a second consumer, on a connection without faults.
        faults: Faults of the connections.
    """

    seed: int
    kind: Type
    content: Content
    messages: int
    batch: int
    queue: int
    acking: Acking
    group: int
    receipts: bool
    nacks: float
    letters: bool
    seek: int
    rewind: int
    second: bool
    faults: tuple[WireFault, ...]


def generate(seed: int) -> Case:
    """Return the case of a seed."""
    rng = Random(f"wire fault {seed}")
    kind: Type = rng.choice(get_args(Type))
    shared = kind in ("Shared", "KeyShared")
    content: Content = rng.choice(("plain", "batch", "chunks"))
    messages = rng.randrange(30, 60) if content == "chunks" else rng.randrange(60, 160)
    # Pulsar ignores cumulative acks of Shared and Key_Shared.
    acking: Acking = rng.choice(("single", "list") if shared else get_args(Acking))
    cumulative = acking == "cumulative"
    letters = shared and rng.random() < 0.5
    seek = rng.randrange(1, messages) if rng.random() < 0.3 else 0
    return Case(
        seed=seed,
        kind=kind,
        content=content,
        messages=messages,
        batch=rng.randrange(2, 21) if content == "batch" else 0,
        queue=rng.randrange(1, 30),
        acking=acking,
        group=rng.randrange(2, 12),
        receipts=rng.random() < 0.5,
        nacks=0.0 if cumulative else rng.choice((0.0, 0.1, 0.3)),
        letters=letters,
        seek=seek,
        rewind=rng.randrange(1, messages) if not seek and rng.random() < 0.3 else 0,
        second=kind != "Exclusive" and not seek and rng.random() < 0.25,
        faults=tuple(_fault(rng, letters, seek > 0) for _ in range(rng.choice((1, 1, 2, 3)))),
    )


def _fault(rng: Random, letters: bool, seeks: bool) -> WireFault:
    counts = _ALWAYS | (_WITH_LETTERS if letters else {}) | (_WITH_SEEK if seeks else {})
    # A command that occurs once is nearly as likely to fail as one that occurs often.
    [(direction, command)] = rng.choices(
        list(counts), [3 + min(12, each) for each in counts.values()]
    )
    kinds = [kind for kind in get_args(Kind) if kind != "payload" or command in WITH_PAYLOAD]
    if command in WITH_PAYLOAD:
        kinds += ["payload"] * _PAYLOAD_WEIGHT
    kind: Kind = rng.choice(kinds)
    return WireFault(
        kind=kind,
        direction=direction,
        command=command,
        nth=rng.randrange(1, counts[direction, command] + 1),
        seconds=rng.choice((0.01, 0.3, _MAX_DELAY_S)) if kind == "delay" else 0.0,
    )
