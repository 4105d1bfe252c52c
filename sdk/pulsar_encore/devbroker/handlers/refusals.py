"""Answers to refused commands. Several request types have an error answer of their own."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from ...wire import BODY_FIELDS, NO_REQUEST, pb
from ..rules.refusal import Refusal


def refuse(command: pb.BaseCommand, refusal: Refusal) -> Message:
    error = pb.ServerError.Value(refusal.code)
    message = refusal.message
    kinds = pb.BaseCommand
    if command.type == kinds.LOOKUP:
        return pb.CommandLookupTopicResponse(
            request_id=command.lookupTopic.request_id,
            error=error,
            message=message,
            response=pb.CommandLookupTopicResponse.Failed,
        )
    if command.type == kinds.PARTITIONED_METADATA:
        return pb.CommandPartitionedTopicMetadataResponse(
            request_id=command.partitionMetadata.request_id,
            error=error,
            message=message,
            response=pb.CommandPartitionedTopicMetadataResponse.Failed,
        )
    if command.type == kinds.GET_SCHEMA:
        return pb.CommandGetSchemaResponse(
            request_id=command.getSchema.request_id, error_code=error, error_message=message
        )
    if command.type == kinds.GET_OR_CREATE_SCHEMA:
        return pb.CommandGetOrCreateSchemaResponse(
            request_id=command.getOrCreateSchema.request_id,
            error_code=error,
            error_message=message,
        )
    if command.type == kinds.SEND:
        return pb.CommandSendError(
            producer_id=command.send.producer_id,
            # For a batch, Pulsar 4.2.4 names the last sequence id here; a receipt names the first.
            sequence_id=max(command.send.sequence_id, command.send.highest_sequence_id),
            error=error,
            message=message,
        )
    content: Any = getattr(command, BODY_FIELDS[command.type])
    if not hasattr(content, "request_id"):
        return pb.CommandError(error=error, message=message, request_id=NO_REQUEST)
    return pb.CommandError(request_id=content.request_id, error=error, message=message)
