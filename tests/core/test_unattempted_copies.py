"""`redelivery_count` is the number of attempts that failed, whatever else the broker counts.

The model's broker counts every copy that it takes back, seen or not. Copies cross redelivery
requests, wait in the transport's queue or in ours, are returned from there, and come early.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import ANY

import pytest
from core_kit import make_topic_state
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pulsar_encore.consumer.delivery.receive_queue import ReceiveQueue
from pulsar_encore.core import duplicate_window
from pulsar_encore.core.duplicate_window import DuplicateWindow
from pulsar_encore.core.entry import Entry, EntryKey
from pulsar_encore.core.message_key import DueBatch
from pulsar_encore.core.topic_state import TopicState
from pulsar_encore.message import Message

KEYS = [(1, number) for number in range(3)]
LEAD_MS = 100


def entry_of(message: Message) -> Entry:
    """Return the entry of the tracking state that a message was delivered with."""
    assert message._entry is not None
    return message._entry


class DeliveryModel(RuleBasedStateMachine):
    """One consumer, and a broker that has it alone."""

    @initialize()
    def begin(self) -> None:
        self.topic_state = make_topic_state(lead_ms=LEAD_MS)
        self.queue = ReceiveQueue(None, lambda *_: None, ANY, lambda _: None)
        self.now = 1_000
        self.broker = dict.fromkeys(KEYS, 0)  # what is not acked there, and its count
        self.sent: set[EntryKey] = set()  # the broker believes it to be with us
        self.wire: list[tuple[EntryKey, int]] = []
        # Commands to the broker, each with the time when the transport sends it: the lead after a
        # request for single messages, at once for all messages (None).
        self.commands: list[tuple[int, list[EntryKey] | None]] = []
        self.held: dict[EntryKey, Message] = {}
        self.ended_deliveries: Counter[EntryKey] = Counter()  # that ended

    def waits(self) -> bool:
        return bool(set(self.broker) - self.sent)

    @precondition(waits)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(set(self.broker) - self.sent)))
        self.sent.add(key)
        self.wire.append((key, self.broker[key]))

    def is_sent(self) -> bool:
        return any(at_ms <= self.now for at_ms, _ in self.commands)

    @precondition(is_sent)
    @rule()
    def carry_out(self) -> None:
        sent = next(each for each in self.commands if each[0] <= self.now)
        self.commands.remove(sent)
        asked = sent[1]
        for key in self.sent & set(self.broker if asked is None else asked):
            self.sent.discard(key)
            if key in self.broker:
                self.broker[key] += 1

    @precondition(lambda self: self.wire)
    @rule()
    def come(self) -> None:
        key, count = self.wire.pop(0)
        entry, positions = self.topic_state.arrive(key, 0, count, (0,), now_ms=self.now)
        if entry is not None and positions:
            raw: Any = key
            self.queue.push(entry, (0,), (raw,))

    @rule()
    def take(self) -> None:
        message = self.queue.take()
        if message is None:
            return
        key = entry_of(message).key
        assert message.redelivery_count() == self.ended_deliveries[key], key
        self.held[key] = message

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        message = self.held.pop(key)
        if self.topic_state.nack(entry_of(message), 0, self.now + 1_000, 0):
            self.ended_deliveries[key] += 1

    @rule(data=st.data(), passed=st.sampled_from([0, 50, 1_000, 3_000]))
    def time_passes(self, data: st.DataObject, passed: int) -> None:
        self.now += passed
        due: DueBatch = self.topic_state.take_nacks(self.now, 1_000)
        groups = self.topic_state.release(due, self.now)
        if groups:
            keys = [(ledger, each) for ledger, some in groups for each in some]
            self.commands.append((self.now + LEAD_MS, keys))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        message = self.held.pop(key)
        self.topic_state.ack(entry_of(message), 0)
        self.broker.pop(key, None)
        assert self.topic_state.window.unattempted.get(key) is None

    @rule(data=st.data())
    def ask_for_all(self, data: st.DataObject) -> None:
        """Call `redeliver_all`: the transport drops the copies that have reached it by then."""
        drained = data.draw(st.integers(0, len(self.wire)))
        unseen, self.wire = self.wire[:drained], self.wire[drained:]
        self.ended_deliveries.update(list(self.held))  # those end here
        self.held.clear()
        self.topic_state.release_all()
        self.queue.drop()
        self.commands.append((self.now, None))
        for key, _ in unseen:
            self.topic_state.ignore_copy(key, 1)


def test_the_redelivery_count_is_the_number_of_ended_deliveries() -> None:
    run_state_machine_as_test(
        DeliveryModel,
        settings=settings(
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def arrive(topic_state: TopicState, count: int, key: EntryKey = (1, 1)) -> int:
    """A copy comes with the broker's count; how many attempts that leaves."""
    entry, _ = topic_state.arrive(key, 0, count, (0,))
    assert entry is not None
    return entry.redelivered


