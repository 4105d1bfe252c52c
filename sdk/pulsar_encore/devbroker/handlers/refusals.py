"""Which answer carries a refusal: every request has its own."""

from __future__ import annotations

from typing import Any

from ...wire import answers
from ...wire import pulsar_pb2 as pb
from ..rules.refusal import Refusal


def refuse(command: pb.BaseCommand, refusal: Refusal) -> pb.BaseCommand:
    """The answer to a refused command."""
    error = pb.ServerError.Value(refusal.code)
    message = refusal.message
    kinds = pb.BaseCommand
    if command.type == kinds.LOOKUP:
        return answers.lookup_response(command.lookupTopic.request_id, error=error, message=message)
    if command.type == kinds.PARTITIONED_METADATA:
        return answers.partitioned_metadata_response(
            command.partitionMetadata.request_id, error=error, message=message
        )
    if command.type == kinds.GET_SCHEMA:
        return answers.get_schema_response(
            command.getSchema.request_id, error=error, message=message
        )
    if command.type == kinds.GET_OR_CREATE_SCHEMA:
        return answers.get_or_create_schema_response(
            command.getOrCreateSchema.request_id, error=error, message=message
        )
    if command.type == kinds.SEND:
        return answers.send_error(
            command.send.producer_id,
            # Of a batch the last one, as Pulsar has it (4.2.4); a receipt has the first.
            sequence_id=max(command.send.sequence_id, command.send.highest_sequence_id),
            error=error,
            message=message,
        )
    field = pb.BaseCommand.DESCRIPTOR.fields_by_number[command.type].name
    content: Any = getattr(command, field)
    if not hasattr(content, "request_id"):
        return answers.error(error=error, message=message)
    return answers.error(content.request_id, error=error, message=message)
