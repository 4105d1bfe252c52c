"""The records of transactional writes, and the decisions of a driver that starts again."""

from __future__ import annotations

import pytest

from pulsar_encore.errors import ConfigurationError
from pulsar_encore.spark.sink.commit_journal import (
    DRIVER,
    BatchKey,
    Begun,
    Closed,
    Entry,
    Journal,
    Marker,
    Outcome,
    Prepared,
    Probe,
    Record,
    Settled,
    Step,
    TaskTransaction,
    decode,
    encode,
    entry_of,
    first_of,
    is_late,
    lost_text,
    next_step,
    outcome_of,
    refusal_text,
    shared_task,
    spoiled,
    spoiled_text,
)

HOUR = 3_600_000
NOW = 1_000 * HOUR


def key(batch: int, query: str = "q") -> BatchKey:
    return BatchKey(query, batch)


def begun(txn: int, batch: int, *, query: str = "q", deadline_ms: int = NOW + HOUR) -> Begun:
    return Begun(key(batch, query), 0, f"(0,{txn})", deadline_ms)


def task(txn: int, *, marker: int | None = None, deadline_ms: int = NOW + HOUR) -> TaskTransaction:
    return TaskTransaction(txn, f"(0,{txn})", deadline_ms, (5, txn if marker is None else marker))


def prepared(batch: int, *txns: int, query: str = "q") -> Prepared:
    return Prepared(key(batch, query), tuple(map(task, txns)))


@pytest.mark.parametrize(
    "record",
    [
        begun(1, 2),
        Begun(key(3), 1, "(0,9)", NOW, "a"),
        Closed(key(3), "(0,9)"),
        prepared(3, 4, 5),
        Prepared(key(0), ()),
        Settled(key(3), True),
        Settled(key(3), False),
        Marker(key(3), 7, "(1,2)"),
        Probe("x"),
    ],
)
def test_records_are_read_as_they_were_written(record: Record) -> None:
    assert decode(encode(record), "t") == record


@pytest.mark.parametrize(
    "payload",
    [b"", b"hello", b"[]", b"{}", b'{"v":2,"kind":"probe","token":""}', b'{"v":1,"kind":"other"}'],
)
def test_other_messages_are_an_error_that_names_the_topic(payload: bytes) -> None:
    with pytest.raises(ConfigurationError, match="orders-journal has a message"):
        decode(payload, "orders-journal")


def ids(found: list[Begun]) -> list[str]:
    return [each.txn for each in found]


def test_transactions_of_this_and_older_batches_are_left_open_unless_prepared() -> None:
    journal = Journal(
        [
            begun(1, 4),  # a killed attempt of an older batch
            begun(2, 5),
            begun(3, 5),  # a speculative attempt
            prepared(5, 2),
            begun(4, 6),  # of the next batch
            begun(5, 5, query="other"),
        ]
    )
    assert ids(journal.left_open(key(5), NOW)) == ["(0,1)", "(0,3)"]
    assert ids(journal.left_open(key(6), NOW)) == ["(0,1)", "(0,3)", "(0,4)"]


def test_ids_are_not_aborted_after_their_timeout() -> None:
    """In a new cluster the same id is another transaction."""
    journal = Journal([begun(1, 5, deadline_ms=NOW - HOUR), begun(2, 5, deadline_ms=NOW - 1)])
    assert ids(journal.left_open(key(5), NOW)) == ["(0,2)"]  # clocks may differ


def test_a_prepared_batch_is_unsettled_until_its_end_is_stored() -> None:
    first = prepared(5, 1)
    journal = Journal([first])
    assert journal.unsettled() == [first] and journal.last_committed() is None
    journal.add(Settled(key(5), True))
    assert journal.unsettled() == [] and journal.last_committed() == key(5)
    assert journal.prepared(key(5)) == first and journal.is_committed(key(5))


def test_a_batch_that_is_not_visible_can_be_prepared_again() -> None:
    second = prepared(5, 2)
    journal = Journal([prepared(5, 1), Settled(key(5), False)])
    assert journal.prepared(key(5)) is None and journal.last_committed() is None
    journal.add(second)
    assert journal.prepared(key(5)) == second and journal.unsettled() == [second]


def test_a_record_that_was_stored_twice_counts_once() -> None:
    """Its producer lost its connection before the receipt."""
    same = prepared(5, 1)
    journal = Journal([same, same, Settled(key(5), True), same])
    assert journal.unsettled() == [] and journal.is_committed(key(5))


