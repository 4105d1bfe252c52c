"""Plain messages that arrive together, against the same ones that arrive one by one."""

from __future__ import annotations

from core_kit import make_topic_state
from hypothesis import given
from hypothesis import strategies as st

from pulsar_encore.core.entry import Entry, EntryKey
from pulsar_encore.core.message_states import HELD, QUEUED
from pulsar_encore.core.rewind_check import Admission
from pulsar_encore.core.topic_state import TopicState

steps = st.lists(
    st.tuples(st.just("arrive"), st.integers(0, 30), st.integers(1, 8))
    | st.tuples(st.sampled_from(["ack", "nack", "up to"]), st.integers(0, 40), st.just(0))
    | st.tuples(st.sampled_from(["sent", "give back", "lost", "due"]), st.just(0), st.just(0)),
    max_size=30,
)


class Twin:
    """One of two that live through the same."""

    def __init__(self, *, shared: bool, together: bool) -> None:
        self.state: TopicState = make_topic_state(shared=shared)
        self._together = together
        self._entries: dict[EntryKey, Entry] = {}

    def arrive(self, keys: list[EntryKey]) -> list[tuple[EntryKey, Admission]]:
        """Return the outcome of each message."""
        arrived = self.state.arrive_first(keys) if self._together else []
        self._entries.update((entry.key, entry) for entry in arrived)
        return [
            *((entry.key, Admission.ADMIT) for entry in arrived),
            *(found for key in keys[len(arrived) :] if (found := self._arrive_one(key))),
        ]

    def _arrive_one(self, key: EntryKey) -> tuple[EntryKey, Admission] | None:
        rewind = self.state.rewind
        if rewind is not None:
            admission = rewind.judge(key, 0)
            if admission is not Admission.ADMIT:
                if admission is Admission.REWIND:
                    self.state.rewind_repeated()
                return key, admission
        entry, positions = self.state.arrive(key, 0, 0, (0,))
        if entry is None or not positions:
            return None
        self._entries[key] = entry
        return key, Admission.ADMIT

    def settle(self, what: str, at: int) -> None:
        """Settle a held message as the application does."""
        here = [
            e for _, e in sorted(self._entries.items()) if e.live and e.state[0] in (QUEUED, HELD)
        ]
        if not here:
            return
        entry = here[at % len(here)]
        if what == "up to":
            if not self.state.shared:
                self.state.ack_cumulative(entry.key, -1, 0)
            return
        if entry.state[0] == QUEUED:
            entry.state[0] = HELD
        if what == "ack":
            self.state.ack(entry, 0)
        else:
            self.state.attempts.remember(entry.due_key(0), 0, None, in_place=True)
            self.state.nack(entry, 0, 1_000, 0)

    def happens(self, what: str) -> None:
        if what == "sent":
            self.state.pack_sent(self.state.acks.take(0).parts)
        elif what == "give back":
            self.state.release_all()
        elif what == "due":
            self.state.release(self.state.take_nacks(1_000, 100))
        else:
            self.state.disconnected()
            self.state.reconnected()

    @property
    def outcome(self) -> tuple[object, ...]:
        rewind = self.state.rewind
        follows = (
            None
            if rewind is None
            else (rewind._last_delivery, rewind._edge, list(rewind._owed.items()))
        )
        here = sorted(
            (key, e.state[0], e.causes, e.redelivered) for key, e in self._entries.items() if e.live
        )
        known = list(self.state.attempts.failures), list(self.state.window.requested)
        return self.state.unacked, here, len(self.state.acks), known, follows


@given(steps, st.booleans())
def test_entries_arriving_together_and_singly_have_the_same_outcome(
    script: list[tuple[str, int, int]], shared: bool
) -> None:
    together, singly = (Twin(shared=shared, together=each) for each in (True, False))
    for what, first, second in script:
        if what == "arrive":
            keys = [(1, number) for number in range(first, first + second)]
            assert together.arrive(keys) == singly.arrive(keys)
        elif what in ("ack", "nack", "up to"):
            for twin in (together, singly):
                twin.settle(what, first)
        else:
            for twin in (together, singly):
                twin.happens(what)
        assert together.outcome == singly.outcome


def test_a_failed_message_that_another_consumer_settles_does_not_slow_down_later_ones() -> None:
    state = make_topic_state()
    failed, *held = state.arrive_first([(1, number) for number in range(3)])
    for entry in (failed, *held):
        entry.deliver(0)
    state.attempts.remember(failed.due_key(0), 0, None, in_place=True)
    state.nack(failed, 0, 1_000, 0)
    state.release(state.take_nacks(1_000, 1))
    assert [entry.key for entry in state.arrive_first([(1, 3), (1, 4)])] == [(1, 3), (1, 4)]
    assert state.arrive_first([(1, 0)]) == [], "it may be the requested copy"
    for entry in held:
        state.ack(entry, 0)
    assert state.attempts.failures
    assert not any(entry.live for entry in held)


def test_entries_arrive_together_up_to_one_that_failed_or_was_requested() -> None:
    keys = [(1, number) for number in range(3)]
    failed = make_topic_state()
    failed.attempts.remember((1, 1, -1), 0, None, in_place=True)
    assert [entry.key for entry in failed.arrive_first(keys)] == keys[:1]
    requested = make_topic_state()
    requested.window.request((1, 1, -1), 0)
    assert [entry.key for entry in requested.arrive_first(keys)] == keys[:1]


def test_on_exclusive_entries_arrive_together_while_none_is_owed() -> None:
    state = make_topic_state(shared=False)
    keys = [(1, number) for number in range(5)]
    assert [entry.key for entry in state.arrive_first(keys)] == keys
    state.release_all()
    assert state.arrive_first(keys) == []
