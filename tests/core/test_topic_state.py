"""Compare the place of each message with a naive model and a broker that forgets.

The machine drives `TopicState` the way the shell does, through the real `Settlement`, `Router` and
`ReceiveQueue`, synchronously. The model knows of each message where it is; after every step the
two agree, and nothing is lost: the model's broker will send the messages that are not here.
"""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import ANY

import pytest
from core_kit import TOPIC, Settling, make_topic_state
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pulsar_encore.consumer.delivery.receive_queue import ReceiveQueue
from pulsar_encore.core.duplicate_window import UNCERTAIN_MS
from pulsar_encore.core.entry import Entry, EntryKey
from pulsar_encore.core.message_states import ACKED, AWAY, HELD, NACKED, QUEUED
from pulsar_encore.message import Message
from pulsar_encore.values.message_id import MessageId

WORDS = {AWAY: "away", QUEUED: "queued", HELD: "held", NACKED: "nacked", ACKED: "acked"}
DELAYS = st.sampled_from([0, 0.05, 1, 3, 60])

Spot = tuple[EntryKey, int]


class Stored:
    """One entry at the model's broker."""

    def __init__(self, size: int, batched: bool) -> None:
        self.size = size
        self.batched = batched
        self.acked: set[int] = set()
        self.count = 0