def test_the_newest_committed_batch_counts() -> None:
    journal = Journal([prepared(1, 1), Settled(key(1), True), prepared(2, 2)])
    assert journal.last_committed() == key(1)
    journal.add(Settled(key(2), True))
    assert journal.last_committed() == key(2)
    journal.add(prepared(0, 3, query="new checkpoint"))
    journal.add(Settled(key(0, "new checkpoint"), True))
    assert journal.last_committed() == key(0, "new checkpoint")
    assert journal.newest_query() == "new checkpoint"


def test_a_later_read_needs_the_newest_prepared_batch_and_open_transactions() -> None:
    records: list[Record] = [Probe("a"), prepared(1, 1), Settled(key(1), True), begun(2, 2)]
    assert Journal(records).first_needed(set(), NOW) == 1
    records += [begun(3, 2), prepared(2, 3), Settled(key(2), True)]
    assert Journal(records).first_needed(set(), NOW) == 3  # (0,2) may be open
    assert Journal(records).first_needed({"(0,2)"}, NOW) == 5
    assert Journal(records).first_needed(set(), NOW + 2 * HOUR) == 5
    assert Journal([Probe("a")]).first_needed(set(), NOW) == 1


def test_a_later_read_needs_unsettled_batches_of_others_until_their_timeout() -> None:
    journal = Journal([prepared(0, 1, query="dead"), prepared(0, 2), Settled(key(0), True)])
    assert journal.first_needed(set(), NOW) == 0
    assert journal.first_needed(set(), NOW + 2 * HOUR) == 1


def test_another_query_in_the_journal_is_noticed_while_its_transactions_are_open() -> None:
    journal = Journal([begun(1, 0, query="other"), begun(2, 0)])
    assert journal.foreign("q", NOW) == "other"
    assert journal.foreign("q", NOW + 2 * HOUR) is None
    assert Journal([begun(2, 0)]).foreign("q", NOW) is None


# Decisions about a prepared batch


BATCH = Prepared(key(5), (task(1, marker=8), task(2, marker=3), task(3, marker=9)))


def test_the_first_marker_decides_whether_anything_is_committed() -> None:
    assert first_of(BATCH.tasks).txn == "(0,2)"


@pytest.mark.parametrize(
    ("visible", "step"),
    [
        (set(), Step.COMMIT_IN_TURN),
        ({"(0,2)"}, Step.COMMIT),
        ({"(0,1)", "(0,2)"}, Step.COMMIT),
        ({"(0,1)", "(0,2)", "(0,3)"}, Step.NOTHING),
        ({"(0,9)"}, Step.COMMIT_IN_TURN),  # of another attempt
    ],
)
def test_what_is_visible_decides_about_the_others(visible: set[str], step: Step) -> None:
    assert next_step(BATCH, visible, NOW) is step


def test_a_batch_of_which_one_transaction_is_late_is_aborted_unless_a_part_is_visible() -> None:
    late = Prepared(key(5), (task(1), task(2, deadline_ms=NOW - 1)))
    assert next_step(late, set(), NOW) is Step.ABORT
    assert next_step(late, {"(0,1)"}, NOW) is Step.COMMIT
    assert next_step(late, {"(0,2)"}, NOW) is Step.COMMIT


def test_a_batch_is_late_when_a_transaction_ends_within_the_margin() -> None:
    tasks = [task(1, deadline_ms=NOW + 100), task(2, deadline_ms=NOW + 200)]
    assert not is_late(tasks, NOW, margin_ms=99)
    assert is_late(tasks, NOW, margin_ms=100)
    assert not is_late([], NOW, margin_ms=100)


def test_all_markers_none_or_some() -> None:
    assert outcome_of(BATCH, {"(0,1)", "(0,2)", "(0,3)", "(0,9)"}) is Outcome.COMMITTED
    assert outcome_of(BATCH, {"(0,9)"}) is Outcome.NONE
    assert outcome_of(BATCH, {"(0,2)"}) is Outcome.PARTIAL


def test_the_error_of_a_part_names_the_tasks() -> None:
    text = lost_text(BATCH, {"(0,2)"})
    assert "batch 5 of the query q: 1 of its 3 tasks are committed" in text
    assert "1 (transaction (0,1)), 3 (transaction (0,3))" in text


def test_a_batch_without_rows_is_committed() -> None:
    empty = Prepared(key(5), ())
    assert next_step(empty, set(), NOW) is Step.NOTHING
    assert outcome_of(empty, set()) is Outcome.COMMITTED


# Shared transactions


SHARED = "(0,9)"
START = Probe("start")


def joined(partition: int, attempt: str, txn: str = SHARED) -> Begun:
    return Begun(key(5), partition, txn, NOW + HOUR, attempt)


