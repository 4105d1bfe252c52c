"""Draw the diagram of a message's life from the table of transitions in the code.

    python -m tests.harness.state_diagram    # write docs/diagrams/message-states.svg and .md

A row of the table that `EVENTS` does not explain, or a pair of states without a route in the
drawing, is an error. So the diagram cannot miss a transition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import Final
from xml.sax.saxutils import escape

from pulsar_encore.core.message_states import (
    ACK_PENDING,
    ACKED,
    AWAY,
    FORWARDING,
    HELD,
    NACKED,
    QUEUED,
    TRANSITIONS,
)
from tests.harness.pages import DOCS

SVG: Final = DOCS / "diagrams" / "message-states.svg"
TABLE: Final = DOCS / "diagrams" / "message-states.md"


@dataclass(frozen=True)
class State:
    """A state in the drawing, with the center of its box."""

    name: str
    meaning: str
    x: int
    y: int


STATES: Final = {
    AWAY: State("at the broker", "or on the way", 110, 130),
    QUEUED: State("queued", "here, not received yet", 400, 130),
    HELD: State("held", "your code has it", 690, 130),
    FORWARDING: State("forwarding", "copied to a letter topic", 980, 130),
    NACKED: State("nacked", "waits for its due time", 400, 350),
    ACKED: State("acked", "not delivered again", 835, 350),
    ACK_PENDING: State("ack pending", "its transaction is open", 690, 550),
}

_BY_ID = "ack by id"
_REWIND = "rewind"
_IN_TRANSACTION = "ack in a transaction"
_COMMIT = "commit, or ack without a transaction"
#: The events that an application observes, by step and by the state before.
EVENTS: Final = {
    "queue": {AWAY: "arrives", NACKED: "arrives as requested"},
    "queue_all": {AWAY: "arrives"},
    "wait_on": {AWAY: "arrives before its due time"},
    "learn_acked": {AWAY: "acked before"},
    "learn_unacked": {ACKED: "comes after an abort elsewhere"},
    "deliver": {QUEUED: "received"},
    "deliver_all": {QUEUED: "received"},
    "nack": {
        HELD: "nack",
        QUEUED: "nack by id",
        NACKED: "nacked again: another due time",
    },
    "begin_forwarding": {
        HELD: "rejected, last attempt failed, sent to the retry topic",
        QUEUED: "no attempt left",
    },
    "forward_failed": {FORWARDING: "letter not stored"},
    "ack": {
        AWAY: _BY_ID,
        QUEUED: _BY_ID,
        NACKED: _BY_ID,
        HELD: "ack",
        FORWARDING: "letter stored",
        ACK_PENDING: _COMMIT,
    },
    "ack_held": {HELD: "ack"},
    "ack_all": {
        AWAY: _BY_ID,
        QUEUED: _BY_ID,
        NACKED: _BY_ID,
        HELD: "ack",
        FORWARDING: "letter stored",
        ACK_PENDING: _COMMIT,
    },
    "begin_pending_ack": {
        HELD: _IN_TRANSACTION,
        QUEUED: "ack by id in a transaction",
        NACKED: "cumulative ack in a transaction",
        FORWARDING: "letter stored in a transaction",
    },
    "give_up_pending_ack": {ACK_PENDING: "abort"},
    "requeue": {HELD: "given back here"},
    "fail_in_place": {HELD: "attempt failed, and the worker keeps it for the next one"},
    "release": {HELD: "ack timeout or lease expired", NACKED: "due time reached"},
    "release_all": {QUEUED: _REWIND, HELD: _REWIND, NACKED: _REWIND},
    "drop_queued": {QUEUED: "connection lost"},
}
#: Steps that an application does not observe.
UNSEEN: Final = {
    "hold_again": "an abort on Exclusive and Failover; a rewind follows in the same step",
    "readopt": "the record of an entry is used again, for messages that are not here any more",
}


@dataclass(frozen=True)
class Route:
    """The path of an arrow, and the place of the first line of its label."""

    path: str
    x: int
    y: int
    anchor: str = "middle"
    width: int = 20


# Boxes are 180 x 60. Arrows between neighbours are 16 apart.
ROUTES: Final = {
    (AWAY, QUEUED): Route("M200 122 H308", 254, 114),
    (QUEUED, AWAY): Route("M310 138 H202", 255, 155, width=16),
    (QUEUED, HELD): Route("M490 122 H598", 544, 114),
    (HELD, QUEUED): Route("M600 138 H492", 546, 155, width=17),
    (HELD, FORWARDING): Route("M780 122 H888", 835, 66, width=18),
    (FORWARDING, HELD): Route("M890 138 H782", 837, 155, width=18),
    (HELD, AWAY): Route("M650 100 C610 20 190 20 150 98", 290, 30, width=60),
    (QUEUED, FORWARDING): Route("M440 100 C520 0 880 0 962 98", 790, 22),
    (AWAY, NACKED): Route("M160 160 L330 318", 262, 250, "start", 15),
    (NACKED, AWAY): Route("M312 328 L122 162", 205, 275, "end", 18),
    (NACKED, QUEUED): Route("M390 320 V162", 383, 192, "end", 11),
    (QUEUED, NACKED): Route("M410 160 V318", 417, 205, "start", 8),
    (HELD, NACKED): Route("M650 160 L470 318", 582, 232, "start"),
    (HELD, ACKED): Route("M715 160 L795 318", 765, 232, "start"),
    (FORWARDING, ACKED): Route("M960 160 L877 318", 930, 240, "start"),
    (QUEUED, ACKED): Route("M470 160 C520 240 640 290 743 336", 640, 274, "start"),
    (NACKED, ACKED): Route("M490 358 H743", 600, 375),
    (ACKED, AWAY): Route("M800 386 C500 480 10 520 22 162", 120, 478, width=22),
    (AWAY, ACKED): Route("M40 160 C40 470 500 440 800 382", 290, 428, width=40),
    (HELD, ACK_PENDING): Route("M690 160 V518", 698, 460, "start", 12),
    (QUEUED, ACK_PENDING): Route("M425 160 C455 300 540 460 640 518", 545, 400, "start", 13),
    (FORWARDING, ACK_PENDING): Route("M1010 160 C1010 420 900 530 782 548", 985, 430, "start", 14),
    (NACKED, ACK_PENDING): Route("M415 380 C425 470 500 540 598 548", 440, 470, "start", 14),
    (ACK_PENDING, ACKED): Route("M745 520 L820 382", 803, 440, "start", 22),
    (ACK_PENDING, AWAY): Route("M600 562 C180 610 20 420 90 162", 230, 540),
}

_STYLE: Final = """
    .card { fill: #ffffff; stroke: #c9ced6; }
    .box { fill: #eef3fb; stroke: #2f5d9e; stroke-width: 1.5; }
    .end { fill: #e7f5ea; stroke: #1f7a3a; }
    .arrow { fill: none; stroke: #4a5565; stroke-width: 1.4; }
    .head { fill: #4a5565; }
    text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
    text { fill: #1b2430; }
    .name { font-size: 15px; font-weight: 600; }
    .note { fill: #4a5565; }
    .label { paint-order: stroke; stroke: #ffffff; stroke-width: 4px; stroke-linejoin: round; }
    @media (prefers-color-scheme: dark) {
      .card { fill: #16191e; stroke: #3a424d; }
      .box { fill: #1d2b40; stroke: #7fb0f0; }
      .end { fill: #173322; stroke: #6cc98a; }
      .arrow { stroke: #a9b4c2; }
      .head { fill: #a9b4c2; }
      text { fill: #e6eaf0; }
      .note { fill: #b4bfcc; }
      .label { stroke: #16191e; }
    }
"""


def transitions() -> Iterator[tuple[int, int, str]]:
    """Yield (before, after, event) of each transition that an application observes, once."""
    seen = set()
    for step, row in TRANSITIONS.items():
        for before, after in row.items():
            if step not in UNSEEN:
                each = (before, after, EVENTS[step][before])
                if each not in seen:
                    yield each
                seen.add(each)


def by_pair() -> dict[tuple[int, int], list[str]]:
    """Return the events of each pair of states, in the order of the states in the drawing."""
    found: dict[tuple[int, int], list[str]] = {}
    for before, after, event in transitions():
        found.setdefault((before, after), []).append(event)
    order = list(STATES)
    return dict(sorted(found.items(), key=lambda item: tuple(order.index(s) for s in item[0])))


def svg() -> str:
    """Return the drawing. Transitions from a state to itself are in the table alone."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1090 600" role="img" '
        'aria-labelledby="title">',
        "  <!-- Made by `python -m tests.harness.state_diagram`. -->",
        '  <title id="title">The states of a message and the events that change them</title>',
        f"  <style>{_STYLE}  </style>",
        '  <marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
        'markerHeight="8" orient="auto"><path class="head" d="M0 0 L10 5 L0 10 z"/></marker>',
        '  <rect class="card" x="1" y="1" width="1088" height="598" rx="8"/>',
    ]
    pairs = {pair: events for pair, events in by_pair().items() if pair[0] != pair[1]}
    parts += [
        f'  <path class="arrow" marker-end="url(#head)" d="{ROUTES[pair].path}"/>' for pair in pairs
    ]
    for state, each in STATES.items():
        kind = "box end" if state == ACKED else "box"
        x, y = each.x - 90, each.y - 30
        parts += [
            f'  <rect class="{kind}" x="{x}" y="{y}" width="180" height="60" rx="8"/>',
            f'  <text class="name" text-anchor="middle" x="{each.x}" y="{each.y - 3}">'
            f"{escape(each.name)}</text>",
            f'  <text class="note" text-anchor="middle" x="{each.x}" y="{each.y + 17}">'
            f"{escape(each.meaning)}</text>",
        ]
    for pair, events in pairs.items():
        route = ROUTES[pair]
        for number, line in enumerate(wrap(", ".join(events), route.width)):
            parts.append(
                f'  <text class="label" text-anchor="{route.anchor}" x="{route.x}" '
                f'y="{route.y + 16 * number}">{escape(line)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def table() -> str:
    """Return the transitions as a table, for readers who do not see the drawing."""
    rows = [
        f"| {STATES[before].name} | {', '.join(events)} | {STATES[after].name} |"
        for (before, after), events in by_pair().items()
    ]
    return "\n".join(["| state | event | next state |", "|---|---|---|", *rows, ""])


def main() -> None:
    SVG.write_text(svg(), encoding="utf-8")
    TABLE.write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