class AgainstModel(RuleBasedStateMachine):
    shared: bool

    @initialize()
    def begin(self) -> None:
        self.topic_state = make_topic_state(shared=self.shared)
        self.queue = ReceiveQueue(None, lambda *_: None, ANY, lambda _: None)
        self.settling = Settling(self.topic_state, lambda: self.now)
        self.now = 1_000
        self.entries: dict[EntryKey, Stored] = {}
        self.where: dict[Spot, str] = {}
        self.due: dict[Spot, int] = {}
        self.pending: set[EntryKey] = set()  # entries that the broker will send (again)
        self.deliveries: list[tuple[Message, Spot]] = []
        self.current: dict[Spot, Message] = {}
        self.void: set[Message] = set()  # received before a seek
        self.last_sent: list[tuple[int, EntryKey, set[int]]] = []
        self.connected = True

    def record(self, key: EntryKey) -> Entry | None:
        """Return the record of an entry without unpacking it."""
        entry = self.topic_state.table.packed.peek(key)
        return self.topic_state.find(key) if entry is None else entry

    # The broker

    @rule(size=st.integers(1, 4), batched=st.booleans(), ledger=st.integers(1, 2))
    def publish(self, size: int, batched: bool, ledger: int) -> None:
        if not self.shared:  # a cumulative ack covers all entries before it: a log only grows
            ledger = max([ledger, *(key[0] for key in self.entries)])
        number = sum(key[0] == ledger for key in self.entries)
        key = (ledger, number)
        self.entries[key] = Stored(size, batched or size > 1)
        self.pending.add(key)
        self.where.update({(key, index): "away" for index in range(size)})

    @precondition(lambda self: self.connected and self.pending)
    @rule(data=st.data(), tells=st.booleans(), split=st.booleans(), twice=st.booleans())
    def deliver(self, data: st.DataObject, tells: bool, split: bool, twice: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.pending)))
        stored = self.entries[key]
        parts = [list(range(stored.size))]
        if split and stored.size > 1:
            parts = [parts[0][:1], parts[0][1:]]
        for part in parts:
            self.arrive(key, part, tells)
        if twice:
            self.arrive(key, list(range(stored.size)), False)
        self.pending.discard(key)

    def arrive(self, key: EntryKey, indexes: list[int], tells: bool) -> None:
        stored = self.entries[key]
        mask = -1
        if tells and stored.acked:
            mask = sum(1 << index for index in range(stored.size) if index not in stored.acked)
        waiting = ["away"]
        expected = [index for index in indexes if self.where[key, index] in waiting]
        if tells and stored.acked:
            expected = [index for index in expected if index not in stored.acked]
        size = stored.size if stored.batched else 0
        entry, positions = self.topic_state.arrive(key, size, stored.count, indexes, mask)
        admitted = [indexes[position] for position in positions]
        assert admitted == expected, (key, indexes, admitted, expected)
        if entry is not None and admitted:
            raws: Any = [(key, index) for index in admitted]
            self.queue.push(entry, admitted, raws)
        for index in admitted:
            self.where[key, index] = "queued"
            self.due.pop((key, index), None)

    @precondition(lambda self: self.connected)
    @rule()
    def flush(self) -> None:
        """Acks go out and arrive."""
        unsent = self.topic_state.acks.take(self.now)
        for key in unsent.whole:
            self.settle(key, set(range(self.entries[key].size)))
        for entry in unsent.parts:
            left = entry.remaining()
            acked = {index for index in range(entry.size) if not left >> index & 1}
            for index in acked:
                assert self.where[entry.key, index] == "acked", "an ack covered a sibling"
            self.settle(entry.key, acked)
        if unsent.cumulative is not None:
            key, size, mask = unsent.cumulative
            for before in [each for each in self.entries if each < key]:
                self.settle(before, set(range(self.entries[before].size)))
            acked = set(range(self.entries[key].size))
            if mask != -1:
                assert size == self.entries[key].size
                acked = {index for index in acked if not mask >> index & 1}
            self.settle(key, acked)
        self.topic_state.pack_sent(unsent.parts)
        if self.shared:
            self.nothing_parkable_stays(unsent.parts)

    def nothing_parkable_stays(self, entries: list[Entry]) -> None:
        for entry in entries:
            assert not (entry.live and entry.size > 1 and entry.only_waits)

    def settle(self, key: EntryKey, acked: set[int]) -> None:
        for index in acked:
            assert self.where[key, index] == "acked", "a whole ack covered an unacked message"
        stored = self.entries[key]
        self.last_sent.append((self.now, key, acked - stored.acked))
        stored.acked |= acked
        if len(stored.acked) == stored.size:
            self.pending.discard(key)
        if acked:
            stored.count = 0  # a partial ack resets the count

    @rule(refused=st.booleans())
    def flush_refused(self, refused: bool) -> None:
        before = len(self.topic_state.acks)
        unsent = self.topic_state.acks.take(self.now)
        self.topic_state.acks.put_back(unsent)
        assert len(self.topic_state.acks) == before

    # The application

    def recent_delivery(self, data: st.DataObject) -> tuple[Message, Spot]:
        # By position: a strategy over the objects themselves would depend on their addresses.
        recent = self.deliveries[-12:]
        return recent[data.draw(st.integers(0, len(recent) - 1))]

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        for _ in range(count):
            message = self.queue.take()
            if message is None:
                assert "queued" not in self.where.values()
                return
            raw: Any = message._raw
            assert self.where[raw] == "queued", "handed out twice, or after its ack"
            self.where[raw] = "held"
            self.deliveries.append((message, raw))
            self.current[raw] = message

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), by_id=st.booleans())
    def ack(self, data: st.DataObject, by_id: bool) -> None:
        message, spot = self.recent_delivery(data)
        if self.record(spot[0]) is None and self.settled(spot[0]):
            return  # no record is kept of it: the ack is sent again, and the broker knows better
        if by_id:
            rebuilt = MessageId.deserialize(message.message_id().serialize(), TOPIC)
            self.settling.ack(rebuilt)
        else:
            size = self.entries[spot[0]].size
            void = message in self.void and size > 1 and self.record(spot[0]) is None
            self.settling.ack(message)
            if void:
                return
        self.where[spot] = "acked"
        self.due.pop(spot, None)

    def settled(self, key: EntryKey) -> bool:
        return all(self.where[key, index] == "acked" for index in range(self.entries[key].size))

    @precondition(lambda self: self.connected and self.current)
    @rule(data=st.data(), drops=st.booleans())
    def only_wait(self, data: st.DataObject, drops: bool) -> None:
        """Settle all held messages and send the acks, so that waiting batches are packed."""
        self.take(1_000)
        for spot, message in sorted(self.current.items(), key=lambda each: each[0]):
            if self.where[spot] == "held":
                if data.draw(st.booleans()):
                    self.settling.ack(message)
                    self.where[spot] = "acked"
                else:
                    self.settling.nack(message, 3)
                    self.where[spot] = "nacked"
                    self.due[spot] = self.now + 3_000
        self.flush()
        if drops:
            self.drop_messages()

    def drop_messages(self) -> None:
        """The application keeps none of them."""
        self.deliveries.clear()
        self.current.clear()
        self.void.clear()

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data())
    def ack_entry(self, data: st.DataObject) -> None:
        """By an id without an index: its sender means the whole entry."""
        _, (key, _) = self.recent_delivery(data)
        self.settling.ack(MessageId(-1, *key, topic=TOPIC))
        for index in range(self.entries[key].size):
            self.where[key, index] = "acked"
            self.due.pop((key, index), None)

    @precondition(lambda self: self.deliveries and not self.shared)
    @rule(data=st.data(), by_id=st.booleans())
    def ack_cumulative(self, data: st.DataObject, by_id: bool) -> None:
        message, (key, index) = self.recent_delivery(data)
        self.settling.ack_cumulative(message.message_id() if by_id else message)
        for spot in self.where:
            if spot <= (key, index):
                self.where[spot] = "acked"
                self.due.pop(spot, None)

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), delay=DELAYS)
    def nack(self, data: st.DataObject, delay: float) -> None:
        message, spot = self.recent_delivery(data)
        key = spot[0]
        if self.shared:
            current = self.current.get(spot) is message
        else:  # deliveries are not counted there: the record tells them apart
            current = self.record(key) is message._entry
        self.settling.nack(message, delay)
        live = ("held", "nacked") if self.shared else ("queued", "held", "nacked")
        if self.where[spot] in live and current:
            self.where[spot] = "nacked"
            self.due[spot] = self.now + round(delay * 1000)
        elif self.where[spot] == "nacked" and self.entries[key].size == 1:
            # No record is kept of a waiting plain message, so an older delivery may move it too.
            entry = self.record(key)
            assert entry is None
            head = self.topic_state.nacks.next_due()
            assert head is not None
            self.resync(spot)

    def resync(self, spot: Spot) -> None:
        """Read the due time of a plain nack back, by asking when it leaves."""
        due_key = (*spot[0], -1)
        at = next(
            at
            for at in sorted({self.due[spot], *(self.now + d for d in (0, 50, 1000, 3000, 60000))})
            if _leaves_by(self.topic_state.nacks, due_key, at)
        )
        self.due[spot] = at

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), delay=DELAYS)
    def nack_by_id(self, data: st.DataObject, delay: float) -> None:
        message, spot = self.recent_delivery(data)
        if self.where[spot] not in ("queued", "held", "nacked"):
            return
        self.settling.nack(message.message_id(), delay)
        self.where[spot] = "nacked"
        self.due[spot] = self.now + round(delay * 1000)

    @precondition(lambda self: "held" in self.where.values())
    @rule(data=st.data(), delay=DELAYS)
    def start_timeout(self, data: st.DataObject, delay: float) -> None:
        held = sorted(spot for spot, word in self.where.items() if word == "held")
        key, index = data.draw(st.sampled_from(held))
        entry = self.record(key)
        assert entry is not None
        self.topic_state.timeouts.move(entry.due_key(index), self.now + round(delay * 1000), 0)

    # Time

    @rule(passed=st.sampled_from([1, 60, 2_000, 70_000]))
    def time_passes(self, passed: int) -> None:
        self.now += passed
        self.release(self.topic_state.timeouts.pop_due(self.now), timed_out=True)
        due = self.topic_state.nacks.pop_due(self.now)
        expected = {spot for spot, at in self.due.items() if at <= self.now}
        asked = self.release(due)
        if self.shared:
            assert {key for key, _ in expected} == asked
        assert not self.shared or all(self.where[spot] == "away" for spot in expected)

    def release(self, due: Any, timed_out: bool = False) -> set[EntryKey]:
        spots = [((ledger, number), max(index, 0)) for ledger, number, index in due]
        if not spots:
            assert not due
            return set()
        if timed_out:
            for spot in spots:
                assert self.where[spot] == "held", "a timeout for what is not held"
        groups = self.topic_state.release(due)
        asked = {(ledger, number) for ledger, numbers in groups for number in numbers}
        if not self.shared:
            self.rewind()
            return asked
        assert asked == {key for key, _ in spots}
        for spot in spots:
            self.where[spot] = "away"
            self.due.pop(spot, None)
        for key in asked:
            self.redelivered(key)
        return asked

    def redelivered(self, key: EntryKey) -> None:
        stored = self.entries[key]
        if len(stored.acked) < stored.size:
            stored.count += self.shared
            self.pending.add(key)

    @rule()
    def rewind(self) -> None:
        """Everything unacked comes again."""
        self.topic_state.release_all()
        self.queue.drop()
        self.current.clear()  # every delivery has ended
        for spot, word in self.where.items():
            if word != "acked":
                self.where[spot] = "away"
        self.due.clear()
        for key in self.entries:
            self.redelivered(key)

    # Connections

    @precondition(lambda self: self.connected)
    @rule(lose=st.booleans(), forget_sets=st.booleans(), forget_counts=st.booleans())
    def disconnect(self, lose: bool, forget_sets: bool, forget_counts: bool) -> None:
        self.connected = False
        self.topic_state.acks.disconnected(self.now)
        self.topic_state.disconnected()
        self.queue.drop()
        for spot, word in self.where.items():
            if word == "queued":
                self.where[spot] = "away"
        if lose:  # acks sent in the last moments did not arrive
            for at, key, acked in self.last_sent:
                if at >= self.now - UNCERTAIN_MS:
                    self.entries[key].acked -= acked
        for key, stored in self.entries.items():
            if forget_sets and len(stored.acked) < stored.size:
                stored.acked.clear()
            if forget_counts:
                stored.count = 0
            if len(stored.acked) < stored.size:
                self.pending.add(key)
        self.last_sent.clear()

    @precondition(lambda self: not self.connected)
    @rule(flushes=st.booleans())
    def reconnect(self, flushes: bool) -> None:
        self.connected = True
        self.topic_state.reconnected()
        if flushes:
            self.flush()

    @rule()
    def long_quiet(self) -> None:
        """Wait until no sent ack is uncertain any more, and all redelivered messages are known."""
        if not self.connected:
            return
        self.flush()
        self.now += 31_000
        self.topic_state.window.end_reconnect()
        self.last_sent.clear()

    @rule()
    def seek(self) -> None:
        """Back to the start: nothing from before counts."""
        if not self.connected:
            return
        self.topic_state.reset()
        self.queue.drop()
        self.due.clear()
        self.last_sent.clear()
        for key, stored in self.entries.items():
            stored.acked.clear()
            stored.count = 0
            self.pending.add(key)
        self.where = dict.fromkeys(self.where, "away")
        self.current.clear()
        self.void.update(message for message, _ in self.deliveries)

    # Agreement

    @invariant()
    def agree(self) -> None:
        self.topic_state._check()
        counted = {"queued": 0, "held": 0, "nacked": 0}
        for (key, index), word in self.where.items():
            if word in counted:
                counted[word] += 1
            entry = self.record(key)
            if entry is not None:
                assert WORDS[entry.state[index]] == word, (key, index)
            elif word == "nacked":
                assert (*key, -1) in self.topic_state.nacks
            else:
                assert word in ("away", "acked"), (key, index, word)
        assert self.topic_state.count(QUEUED) == counted["queued"]
        assert self.topic_state.count(HELD) == counted["held"]
        assert len(self.topic_state.nacks) == counted["nacked"]
        assert self.topic_state.unacked == sum(counted.values())
        assert len(self.topic_state.nacks) == len(self.due) == counted["nacked"]
        assert self.topic_state.nacks.next_due() == min(self.due.values(), default=None)

    @invariant()
    def nothing_is_lost(self) -> None:
        for (key, index), word in self.where.items():
            if word == "away":
                assert key in self.pending, (key, index)
            elif word == "acked" and index not in self.entries[key].acked:
                assert self.ack_is_kept(key, index), (key, index)

    def ack_is_kept(self, key: EntryKey, index: int) -> bool:
        """An ack that the broker lacks is pending, or is sent again at redelivery."""
        acks = self.topic_state.acks
        entry = self.record(key)
        return (
            acks.covers(key)
            or entry is not None
            or (acks.cumulative.last is not None and key <= acks.cumulative.last.key)
        )


