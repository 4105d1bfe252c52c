"""How a message was encrypted, from the metadata of its entry (`crypto_keys.ContextFields`).

A chunked message shows the keys of its last chunk; each chunk has keys of its own.
"""

from __future__ import annotations

from ....options import CompressionType
from ....wire import pulsar_pb2 as pb
from ....wire.entries import properties, text
from ....wire.entry_encryption import is_encrypted


class _Key:
    """A key that the data key was encrypted with (`crypto_keys.KeyFields`)."""

    def __init__(self, fields: pb.EncryptionKeys) -> None:
        self._fields = fields

    @property
    def key(self) -> str:
        return text(self._fields.key)

    @property
    def metadata(self) -> dict[str, str]:
        return properties(self._fields.metadata)

    def value(self) -> bytes:
        return self._fields.value


class MessageEncryption:
    """How the messages of an entry were encrypted."""

    def __init__(self, metadata: pb.MessageMetadata, failed: bool) -> None:
        self._metadata = metadata
        self._failed = failed

    def keys(self) -> list[_Key]:
        return [_Key(each) for each in self._metadata.encryption_keys]

    def param(self) -> bytes:
        return self._metadata.encryption_param

    def algorithm(self) -> str:
        return text(self._metadata.encryption_algo)

    def compression_type(self) -> CompressionType:
        return CompressionType(self._metadata.compression)

    def uncompressed_message_size(self) -> int:
        # Producers may set it for uncompressed messages too.
        compressed = self._metadata.compression != pb.NONE
        return self._metadata.uncompressed_size if compressed else 0

    def batch_size(self) -> int:
        metadata = self._metadata
        batched = metadata.HasField("num_messages_in_batch")
        return metadata.num_messages_in_batch if batched else -1

    def is_decryption_failed(self) -> bool:
        return self._failed


def encryption_of(
    metadata: pb.MessageMetadata, *, failed: bool = False
) -> MessageEncryption | None:
    """Return how an entry was encrypted, or None. If `failed`, it is still encrypted."""
    return MessageEncryption(metadata, failed) if is_encrypted(metadata) else None
