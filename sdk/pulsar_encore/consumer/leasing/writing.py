"""Leases on disk: one whose handle somebody has outlives the process.

Owns `LeaseWriter`. A lease is written when its handle is asked for, before it is told; nobody can
settle one without after a restart, so its message comes again at once then. An end that is moved is
written within a second, with others: a process that is killed before has its lease end when it was
to end before that. Refuses to know what the disk refuses: what is in memory only is written again
by `Durability`, and said in the statistics.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Final

from .grant import BITS, Grant

if TYPE_CHECKING:  # a consumer that keeps no state loads none of its modules
    from ..durability import Durability

_LOOK_S: Final = 1.0
_BURST: Final = 100  # leases written in one turn of the loop: 2 ms or so


class LeaseWriter:
    """The leases of one consumer, in its state.

    Args:
        durability: The state.
        loop: The consumer's event loop.
    """

    def __init__(self, durability: Durability, loop: asyncio.AbstractEventLoop) -> None:
        self._durability = durability
        self._loop = loop
        self._extended: dict[int, Grant] = {}  # written, with another end
        self._timer: asyncio.Handle | None = None
        self._closed = False

    def one_write(self) -> AbstractContextManager[object]:
        """What ends inside is one write."""
        return self._durability.one_write()

    def named(self, grant: Grant) -> int:
        """Somebody is about to have the handle of a lease.

        Returns:
            `Handle.first_ms`.
        """
        if grant.over is None and grant.holds:
            _write(grant)
        entry = grant.held.entry
        durable = entry.source.durable
        return (None if durable is None else durable.first_ms(entry.key)) or 0

    def extended(self, grant: Grant) -> None:
        """The end of one was moved."""
        if grant.handle is not None and not self._closed:
            self._extended[grant.number] = grant
            if self._timer is None:
                self._timer = self._loop.call_later(_LOOK_S, self._look)

    def ended(self, grant: Grant) -> None:
        """It is over: what is on disk of it is the matter of what ended it."""
        if self._extended and not self._closed:
            self._extended.pop(grant.number, None)

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

    def _look(self) -> None:
        try:
            self._write_burst()
        finally:
            self._timer = self._loop.call_soon(self._look) if self._extended else None

    def _write_burst(self) -> None:
        if self._extended:
            with self.one_write():
                for grant in list(islice(self._extended.values(), _BURST)):
                    del self._extended[grant.number]
                    if grant.holds:
                        _write(grant)


def _write(grant: Grant) -> None:
    entry, index, failed, _ = grant.held
    entry.source.lease(entry, index, grant.due_ms, BITS, failed + 1)
