"""Typed answers of the web service."""

from __future__ import annotations

import pytest

from pulsar_encore.admin import WebService, web_service
from pulsar_encore.admin.internal_stats import internal_stats
from pulsar_encore.admin.topic_stats import topic_stats
from pulsar_encore.errors import NotSupportedError
from pulsar_encore.options import ClientOptions

ANSWER = {
    "ledgers": [{"ledgerId": 7, "entries": 0}, {"ledgerId": 3, "entries": 5, "size": 100}],
    "currentLedgerEntries": 9,
    "lastConfirmedEntry": "7:8",
    "cursors": {
        "s": {
            "markDeletePosition": "3:4",
            "individuallyDeletedMessages": "[(7:0..7:2],(7:4..7:5]]",
        },
        "t": {},
    },
}


def test_the_open_ledger_has_the_entries_of_the_topic() -> None:
    ledgers = internal_stats(ANSWER).ledgers
    assert [(each.id, each.entries, each.closed) for each in ledgers] == [
        (3, 5, True),
        (7, 9, False),
    ]


def test_a_cursor_tells_which_entries_are_acked() -> None:
    cursor = internal_stats(ANSWER).cursors["s"]
    assert cursor.is_acked(3, 4)
    assert [each for each in range(9) if cursor.is_acked(7, each)] == [1, 2, 5]
    assert not internal_stats(ANSWER).cursors["t"].is_acked(3, 0)


@pytest.mark.parametrize("answer", [{}, {"ledgers": [], "lastConfirmedEntry": "nonsense"}])
def test_an_answer_without_ledgers_is_refused(answer: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        internal_stats(answer)


def test_a_field_of_another_type_has_its_default() -> None:
    found = topic_stats({"subscriptions": {"s": {"msgBacklog": "many", "consumers": 5}, "t": 1}})
    assert found.subscriptions["s"].backlog == 0
    assert found.subscriptions["s"].earliest_publish_ms is None
    assert list(found.subscriptions) == ["s"]


def test_a_missing_httpx2_is_named_as_a_need_of_the_web_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(web_service, "has_httpx2", lambda: False)
    with pytest.raises(NotSupportedError, match=r"web service .* 'pulsar-encore\[http\]'"):
        WebService(ClientOptions(service_url="pulsar://localhost"), "http://localhost:8080")


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ((2, 99), True),  # its ledger may be deleted
        ((3, 4), True),
        ((3, 5), False),
        ((5, 0), False),  # not a ledger of this topic
        ((7, 8), True),
    ],
)
def test_entries_that_never_existed_are_known_from_the_ledgers(
    position: tuple[int, int], expected: bool
) -> None:
    assert internal_stats(ANSWER).may_have_had(*position) is expected
