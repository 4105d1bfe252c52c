"""Acks that were called for are settled and sent in turns of the loop before a seek or a close."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from pulsar_encore.consumer.settlement.ack_sender import AckSender
from pulsar_encore.consumer.settlement_calls import SettlementCalls


class Sender(AckSender):
    """Sends up to 1,000 of a number of acks; an application adds some in each turn."""

    def __init__(self, waiting: int, added: int, sends: int = 1_000) -> None:
        self.topic_states = SimpleNamespace(unsent_acks=waiting)
        self._topic_states = cast(Any, self.topic_states)
        self._rejected_topics = set()
        self.sent = 0
        self._sends = sends
        self._added = added
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._ack_more)

    def _ack_more(self) -> None:
        self.topic_states.unsent_acks += self._added
        if self.sent < 50_000:
            self._loop.call_soon(self._ack_more)

    def _flush_ready(self, most: int) -> None:
        sent = min(most, self._sends, self.topic_states.unsent_acks)
        self.topic_states.unsent_acks -= sent
        self.sent += sent


async def test_a_flush_sends_all_pending_acks_while_the_application_adds_as_many() -> None:
    sender = Sender(5_000, added=1_000)
    await sender.flush_in_steps()
    assert sender.sent == 5_000


async def test_acks_added_during_a_flush_do_not_prolong_it() -> None:
    sender = Sender(3_000, added=10_000)
    await sender.flush_in_steps()
    assert sender.sent == 3_000


async def test_a_flush_ends_when_no_ack_can_be_sent() -> None:
    sender = Sender(3_000, added=1, sends=0)
    await sender.flush_in_steps()
    assert sender.sent == 0


async def test_an_ack_of_a_list_completes_after_one_of_two_settle_calls_has_ended() -> None:
    """A seek and a close settle at the same time; the call that ends first must not end the other's
    permission to finish the lists."""
    calls: Any = SettlementCalls.__new__(SettlementCalls)
    steps = 0

    def refuse() -> None:
        raise AssertionError("the consumer refuses new calls")

    def ack_next() -> None:
        nonlocal steps
        steps += 1
        listed.is_left = steps < 20

    async def end_turn() -> None:
        await asyncio.sleep(0)

    listed = SimpleNamespace(is_left=True, ack_next=ack_next, acked=set())
    calls._settles = 0
    calls._lists = {}
    calls._mailbox = SimpleNamespace(take_all=lambda: None)
    calls._status = SimpleNamespace(check=refuse, closing=False)
    calls._end_turn = end_turn
    calls._receipts = None
    calls._lists[object()] = listed
    longer = asyncio.create_task(calls.settle())
    await asyncio.sleep(0)
    calls._lists.clear()
    await calls.settle()
    await calls._ack_all(listed)
    await longer
    assert steps >= 20
