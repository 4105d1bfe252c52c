"""Carries out what a fault plan says, on one connection.

The plan decides by counting; here commands are dropped, held, doubled or refused, and connections
closed. A delayed command is overtaken by later ones. Of faults that fire on the same command, the
first that stops it wins.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..wire import pulsar_pb2 as pb
from .names import parse
from .refusal import Refusal
from .refusing import refuse

if TYPE_CHECKING:
    from ..wire.frames import Frame
    from .connection import Connection
    from .faults import Fault, FaultPlan
    from .hub import Attached, Publishing

_FIELDS = {
    name: pb.BaseCommand.DESCRIPTOR.fields_by_number[number].name
    for name, number in pb.BaseCommand.Type.items()
}


def receive_faulty(conn: Connection, plan: FaultPlan, name: str, frame: Frame) -> None:
    """Handle a command as the plan lets it."""
    topic = _topic_of(conn, name, frame.command) if plan.by_topic else None
    faults = plan.step("in", name, topic)
    for fault in faults:
        if fault.kind == "delay":
            _later(fault, conn.handle, name, frame)
            return
        if fault.kind == "refuse":
            refusal = Refusal(fault.error, f"refused by the fault plan: {name}")
            conn.send(refuse(frame.command, refusal))
            return
        if _stops(conn, fault):
            return
    for fault in faults:
        if fault.kind == "duplicate":
            conn.handle(name, frame)
    conn.handle(name, frame)
    _close_after(conn, faults)


def send_faulty(conn: Connection, plan: FaultPlan, name: str, command: bytes, body: bytes) -> None:
    """Queue a command as the plan lets it."""
    topic = None
    if plan.by_topic:
        topic = _topic_of(conn, name, pb.BaseCommand.FromString(command))
    faults = plan.step("out", name, topic)
    for fault in faults:
        if fault.kind == "delay":
            _later(fault, conn.queue, name, command, body)
            return
        if _stops(conn, fault):
            return
    for fault in faults:
        if fault.kind == "duplicate":
            conn.queue(name, command, body)
    conn.queue(name, command, body)
    _close_after(conn, faults)


def _later(fault: Fault, call: Any, *arguments: Any) -> None:
    asyncio.get_running_loop().call_later(fault.delay_ms / 1000, call, *arguments)


def _stops(conn: Connection, fault: Fault) -> bool:
    """Whether the fault is the end of this command."""
    # Closing waits for the loop: the caller may be in the middle of serving a subscription.
    if fault.kind == "close_before":
        asyncio.get_running_loop().call_soon(conn.close)
    elif fault.kind == "outage":
        asyncio.get_running_loop().call_soon(conn.hub.start_outage, fault.outage_s)
    return fault.kind in ("drop", "close_before", "outage")


def _close_after(conn: Connection, faults: list[Fault]) -> None:
    if any(fault.kind == "close_after" for fault in faults):
        asyncio.get_running_loop().call_soon(conn.close)


def _topic_of(conn: Connection, name: str, command: pb.BaseCommand) -> str | None:
    """The topic a command is about, for faults that name one."""
    content: Any = getattr(command, _FIELDS[name])
    if hasattr(content, "topic"):
        try:
            return parse(content.topic).full
        except Refusal:
            return None
    held: Attached | Publishing | None = None
    if hasattr(content, "consumer_id"):
        held = conn.consumers.get(content.consumer_id)
    elif hasattr(content, "producer_id"):
        held = conn.producers.get(content.producer_id)
    return held.state.name if held else None
