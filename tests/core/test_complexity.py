"""Count how work grows, in steps: function calls and walks over stored keys.

The tests measure no time, so a slow machine does not change their results.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from core_kit import TOPIC, make_topic_state

from pulsar_encore import ClosedError
from pulsar_encore.consumer.settlement.ack_sender import AckSender
from pulsar_encore.core.entry import Entry, EntryKey
from pulsar_encore.core.rewind_check import Admission, Rewind
from pulsar_encore.core.topic_state import TopicState
from pulsar_encore.options import ConsumerOptions

FEW, MANY = 10_000, 40_000
# Limit on the growth of the steps for four times the work. Quadratic cost would grow 16 times.
LINEAR = 6


class Steps:
    """Calls, in Python and in C, made while it is entered; and keys that were walked over."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Steps:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            self.count += 1


class Walked(dict[Any, Any]):
    """A dict that counts the keys that an iteration visits."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            self.steps.count += 1
            yield key

    def keys(self) -> Any:
        return iter(self)

    def values(self) -> Any:
        return (self[key] for key in self)

    def items(self) -> Any:
        return ((key, self[key]) for key in self)


def topic_state_with(held: int, *, shared: bool, batch: int = 0) -> tuple[TopicState, list[Entry]]:
    """Return a topic state with the given number of held entries."""
    topic_state = make_topic_state(shared=shared)
    entries = []
    for number in range(held):
        if topic_state.rewind is not None:
            topic_state.rewind.judge((1, number), 0)
        entry, _ = topic_state.arrive((1, number), batch, 0, range(batch or 1))
        assert entry is not None
        for index in range(entry.size):
            entry.deliver(index)
        entries.append(entry)
    return topic_state, entries


async def sender_that_cannot_send(topic_state: TopicState) -> AckSender:
    options = ConsumerOptions(topics=(TOPIC,), pattern=None, subscription_name="s")
    transport_consumer: Any = SimpleNamespace(can_ack=lambda topic_state: False)
    queue: Any = []
    topic_states: Any = [topic_state]
    return AckSender(transport_consumer, topic_states, options, asyncio.get_running_loop(), queue)


async def acking_while_away(count: int, batch: int) -> int:
    topic_state, entries = topic_state_with(count, shared=True, batch=batch)
    sender = await sender_that_cannot_send(topic_state)
    steps = Steps()
    topic_state.acks._whole = Walked(steps)
    topic_state.acks._parts = Walked(steps)
    with steps:
        for entry in entries:
            sender.added(topic_state, topic_state.ack(entry, 0))
    assert len(topic_state.acks) == count, "nothing is lost for it"
    sender.close(ClosedError())
    return steps.count


@pytest.mark.parametrize("batch", [0, 2], ids=["whole entries", "parts"])
async def test_an_ack_while_disconnected_takes_constant_steps(batch: int) -> None:
    few, many = await acking_while_away(FEW, batch), await acking_while_away(MANY, batch)
    assert many <= LINEAR * few
    assert many <= 40 * MANY, "steps for an ack"


async def test_taking_pending_acks_is_linear() -> None:
    def sent(count: int) -> int:
        topic_state, entries = topic_state_with(count, shared=True)
        for entry in entries:
            topic_state.ack(entry, 0)
        steps = Steps()
        topic_state.acks._whole, waiting = Walked(steps), topic_state.acks._whole
        topic_state.acks._whole.update(waiting)
        with steps:
            unsent = topic_state.acks.take(0)
        assert len(unsent.whole) == count
        return steps.count

    assert sent(MANY) <= LINEAR * sent(FEW)


def counted(work: Callable[[], object]) -> int:
    with Steps() as steps:
        work()
    return steps.count


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "exclusive"])
@pytest.mark.parametrize("batch", [0, 3], ids=["plain", "batches"])
def test_releasing_all_messages_is_linear(shared: bool, batch: int) -> None:
    def given_back(count: int) -> int:
        topic_state, _ = topic_state_with(count, shared=shared, batch=batch)
        return counted(topic_state.release_all)

    few, many = given_back(FEW), given_back(MANY)
    assert many <= LINEAR * few
    assert many <= 60 * MANY, "steps for an entry"


def test_beginning_a_rewind_is_linear() -> None:
    def begun(count: int) -> int:
        rewind = Rewind()
        given_back: list[tuple[EntryKey, int]] = [((1, number), 0) for number in range(count)]
        return counted(lambda: rewind.begin(given_back))

    assert begun(MANY) <= LINEAR * begun(FEW)


def judging(owed: int, numbers: range) -> int:
    """Count the steps of a delivery while the given number of entries is owed."""
    rewind = Rewind()
    for number in range(owed):
        rewind.judge((1, number), 0)
    rewind.begin(((1, number), 0) for number in range(owed))

    def judge() -> None:
        for number in numbers:
            rewind.judge((1, number), 0)

    return counted(judge)


def test_judging_a_delivery_takes_constant_steps_however_much_is_owed() -> None:
    comes_again = range(1_000)
    few, many = judging(FEW, comes_again), judging(MANY, comes_again)
    assert many <= 1.5 * few, "of what is owed"

    few, many = judging(FEW, range(FEW, FEW + 1_000)), judging(MANY, range(MANY, MANY + 1_000))
    assert many <= 1.5 * few, "of leftovers"
    assert many <= 40 * 1_000


def test_giving_up_missing_entries_is_linear() -> None:
    def given_up(count: int) -> int:
        rewind = Rewind()
        for number in range(count):
            rewind.judge((1, number), 0)
        rewind.begin(((1, number), 0) for number in range(count))

        def judge() -> None:
            verdicts = [rewind.judge((1, count - 1), 0) for _ in range(3)]
            assert verdicts == [Admission.REWIND, Admission.REWIND, Admission.ADMIT]

        return counted(judge)

    assert given_up(MANY) <= LINEAR * given_up(FEW)


def test_settling_owed_entries_is_linear() -> None:
    def settled(count: int) -> int:
        rewind = Rewind()
        rewind.begin(((1, number), 0) for number in range(count))

        def settle() -> None:
            for number in range(count):
                rewind.settled((1, number))

        return counted(settle)

    assert settled(MANY) <= LINEAR * settled(FEW)


def test_a_cumulative_ack_takes_steps_only_for_the_messages_it_settles() -> None:
    """However much is queued behind it."""

    def acked(count: int) -> int:
        topic_state, entries = topic_state_with(count, shared=False)
        steps = Steps()
        topic_state.table.entries, before = Walked(steps), topic_state.table.entries
        topic_state.table.entries.update(before)
        with steps:
            for entry in entries[:100]:
                topic_state.ack_cumulative(entry.key, 0, 1)
        return steps.count

    assert acked(MANY) <= acked(FEW) * 1.5
