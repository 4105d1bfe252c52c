"""Failed attempts: their counts, their evidence, and the memory that a million failures take."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from core_kit import make_topic_state
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.core import attempts as module
from pulsar_encore.core.attempts import Attempts
from pulsar_encore.core.entry import Entry
from pulsar_encore.core.message_key import MessageKey
from pulsar_encore.letters.evidence import Evidence


def failure(number: int, size: int = 4_000) -> Evidence:
    return Evidence("nack", "ValueError", f"{number}", f"{number} in ".ljust(size, "x"), "abc")


def counted(attempts: Attempts, key: MessageKey) -> int:
    failures = attempts.failures_of(key)
    return 0 if failures is None else failures.attempts


def test_counts_in_a_batch_are_per_message_and_include_only_failures() -> None:
    attempts = Attempts()
    entry = Entry(None, (1, 2), 3, True)
    assert [attempts.count(entry, index) for index in range(3)] == [0, 0, 0]
    attempts.add_failed(entry, [1, 2])
    attempts.add_failed(entry, [1])
    assert [attempts.count(entry, index) for index in range(3)] == [0, 2, 1]


def test_attempts_of_an_unbatched_message_are_the_count_of_the_broker() -> None:
    topic_state = make_topic_state()
    entry, _ = topic_state.arrive((1, 2), 0, 4, (0,))
    assert entry is not None
    topic_state.attempts.add_failed(entry, [0])
    assert topic_state.attempts.count(entry, 0) == 4
    topic_state.arrive((1, 2), 0, 6, (0,))
    assert topic_state.attempts.count(entry, 0) == 6


def test_failures_that_the_broker_forgot_are_remembered_with_a_dead_letter_policy() -> None:
    attempts, forgetful = Attempts(remembers=True), Attempts()
    for each in (attempts, forgetful):
        each.remember((1, 2, -1), 0, None)
        each.remember((1, 3, 1), 0, None)
    batch = Entry(None, (1, 3), 2, True)
    assert attempts.remembered((1, 2, -1)) == attempts.count(batch, 1) == 1
    assert forgetful.remembered((1, 2, -1)) == forgetful.count(batch, 1) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["x", "y", None])), max_size=60))
def test_failures_add_up_and_keep_the_first_time_and_the_last_evidence(
    steps: list[tuple[int, str | None]],
) -> None:
    attempts = Attempts(remembers=True)
    model: dict[int, list[tuple[int, str | None]]] = {}
    for now, (entry, reason) in enumerate(steps):
        attempts.remember((1, entry, -1), now, None if reason is None else Evidence(reason=reason))
        model.setdefault(entry, []).append((now, reason))
    for entry, failures in model.items():
        reasons = [reason for _, reason in failures if reason is not None]
        last = Evidence(reason=reasons[-1]) if reasons else None
        expected = (len(failures), failures[0][0], last)
        assert counted(attempts, (1, entry, -1)) == len(failures)
        assert attempts.failures_of((1, entry, -1)) == expected
        assert attempts.forget((1, entry, -1)) == expected
        assert attempts.forget((1, entry, -1)) is None
    assert counted(attempts, (9, 9, -1)) == 0 and not attempts.failures


def test_failures_of_the_oldest_message_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_FAILURES", 3)
    attempts = Attempts(remembers=True)
    for entry in (1, 2, 3, 1, 4):
        attempts.remember((1, entry, -1), 0, None)
    assert [counted(attempts, (1, entry, -1)) for entry in (1, 2, 3, 4)] == [2, 0, 1, 1]


def test_forgetting_the_oldest_message_takes_constant_time() -> None:
    attempts = Attempts(remembers=True)

    def cost(first: int, count: int) -> float:
        began = time.thread_time()
        for entry in range(first, first + count):
            attempts.remember((1, entry, -1), 0, None)
        return (time.thread_time() - began) / count

    below = cost(0, module.MOST_FAILURES)
    full = max(cost(module.MOST_FAILURES + at * 10_000, 10_000) for at in range(7))
    assert len(attempts.failures) == module.MOST_FAILURES
    assert full < 5 * below


def test_evidence_is_bounded_in_bytes_and_counts_are_kept() -> None:
    """Each stack is a separate text. Without the bound they would take 160 MB."""
    attempts = Attempts(remembers=True)
    failures = 40_000
    tracemalloc.start()
    try:
        for entry in range(failures):
            attempts.remember((1, entry, -1), 0, failure(entry))
        weight, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert weight < 40 * 2**20
    assert all(counted(attempts, (1, entry, -1)) == 1 for entry in range(failures))
    kept = [
        entry for entry in range(failures) if attempts.failures_of((1, entry, -1)) != (1, 0, None)
    ]
    assert 3_000 < len(kept)
    assert kept == list(range(failures - len(kept), failures))
    assert attempts.failures_of((1, kept[-1], -1)) == (1, 0, failure(kept[-1]))


def test_settled_messages_free_bytes_for_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVIDENCE_BYTES", 10_000)
    attempts = Attempts(remembers=True)
    for entry in range(50):
        attempts.remember((1, entry, -1), 0, failure(entry))
        attempts.remember((1, entry, -1), 0, failure(entry))
        attempts.forget((1, entry, -1))
    attempts.remember((1, 1, -1), 0, failure(1))
    attempts.clear()
    attempts.remember((1, 2, -1), 0, failure(2))
    attempts.remember((1, 3, -1), 0, failure(3))
    assert attempts.failures_of((1, 2, -1)) == (1, 0, failure(2))
    assert attempts.failures_of((1, 3, -1)) == (1, 0, failure(3))


def test_evidence_without_a_text_takes_none_of_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVIDENCE_BYTES", 0)
    attempts = Attempts(remembers=True)
    attempts.remember((1, 1, -1), 0, Evidence("ack timeout", fingerprint="abc"))
    assert attempts.failures_of((1, 1, -1)) == (1, 0, Evidence("ack timeout", fingerprint="abc"))
