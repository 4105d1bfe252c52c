"""Durable state is an observer: its null object has the same methods, and is not called for plain
messages."""

from __future__ import annotations

import inspect

import pytest
from core_kit import make_topic_state

from pulsar_encore.core.durable_observer import DurableObserver, Observer

METHODS = [name for name, _ in inspect.getmembers(Observer, inspect.isfunction)]


def test_null_object_and_observer_have_the_same_methods() -> None:
    real = [name for name, _ in inspect.getmembers(DurableObserver, inspect.isfunction)]
    assert [name for name in real if name != "__init__"] == METHODS
    for name in METHODS:
        null, full = (
            inspect.signature(getattr(kind, name)) for kind in (Observer, DurableObserver)
        )
        assert null == full, name


@pytest.mark.parametrize("batch_size", [0, 3])
@pytest.mark.parametrize("shared", [True, False])
def test_plain_messages_call_no_observer(
    monkeypatch: pytest.MonkeyPatch, shared: bool, batch_size: int
) -> None:
    topic_state = make_topic_state(shared=shared)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the observer was called")

    for name in METHODS:
        monkeypatch.setattr(Observer, name, fail)
    monkeypatch.setattr(Observer, "has_records", property(fail))
    entries = [] if batch_size else topic_state.arrive_first([(1, 0), (1, 1)])
    for number in (2, 3):
        entry, positions = topic_state.arrive((1, number), batch_size, 0, range(batch_size or 1))
        assert entry is not None and len(positions) == (batch_size or 1)
        entries.append(entry)
    for entry in entries:
        for index in range(entry.size):
            assert entry.deliver(index)
            topic_state.ack(entry, index)
    assert topic_state.unacked == 0
