"""Acking a list in rows leaves the same state as acking each message."""

from __future__ import annotations

from random import Random

import pytest
from core_kit import Settling, make_topic_state

from pulsar_encore.consumer.settlement import settlement
from pulsar_encore.core.entry import Entry
from pulsar_encore.core.message_states import QUEUED
from pulsar_encore.core.topic_state import TopicState
from pulsar_encore.errors import MessageNotHeldError
from pulsar_encore.message import Message

SIZES = (1, 1, 2, 3, 10, 300)


class World:
    """One topic state with some entries, and a record of the calls on their messages."""

    def __init__(self, seed: int) -> None:
        dice = Random(seed)
        self.state: TopicState = make_topic_state(shared=dice.random() < 0.7)
        self.settling = Settling(self.state, lambda: 0)
        self.entries: list[Entry] = []
        for number in range(dice.randint(1, 12)):
            size = dice.choice(SIZES)
            entry, _ = self.state.arrive((1, number), size, 0, range(size))
            assert entry is not None
            self.entries.append(entry)
        parts = [(entry, at) for entry in self.entries for at in range(entry.size)]
        self.messages = [self.message(entry, at) for entry, at in parts]
        for message, (entry, at) in zip(self.messages, parts, strict=True):
            self.begin(message, entry, at, dice.random())
        if dice.random() < 0.2:
            self.state.disconnected()
        self.items = self.list_of(dice)

    def message(self, entry: Entry, index: int) -> Message:
        raw: object = object()
        return Message(raw, None, entry, index, 0)  # type: ignore[arg-type]

    def begin(self, message: Message, entry: Entry, index: int, chance: float) -> None:
        if chance < 0.05 or not entry.live:
            return
        assert entry.state[index] == QUEUED
        entry.deliver(index)
        if chance < 0.1:
            self.settling.ack(message)
        elif chance < 0.2:
            self.settling.nack(message, 1000)
        elif chance < 0.25:
            entry.begin_forwarding(index)

    def list_of(self, dice: Random) -> list[Message]:
        items = [each for each in self.messages if dice.random() < 0.9]
        if dice.random() < 0.3:
            items += dice.choices(self.messages, k=5)
        if dice.random() < 0.3:
            dice.shuffle(items)
        return items

    def facts(self) -> tuple[object, ...]:
        unsent = self.state.acks.take(0)
        for entry in self.entries:
            entry._check()
        return (
            self.state.unacked,
            [(bytes(entry.state), entry.live, entry.unacked) for entry in self.entries],
            sorted(unsent.whole),
            sorted((entry.key, entry.remaining()) for entry in unsent.parts),
            len(self.state.nacks),
        )


@pytest.mark.parametrize("seed", range(300))
def test_acking_a_list_in_rows_equals_acking_its_messages_one_by_one(seed: int) -> None:
    each, rows = World(seed), World(seed)
    for item in each.items:
        each.settling.ack(item)
    at = 0
    while at < len(rows.items):
        before = at
        _, at = rows.settling.ack_row(rows.items, at)
        assert before < at <= before + settlement.ROW
    assert rows.facts() == each.facts()
    # How many, tells when acks are sent: a part that became the whole need not count twice.
    assert rows.settling.added <= each.settling.added
    assert (rows.settling.added > 0) == (each.settling.added > 0)


def test_a_row_of_acks_ends_before_a_message_of_another_consumer() -> None:
    here, there = World(1), World(2)
    here.items = [here.messages[0], there.messages[0], here.messages[-1]]
    _, at = here.settling.ack_row(here.items, 0)
    assert at == 1
    with pytest.raises(MessageNotHeldError):
        here.settling.ack_row(here.items, 1)
