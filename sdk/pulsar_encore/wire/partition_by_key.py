"""The partition of a message: by its key, else round robin or always the same one.

A producer of batches stays with a partition until its batch there is full or due, as
`pulsar-client` does: switching with each message would make batches of one message. (Java's client
switches by time alone, every ten batch delays.)
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..errors import ConfigurationError
from . import key_hashes as hashing


class HashingScheme(Enum):
    """How a key becomes a number. Every producer of a topic must use the same scheme."""

    JavaStringHash = "JavaStringHash"
    """The default of Java's client."""

    BoostHash = "BoostHash"
    """The default of the C++ client, and the only scheme of `pulsar-client`."""

    Murmur3_32Hash = "Murmur3_32Hash"
    """The same in every client."""

    def partition(self, key: str, partitions: int) -> int:
        """Return the partition of a key: text, or the base64 of a binary key."""
        if self is HashingScheme.JavaStringHash:
            return hashing.java_string(key) % partitions
        data = key.encode("utf-8", "surrogatepass")
        if self is HashingScheme.BoostHash:
            return hashing.boost(data) % partitions
        return hashing.murmur3(data) % partitions


class BatchLimits(NamedTuple):
    """The limits at which a batch is full or due: messages, bytes, and time since its first
    message."""

    messages: int
    size: int
    delay_ms: float


class PartitionRouter:
    """Chooses the partition of each message of one producer.

    Args:
        start: The first partition: a random int, taken modulo the number of partitions. Producers
            with equal starts would fill the partitions alike.
        single: True sends messages without a key to one partition, instead of round robin.
        batch: The limits of the producer's batches; None to switch with every message.
    """

    def __init__(
        self,
        *,
        start: int,
        hashing: HashingScheme = HashingScheme.BoostHash,
        single: bool = False,
        batch: BatchLimits | None = None,
    ) -> None:
        if start < 0:
            raise ConfigurationError(f"start must be 0 or more, not {start}")
        self._next_partition = start
        self._hashing = hashing
        self._single = single
        self._batch = batch
        self._messages = 0
        self._size = 0
        self._since_ms: float | None = None

    def route(self, key: str | None, *, size: int, partitions: int, now_ms: float) -> int:
        """Return the partition of the next message; the number of partitions may grow.

        An empty key counts as None, as in `pulsar-client`.
        """
        if partitions == 1:
            return 0
        if key:
            return self._hashing.partition(key, partitions)
        if self._single:
            return self._next_partition % partitions
        if self._batch is None:
            at = self._next_partition
            self._next_partition += 1
            return at % partitions
        if self._since_ms is None:
            self._since_ms = now_ms
        elif self._batch_ends(self._batch, size, now_ms - self._since_ms):
            self._next_partition += 1
            self._messages = self._size = 0
            self._since_ms = now_ms
        self._messages += 1
        self._size += size
        return self._next_partition % partitions

    def _batch_ends(self, batch: BatchLimits, size: int, age_ms: float) -> bool:
        return (
            self._messages >= batch.messages
            or self._size + size > batch.size
            or age_ms >= batch.delay_ms
        )
