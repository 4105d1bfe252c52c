"""Attempts at a poison message of a batch on several consumers, in every order of events.

m is `max_redeliver_count`. "Prompt" consumers try all delivered messages before any other event;
the bound of m + 1 holds for them, and m + 2 if messages of a batch time out one by one: of two
requests before a delivery, the broker may count both, and the second one is taken for counted. A
slow consumer still holds messages of a batch that other consumers have received meanwhile. Each ack
of such a message resets the count of the broker, so the bound is wider.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from fleet_world import POISON, Fleet, Violation, play, walk

from pulsar_encore.core.attempts import Attempts
from pulsar_encore.core.nack_verdicts import DeadLetter, Verdicts

P = POISON
FAILURES: Any = ["nack", "timeout"]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("consumers", [1, 2, 3, 4])
def test_a_batch_that_always_fails_is_tried_m_plus_1_times(
    consumers: int, most: int, failure: Any
) -> None:
    fleet = Fleet(
        failing=(P, P), consumers=consumers, most=most, failure=failure, prompt=True, together=True
    )
    one_by_one = consumers > 1 and failure == "timeout"
    assert most + 1 <= walk(fleet).attempts <= most + 1 + one_by_one


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("consumers", [2, 3, 4])
def test_another_message_that_fails_once_costs_at_most_one_more_attempt(
    consumers: int, most: int
) -> None:
    for failing, bound in (((P, 0), most + 1), ((P, 1), most + 2), ((P, 0, 1), most + 2)):
        fleet = Fleet(failing=failing, consumers=consumers, most=most, prompt=True, together=True)
        walked = walk(fleet)
        assert walked.attempts <= bound, failing
        assert not walked.healthy_dead, failing


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("most", [1, 2])
def test_one_consumer_counts_each_message_by_itself_in_any_order(most: int, failure: Any) -> None:
    for failing in ((P, P), (P, 0), (P, 1), (P, most)):
        walked = walk(Fleet(failing=failing, consumers=1, most=most, failure=failure))
        assert walked.attempts == most + 1, failing
        assert not walked.healthy_dead, failing


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("consumers", [2, 3])
def test_attempts_of_two_messages_stay_within_the_bounds_in_any_order(
    consumers: int, failure: Any
) -> None:
    for most, failing in ((1, (P, P)), (1, (P, 0)), (1, (P, 1)), (2, (P, 0))):
        walked = walk(Fleet(failing=failing, consumers=consumers, most=most, failure=failure))
        assert walked.attempts <= (most + 2 if most == 1 else 2 * (most + 1)), (most, failing)


def test_a_lost_connection_is_no_attempt() -> None:
    walked = walk(Fleet(failing=(0, 0), consumers=2, most=1, crashes=2))
    assert not walked.healthy_dead
    walked = walk(Fleet(failing=(P, 0), consumers=2, most=1, crashes=1))
    assert walked.attempts <= 4


@pytest.mark.parametrize("consumers", [10, 30])
@pytest.mark.parametrize("failure", FAILURES)
def test_the_attempts_do_not_grow_with_the_number_of_consumers(
    consumers: int, failure: Any
) -> None:
    for seed in range(5):
        for most in (1, 3):
            fleet = Fleet(
                failing=(P,) * 10,
                consumers=consumers,
                most=most,
                failure=failure,
                prompt=True,
                together=True,
            )
            world = play(fleet, Random(seed))
            assert max(world.attempts) == most + 1
            assert world.dead == [1] * 10


# The walk finds wrong rules


def test_counts_that_ignore_other_consumers_grow_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Attempts, "batch_delivered", lambda *_: 0)
    found = [
        walk(Fleet(failing=(P, P), consumers=number, most=1, prompt=True, together=True)).attempts
        for number in (1, 2, 3, 4)
    ]
    assert found == [2, 3, 4, 5]


def test_the_count_of_the_broker_alone_dead_letters_healthy_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def on_arrival(self: Verdicts, failed: int, *, tried_here: bool = True) -> DeadLetter | None:
        return DeadLetter("redelivered too often") if failed > 1 else None

    monkeypatch.setattr(Verdicts, "on_arrival", on_arrival)
    monkeypatch.setattr(Verdicts, "is_last", lambda *_: False)
    with pytest.raises(Violation, match="never failed"):
        walk(Fleet(failing=(P, 0), consumers=2, most=1, failure="timeout"))


def test_a_world_ends_with_every_message_settled() -> None:
    world = play(Fleet(failing=(P, 1, 0), consumers=3, most=2), Random(1))
    assert world.acked == {0, 1, 2} and world.dead[0] >= 1