def _leaves_by(index: Any, due_key: tuple[int, int, int], at: int) -> bool:
    return due_key in set(copy.deepcopy(index).pop_due(at))


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "exclusive"])
def test_a_topic_state_agrees_with_the_model(shared: bool) -> None:
    machine = type("Machine", (AgainstModel,), {"shared": shared})
    run_state_machine_as_test(
        machine,
        settings=settings(
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


# Faults that the machine found, one test each


def test_a_message_with_an_expired_ack_timeout_is_not_unacked_any_more() -> None:
    topic_state = make_topic_state()
    entry, _ = topic_state.arrive((1, 1), 0, 0, (0,))
    assert entry is not None
    entry.deliver(0)
    topic_state.timeouts.add((1, 1, -1), 5, 0)
    assert topic_state.unacked == 1
    assert topic_state.release(topic_state.timeouts.pop_due(5)) == [(1, [1])]
    assert topic_state.unacked == 0
    topic_state._check()


def test_acks_from_before_a_seek_do_not_count_after_it() -> None:
    topic_state = make_topic_state()
    entry, _ = topic_state.arrive((1, 1), 2, 0, (0, 1))
    assert entry is not None
    topic_state.ack(entry, 0)
    topic_state.reset()
    assert entry.era != topic_state.era, "its messages are void: no ack of them is sent"
    again, positions = topic_state.arrive((1, 1), 2, 0, (0, 1))
    assert again is not None and list(positions) == [0, 1]


def test_a_partial_ack_of_an_entry_with_an_unsent_whole_ack_opens_no_record() -> None:
    topic_state = make_topic_state()
    entry, _ = topic_state.arrive((1, 1), 2, 0, (0, 1))
    assert entry is not None
    topic_state.release_all()
    topic_state.ack_entry((1, 1))
    stale = Entry(topic_state, (1, 1), 2, True)
    topic_state.adopt(stale)
    topic_state.ack(stale, 0)
    assert topic_state.arrive((1, 1), 2, 1, (0, 1)) == (None, ())
    unsent = topic_state.acks.take(0)
    assert (unsent.whole, unsent.parts) == ([(1, 1)], [])


def test_at_most_10_000_records_of_batches_that_await_redelivery_are_kept() -> None:
    topic_state = make_topic_state()
    for number in range(10_500):
        entry, _ = topic_state.arrive((1, number), 2, 0, (0, 1))
        assert entry is not None
        entry.deliver(0)
        entry.deliver(1)
        topic_state.ack(entry, 0)
        topic_state.nack(entry, 1, 0, 0)
        topic_state.release(topic_state.nacks.pop_due(1))
    assert sum(topic_state.find((1, number)) is not None for number in range(10_500)) == 10_000
    assert topic_state.find((1, 0)) is None
    assert topic_state.find((1, 10_499)) is not None
    topic_state._check()


def test_the_ack_of_a_redelivered_batch_index_is_sent_again() -> None:
    """A broker that lost its partial acks sends the batch whole, without a reconnect of ours."""
    topic_state = make_topic_state()
    entry, _ = topic_state.arrive((1, 1), 3, 0, (0, 1, 2))
    assert entry is not None
    topic_state.ack(entry, 1)
    assert len(topic_state.acks.take(0).parts) == 1
    topic_state.release_all()
    again, positions = topic_state.arrive((1, 1), 3, 1, (0, 1, 2))
    assert again is entry and list(positions) == [0, 2]
    (part,) = topic_state.acks.take(1).parts
    assert part.remaining() == 0b101


def test_a_copy_of_a_nacked_and_then_acked_message_is_recognised() -> None:
    """A reconnect sent it again. The record, which knew of that, left with the nack."""
    topic_state = make_topic_state()
    entry, _ = topic_state.arrive((1, 1), 0, 0, (0,))
    assert entry is not None
    topic_state.disconnected()
    topic_state.reconnected()
    entry, _ = topic_state.arrive((1, 1), 0, 0, (0,))
    assert entry is not None
    entry.deliver(0)
    topic_state.nack(entry, 0, 1_000, 0)
    topic_state.ack_entry((1, 1))
    topic_state.acks.take(0)
    assert topic_state.arrive((1, 1), 0, 0, (0,)) == (None, ())


def test_a_message_acked_before_its_delivery_is_recognised_on_arrival() -> None:
    """By an older delivery: the rest of its batch may come first, and be acked as well."""
    topic_state = make_topic_state()
    entry, _ = topic_state.arrive((1, 1), 2, 0, (0,))
    assert entry is not None
    topic_state.ack(entry, 1)
    topic_state.ack(entry, 0)
    topic_state.acks.take(0)
    assert topic_state.arrive((1, 1), 2, 0, (1,)) == (None, ())


def test_a_batch_that_arrives_with_acked_messages_only_keeps_its_record() -> None:
    topic_state = make_topic_state()
    entry, _ = topic_state.arrive((1, 1), 2, 0, (0, 1))
    assert entry is not None
    topic_state.ack(entry, 0)
    topic_state.release_all()
    again, positions = topic_state.arrive((1, 1), 2, 0, (0,))
    assert again is entry and list(positions) == []
    topic_state._check()


def test_a_batch_acked_in_part_by_the_broker_and_in_part_here_is_acked_whole() -> None:
    topic_state = make_topic_state(shared=False)
    topic_state.ack_cumulative((1, 1), 0, 2)
    entry, positions = topic_state.arrive((1, 1), 2, 0, (0,), 0b01)
    assert entry is not None and list(positions) == []
    topic_state._check()
    assert topic_state.acks.take(0).whole == [(1, 1)]


@pytest.mark.parametrize("waits", ["nacks", "timeouts"])
def test_due_messages_are_taken_earlier_by_the_lead_of_the_transport(waits: str) -> None:
    topic_state = make_topic_state(lead_ms=100)
    entry, _ = topic_state.arrive((1, 1), 0, 0, (0,))
    assert entry is not None
    assert topic_state.next_due() is None
    entry.deliver(0)
    if waits == "nacks":
        topic_state.nack(entry, 0, 1_000, 0)
    else:
        topic_state.timeouts.add((1, 1, -1), 1_000, 0)
    take = topic_state.take_nacks if waits == "nacks" else topic_state.take_timeouts
    assert topic_state.next_due() == 900
    assert not take(899, 10)
    assert list(take(900, 10)) == [(1, 1, -1)]
    assert topic_state.next_due() is None


def test_messages_whose_request_failed_are_due_again_and_count_one_attempt() -> None:
    topic_state = make_topic_state()
    plain, _ = topic_state.arrive((1, 1), 0, 0, (0,))
    batch, _ = topic_state.arrive((1, 2), 3, 0, (0, 1, 2))
    assert plain is not None and batch is not None
    for entry in (plain, batch):
        entry.deliver(0)
        topic_state.nack(entry, 0, 1_000, 0)
    for at in (1_000, 1_200, 1_400):
        due = topic_state.take_nacks(at, 10)
        assert topic_state.release(due, at) == [(1, [1]), (1, [2])]
        topic_state.request_failed(due, at + 200)
        topic_state._check()
        assert topic_state.unacked == 4 and len(topic_state.nacks) == 2
    topic_state.release(topic_state.take_nacks(1_600, 10), 1_600)
    topic_state.arrive((1, 2), 3, 1, (0, 1, 2), now_ms=1_700)
    assert topic_state.attempts.count(batch, 0) == 1
