"""The checker on hand-written records: each kind of finding, and the nearest case without one."""

from __future__ import annotations

import math

from tests.harness.transfers.transfer_checker import Attempt, Outcome, Output, Record, check


def attempt(
    number: int,
    *inputs: int,
    outcome: Outcome = "committed",
    at_s: float = 0.0,
    took_s: float = 1.0,
) -> Attempt:
    return Attempt(
        number=number,
        process=0,
        received=dict.fromkeys(inputs, at_s),
        sent=set(inputs),
        outcome=outcome,
        ended_s=at_s + took_s,
    )


def kinds(record: Record) -> list[str]:
    return [finding.kind for finding in check(record)]


def test_one_output_of_each_acked_input_is_right() -> None:
    record = Record(inputs=2, attempts=[attempt(0, 0, 1)], outputs=[Output(0, 0), Output(1, 0)])
    assert check(record) == []


def test_a_doubled_output_is_found() -> None:
    record = Record(
        inputs=1,
        attempts=[attempt(0, 0), attempt(1, 0)],
        outputs=[Output(0, 0), Output(0, 1)],
    )
    assert kinds(record) == ["doubled output"]


def test_an_output_that_one_attempt_sent_twice_is_found() -> None:
    record = Record(inputs=1, attempts=[attempt(0, 0)], outputs=[Output(0, 0), Output(0, 0)])
    assert kinds(record) == ["doubled output"]


def test_a_lost_input_is_found() -> None:
    record = Record(inputs=2, attempts=[attempt(0, 1)], outputs=[Output(1, 0)])
    assert kinds(record) == ["lost input"]
    record.finished = False  # it is acked all the same
    assert kinds(record) == ["lost input"]


def test_an_output_without_an_ack_is_found() -> None:
    record = Record(inputs=1, attempts=[attempt(0, 0)], outputs=[Output(0, 0)], left=[0])
    assert kinds(record) == ["output without ack"]
    record.finished = False
    assert kinds(record) == ["output without ack"]


def test_an_input_without_output_and_ack_is_right_only_if_the_history_stopped_early() -> None:
    record = Record(inputs=1, left=[0], finished=False)
    assert kinds(record) == []
    record.finished = True
    assert kinds(record) == ["input not done"]


def test_an_input_that_a_new_consumer_gets_twice_is_found() -> None:
    record = Record(inputs=1, left=[0, 0], finished=False)
    assert kinds(record) == ["doubled input"]


def test_an_output_without_an_input_is_found() -> None:
    record = Record(inputs=1, attempts=[attempt(0, 0)], outputs=[Output(0, 0), Output(5, 0)])
    assert kinds(record) == ["foreign output"]


def test_a_commit_that_is_not_visible_is_found() -> None:
    record = Record(inputs=1, attempts=[attempt(0, 0), attempt(1, 0)], outputs=[Output(0, 1)])
    assert kinds(record) == ["wrong report"]


def test_an_abort_that_is_visible_is_found() -> None:
    record = Record(inputs=1, attempts=[attempt(0, 0, outcome="aborted")], outputs=[Output(0, 0)])
    assert kinds(record) == ["wrong report"]


def test_an_unknown_outcome_reports_nothing() -> None:
    first = attempt(0, 0, outcome="unknown")
    record = Record(inputs=1, attempts=[first], outputs=[Output(0, 0)])
    assert kinds(record) == []
    record.attempts.append(attempt(1, 0))
    record.outputs = [Output(0, 1)]
    assert kinds(record) == []


def test_wrong_order_is_found() -> None:
    record = Record(
        inputs=2,
        ordered=True,
        attempts=[attempt(0, 1, at_s=0.0), attempt(1, 0, at_s=5.0)],
        outputs=[Output(1, 0), Output(0, 1)],
    )
    assert kinds(record) == ["order"]
    record.ordered = False
    assert kinds(record) == []


def test_wrong_order_in_one_transaction_is_found() -> None:
    record = Record(
        inputs=2,
        ordered=True,
        attempts=[attempt(0, 0, 1)],
        outputs=[Output(1, 0), Output(0, 0)],
    )
    assert kinds(record) == ["order"]


def test_only_the_order_of_a_key_counts() -> None:
    record = Record(
        inputs=3,
        keys=2,
        ordered=True,
        attempts=[attempt(0, 0, 1, 2)],
        outputs=[Output(1, 0), Output(0, 0), Output(2, 0)],
    )
    assert kinds(record) == []
    record.outputs = [Output(1, 0), Output(2, 0), Output(0, 0)]
    assert kinds(record) == ["order"]


def test_an_input_in_an_open_transaction_is_passed_by_later_ones() -> None:
    record = Record(
        inputs=2,
        ordered=True,
        attempts=[
            attempt(0, 0, outcome="unknown", took_s=math.inf),
            attempt(1, 1, at_s=5.0),
            attempt(2, 0, at_s=9.0),
        ],
        outputs=[Output(1, 1), Output(0, 2)],
    )
    assert kinds(record) == []
    record.attempts[0].ended_s = 4.0  # its end was known before the later one was received
    assert kinds(record) == ["order"]


def test_an_error_of_the_run_is_a_finding() -> None:
    record = Record(inputs=0, problems=["no broker"])
    assert [str(finding) for finding in check(record)] == ["run: no broker"]
