"""The diagram of a message's life is that of the table of transitions in the code.

Each state of the code is one state of the drawing: AWAY is "at the broker", QUEUED "queued", HELD
"held", NACKED "nacked", FORWARDING "forwarding", ACK_PENDING "ack pending" and ACKED "acked".
Events that several rows of the table share are drawn once, and a transition from a state to itself
is in the table of the page alone. A step of `UNSEEN` changes the bookkeeping only.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from pulsar_encore.core import message_states
from pulsar_encore.core.message_states import TRANSITIONS
from tests.harness.state_diagram import (
    EVENTS,
    ROUTES,
    STATES,
    SVG,
    TABLE,
    UNSEEN,
    by_pair,
    svg,
    table,
)

REPEAT = "run `python -m tests.harness.state_diagram`"


def test_the_committed_files_are_those_of_the_generator() -> None:
    assert SVG.read_text(encoding="utf-8") == svg(), REPEAT
    assert TABLE.read_text(encoding="utf-8") == table(), REPEAT


def test_every_state_of_the_code_is_drawn() -> None:
    states = {
        value
        for name, value in vars(message_states).items()
        if name.isupper() and isinstance(value, int)
    }
    assert STATES.keys() == states
    assert {each.name for each in STATES.values()} == {
        "at the broker",
        "queued",
        "held",
        "nacked",
        "forwarding",
        "ack pending",
        "acked",
    }


def test_every_row_of_the_code_is_explained_and_no_other() -> None:
    seen = {step: row.keys() for step, row in TRANSITIONS.items() if step not in UNSEEN}
    assert {step: row.keys() for step, row in EVENTS.items()} == seen
    assert UNSEEN.keys() <= TRANSITIONS.keys()


def test_every_arrow_has_a_route_and_is_needed() -> None:
    assert ROUTES.keys() == {(before, after) for before, after in by_pair() if before != after}


def test_the_drawing_is_valid_and_has_a_title_and_a_dark_style() -> None:
    root = ET.fromstring(svg())
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert root.find(f"{space}title") is not None
    assert "prefers-color-scheme: dark" in svg()
    assert len(root.findall(f"{space}path")) == len(ROUTES)
