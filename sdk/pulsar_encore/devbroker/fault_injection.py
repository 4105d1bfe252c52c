"""Carries out what a fault plan says, on one session.

The plan decides by counting; here commands are dropped, held, doubled or refused, and sessions
closed. A delayed command is overtaken by later ones. Of faults that fire on the same command, the
first that stops it wins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..wire import BODY_FIELDS, pb
from .attached import AttachedConsumer, AttachedProducer, Peer
from .broker_service import BrokerService
from .rules.faults import Fault
from .rules.names import parse
from .rules.refusal import Refusal


def inject(
    service: BrokerService,
    session: Peer,
    faults: Sequence[Fault],
    carry_out: Callable[[], None],
    refuse: Callable[[Fault], None] | None = None,
) -> None:
    """Do with a command what the faults that fire on it leave of it.

    Args:
        carry_out: Handles or queues the command.
        refuse: Answers the command with the fault's error; None for what the broker sends.
    """
    clock = service.clock
    for fault in faults:
        if fault.kind == "delay":
            clock.call_later(fault.delay_ms / 1000, carry_out)
            return
        if fault.kind == "refuse" and refuse is not None:
            refuse(fault)
            return
        # Closing waits for its turn: the caller may be in the middle of serving a subscription.
        if fault.kind == "close_before":
            clock.call_soon(session.close)
            return
        if fault.kind == "outage":
            clock.call_soon(partial(service.start_outage, fault.outage_s))
            return
        if fault.kind == "drop":
            return
    for fault in faults:
        if fault.kind == "duplicate":
            carry_out()
    carry_out()
    if any(fault.kind == "close_after" for fault in faults):
        clock.call_soon(session.close)


def topic_of(session: Peer, name: str, command: pb.BaseCommand) -> str | None:
    """The topic a command is about, for faults that name one."""
    content: Any = getattr(command, BODY_FIELDS[command.type])
    if isinstance(getattr(content, "topic", None), str):  # a watch's answer has many
        try:
            return parse(content.topic).full
        except Refusal:
            return None
    held: AttachedConsumer | AttachedProducer | None = None
    if hasattr(content, "consumer_id"):
        held = session.consumers.get(content.consumer_id)
    elif hasattr(content, "producer_id"):
        held = session.producers.get(content.producer_id)
    return held.state.name if held else None
