"""How a command is put together: type, body, and only the fields that were given.

Presence is part of the protocol: an absent field and one set to its default can mean different
things to the other side, so None always means "not on the wire".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from . import pulsar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NO_REQUEST: Final = (1 << 64) - 1
"""The request id of what no request asked for: closes and errors the broker makes itself."""

_FIELDS: Final = {
    name: (number, pb.BaseCommand.DESCRIPTOR.fields_by_number[number].name)
    for name, number in pb.BaseCommand.Type.items()
}


def build(kind: str, **fields: Any) -> pb.BaseCommand:
    """Make the command of type `kind` from its fields; those that are None stay absent."""
    number, field = _FIELDS[kind]
    command = pb.BaseCommand(type=pb.BaseCommand.Type.ValueType(number))
    body = getattr(command, field)
    body.SetInParent()
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, (list, tuple)):
            getattr(body, name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(body, name).CopyFrom(value)
        else:
            setattr(body, name, value)
    return command


def key_values(items: Mapping[str, str] | None) -> list[pb.KeyValue] | None:
    """Write a mapping as the protocol's list of pairs."""
    return None if not items else [pb.KeyValue(key=k, value=v) for k, v in items.items()]


def message_id(
    ledger_id: int,
    entry_id: int,
    *,
    partition: int | None = -1,
    batch_index: int | None = None,
    batch_size: int | None = None,
    ack_set: Iterable[int] = (),
) -> pb.MessageIdData:
    """Make a message id.

    Args:
        ledger_id: Ledger; below zero is written as 2^64 minus it (-1 with entry -1: earliest).
        entry_id: Entry, likewise.
        partition: Every client sends it, -1 included (ten bytes); None leaves it out.
        batch_index: Place in the batch, None for a whole entry.
        batch_size: Messages in the batch; brokers read it for transactions only.
        ack_set: Words of `ack_sets.to_words`; empty means the whole entry.
    """
    data = pb.MessageIdData(ledgerId=ledger_id & NO_REQUEST, entryId=entry_id & NO_REQUEST)
    if partition is not None:
        data.partition = partition
    if batch_index is not None:
        data.batch_index = batch_index
    if batch_size is not None:
        data.batch_size = batch_size
    data.ack_set.extend(ack_set)
    return data
