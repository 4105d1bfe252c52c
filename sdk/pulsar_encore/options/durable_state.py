"""The option `state` of a consumer: `RocksState`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from ..errors import ConfigurationError
from ..values.backoff import to_ms
from .checks import check_booleans, check_choice, directory


@dataclass(frozen=True, slots=True)
class RocksState:
    """Keep due times and delivery attempts in a RocksDB directory (after RocketMQ's RIP-73).

    Needs ``pip install pulsar-encore[state]``. All consumers and topics of a process can share a
    directory; each process needs its own.

    Args:
        path: Directory on a local disk. It is created if it is missing.
        count_attempts: "before" writes each delivery to disk before the application gets the
            message, so that an attempt that kills the process is counted (one write for each
            `receive` or `batch_receive`). "lazy" writes failed attempts, and deliveries that are
            held longer than `stay_buffer`, at the latest after twice that time; a kill forgets
            newer attempts. "explicit" writes failed attempts, and a delivery when
            `Consumer.begin_attempt` is called for its message: for a program that receives messages
            some time before it processes them. None: "before" with a `dead_letter_policy`, else
            "lazy".
        stay_buffer: With "lazy", a message that is settled within this time is never written. s or
            a timedelta; RocketMQ's popCkStayBufferTime.
        durability: "kill": writes survive a killed process, and a crash of the machine except for
            its last seconds. "power": writes survive a power cut after the fsync that follows each
            burst of writes.
        salvage: Move corrupted files aside and use the readable part. By default they are a
            `StateDamagedError`.
        on_mismatch: Reaction to ids that belong to other messages, because the directory is of
            another cluster or a topic was deleted and created again. A message that differs from
            its record is delivered as new. "error": the consumer fails with `StateMismatchError` if
            the first 100 entries of a topic that have a record all differ. The records stay on disk
            for their own cluster, and until one message matches, attempts of differing messages are
            counted in memory only. "fresh": differing records are deleted, and the consumer
            continues. Records of format 1 do not identify their message and match any.

    Raises:
        ConfigurationError: if an option is wrong.

    Example:
        ```python
        consumer = await client.subscribe(
            "orders", "billing", pulsar_encore.ConsumerType.Shared,
            state=pulsar_encore.RocksState("/var/lib/billing/state"),
        )
        ```
    """

    path: str | os.PathLike[str]
    count_attempts: Literal["before", "lazy", "explicit"] | None = None
    stay_buffer: float | timedelta = 10.0
    durability: Literal["kill", "power"] = "kill"
    salvage: bool = False
    on_mismatch: Literal["error", "fresh"] = "error"

    def __post_init__(self) -> None:
        path = directory(self.path, "RocksState")
        try:
            str(path).encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"the path of RocksState must be valid Unicode, because RocksDB takes UTF-8: "
                f"{path!r}. Name another directory"
            ) from error
        object.__setattr__(self, "path", path)
        check_choice(self.count_attempts, "count_attempts", "before", "lazy", "explicit", None)
        check_choice(self.durability, "durability", "kill", "power")
        check_choice(self.on_mismatch, "on_mismatch", "error", "fresh")
        check_booleans(self)
        if to_ms(self.stay_buffer, "stay_buffer") < 1:
            raise ConfigurationError("stay_buffer must be at least 1 ms")