CLOSED = Closed(key(5), SHARED)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([], Entry.ALLOWED),
        ([joined(0, "other")], Entry.TAKEN),
        ([joined(1, "other")], Entry.ALLOWED),
        ([joined(0, "of an older run", "(0,8)")], Entry.ALLOWED),
        ([Closed(key(5), "(0,8)")], Entry.ALLOWED),
        ([CLOSED], Entry.CLOSED),
        ([joined(0, "other"), CLOSED], Entry.CLOSED),
        ([Begun(key(5), DRIVER, SHARED, NOW + HOUR)], Entry.ALLOWED),
    ],
)
def test_one_attempt_at_each_task_enters_a_shared_transaction_until_it_is_closed(
    before: list[Record], expected: Entry
) -> None:
    mine = joined(0, "mine")
    assert entry_of([START, *before, mine], START, mine) is expected


def test_an_attempt_does_not_enter_if_the_begin_of_the_batch_is_gone() -> None:
    """The record `Closed` may be gone, too."""
    mine = joined(0, "mine")
    for records in ([mine], [], [Probe("later"), mine], [START]):
        assert entry_of(records, START, mine) is Entry.CLOSED


def test_an_attempt_that_was_stored_twice_enters() -> None:
    mine = joined(0, "mine")
    assert entry_of([START, mine, mine], START, mine) is Entry.ALLOWED


@pytest.mark.parametrize(
    ("records", "accepted", "expected"),
    [
        ([joined(0, "a"), joined(1, "b")], {0: "a", 1: "b"}, []),
        ([joined(0, "a"), joined(0, "a")], {0: "a"}, []),
        # The first attempt has failed. The second one, which was refused, has sent nothing.
        ([joined(0, "a"), joined(0, "refused")], {}, [0]),
        ([joined(0, "a"), joined(0, "refused")], {0: "a"}, []),
        ([joined(0, "a"), joined(0, "b")], {0: "b"}, [0]),
        # The second attempt had no rows.
        ([joined(0, "failed"), joined(1, "b")], {1: "b"}, [0]),
        ([joined(1, "b")], {0: "not stored", 1: "b"}, [0]),
        ([joined(0, "a", "(0,8)"), joined(0, "b")], {0: "b"}, []),
        ([joined(0, "a"), CLOSED, joined(1, "late")], {0: "a"}, []),
        ([Begun(key(5), DRIVER, SHARED, NOW + HOUR), joined(0, "a")], {0: "a"}, []),
    ],
)
def test_rows_of_an_attempt_that_was_not_accepted_spoil_a_shared_transaction(
    records: list[Record], accepted: dict[int, str], expected: list[int]
) -> None:
    assert spoiled(records, SHARED, accepted) == expected


def test_no_attempt_can_send_that_the_driver_has_not_seen() -> None:
    """For each order of two attempts and `Closed`: an attempt that enters is known or accepted."""
    for place in range(3):
        records: list[Record] = [joined(0, "a"), joined(1, "b")]
        records.insert(place, CLOSED)
        for each in records:
            if isinstance(each, Begun):
                enters = entry_of([START, *records], START, each) is Entry.ALLOWED
                assert enters == (each.partition in spoiled(records, SHARED, {}))


def test_one_entry_stands_for_all_tasks_of_a_shared_transaction() -> None:
    tasks = [TaskTransaction(each, SHARED, NOW + HOUR, (5, each % 3)) for each in range(4)]
    batch = Prepared(key(5), (shared_task(tasks),))
    assert batch.tasks[0].marker == (5, 2)
    assert next_step(batch, set(), NOW) is Step.COMMIT_IN_TURN
    assert outcome_of(batch, set()) is Outcome.NONE
    assert outcome_of(batch, {SHARED}) is Outcome.COMMITTED


def test_a_prepared_shared_transaction_is_not_left_open() -> None:
    records: list[Record] = [joined(0, "a"), joined(1, "b"), CLOSED]
    journal = Journal(records)
    assert set(ids(journal.left_open(key(5), NOW))) == {SHARED}
    assert not journal.has_prepared(SHARED)
    journal.add(Prepared(key(5), (TaskTransaction(1, SHARED, NOW + HOUR, (5, 1)),)))
    assert journal.has_prepared(SHARED)
    assert journal.left_open(key(5), NOW) == []


def test_the_errors_of_a_shared_transaction_name_tasks_and_say_what_to_do() -> None:
    mine = joined(3, "mine")
    assert "attempts at these tasks" in spoiled_text(key(5), SHARED, [3, 4])
    assert "did not end well: 3, 4" in spoiled_text(key(5), SHARED, [3, 4])
    assert "another attempt at task 3" in refusal_text(mine, Entry.TAKEN)
    assert "spark.speculation must be off" in refusal_text(mine, Entry.TAKEN)
    assert "the driver has closed" in refusal_text(mine, Entry.CLOSED)
