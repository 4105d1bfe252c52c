"""Each entry of `docs/broker-limits.md` about the broker says which other clients show it."""

from __future__ import annotations

import re

import pytest

from tests.harness.pages import text_of

PAGE = text_of("broker-limits.md")
BROKER = PAGE.partition("\n## This SDK\n")[0]
ROWS = [
    row.strip("| ").split(" | ")
    for row in re.findall(r"^\|.*\|$", BROKER, flags=re.MULTILINE)
    if not row.startswith(("|---", "| observation"))
]
#: Answers for Java's client and the C++ client, perhaps with a number of runs.
ANSWER = re.compile(r"(yes|no|not tried|has no receipts|sends no pattern)\b.*")


def test_there_are_entries() -> None:
    assert len(ROWS) > 15


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"[*`]", "", row[0])[:30])
def test_an_entry_has_an_observation_the_other_clients_and_a_remedy(row: list[str]) -> None:
    observation, clients, remedy = row
    assert observation.startswith("**")
    assert len(clients.split(" / ")) == 2
    assert all(map(ANSWER.fullmatch, clients.split(" / ")))
    assert len(remedy) > 10
