"""Check rewinds against an abstract broker with reads that race with them anywhere, repeatedly.

The consumer's side is `Rewind` and `TopicState`, driven as the shell drives them. Messages
are delivered in order and past no hole, except holes of entries that do not exist. In the end every
message was delivered, and the number of rewinds has a bound. The stories are seeded, because long
stories with many skips matter. A failing story is printed without the steps that it does not need.
"""

from __future__ import annotations

import os
from collections import deque
from random import Random
from typing import TypeAlias

import pytest
from core_kit import make_topic_state

from pulsar_encore.core.entry import EntryKey
from pulsar_encore.core.message_states import HELD
from pulsar_encore.core.rewind_check import Admission

SEEDS = 250
STEPS = 150
# How often in a row one entry may be skipped: a third time it is taken for trimmed.
SKIPS = 2
PATIENCE = 6  # rewinds of a silent topic, as in the consumer
ROUNDS = 200

Spot: TypeAlias = tuple[EntryKey, int]
Step: TypeAlias = tuple[str, int]
"""What, and the seed of its details. One that cannot be made changes nothing."""

WEIGHTS = {
    "publish": 3,
    "send": 10,
    "hear": 8,
    "skip": 6,
    "trim": 1,
    "deliver": 12,
    "ack": 8,
    "ack_all_up_to": 1,
    "flush": 3,
    "redeliver_all": 3,
    "reconnect": 1,
    "lose_patience": 4,
    "calm": 6,
}


