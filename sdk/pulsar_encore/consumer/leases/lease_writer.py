"""Leases on disk, which survive the process.

A lease is written before its handle is returned. A lease without a handle cannot be settled after a
restart, so its message is then redelivered at once. A moved end is written within a second: if the
process is killed before, the lease ends at its earlier end.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Final

from .lease_record import BITS, LeaseRecord

if TYPE_CHECKING:  # a consumer without `state` imports none of these modules
    from ..state_writer import StateWriter

_POLL_S: Final = 1.0
_BURST: Final = 100  # leases written in one iteration of the loop: about 2 ms


class LeaseWriter:
    def __init__(self, state_writer: StateWriter, loop: asyncio.AbstractEventLoop) -> None:
        self._state_writer = state_writer
        self._loop = loop
        self._extended: dict[int, LeaseRecord] = {}  # leases on disk with another end
        self._timer: asyncio.Handle | None = None
        self._closed = False

    def one_write(self) -> AbstractContextManager[object]:
        return self._state_writer.one_write()

    def named(self, record: LeaseRecord) -> int:
        """Write a lease with a handle; return `LeaseHandle.first_ms`."""
        if record.over is None and record.holds:
            _write(record)
        entry = record.held.entry
        durable = entry.topic_state.durable
        return (None if durable is None else durable.first_ms(entry.key)) or 0

    def extended(self, record: LeaseRecord) -> None:
        if record.handle is not None and not self._closed:
            self._extended[record.number] = record
            if self._timer is None:
                self._timer = self._loop.call_later(_POLL_S, self._poll)

    def ended(self, record: LeaseRecord) -> None:
        """Forget a lease. The call that ended it updates the disk."""
        if self._extended and not self._closed:
            self._extended.pop(record.number, None)

    # End of the consumer

    def close(self) -> None:
        """Stop the timer. `flush` or `finish` write the rest."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def flush(self) -> None:
        while self._extended:
            self._write_burst()
            await asyncio.sleep(0)

    def finish(self) -> None:
        while self._extended:
            self._write_burst()

    def forget(self) -> None:
        self.close()
        self._extended.clear()

    def _poll(self) -> None:
        try:
            self._write_burst()
        finally:
            self._timer = self._loop.call_soon(self._poll) if self._extended else None

    def _write_burst(self) -> None:
        if self._extended:
            with self.one_write():
                for record in list(islice(self._extended.values(), _BURST)):
                    del self._extended[record.number]
                    if record.holds:
                        _write(record)


def _write(record: LeaseRecord) -> None:
    entry, index, failed, _ = record.held
    entry.topic_state.lease(entry, index, record.due_ms, BITS, failed + 1)
