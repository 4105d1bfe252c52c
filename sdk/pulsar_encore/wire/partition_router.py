"""Which partition a message goes to: by its key, else round robin or always the same one.

Pure: time is an argument, the first partition is drawn by the caller. Invariant: messages of one
key go to one partition, as long as their number does not change. A producer of batches stays with
a partition until a batch of it is full or due, as the stock client does: one message each would
make batches of one. (Java's client switches by time alone, every ten batch delays.)
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ..errors import ConfigurationError
from . import key_hashes as hashing


class HashingScheme(Enum):
    """How a key becomes a number; every producer of a topic must use the same."""

    JavaStringHash = "JavaStringHash"
    """The default of Java's client."""

    BoostHash = "BoostHash"
    """The default of the C++ client and so of the stock client, which offers no other."""

    Murmur3_32Hash = "Murmur3_32Hash"
    """The same in every client."""

    def partition(self, key: str, partitions: int) -> int:
        """The partition of a key.

        Args:
            key: `partition_key` of the metadata: text, or the base64 of a binary key.
            partitions: How many there are.
        """
        if self is HashingScheme.JavaStringHash:
            return hashing.java_string(key) % partitions
        data = key.encode("utf-8", "surrogatepass")
        if self is HashingScheme.BoostHash:
            return hashing.boost(data) % partitions
        return hashing.murmur3(data) % partitions


class BatchLimits(NamedTuple):
    """When a batch is full or due.

    Attributes:
        messages: Most messages of a batch.
        size: Most bytes of a batch.
        delay_ms: Longest wait for more messages.
    """

    messages: int
    size: int
    delay_ms: float


class PartitionRouter:
    """Chooses the partition of each message of one producer.

    Args:
        start: Draws the first partition: any int, modulo the number of partitions. Producers that
            start alike would fill the partitions alike.
        hashing: For messages with a key.
        single: Messages without a key go to one partition, instead of round robin.
        batch: The limits of a producer's batches; None for one that makes none, which switches
            with every message.

    Raises:
        ConfigurationError: `start` below 0.
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
        """The partition of the next message.

        Args:
            key: `partition_key`, or None; an empty one is none, as by the stock client.
            size: Of the payload, in bytes.
            partitions: How many there are now; may grow from call to call.
            now_ms: Monotonic ms.
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