def test_a_message_released_before_its_delivery_has_no_attempts() -> None:
    topic_state = make_topic_state()
    for count in range(100):
        assert arrive(topic_state, count) == 0
        topic_state.release_all()
    assert len(topic_state.window.unattempted) == 1


def test_a_broker_that_forgot_its_count_starts_from_0() -> None:
    """After an unload, redeliveries deducted from the old count must not hide new attempts."""
    topic_state = make_topic_state()
    for count in range(3):
        arrive(topic_state, count)
        topic_state.release_all()
    topic_state.disconnected()
    topic_state.reconnected()
    assert arrive(topic_state, 0) == 0
    assert len(topic_state.window.unattempted) == 0
    topic_state.disconnected()
    topic_state.reconnected()
    assert arrive(topic_state, 2) == 2  # elsewhere


def test_attempts_of_another_consumer_are_counted() -> None:
    topic_state = make_topic_state()
    topic_state.ignore_copy((1, 1), 1)
    assert arrive(topic_state, 3) == 2


def test_a_copy_sent_by_a_reconnect_is_not_deducted_from_the_brokers_count() -> None:
    topic_state = make_topic_state()
    topic_state.release_all()
    entry, _ = topic_state.arrive((1, 1), 0, 0, (0,))
    assert entry is not None
    entry.deliver(0)
    topic_state.disconnected()
    topic_state.reconnected()
    assert topic_state.arrive((1, 1), 0, 2, (0,)) == (
        entry,
        [],
    )  # two deliveries by another consumer
    assert entry.redelivered == 2


def test_an_ack_forgets_the_unattempted_copies_of_its_entry() -> None:
    topic_state = make_topic_state()
    for number in range(4):
        topic_state.ignore_copy((1, number), 1)
    for number in range(2):
        entry, _ = topic_state.arrive((1, number), 0, 1, (0,))
        assert entry is not None
        topic_state.ack(entry, 0)
    topic_state.ack_entry((1, 2))
    topic_state.ignore_copy((1, 2), 1)
    assert list(topic_state.window.unattempted) == [(1, 3)]
    topic_state.reset()
    assert len(topic_state.window.unattempted) == 0


def test_no_unattempted_copies_are_counted_for_batches_and_on_exclusive() -> None:
    batch, exclusive = make_topic_state(), make_topic_state(shared=False)
    batch.arrive((1, 1), 3, 0, (0, 1, 2))
    exclusive.arrive((1, 1), 0, 0, (0,))
    for topic_state in (batch, exclusive):
        topic_state.release_all()
        topic_state.ignore_copy((1, 2), 1 if topic_state is exclusive else 3)
        assert len(topic_state.window.unattempted) == 0


def test_the_oldest_unattempted_copies_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicate_window, "MOST_UNATTEMPTED", 2)
    window = DuplicateWindow()
    for number in (1, 2, 1, 3):
        window.ignore_copy((1, number))
    assert [window.attempts_in((1, number), 2) for number in (1, 2, 3)] == [0, 2, 1]
