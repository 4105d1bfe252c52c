"""Nacks: `core.nack_verdicts` decides, and the message then waits or is forwarded, in one step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from ...core.message_states import HELD, NACKED
from ...core.nack_verdicts import DeadLetter, SendToRetryTopic, Verdicts, Wait
from ...core.topic_state import TopicState
from ...eventloop.alarm import wall_now_ms
from ...letters.evidence import Evidence, evidence_of
from ...message import Held, Message
from ...values.backoff import to_ms
from ..settlement.ownership import Ownership, Settleable, check_index, chunks_unknown
from ..settlement.redelivery import Redelivery
from ..topic_states import TopicStates
from .forwarder import Forwarder
from .last_attempts import LastAttempts


class NackHandler:
    def __init__(
        self,
        ownership: Ownership,
        verdicts: Verdicts,
        redelivery: Redelivery,
        topic_states: TopicStates,
        loop: asyncio.AbstractEventLoop,
        forwarder: Forwarder | None = None,
        last: LastAttempts | None = None,
    ) -> None:
        self._last = last
        self._ownership = ownership
        self._verdicts = verdicts
        self._redelivery = redelivery
        self._topic_states = topic_states
        self._loop = loop
        self._forwarder = forwarder
        #: Number of nacks by the application.
        self.nacked: int = 0

    def nack(
        self,
        item: Settleable,
        delay: float | timedelta | None,
        error: BaseException | str | None = None,
    ) -> None:
        """Nack a message, or an id, which can be redelivered but not forwarded.

        A `delay` of None stands for the delay of the policy.
        """
        delay_ms = None if delay is None else to_ms(delay, "delay")
        self.nacked += 1
        if type(item) is not Message:
            self._nack_named(item, delay_ms)
            return
        held = self._ownership.held(item)
        entry, state = held.entry, held.entry.topic_state
        if state.is_latest_delivery(entry, held.batch_index, held.delivery_number):
            if entry.state[held.batch_index] == HELD and not state.volatile:
                self._failed(item, held, delay_ms, error)
            else:
                self._wait(held, state.attempts.count(entry, held.batch_index), delay_ms)
        elif entry.state[0] == NACKED and entry.size == 1 and not entry.live:
            self._nack_again(state, held, delay_ms)

    def nack_expired(self, message: Message) -> None:
        """Nack a message with an expired lease, with the backoff of its attempt.

        Without `negative_ack_redelivery_backoff` there is no delay, because the lease already was a
        waiting time.
        """
        delay_ms = self._verdicts.revive_delay_of(self._ownership.held(message).failed)
        self.nack(message, timedelta(milliseconds=delay_ms), "the lease expired")
        self.nacked -= 1

    def redeliver_expired(self, state: TopicState, held: Sequence[Held]) -> bool:
        """Redeliver the messages of expired leases at once, in one step.

        Return False, without any change, if each message needs `nack_expired`.
        """
        each_is_more = (
            self._forwarder is not None
            or self._verdicts.revive_delay is not None
            or state.durable is not None
            or state.attempts.failures
            or state.in_order
            or state.volatile
            or not state.shared
        )
        if each_is_more:
            return False
        self._redelivery.request_now(state, (each.entry.due_key(each.batch_index) for each in held))
        return True

    def _failed(
        self,
        message: Message,
        held: Held,
        delay_ms: int | None,
        error: BaseException | str | None,
    ) -> None:
        verdicts, forwarder = self._verdicts, self._forwarder
        if forwarder is None:  # without letter topics there is nothing to decide
            self._remember(held, None)
            self._wait(held, held.failed, delay_ms)
            return
        nacked = 0 if verdicts.overflow is None else self._topic_states.nacked
        verdict = verdicts.on_nack(held.failed, delay_ms, nacked)
        evidence = None if error is None else evidence_of(error, "nack")
        match verdict:
            case DeadLetter(reason):
                forwarder.dead_letter(message, held, evidence, reason)
            case SendToRetryTopic(delay):
                self._remember(held, evidence)
                forwarder.overflow(message, held, delay, evidence)
            case Wait(delay):
                self._remember(held, evidence)
                self._redelivery.schedule(held.entry, held.batch_index, delay)

    def _remember(self, held: Held, evidence: Evidence | None) -> None:
        state: TopicState = held.entry.topic_state
        key = held.entry.due_key(held.batch_index)
        state.attempts.remember(key, wall_now_ms(self._loop), evidence)

    def _wait(self, held: Held, failed: int, delay_ms: int | None) -> None:
        if delay_ms is None:
            delay_ms = self._verdicts.delay_of(failed)
        self._redelivery.schedule(held.entry, held.batch_index, delay_ms)

    def _nack_again(self, state: TopicState, held: Held, delay_ms: int | None) -> None:
        """Change the due time of a nacked plain message, unless it was released."""
        if (*held.entry.key, -1) in state.nacks:
            if delay_ms is None:
                delay_ms = self._verdicts.delay_of(held.failed)
            self._redelivery.schedule_unseen(state, held.entry.key, delay_ms)

    def _nack_named(self, item: Settleable, delay_ms: int | None) -> None:
        state, key, entry, message_id = self._ownership.named(item)
        if entry is None:
            if message_id.first_chunk is not None and (*key, -1) not in state.nacks:
                raise chunks_unknown(repr(message_id), "nack")
            if delay_ms is None:
                delay_ms = self._verdicts.delay_of(0)
            self._redelivery.schedule_unseen(state, key, delay_ms)
            return
        indexes = range(entry.size)
        if entry.size > 1 and message_id.batch_index() >= 0:
            index = check_index(entry, message_id)
            indexes = range(index, index + 1)
        for index in indexes:
            if self._last is not None and self._last.dead_letter_if_last(entry, index, "nack"):
                continue
            self._wait(Held(entry, index, 0, 0), state.attempts.count(entry, index), delay_ms)
