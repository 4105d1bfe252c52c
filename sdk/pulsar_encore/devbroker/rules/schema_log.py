"""The schema versions of one topic.

Schemas of different types are incompatible. Pulsar also compares structures; this broker does not.
"""

from __future__ import annotations

from ...wire import pulsar_pb2 as pb
from .refusal import Refusal

_AUTO_CONSUME = 21


class SchemaLog:
    def __init__(self) -> None:
        self._versions: list[pb.Schema] = []

    def register(self, schema: pb.Schema) -> bytes:
        """Find or add a schema; return its version, empty for no schema."""
        if schema.type == _AUTO_CONSUME or schema.type == pb.Schema.Type.Value("None"):
            return b""
        for version, known in enumerate(self._versions):
            if known.type == schema.type and known.schema_data == schema.schema_data:
                return _version(version)
        if self._versions and self._versions[-1].type != schema.type:
            name = pb.Schema.Type.Name
            raise Refusal(
                "IncompatibleSchema",
                f"the topic has schema type {name(self._versions[-1].type)}, "
                f"not {name(schema.type)}",
            )
        kept = pb.Schema()
        kept.CopyFrom(schema)
        self._versions.append(kept)
        return _version(len(self._versions) - 1)

    def get(self, version: bytes | None) -> tuple[pb.Schema, bytes]:
        """Return one version, or the latest for None."""
        if version is not None and len(version) != 8:
            raise Refusal("IncompatibleSchema", "a schema version is 8 bytes")
        at = len(self._versions) - 1 if version is None else int.from_bytes(version, "big")
        if not 0 <= at < len(self._versions):
            raise Refusal("TopicNotFound", "the topic has no such schema")
        return self._versions[at], _version(at)


def _version(number: int) -> bytes:
    return number.to_bytes(8, "big")
