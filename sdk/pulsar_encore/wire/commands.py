"""Commands: the messages of the protocol, wrapped for the wire.

A caller fills in the generated message of a command, and `frames.encode` writes it::

    encode(pb.CommandFlow(consumer_id=1, messagePermits=1000))

An absent field and a field set to its default can mean different things to the receiver. A field
that is None is absent. How brokers treat the fields: `docs/notes/wire-protocol.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from . import pulsar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from google.protobuf.message import Message

PROTOCOL_VERSION: Final = 21
"""The newest version that this package implements."""

_MAX_U64: Final = (1 << 64) - 1

NO_REQUEST: Final = _MAX_U64
"""Request id of closes and errors that a broker sends without a request."""

BODY_FIELDS: Final = {
    number: pb.BaseCommand.DESCRIPTOR.fields_by_number[number].name
    for number in pb.BaseCommand.Type.values()
}
"""By type: the field of `BaseCommand` that holds the body. Its number equals the type."""

_TYPES: Final = {
    type(getattr(pb.BaseCommand(), field)): number for number, field in BODY_FIELDS.items()
}


def base_command(command: Message) -> pb.BaseCommand:
    if isinstance(command, pb.BaseCommand):
        return command
    kind = _TYPES[type(command)]
    wrapped = pb.BaseCommand(type=kind)
    getattr(wrapped, BODY_FIELDS[kind]).CopyFrom(command)
    return wrapped


def key_values(items: Mapping[str, str] | None) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=value) for key, value in (items or {}).items()]


def message_id(
    ledger_id: int,
    entry_id: int,
    *,
    partition: int | None = -1,
    batch_index: int | None = None,
    ack_set: Iterable[int] = (),
) -> pb.MessageIdData:
    """Make a message id.

    Args:
        ledger_id: A negative number is written modulo 2^64, as brokers do. -1 with entry -1 is the
            earliest position.
        partition: Clients send it even when it is -1, which takes ten bytes. None leaves it out.
        ack_set: Words of `ack_set_words.to_words`. Without any, the id means the whole entry.
    """
    return pb.MessageIdData(
        ledgerId=ledger_id & _MAX_U64,
        entryId=entry_id & _MAX_U64,
        partition=partition,
        batch_index=batch_index,
        ack_set=ack_set,
    )
