"""Leases on disk: one whose handle somebody has outlives the process.

Owns `LeaseWriter`. A lease is written when its handle is asked for, before it is told; nobody can
settle one without after a restart, so its message comes again at once then. An end that is moved is
written within a second, with others: a process that is killed before has its lease end when it was
to end before that. Refuses to know what the disk refuses: what is in memory only is written again
by `StateWriter`, and said in the statistics.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Final

from .lease_record import BITS, LeaseRecord

if TYPE_CHECKING:  # a consumer that keeps no state loads none of its modules
    from ..state_writer import StateWriter

_POLL_S: Final = 1.0
_BURST: Final = 100  # leases written in one turn of the loop: 2 ms or so


class LeaseWriter:
    """The leases of one consumer, in its state.

    Args:
        state_writer: The state.
        loop: The consumer's event loop.
    """

    def __init__(self, state_writer: StateWriter, loop: asyncio.AbstractEventLoop) -> None:
        self._state_writer = state_writer
        self._loop = loop
        self._extended: dict[int, LeaseRecord] = {}  # written, with another end
        self._timer: asyncio.Handle | None = None
        self._closed = False

    def one_write(self) -> AbstractContextManager[object]:
        """What ends inside is one write."""
        return self._state_writer.one_write()

    def named(self, record: LeaseRecord) -> int:
        """Somebody is about to have the handle of a lease.

        Returns:
            `Handle.first_ms`.
        """
        if record.over is None and record.holds:
            _write(record)
        entry = record.held.entry
        durable = entry.source.durable
        return (None if durable is None else durable.first_ms(entry.key)) or 0

    def extended(self, record: LeaseRecord) -> None:
        """The end of one was moved."""
        if record.handle is not None and not self._closed:
            self._extended[record.number] = record
            if self._timer is None:
                self._timer = self._loop.call_later(_POLL_S, self._poll)

    def ended(self, record: LeaseRecord) -> None:
        """It is over: what is on disk of it is the matter of what ended it."""
        if self._extended and not self._closed:
            self._extended.pop(record.number, None)

    # Endings

    def close(self) -> None:
        """The consumer ends, and with it every lease here; on disk they go on, to the ends that
        they have now, once `flush` or `finish` has written those."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def flush(self) -> None:
        """Write what was moved by now, a burst a turn of the loop."""
        while self._extended:
            self._write_burst()
            await asyncio.sleep(0)

    def finish(self) -> None:
        """The same without an event loop."""
        while self._extended:
            self._write_burst()

    def forget(self) -> None:
        """The subscription was deleted: nothing more is written."""
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
    entry.source.lease(entry, index, record.due_ms, BITS, failed + 1)
