"""Compare pending acks with a naive model of the acks here and at the broker.

Keys are small so that whole entries, parts and the cumulative position meet. The model's broker
may lose acks that were sent or confirmed in the last second, and unconfirmed acks of any age. No
ack may be forgotten on both sides.
"""

from __future__ import annotations

import pytest
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

from pulsar_encore.core.acks import Acks, Unsent
from pulsar_encore.core.duplicate_window import UNCERTAIN_MS, DuplicateWindow, Flush
from pulsar_encore.core.entry import Entry, EntryKey
from pulsar_encore.core.message_states import ACKED

SIZE = 3
keys = st.tuples(st.integers(0, 1), st.integers(0, 4))

FULL = (1 << SIZE) - 1


class AgainstModel(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.window = DuplicateWindow()
        self.acks = Acks(self.window)
        self.now = 10_000
        self.entries: dict[EntryKey, Entry] = {}  # the live records
        self.acked: dict[EntryKey, int] = {}  # bit 1 = acked here
        self.known: dict[EntryKey, int] = {}  # bit 1 = acked at the broker
        self.sent: list[tuple[Flush, EntryKey, int]] = []
        self.unconfirmed: list[Unsent] = []

    def bits(self, key: EntryKey) -> int:
        return self.acked.get(key, 0)

    @rule(key=keys, index=st.integers(0, SIZE - 1))
    def ack(self, key: EntryKey, index: int) -> None:
        if self.bits(key) == FULL:
            return
        entry = self.entries.setdefault(key, Entry(None, key, SIZE, True))
        if entry.ack(index) == ACKED:
            return
        self.acked[key] = self.bits(key) | 1 << index
        if entry.unacked:
            self.acks.add_part(entry)
            return
        del self.entries[key]
        self.acks.drop_part(entry)
        self.acks.add_whole(key)

    @rule(key=keys)
    def ack_whole(self, key: EntryKey) -> None:
        entry = self.entries.pop(key, None)
        if entry is not None:
            self.acks.drop_part(entry)
        self.acked[key] = FULL
        self.acks.add_whole(key)

    @rule(key=keys, index=st.integers(0, SIZE - 1))
    def ack_cumulative(self, key: EntryKey, index: int) -> None:
        whole = index == SIZE - 1
        mask = -1 if whole else FULL >> (index + 1) << (index + 1)
        self.acks.cumulative.advance(key, SIZE, mask)
        for each in [(ledger, entry) for ledger in range(2) for entry in range(5)]:
            if each < key or (each == key and whole):
                self.acked[each] = FULL
                dropped = self.entries.pop(each, None)
                if dropped is not None:
                    self.acks.drop_part(dropped)
            elif each == key:
                self.acked[key] = self.bits(key) | (FULL & ~mask)
                self.partly(key)

    def partly(self, key: EntryKey) -> None:
        """The record of an entry that a cumulative ack ends in."""
        entry = self.entries.setdefault(key, Entry(None, key, SIZE, True))
        for index in range(SIZE):
            if self.bits(key) >> index & 1:
                entry.ack(index)
        if not entry.unacked:
            del self.entries[key]
            self.acks.drop_part(entry)
            self.acks.add_whole(key)

    @rule(receipt=st.booleans(), refused=st.booleans())
    def flush(self, receipt: bool, refused: bool) -> None:
        names = len(self.acks)
        unsent = self.acks.take(self.now)
        assert names == self.named(unsent)
        assert len(self.acks) == 0
        if refused:
            self.acks.put_back(unsent)
            assert len(self.acks) == names
            return
        if receipt:
            unsent.flush.await_receipt()
            self.unconfirmed.append(unsent)
        flush = unsent.flush
        for key in unsent.whole:
            self.tell(flush, key, FULL)
        for entry in unsent.parts:
            assert entry.remaining() == FULL & ~self.bits(entry.key)
            self.tell(flush, entry.key, FULL & ~entry.remaining())
        if unsent.cumulative is not None:
            end, _, mask = unsent.cumulative
            for ledger in range(2):
                for number in range(5):
                    if (ledger, number) < end:
                        self.tell(flush, (ledger, number), FULL)
            self.tell(flush, end, FULL if mask == -1 else FULL & ~mask)

    @staticmethod
    def named(unsent: Unsent) -> int:
        return len(unsent.whole) + len(unsent.parts) + (unsent.cumulative is not None)

    def tell(self, flush: Flush, key: EntryKey, bits: int) -> None:
        assert bits & ~self.bits(key) == 0, "more was acked than the application did"
        fresh = bits & ~self.known.get(key, 0)
        self.known[key] = self.known.get(key, 0) | bits
        self.sent.append((flush, key, fresh))

    @rule()
    def confirmed(self) -> None:
        if self.unconfirmed:
            self.unconfirmed.pop(0).flush.confirmed(self.now)

    @rule(lost=st.booleans())
    def receipts_failed(self, lost: bool) -> None:
        """Without a receipt the acks are sent again, even if they arrived."""
        unconfirmed, self.unconfirmed = self.unconfirmed, []
        for unsent in unconfirmed:
            if lost:
                self.lose([each for each in self.sent if each[0] is unsent.flush])
            self.acks.not_confirmed(unsent)
            for entry in unsent.parts:
                current = self.entries.get(entry.key)
                if current is not None and current.unacked < SIZE:
                    self.acks.add_part(current)

    def lose(self, sent: list[tuple[Flush, EntryKey, int]]) -> None:
        for _, key, fresh in sent:
            self.known[key] &= ~fresh

    @rule(passed=st.sampled_from([0, 1, 400, 5_000]))
    def time_passes(self, passed: int) -> None:
        self.now += passed

    @rule(lost=st.booleans(), sets_lost=st.booleans(), reported=st.booleans())
    def connection_lost(self, lost: bool, sets_lost: bool, reported: bool) -> None:
        if lost:
            since = self.now - UNCERTAIN_MS
            self.lose([each for each in self.sent if each[0].at_ms >= since])
        self.acks.disconnected(self.now)
        if reported:  # otherwise the receipts fail after the reconnect
            self.receipts_failed(False)
        if sets_lost:
            self.known = {key: bits for key, bits in self.known.items() if bits == FULL}
        self.sent.clear()
        for key, bits in self.acked.items():
            if bits == FULL and self.known.get(key) != FULL:
                assert self.acks.covers(key), "it comes again and would be handed out"
        self.acks.reconnected(self.entries.values())

    @precondition(lambda self: all(self.known.get(k) == v for k, v in self.acked.items()))
    @rule()
    def long_quiet(self) -> None:
        if len(self.acks):
            return
        self.now += 31_000
        self.window.end_reconnect()
        while self.window.advance():
            pass
        self.sent.clear()
        for key, bits in self.acked.items():
            assert not (bits == FULL and self.acks.covers(key)), "swallowed, were it rewound"

    @rule()
    def seek(self) -> None:
        self.unconfirmed.clear()
        self.acks.clear()
        self.window.clear()
        for entry in self.entries.values():
            assert not entry.unsent_part
        self.entries.clear()
        self.acked.clear()
        self.known.clear()
        self.sent.clear()
        assert len(self.acks) == 0

    @invariant()
    def every_ack_is_known_or_kept(self) -> None:
        unsent = self.acks.take(self.now - 10_000_000)
        self.acks.put_back(unsent)
        whole, parts = set(unsent.whole), set(unsent.parts)
        for key, bits in self.acked.items():
            if self.known.get(key, 0) & bits == bits:
                continue
            cumulative = unsent.cumulative
            kept = (
                key in whole
                or self.entries.get(key) in parts
                or (cumulative is not None and key <= cumulative.key)
            )
            assert kept, (key, bin(bits), bin(self.known.get(key, 0)))


def test_acks_agree_with_the_model() -> None:
    run_state_machine_as_test(
        AgainstModel,
        settings=settings(
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def test_a_cumulative_ack_only_moves_forward() -> None:
    acks = Acks(DuplicateWindow())
    assert acks.cumulative.advance((1, 5), 1, -1)
    assert not acks.cumulative.advance((1, 5), 1, -1)
    assert not acks.cumulative.advance((1, 4), 1, -1)
    assert not acks.cumulative.advance((0, 9), 1, -1)
    assert acks.cumulative.advance((1, 6), 4, 0b1100)
    assert not acks.cumulative.advance((1, 6), 4, 0b1110)
    assert acks.cumulative.advance((1, 6), 4, 0b1000)
    assert acks.cumulative.advance((1, 6), 4, -1)
    assert acks.take(0).cumulative == ((1, 6), 4, -1)


def test_an_ack_sent_long_ago_is_not_suspect() -> None:
    acks = Acks(DuplicateWindow())
    acks.add_whole((1, 1))
    acks.take(1_000)
    acks.add_whole((1, 2))
    acks.take(5_000)
    acks.disconnected(5_000 + UNCERTAIN_MS)
    assert not acks.covers((1, 1))
    assert acks.covers((1, 2))
    acks.reconnected([])
    assert acks.take(7_000).whole == [(1, 2)]


def test_an_unconfirmed_ack_is_suspect_at_any_age() -> None:
    acks = Acks(DuplicateWindow())
    flushes = []
    for entry in range(3):
        acks.add_whole((1, entry))
        acks.cumulative.advance((0, entry), 1, -1)
        flushes.append(acks.take(1_000).flush)
        flushes[-1].await_receipt()
    flushes[0].confirmed(2_000)
    flushes[1].confirmed(8_500)
    acks.disconnected(8_600 + UNCERTAIN_MS)
    assert [acks.covers((1, entry)) for entry in range(3)] == [False, False, True]
    assert acks.covers((0, 2)) and not acks.covers((0, 1)), "certain up to there"
    acks.reconnected([])
    again = acks.take(20_000)
    assert (again.whole, again.cumulative) == ([(1, 2)], ((0, 2), 1, -1))


def test_all_unconfirmed_acks_are_sent_again_however_many_they_are() -> None:
    acks = Acks(DuplicateWindow())
    for entry in range(150_000):
        acks.add_whole((1, entry))
        if entry % 10_000 == 9_999:
            acks.take(1_000).flush.await_receipt()
    acks.disconnected(60_000)
    acks.reconnected([])
    assert len(acks.take(60_000).whole) == 150_000


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 64, 1000])
def test_the_ack_set_has_a_bit_for_each_unacked_index(size: int) -> None:
    entry = Entry(None, (0, 0), size, True)
    assert entry.remaining() == (1 << size) - 1
    for index in range(0, size, 3):
        entry.ack(index)
    assert entry.remaining() == sum(1 << index for index in range(size) if index % 3)


def test_an_ack_made_after_a_seek_while_disconnected_is_recognised_and_sent_again() -> None:
    """As without the seek: it may be lost with the connection, and is sent again."""
    window = DuplicateWindow()
    acks = Acks(window)
    acks.add_whole((1, 1))
    acks.take(1_000)
    acks.disconnected(1_000)
    acks.clear()
    window.clear()
    assert not acks.covers((1, 1)), "from before the seek: it comes again rightly"
    acks.add_whole((1, 2))
    acks.take(1_100)
    assert acks.covers((1, 2))
    acks.reconnected([])
    assert acks.take(1_200).whole == [(1, 2)]
