"""Random operations against a simple model: no loss, no second holder, and exact permits."""

from __future__ import annotations

from collections import Counter

import pytest
from broker_rules_kit import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Bench
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulsar_encore.devbroker.rules.attached_consumers import SubscribedConsumer, SubscriptionType

BIG = 10**9


class Model(RuleBasedStateMachine):
    """The unacked part and the holder of each entry, and the permits of each consumer."""

    kind = SHARED

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(
            self.kind,
            per_ledger=5,
            max_unacked_per_consumer=25,
            max_unacked_per_subscription=40,
            rewind_overtaken=0.75,
        )
        self.left: dict[int, int] = {}
        self.held: dict[SubscribedConsumer, dict[int, int]] = {}
        self.counts: dict[int, int] = {}
        self.permits: dict[SubscribedConsumer, int] = {}
        self.names = 0

    @property
    def shares(self) -> bool:
        return self.kind.shares

    @rule(
        batch=st.integers(0, 5),
        key=st.sampled_from([b"a", b"b", b"c", b"d"]),
        delay=st.sampled_from([0, 0, 0, 3000, 7000]),
        chunked=st.sampled_from(["", "", "m1", "m2"]),
    )
    def publish(self, batch: int, key: bytes, delay: int, chunked: str) -> None:
        due = self.bench.now_ms + delay if delay else 0
        fields = {"chunked": chunked} if chunked else {"batch": batch, "deliver_at_ms": due}
        (entry,) = self.bench.publish(key=key, **fields)
        self.left[entry.seq] = (1 << entry.messages) - 1

    @rule(priority=st.integers(0, 1))
    def join(self, priority: int) -> None:
        if len(self.held) >= (1 if self.kind is EXCLUSIVE else 3):
            return
        self.names += 1
        consumer = self.bench.join(f"c{self.names}", priority=priority)
        self.held[consumer] = {}
        self.permits[consumer] = 0

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(list(self.held)))
        self.bench.sub.remove_consumer(consumer, self.bench.now_ms)
        del self.held[consumer], self.permits[consumer]
        if not self.held:
            self.counts.clear()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), permits=st.integers(1, 12))
    def flow(self, data: st.DataObject, permits: int) -> None:
        consumer = data.draw(st.sampled_from(list(self.held)))
        self.bench.sub.flow(consumer, permits)
        self.permits[consumer] += permits

    @rule(limit=st.integers(1, 30))
    def dispatch(self, limit: int) -> None:
        out = self.bench.sub.dispatch(self.bench.now_ms, limit)
        assert len(out) <= limit
        sent = Counter(consumer for consumer, *_ in out)
        assert all(number <= self.permits[consumer] for consumer, number in sent.items())
        for consumer, entry, count, mask in out:
            seq = entry.seq
            full = (1 << entry.messages) - 1
            assert self.left[seq], "an acked entry was delivered"
            assert mask == (None if self.left[seq] == full else self.left[seq])
            # On other types an entry costs one permit until its read is over.
            assert self.permits[consumer] > 0 or self.kind is not SHARED
            self.permits[consumer] -= self.left[seq].bit_count()
            assert count == self.counts.get(seq, 0)
            if self.shares:
                assert not any(seq in held for held in self.held.values())
                assert entry.deliver_at_ms <= self.bench.now_ms + 1000
                self.held[consumer][seq] = entry.key_hash
        if self.kind is SHARED:
            chunks = [{self.bench.topic.at(seq).chunked for seq in h} for h in self.held.values()]
            together = Counter(message for each in chunks for message in each if message)
            assert all(holders == 1 for holders in together.values())
        if self.kind is KEY_SHARED:
            keys = [set(held.values()) for held in self.held.values()]
            assert sum(map(len, keys)) == len(set().union(*keys) if keys else set())

    @precondition(lambda self: self.left)
    @rule(data=st.data(), mask=st.none() | st.integers(0, 31))
    def ack(self, data: st.DataObject, mask: int | None) -> None:
        seq = data.draw(st.sampled_from(list(self.left)))
        before = self.left[seq]
        self.bench.ack(seq, mask)
        if before:
            self.counts.pop(seq, None)
        self.left[seq] = before & (mask or 0)
        if not self.left[seq]:
            for held in self.held.values():
                held.pop(seq, None)

    @precondition(lambda self: self.left)
    @rule(data=st.data(), mask=st.none() | st.integers(0, 31))
    def ack_cumulative(self, data: st.DataObject, mask: int | None) -> None:
        if self.shares and not self.held:
            return  # without consumers the type is not known
        seq = data.draw(st.sampled_from(list(self.left)))
        self.bench.sub.ack_cumulative(*self.bench.id(seq), mask)
        known = self.bench.sub._dispatcher
        if known is not None and known.type.shares:
            return
        for below in range(seq):
            self.left[below] = 0
        if self.left[seq]:  # The ack set replaces the acked part of the entry.
            size = self.bench.sub.log.at(seq).messages
            self.left[seq] = (mask or 0) & ((1 << size) - 1)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), everything=st.booleans())
    def redeliver(self, data: st.DataObject, everything: bool) -> None:
        consumer = data.draw(st.sampled_from(list(self.held)))
        seqs = (
            data.draw(st.lists(st.sampled_from(list(self.left)), max_size=5)) if self.left else []
        )
        ids = [] if everything else [self.bench.id(seq) for seq in seqs]
        self.bench.sub.redeliver(consumer, ids)
        if not self.shares:
            return
        held = self.held[consumer]
        for seq in list(held) if not ids else {seq for seq in seqs if seq in held}:
            del held[seq]
            self.counts[seq] = self.counts.get(seq, 0) + 1

    @rule(ms=st.integers(0, 4000))
    def wait(self, ms: int) -> None:
        self.bench.now_ms += ms

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def seek(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(list(self.left)))
        for consumer in self.bench.sub.seek(seq, self.bench.now_ms)[0]:
            del self.held[consumer], self.permits[consumer]
        self.counts.clear()
        for other in self.left:
            full = (1 << self.bench.topic.at(other).messages) - 1
            self.left[other] = full if other >= seq else 0

    @invariant()
    def books_balance(self) -> None:
        assert self.bench.sub.backlog == sum(1 for left in self.left.values() if left)
        mark = self.bench.sub.cursor.mark
        assert not any(left for seq, left in self.left.items() if seq < mark)
        assert mark == len(self.left) or self.left[mark], "the mark stopped at an acked entry"
        for consumer, held in self.held.items():
            assert consumer.permits == self.permits[consumer]
            if self.shares:
                assert set(consumer.held) == set(held)
                assert consumer.unacked == sum(self.left[seq].bit_count() for seq in held)

    def teardown(self) -> None:
        """In the end, one consumer with enough permits and time gets every unacked message."""
        for consumer in list(self.held):
            self.bench.sub.remove_consumer(consumer, self.bench.now_ms)
        self.held.clear()
        self.permits.clear()
        self.bench.now_ms += 10_000
        self.join(0)
        (last,) = self.held
        self.bench.sub.flow(last, BIG)
        self.permits[last] = BIG
        owed = {seq for seq, left in self.left.items() if left}
        got: set[int] = set()
        while True:
            out = self.bench.sub.dispatch(self.bench.now_ms)
            self.bench.now_ms += 1
            if not out:
                break
            for _, entry, _, _ in out:
                got.add(entry.seq)
                self.bench.ack(entry.seq)
        assert got == owed
        assert self.bench.sub.backlog == 0
        assert last.unacked == 0


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED, EXCLUSIVE, FAILOVER])
def test_the_broker_agrees_with_the_model(kind: SubscriptionType) -> None:
    machine = type("Machine", (Model,), {"kind": kind})
    test = machine.TestCase
    test.settings = settings(stateful_step_count=40, deadline=None)
    test("runTest").runTest()
