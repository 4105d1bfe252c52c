"""Frames without a receipt, compared with a model that rewrites a list at each step."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulsar_encore.transport.native.producer.unconfirmed_frames import (
    OutOfStepError,
    SendFrame,
    UnconfirmedFrames,
)


def frame_of(number: int) -> SendFrame:
    return SendFrame(b"frame %d" % number, number, [], since=float(number), last=number)


class PendingModel(RuleBasedStateMachine):
    """A broker that reads written frames in order and answers in order, sometimes too late."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = UnconfirmedFrames()
        self.numbers = count()
        self.waited: list[SendFrame] = []  # frames that a caller awaits, in order
        self.wire: list[int] = []  # frames that the broker has to answer

    @rule()
    def add(self) -> None:
        each = frame_of(next(self.numbers))
        self.pending.add([each])
        self.waited.append(each)

    @rule()
    def write(self) -> None:
        frames = []
        while self.pending.has_unwritten:  # in several steps
            frames += self.pending.to_write(10, 10)
        new = [each for each in self.waited if each.sequence_id not in self.wire]
        assert frames == [each.data for each in new]
        self.wire += [each.sequence_id for each in new]

    @precondition(lambda self: self.wire)
    @rule()
    def receipt(self) -> None:
        number = self.wire.pop(0)
        got = self.pending.receipt(number)
        if self.waited and self.waited[0].sequence_id == number:
            assert got is self.waited.pop(0)
            assert self.pending.receipt(number) is None, "given twice"
        else:
            assert got is None

    @precondition(lambda self: len(self.wire) > 1)
    @rule(at=st.integers(1, 5))
    def a_receipt_too_early(self, at: int) -> None:
        if at >= len(self.wire):
            return
        number = self.wire[at]
        alive = {each.sequence_id: each for each in self.waited}
        before = [each for each in self.wire[:at] if each in alive]
        if before:
            with pytest.raises(OutOfStepError, match=str(before[0])):
                self.pending.receipt(number)
            self.wire = self.wire[self.wire.index(before[0]) :]
        else:
            assert self.pending.receipt(number) is alive.get(number)
            self.wire = self.wire[at + 1 :]
            self.waited = [each for each in self.waited if each.sequence_id != number]

    @precondition(lambda self: self.wire)
    @rule(at=st.integers(0, 5))
    def refuse(self, at: int) -> None:
        number = self.wire.pop(min(at, len(self.wire) - 1))
        got = self.pending.refused(number)
        waited = [each for each in self.waited if each.sequence_id == number]
        assert got is (waited[0] if waited else None)
        self.waited = [each for each in self.waited if each is not got]

    @rule()
    def an_answer_that_nobody_asked_for(self) -> None:
        assert self.pending.receipt(10**9) is None
        assert self.pending.refused(10**9) is None

    @rule(keep=st.integers(0, 3))
    def give_up(self, keep: int) -> None:
        dropped = self.waited[: max(0, len(self.waited) - keep)]
        self.pending.drop(dropped)
        self.waited = self.waited[len(dropped) :]

    @rule()
    def disconnect(self) -> None:
        self.pending.disconnected()
        self.wire.clear()

    @invariant()
    def agrees(self) -> None:
        assert self.pending.all() == self.waited
        assert self.pending.oldest is (self.waited[0] if self.waited else None)
        alive = {each.sequence_id for each in self.waited}
        assert self.pending.unanswered == len([each for each in self.wire if each not in alive])


TestPending = PendingModel.TestCase


def test_a_refusal_names_the_last_message_of_a_batch() -> None:
    # Pulsar 4.2.4 does so. A message whose refusal was not recognised was resent until its timeout.
    pending = UnconfirmedFrames()
    batches = [SendFrame(b"x", first, [], since=0.0, last=first + 9) for first in (0, 10, 20)]
    pending.add(batches)
    pending.to_write(10, 10)
    assert pending.receipt(0) is batches[0]
    assert pending.on_wire(19) is batches[1]
    assert pending.refused(19) is batches[1]
    assert pending.refused(19) is None
    assert pending.receipt(20) is batches[2]
