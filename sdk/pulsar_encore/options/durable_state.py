"""Where a subscription keeps what must survive its process: `RocksState`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from ..errors import ConfigurationError
from ..values.backoff import to_ms
from .checks import boolean, directory


@dataclass(frozen=True, slots=True)
class RocksState:
    """Due times and attempts in a directory, in RocksDB (after RocketMQ's RIP-73).

    Needs the extra `state`: ``pip install pulsar-encore[state]``. Consumers and topics of one
    process share a directory; each process needs its own.

    Args:
        path: The directory, on a local disk; made when it is not there.
        count_attempts: "before": a hand-over is on disk before the application has the message, so
            one that kills its process is counted; each `receive` is a write, each `batch_receive`
            too. "lazy": written is what is held for longer than `stay_buffer`, at the latest after
            twice that, and what fails; a kill forgets the attempts of that time. None: "before"
            where there is a `dead_letter_policy` (attempts decide then), else "lazy".
        stay_buffer: What is settled within so many seconds (or a timedelta) is never written, with
            "lazy"; RocketMQ's popCkStayBufferTime.
        durability: "kill": what was written survives the death of the process, and that of the
            machine but for the last seconds. "power": it is on the disk once an fsync, made after
            each burst of writes on a thread, has ended.
        salvage: What is damaged in the directory is put aside, and what can still be read is used;
            by default that is a `StateDamagedError`.
        on_mismatch: What happens if the directory is of another cluster, or a topic was deleted and
            made again, so that ids in the directory belong to other messages. A message whose
            record was written for another one is handed over as new. (Records that an
            upgraded directory had in format 1 do not name their message, and match any.) "error":
            if the first 100 entries of a topic that have a record all differ from it, the consumer
            fails with `StateMismatchError`. The records stay on disk, so the directory can be used
            at its own cluster again. Until a message matches its record, attempts at messages that
            differ are counted in memory only. "fresh": records that differ are deleted, and the
            consumer goes on.

    Raises:
        ConfigurationError: An option is wrong.
    """

    path: str | os.PathLike[str]
    count_attempts: Literal["before", "lazy"] | None = None
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
        if self.count_attempts not in (None, "before", "lazy"):
            raise ConfigurationError(
                f'count_attempts must be "before", "lazy" or None, got {self.count_attempts!r}'
            )
        if self.durability not in ("kill", "power"):
            raise ConfigurationError(
                f'durability must be "kill" or "power", got {self.durability!r}'
            )
        if self.on_mismatch not in ("error", "fresh"):
            raise ConfigurationError(
                f'on_mismatch must be "error" or "fresh", got {self.on_mismatch!r}'
            )
        boolean(self.salvage, "salvage")
        if to_ms(self.stay_buffer, "stay_buffer") < 1:
            raise ConfigurationError("stay_buffer must be at least 1 ms")