class Story:
    """One topic state and its broker.

    Args:
        markers: The log has ids that are never sent.
    """

    def __init__(self, markers: bool) -> None:
        self.markers = markers
        # Holes that nothing on this connection explains: those of markers, and what was acked
        # before. Where there are some, only what came on this connection may be skipped.
        self.unexplained = markers
        self.topic_state = make_topic_state(shared=False)
        assert self.topic_state.rewind is not None
        self.rewind = self.topic_state.rewind
        self.log: list[tuple[EntryKey, int]] = []  # messages in the entry, 0 for a marker
        self.acked: set[Spot] = set()  # here
        self.arrived: set[Spot] = set()  # of those, at the broker
        self.trimmed: set[EntryKey] = set()
        self.held: set[Spot] = set()
        self.ever: set[Spot] = set()
        self.position = 0
        self.edge = 0  # entries sent to this connection
        self.fresh = self.racing = False
        self.skips_left = SKIPS
        self.pipe: deque[tuple[EntryKey, int, list[int]]] = deque()
        self.asked = 0
        self.rewinds = self.causes = self.impatient = 0
        self.publish(Random(0))

    def step(self, what: str, seed: int) -> None:
        getattr(self, what)(Random(seed))
        self.topic_state._check()
        self.rewind._check()
        assert self.rewinds <= SKIPS * self.causes, "too many rewinds"

    # The broker

    def publish(self, rng: Random) -> None:
        sizes = [rng.choice((1, 1, 1, 2, 3)) for _ in range(rng.randint(1, 4))]
        last = self.log[-1][0] if self.log else (1, -1)
        key = (last[0], last[1] + 1)
        if rng.random() < 0.2:
            key = (last[0] + 1, 0)
            self.causes += 1
        if self.markers and rng.random() < 0.3:
            sizes = [0, *sizes]
            self.causes += 1
        for size in sizes:
            self.log.append((key, size))
            key = (key[0], key[1] + 1)

    def unsettled(self, at: int) -> list[int]:
        key, size = self.log[at]
        if key in self.trimmed:
            return []
        return [index for index in range(size) if (key, index) not in self.arrived]

    def send(self, rng: Random) -> None:
        self.send_entries(rng.randint(1, 6), split=rng.random() < 0.5)

    def send_entries(self, entries: int, *, split: bool) -> None:
        while entries and self.position < len(self.log):
            indexes = self.unsettled(self.position)
            key, size = self.log[self.position]
            self.position += 1
            if not indexes:
                continue
            entries -= 1
            self.racing = self.racing or self.fresh  # a rewind begins at the lowest
            self.fresh = False
            self.edge = max(self.edge, self.position)
            parts = [indexes[:1], indexes[1:]] if split and len(indexes) > 1 else [indexes]
            self.pipe.extend((key, size, part) for part in parts)

    def hear(self, rng: Random | None = None) -> None:
        """The oldest request to rewind."""
        if self.asked:
            self.asked -= 1
            self.position = 0
            self.fresh, self.racing = True, False

    def skip(self, rng: Random) -> None:
        """Skip entries, but not past the last one sent: no later entry would reveal that."""
        if not self.racing or not self.skips_left or self.trimmed:
            return
        last = max((at for at in range(len(self.log)) if self.unsettled(at)), default=0)
        end = self.edge if self.unexplained else max(last, self.edge)
        if self.position < end:
            self.position = min(self.position + rng.randint(1, 4), end)
            self.racing = False
            self.skips_left -= 1
            self.causes += 1

    def trim(self, rng: Random) -> None:
        """The oldest of the backlog expire."""
        if self.skips_left == SKIPS:
            left = [at for at in range(len(self.log)) if self.unsettled(at)]
            self.trimmed.update(self.log[at][0] for at in left[: rng.randint(1, 3)])
            self.causes += 1

    # The consumer

    def deliver(self, rng: Random) -> None:
        self.deliver_some(rng.randint(1, 8))

    def deliver_some(self, count: int) -> None:
        for _ in range(min(count, len(self.pipe))):
            key, size, indexes = self.pipe.popleft()
            verdict = self.rewind.judge(key, indexes[0])
            if verdict is Admission.REWIND:
                self.rewinds += 1
                self.topic_state.rewind_repeated()
                self.asked += 1
            elif verdict is Admission.ADMIT:
                self.arrive(key, size, indexes)

    def arrive(self, key: EntryKey, size: int, indexes: list[int]) -> None:
        entry, positions = self.topic_state.arrive(key, size if size > 1 else 0, 0, indexes)
        for at in positions:
            assert entry is not None
            index = indexes[at]
            assert (key, index) not in self.held | self.acked, (key, index)
            entry.state[index] = HELD
            for before in self.expected():
                assert before >= (key, index), f"{key, index} is handed out without {before}"
            self.held.add((key, index))
            self.ever.add((key, index))

    def expected(self) -> list[Spot]:
        """Return existing entries that are neither here nor acked, in order."""
        return [
            (key, index)
            for key, size in self.log
            if key not in self.trimmed
            for index in range(size)
            if (key, index) not in self.held and (key, index) not in self.acked
        ]

    def ack(self, rng: Random) -> None:
        if self.held:
            key, index = rng.choice(sorted(self.held))
            entry = self.topic_state.find(key)
            assert entry is not None
            self.topic_state.ack(entry, index)
            self.settled({(key, index)}, rng)

    def ack_all_up_to(self, rng: Random) -> None:
        if not self.held:
            return
        key, index = rng.choice(sorted(self.held))
        covered = {
            (at, each)
            for at, size in self.log
            for each in range(size)
            if (at, each) <= (key, index)
        }
        lost = {spot for spot in covered - self.ever - self.acked if spot[0] not in self.trimmed}
        assert not lost, f"{sorted(lost)} are acked, and were never handed out"
        self.topic_state.ack_cumulative(key, index, dict(self.log)[key])
        self.settled(covered, rng)

    def settled(self, spots: set[Spot], rng: Random) -> None:
        self.acked |= spots
        self.held -= spots
        if rng.random() < 0.5:
            self.flush()

    def flush(self, rng: Random | None = None) -> None:
        self.topic_state.acks.take(0)
        self.arrived |= self.acked

    def redeliver_all(self, rng: Random) -> None:
        self.flush()
        self.topic_state.release_all()
        self.held.clear()
        self.asked += 1
        self.causes += 1

    def reconnect(self, rng: Random) -> None:
        self.topic_state.disconnected()
        self.topic_state.acks.disconnected(0)
        self.pipe.clear()
        self.asked = self.position = self.edge = 0
        self.fresh = self.racing = False
        self.flush()
        self.topic_state.reconnected()
        left = [at for at in range(len(self.log)) if self.unsettled(at)]
        self.unexplained = self.unexplained or left != list(range(len(self.log)))[-len(left) :]

    def is_silent(self) -> bool:
        return not (self.pipe or self.asked or self.position < len(self.log))

    def lose_patience(self, rng: Random | None = None) -> None:
        """Nothing more comes, and not all that is owed came."""
        if not self.is_silent() or not self.rewind.outstanding:
            return
        if self.impatient == PATIENCE:
            assert self.trimmed, "given up, though it is there"
            self.rewind.give_up()
            return
        self.impatient += 1
        self.topic_state.rewind_repeated()
        self.asked += 1

    def calm(self, rng: Random | None = None) -> None:
        """All entries came, so later skips are judged separately."""
        if self.is_silent() and not self.rewind.outstanding:
            self.impatient = 0
            self.skips_left = SKIPS

    def end(self) -> None:
        """No more skips: everything comes."""
        for _ in range(ROUNDS):
            while self.asked:
                self.hear()
            self.send_entries(len(self.log), split=False)
            self.deliver_some(len(self.pipe))
            if self.is_silent():
                if not self.rewind.outstanding:
                    break
                self.lose_patience()
        assert not self.expected(), f"{self.expected()} were never handed out"


def failure(steps: list[Step], *, markers: bool) -> str | None:
    """Why a story fails, or None."""
    story = Story(markers)
    try:
        for what, seed in steps:
            story.step(what, seed)
        story.end()
    except AssertionError as error:
        return str(error) or "the books are wrong"
    return None


def shortest(steps: list[Step], *, markers: bool) -> list[Step]:
    """Return the failing story without the steps that it does not need."""
    at = len(steps)
    while at:
        at -= 1
        shorter = steps[:at] + steps[at + 1 :]
        if failure(shorter, markers=markers) is not None:
            steps = shorter
    return steps


@pytest.mark.parametrize("markers", [False, True], ids=["contiguous", "markers"])
def test_no_message_is_delivered_past_a_hole(markers: bool) -> None:
    seeds = int(os.environ.get("REWIND_SEEDS", SEEDS))
    for seed in range(seeds):
        rng = Random(seed)
        names = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS)
        steps = [(name, rng.getrandbits(32)) for name in names]
        if failure(steps, markers=markers) is not None:
            steps = shortest(steps, markers=markers)
            script = "".join(f"\n  {what} {details}" for what, details in steps)
            pytest.fail(f"seed {seed}: {failure(steps, markers=markers)}{script}", pytrace=False)
