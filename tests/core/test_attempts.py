"""Counts of failed looks: what they remember, and what a million failures weigh."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.core import attempts as module
from pulsar_encore.core.attempts import Attempts
from pulsar_encore.letters.evidence import Evidence


def failure(number: int, size: int = 4_000) -> Evidence:
    return Evidence("nack", "ValueError", f"{number}", f"{number} in ".ljust(size, "x"), "abc")


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["x", "y", None])), max_size=60))
def test_looks_add_up_and_keep_the_first_time_and_the_last_evidence(
    steps: list[tuple[int, str | None]],
) -> None:
    attempts = Attempts()
    model: dict[int, list[tuple[int, str | None]]] = {}
    for now, (entry, reason) in enumerate(steps):
        attempts.failed((1, entry, -1), now, None if reason is None else Evidence(reason=reason))
        model.setdefault(entry, []).append((now, reason))
    for entry, failures in model.items():
        said = [reason for _, reason in failures if reason is not None]
        last = Evidence(reason=said[-1]) if said else None
        expected = (len(failures), failures[0][0], last)
        assert attempts.count((1, entry, -1)) == len(failures)
        assert attempts.get((1, entry, -1)) == expected
        assert attempts.pop((1, entry, -1)) == expected
        assert attempts.pop((1, entry, -1)) is None
    assert attempts.count((9, 9, -1)) == 0 and not attempts


def test_the_oldest_message_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 3)
    attempts = Attempts()
    for entry in (1, 2, 3, 1, 4):
        attempts.failed((1, entry, -1), 0, None)
    assert [attempts.count((1, entry, -1)) for entry in (1, 2, 3, 4)] == [2, 0, 1, 1]


def test_to_forget_the_oldest_costs_no_walk_over_what_was_forgotten() -> None:
    attempts = Attempts()

    def cost(first: int, count: int) -> float:
        began = time.thread_time()
        for entry in range(first, first + count):
            attempts.failed((1, entry, -1), 0, None)
        return (time.thread_time() - began) / count

    below = cost(0, module.LIMIT)
    full = max(cost(module.LIMIT + at * 10_000, 10_000) for at in range(7))
    assert len(attempts) == module.LIMIT
    assert full < 5 * below


def test_what_failures_said_is_bounded_in_bytes_and_counts_stay() -> None:
    """Each stack is a text of its own: without the bound these would be 160 MB."""
    attempts = Attempts()
    failures = 40_000
    tracemalloc.start()
    try:
        for entry in range(failures):
            attempts.failed((1, entry, -1), 0, failure(entry))
        weight, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert weight < 40 * 2**20
    assert all(attempts.count((1, entry, -1)) == 1 for entry in range(failures))
    kept = [entry for entry in range(failures) if attempts.get((1, entry, -1)) != (1, 0, None)]
    assert 3_000 < len(kept)
    assert kept == list(range(failures - len(kept), failures))
    assert attempts.get((1, kept[-1], -1)) == (1, 0, failure(kept[-1]))


def test_what_was_settled_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVIDENCE_BYTES", 10_000)
    attempts = Attempts()
    for entry in range(50):
        attempts.failed((1, entry, -1), 0, failure(entry))
        attempts.failed((1, entry, -1), 0, failure(entry))
        attempts.pop((1, entry, -1))
    attempts.failed((1, 1, -1), 0, failure(1))
    attempts.clear()
    attempts.failed((1, 2, -1), 0, failure(2))
    attempts.failed((1, 3, -1), 0, failure(3))
    assert attempts.get((1, 2, -1)) == (1, 0, failure(2))
    assert attempts.get((1, 3, -1)) == (1, 0, failure(3))


def test_a_reason_without_a_text_weighs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVIDENCE_BYTES", 0)
    attempts = Attempts()
    attempts.failed((1, 1, -1), 0, Evidence("ack timeout", fingerprint="abc"))
    assert attempts.get((1, 1, -1)) == (1, 0, Evidence("ack timeout", fingerprint="abc"))
