"""Inject the faults of a fault plan into a session.

Later commands overtake a delayed command. If several faults fire on one command, the first that
stops the command wins.
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
    """Apply faults to a command.

    Args:
        carry_out: Handles or queues the command.
        refuse: Answers with the fault's error; None for commands from the broker.
    """
    clock = service.clock
    for fault in faults:
        if fault.kind == "delay":
            clock.call_later(fault.delay_ms / 1000, carry_out)
            return
        if fault.kind == "refuse" and refuse is not None:
            refuse(fault)
            return
        # Closing is deferred: the caller may be in the middle of serving a subscription.
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
    """Return the topic of a command, for faults that name a topic."""
    content: Any = getattr(command, BODY_FIELDS[command.type])
    # the answer to a topic watch has a list of topics
    if isinstance(getattr(content, "topic", None), str):
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
